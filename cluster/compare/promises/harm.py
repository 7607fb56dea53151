"""The cure never harms: ``auto`` against plain in every cell of a grid of loads and latencies over the scenarios.

For each cell in which plain is stable: p50, p99 and p99.9 of ``auto`` are to be at most ``WORSE_MAX`` above plain's,
and its busy time per call at most 1 + budget of plain's. Runs are paired by their seeds: what is tested is the mean of
the logarithm of the ratio, by Student's t, one-sided. Over a grid there are many comparisons, and some look bad by
chance: a cell counts as harmed when it is beyond the limit by the procedure of Benjamini and Hochberg (J. Royal
Statist. Soc. B 57, 1995) at a false discovery rate of 5 %. Cells whose mean alone is beyond the limit are shown too.

Plain runs first: where it is not stable, that is, its queues grow in more than half of the seeds, nothing else is run.
A brown-out that asks for more work than there are slots is such a cell by arithmetic. Where those of ``auto`` grow and
plain's with the same seed don't, in more than half of the seeds, it has collapsed: that is harm whatever the
percentiles of runs of that length say.

In four cells of five ``auto`` is to have at least ``GAIN_SHARE`` of what the best policy gains in p99.9. A cell in
which no policy gains more than ``GAIN_MIN`` has nothing to be had, and counts as reached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task, plain_cell
from cluster.compare.promises.cells import cell_of, milliseconds, plain_tallies_of, tallies_of, tasks_for
from cluster.compare.rows import is_unstable
from cluster.compare.tally import Tally

__all__ = [
    "LATENCIES",
    "LOADS",
    "SCENARIOS",
    "Harm",
    "Report",
    "beyond_chance",
    "cells_of",
    "discoveries",
    "plain_tasks_of",
    "report",
    "split",
    "student_tail",
    "tasks_of",
]

LOADS = (0.3, 0.5, 0.7, 0.8, 0.9)
LATENCIES = (0.0, 0.0002, 0.001, 0.005, 0.020)
SCENARIOS = (
    "pauses",
    "rare-stalls",
    "slow-replica",
    "long-tail",
    "search-incident",
    "intrinsic",
    "brown-out",
    "uncancellable",
    "slow-replica-10x",
)
RIVALS = ("hedged", "backup", "tied-nobackup", "tied")
BUDGET = 0.05
WORSE_MAX = 0.05
GAIN_SHARE = 0.90
GAIN_MIN = 0.10
FALSE_DISCOVERIES = 0.05
QUANTITIES = ("p50", "p99", "p99.9", "busy time")


@dataclass(frozen=True, slots=True)
class Harm:
    """One comparison of ``auto`` with plain. ``ratio`` is the geometric mean over seeds; ``chance`` the p-value."""

    cell: Cell
    quantity: str
    ratio: float
    limit: float
    chance: float | None

    @property
    def beyond(self) -> bool:
        """Whether the mean is above the limit."""
        return self.ratio > self.limit


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome over a grid. ``gains`` has, for each stable cell, the best policy, its p99.9 over plain's, auto's.

    ``unstable``: plain is. ``collapsed``: plain is stable, and ``auto`` is not with the same seeds.
    """

    harms: list[Harm]
    proven: list[Harm]
    gains: list[tuple[Cell, str, float, float]]
    unstable: list[Cell]
    collapsed: list[Cell]

    @property
    def reached(self) -> int:
        """Cells in which ``auto`` has enough of the best policy's gain, or there is none to be had."""
        return sum(has_the_gain(best, ours) for _, _, best, ours in self.gains)

    @property
    def holds(self) -> bool:
        """No harm is proven, no queue has collapsed, and four cells of five have the gain."""
        return not self.proven and not self.collapsed and self.reached >= 0.8 * len(self.gains)


def has_the_gain(best: float, ours: float) -> bool:
    """``best`` and ``ours`` are p99.9 over plain's."""
    return 1 - best < GAIN_MIN or 1 - ours >= GAIN_SHARE * (1 - best)


def cells_of(scenarios: Iterable[str], loads: Iterable[float], latencies: Sequence[float], scale: float) -> list[Cell]:
    """The cells of ``auto``, for every scenario, load and latency."""
    return [
        cell_of(name, "auto", latency=latency, load=load, scale=scale)
        for name in scenarios
        for load in loads
        for latency in latencies
    ]


def tasks_of(cells: Sequence[Cell], seeds: Sequence[int], rivals: Sequence[str] = RIVALS) -> list[Task]:
    """All runs that these cells need."""
    return tasks_for([cell.but(policy=policy) for cell in cells for policy in ("auto", *rivals)], seeds)


def plain_tasks_of(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Task]:
    """The runs without a policy that tell where there is anything to compare with."""
    needed = dict.fromkeys(plain_cell(cell) for cell in cells if not _overloaded(cell))
    return [Task(cell, seed) for cell in needed for seed in seeds]


