"""Cells of named scenarios at a load or rate and a latency, and their runs with several seeds.

``scale`` makes runs longer or shorter; a window never has fewer than ``CALLS_MIN`` calls (of which four are beyond the
99.9th percentile: a short run's tail says little, several seeds say more). Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task, canonical, plain_cell
from cluster.compare.scenarios import scenario
from cluster.compare.tally import Tally
from tiedreq.units import LatencyLaw, LatencySpec

CALLS_MIN = 4_000


def cell_of(
    name: str,
    policy: str,
    *,
    latency: float,
    load: float | None = None,
    rate: float | None = None,
    scale: float = 1.0,
    budget: float | None = None,
) -> Cell:
    """The cell of a scenario at one load (utilisation by one copy per call) or rate (calls/s), and one latency."""
    fixed = scenario(name)
    fields = dict(fixed.cell)
    if load is not None or rate is not None:
        trial = Cell(**{**fields, "rate": 1.0, "workers": 0})
        capacity = trial.capacity / trial.service.mean()
        rate = load * capacity if load is not None else rate
        assert rate is not None
        fields.update(rate=rate, load=rate / capacity)
        fields.pop("workers", None)
    if fields.get("calls") is not None:
        fields["calls"] = max(CALLS_MIN, round(fields["calls"] * scale))
    elif "brown_out" not in fields:  # it has fixed times: its run is never shortened
        fields["duration"] = max(fields["duration"] * scale, CALLS_MIN / fields["rate"])
    mesh = LatencySpec(LatencyLaw(latency))
    return Cell(**fields, scenario=name, policy=policy, mesh_latency=mesh, backup_budget=budget)


def tasks_for(cells: Iterable[Cell], seeds: Sequence[int]) -> list[Task]:
    """All runs of these cells and of the plain ones they are measured against, each once."""
    needed = [part for cell in cells for part in (plain_cell(cell), canonical(cell))]
    return [Task(cell, seed) for cell in dict.fromkeys(needed) for seed in seeds]


def tallies_of(cell: Cell, seeds: Sequence[int], results: Results) -> list[Tally]:
    """The tallies of a cell, one per seed. Raises ``KeyError`` for one that was not run."""
    return [results[Task(canonical(cell), seed)] for seed in seeds]


def plain_tallies_of(cell: Cell, seeds: Sequence[int], results: Results) -> list[Tally]:
    """The tallies of the plain cell that belongs to a cell."""
    return [results[Task(plain_cell(cell), seed)] for seed in seeds]


def milliseconds(tally: Tally, percent: float) -> float:
    """A percentile of latency. Raises ``ValueError`` for a run without an answer."""
    value = tally.latency.percentile(percent)
    if value is None:
        raise ValueError("a run without a single answer has no percentiles")
    return value * 1000
