"""What ``tied`` and ``auto`` are to reach, with nothing tuned per scenario: limits, and what was measured.

The limits are the project's own goals. A limit holds when the mean over seeds is within it; where the interval of 95 %
also reaches beyond it, the line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task
from cluster.compare.promises.cells import cell_of, milliseconds, plain_tallies_of, tallies_of, tasks_for
from cluster.compare.statistics import mean_of
from cluster.compare.tally import Tally

__all__ = ["GOALS", "Goal", "Reached", "lines_of", "tasks_of"]

Pair = tuple[Tally, Tally]
"""A run and the plain run with the same seed."""


def _percentile(percent: float) -> Callable[[Pair], float]:
    return lambda pair: milliseconds(pair[0], percent)


QUANTITIES: dict[str, Callable[[Pair], float]] = {
    "p50 ms": _percentile(50.0),
    "p99 ms": _percentile(99.0),
    "p99.9 ms": _percentile(99.9),
    "executions per call": lambda pair: pair[0].executions / pair[0].calls,
    "busy time / plain": lambda pair: (pair[0].busy_seconds / pair[0].calls) / (pair[1].busy_seconds / pair[1].calls),
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


_CALM = {"p99.9 ms": 75.0, "executions per call": 1.06, "busy time / plain": 1.005}
GOALS = (
    Goal("pauses", _CALM, loads=(0.30, 0.60), latencies=(0.0005, 0.005, 0.020)),
    Goal("pauses", {**_CALM, "executions per call": 1.15}, loads=(0.85,), latencies=(0.0005, 0.005, 0.020)),
    Goal(
        "rare-stalls",
        {"p50 ms": 11.0, "p99 ms": 25.0, "p99.9 ms": 30.0, "executions per call": 1.05, "busy time / plain": 1.0},
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
        """Whether the mean is within the limit."""
        return self.value <= self.limit

    @property
    def surely(self) -> bool:
        """Whether the whole interval is."""
        return self.holds and (self.high is None or self.high <= self.limit)


def tasks_of(scale: float, seeds: Sequence[int], only: str = "") -> list[Task]:
    """All runs of the goals whose scenario has ``only`` in its name."""
    return tasks_for([cell for goal in GOALS if only in goal.scenario for cell in goal.cells(scale)], seeds)


def lines_of(scale: float, seeds: Sequence[int], results: Results, only: str = "") -> list[Reached]:
    """Every limit with what was measured."""
    lines = []
    for goal in GOALS:
        if only not in goal.scenario:
            continue
        for cell in goal.cells(scale):
            pairs = list(zip(tallies_of(cell, seeds, results), plain_tallies_of(cell, seeds, results), strict=True))
            for quantity, limit in goal.limits.items():
                mean = mean_of([QUANTITIES[quantity](pair) for pair in pairs])
                assert mean is not None
                low, high = mean.interval or (None, None)
                lines.append(Reached(cell, quantity, limit, mean.value, low, high))
    return lines