def split(cells: Sequence[Cell], seeds: Sequence[int], results: Results) -> tuple[list[Cell], list[Cell]]:
    """The cells in which plain is stable, and the others; the plain runs must be there."""
    unstable = [cell for cell in cells if _overloaded(cell) or _grows(cell, plain_tallies_of(cell, seeds, results))]
    return [cell for cell in cells if cell not in unstable], unstable


def _overloaded(cell: Cell) -> bool:
    """Whether one copy per call is more than all slots can do while a brown-out lasts."""
    if cell.brown_out is None or cell.load is None:
        return False
    return cell.load * (1 + cell.brown_out.extra / cell.service.mean()) >= 1


def _grows(cell: Cell, tallies: Sequence[Tally]) -> bool:
    """Whether queues grow in most of the runs. In one of several they may by chance: short ones near capacity."""
    return 2 * sum(is_unstable(cell, tally) for tally in tallies) > len(tallies)


def _collapses(cell: Cell, seeds: Sequence[int], results: Results) -> bool:
    pairs = zip(tallies_of(cell, seeds, results), plain_tallies_of(cell, seeds, results), strict=True)
    return 2 * sum(is_unstable(cell, ours) and not is_unstable(cell, plain) for ours, plain in pairs) > len(seeds)


def report(cells: Sequence[Cell], seeds: Sequence[int], results: Results, rivals: Sequence[str] = RIVALS) -> Report:
    """Judge every cell. Raises ``KeyError`` for a run that is missing."""
    harms: list[Harm] = []
    gains: list[tuple[Cell, str, float, float]] = []
    stable, unstable = split(cells, seeds, results)
    for cell in stable:
        ours, plain = tallies_of(cell, seeds, results), plain_tallies_of(cell, seeds, results)
        harms += [_harm(cell, quantity, ours, plain) for quantity in QUANTITIES]
        found = {
            rival: _ratio("p99.9", tallies_of(cell.but(policy=rival), seeds, results), plain)
            for rival in rivals
            if not _grows(cell, tallies_of(cell.but(policy=rival), seeds, results))
        }
        mine = _ratio("p99.9", ours, plain)
        best = min({**found, "auto": mine}.items(), key=lambda item: item[1])
        gains.append((cell, *best, mine))
    collapsed = [cell for cell in stable if _collapses(cell, seeds, results)]
    return Report(harms, discoveries(harms), gains, unstable, collapsed)


def _value(quantity: str, tally: Tally) -> float:
    if quantity == "busy time":
        return tally.busy_seconds / tally.calls
    return milliseconds(tally, float(quantity[1:]))


def _logs(quantity: str, ours: Sequence[Tally], plain: Sequence[Tally]) -> list[float]:
    return [math.log(_value(quantity, one) / _value(quantity, other)) for one, other in zip(ours, plain, strict=True)]


def _ratio(quantity: str, ours: Sequence[Tally], plain: Sequence[Tally]) -> float:
    return math.exp(statistics.fmean(_logs(quantity, ours, plain)))


def _harm(cell: Cell, quantity: str, ours: Sequence[Tally], plain: Sequence[Tally]) -> Harm:
    limit = 1 + (BUDGET if quantity == "busy time" else WORSE_MAX)
    logs = [value - math.log(limit) for value in _logs(quantity, ours, plain)]
    mean, chance = statistics.fmean(logs), None
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        certain = 0.0 if mean > 0 else 1.0
        chance = student_tail(mean / error, len(logs) - 1) if error > 0 else certain
    return Harm(cell, quantity, math.exp(mean) * limit, limit, chance)


def discoveries(harms: Sequence[Harm]) -> list[Harm]:
    """The comparisons that are beyond their limit at the false discovery rate: Benjamini and Hochberg's procedure."""
    tested = sorted((harm for harm in harms if harm.chance is not None), key=lambda harm: harm.chance or 0.0)
    return tested[: beyond_chance([harm.chance or 0.0 for harm in tested])]


def beyond_chance(chances: Sequence[float]) -> int:
    """How many of these rising p-values are beyond chance, together: the first so many."""
    last = 0
    for rank, chance in enumerate(chances, 1):
        if chance <= FALSE_DISCOVERIES * rank / len(chances):
            last = rank
    return last


def student_tail(t: float, freedom: int) -> float:
    """P(T > t) for Student's t with a whole number of degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    if freedom < 1:
        raise ValueError(f"freedom: {freedom!r} is not at least 1")
    theta = math.atan(t / math.sqrt(freedom))
    square = math.cos(theta) ** 2
    term, total = (1.0, 1.0) if freedom % 2 == 0 else (math.cos(theta), math.cos(theta))
    for k in range(2 if freedom % 2 else 1, freedom - 1, 2):
        term *= square * k / (k + 1)
        total += term
    if freedom % 2 == 0:
        inside = math.sin(theta) * total
    elif freedom == 1:
        inside = 2 * theta / math.pi
    else:
        inside = 2 / math.pi * (theta + math.sin(theta) * total)
    return (1 - inside) / 2
