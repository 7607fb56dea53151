"""What ``tied`` and ``auto`` are to reach, with nothing tuned per scenario: limits, and what was measured.

The limits are the project's own goals. A limit holds when the mean over seeds is within it; where the interval of 95 %
also reaches beyond it, the line says so.

Busy time is to be no more than plain's. Where nothing but chance tells the two apart (each pause stalls a few more or
fewer running copies, 200 ms each) a mean is above 1 every other time, so there the limit is broken when the whole
interval is above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task
from cluster.compare.promises.cells import cell_of, milliseconds, plain_tallies_of, tallies_of, tasks_for
from cluster.compare.statistics import mean_of
from cluster.compare.tally import Tally

__all__ = ["BUSY", "GOALS", "Goal", "Reached", "judged", "lines_of", "reached", "tasks_of"]

Pair = tuple[Tally, Tally]
"""A run and the plain run with the same seed."""


BUSY = "busy time / plain"


def _percentile(percent: float) -> Callable[[Pair], float]:
    return lambda pair: milliseconds(pair[0], percent)


QUANTITIES: dict[str, Callable[[Pair], float]] = {
    "p50 ms": _percentile(50.0),
    "p99 ms": _percentile(99.0),
    "p99.9 ms": _percentile(99.9),
    "executions per call": lambda pair: pair[0].executions / pair[0].calls,
    BUSY: lambda pair: (pair[0].busy_seconds / pair[0].calls) / (pair[1].busy_seconds / pair[1].calls),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits of one scenario at some loads or rates and latencies (seconds), for each of the policies."""

    scenario: str
    limits: dict[str, float]
    loads: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    latencies: tuple[float, ...] = (0.001,)
    policies: tuple[str, ...] = ("tied", "auto")
    budget: float | None = None

    def cells(self, scale: float) -> list[Cell]:
        """Its cells."""
        traffic: list[dict[str, float]] = [{"load": load} for load in self.loads]
        traffic += [{"rate": rate} for rate in self.rates]
        return [
            cell_of(self.scenario, policy, latency=latency, scale=scale, budget=self.budget, **arrivals)
            for arrivals in traffic or [{}]
            for latency in self.latencies
            for policy in self.policies
        ]


_CALM = {"p99.9 ms": 75.0, "executions per call": 1.06, BUSY: 1.0}
GOALS = (
    Goal("pauses", _CALM, loads=(0.30, 0.60), latencies=(0.0005, 0.005, 0.020)),
    Goal("pauses", {**_CALM, "executions per call": 1.15}, loads=(0.85,), latencies=(0.0005, 0.005, 0.020)),
    Goal(
        "rare-stalls",
        {"p50 ms": 11.0, "p99 ms": 25.0, "p99.9 ms": 30.0, "executions per call": 1.05, BUSY: 1.0},
        rates=(2_500.0, 4_500.0),
        latencies=(0.0002, 0.001, 0.005, 0.020),
    ),
    Goal("long-tail", {"p99 ms": 180.0, "executions per call": 1.06}, rates=(380.0,)),
    Goal("stragglers", {"p99 ms": 17.0, "p99.9 ms": 30.0, "executions per call": 1.10}, budget=0.10),
)


@dataclass(frozen=True, slots=True)
class Reached:
    """A measured number and its limit; ``low`` and ``high`` are the interval over seeds (None with one)."""

    cell: Cell
    quantity: str
    limit: float
    value: float
    low: float | None
    high: float | None

    @property
    def holds(self) -> bool:
        """Whether the mean is within the limit; of the busy time, whether it is not surely beyond."""
        return self.value <= self.limit or self.by_chance

    @property
    def by_chance(self) -> bool:
        """Whether the busy time is above the limit, but not beyond the interval over seeds."""
        return self.quantity == BUSY and self.value > self.limit and self.low is not None and self.low <= self.limit

    @property
    def surely(self) -> bool:
        """Whether the whole interval is."""
        return self.holds and (self.high is None or self.high <= self.limit)


def tasks_of(scale: float, seeds: Sequence[int], only: str = "") -> list[Task]:
    """All runs of the cells that have ``only`` in their words (``words_of``)."""
    return tasks_for([cell for goal in GOALS for cell in goal.cells(scale) if only in words_of(cell)], seeds)


def words_of(cell: Cell) -> str:
    """A cell as people name it: ``pauses, 60 %, 5 ms``; without the load in a closed loop."""
    load = "" if cell.load is None else f", {cell.load * 100:.0f} %"
    return f"{cell.scenario}{load}, {cell.mesh_latency.default.mean * 1000:g} ms"


def lines_of(scale: float, seeds: Sequence[int], results: Results, only: str = "") -> list[Reached]:
    """Every limit with what was measured."""
    lines: list[Reached] = []
    for goal in GOALS:
        for cell in goal.cells(scale):
            if only in words_of(cell):
                lines += judged(cell, goal.limits, seeds, results)
    return lines


def judged(cell: Cell, limits: Mapping[str, float], seeds: Sequence[int], results: Results) -> list[Reached]:
    """What was measured in one cell, next to its limits."""
    pairs = list(zip(tallies_of(cell, seeds, results), plain_tallies_of(cell, seeds, results), strict=True))
    return [
        reached(cell, quantity, limit, [QUANTITIES[quantity](pair) for pair in pairs])
        for quantity, limit in limits.items()
    ]


def reached(cell: Cell, quantity: str, limit: float, values: Sequence[float]) -> Reached:
    """A limit and the values of several seeds. Raises ``ValueError`` without one."""
    mean = mean_of(values)
    if mean is None:
        raise ValueError("values: there is none")
    low, high = mean.interval or (None, None)
    return Reached(cell, quantity, limit, mean.value, low, high)
