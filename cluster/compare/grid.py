"""A comparison: its cells in order, its seeds, and which plain cell each is measured against.

Not for running them (``runner``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.compare.cell import NO_LATENCY, Cell
from cluster.compare.policies import twin_of, uses_mesh
from cluster.compare.rows import Row, make_row
from cluster.compare.tally import Distribution, Tally

__all__ = ["Results", "Task", "curve_of", "groups_of", "plain_cell", "rows_of", "tasks_of"]


CURVE_STEP = 0.02
"""Neighbouring points of a curve differ by at least that share."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run: a cell with one seed."""

    cell: Cell
    seed: int


Results = Mapping[Task, Tally]


def plain_cell(cell: Cell) -> Cell:
    """The cell without a policy that this one is measured against. What plain can't notice is left out of it."""
    return cell.but(policy="plain", mesh_latency=NO_LATENCY) if cell.world == "sim" else cell.but(policy="plain")


def canonical(cell: Cell) -> Cell:
    """A cell that has the same results in a simulation, and is run in its place.

    A policy that sends no notice doesn't notice their latency, and ``auto`` is another policy where it sends the same.
    """
    if cell.world != "sim":
        return cell
    same = cell.but(policy=twin_of(cell))
    return same if uses_mesh(cell) else same.but(mesh_latency=NO_LATENCY)


def tasks_of(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Task]:
    """All runs that the rows of these cells need, each once, in an order that finishes row by row."""
    needed = [part for cell in cells for part in (plain_cell(cell), canonical(cell))]
    return [Task(cell, seed) for cell in dict.fromkeys(needed) for seed in seeds]


def rows_of(cells: Sequence[Cell], seeds: Sequence[int], results: Results) -> list[tuple[Cell, Row]]:
    """The rows that are finished: all runs of their cell are there, and those of the plain one."""
    rows = []
    roots = any(cell.fan_out > 1 for cell in cells)
    for cell in cells:
        tallies = _all(results, canonical(cell), seeds)
        plain = _all(results, plain_cell(cell), seeds)
        if tallies is not None and plain is not None:
            rows.append((cell, make_row(cell, tallies, plain, beside_roots=roots)))
    return rows


def _all(results: Results, cell: Cell, seeds: Sequence[int]) -> list[Tally] | None:
    tallies = [results.get(Task(cell, seed)) for seed in seeds]
    return [tally for tally in tallies if tally is not None] if None not in tallies else None


def curve_of(cell: Cell, seeds: Sequence[int], results: Results) -> list[list[float]]:
    """The curve of a finished row's tail: [milliseconds, share of calls slower], over all seeds, thinned out."""
    latency = Distribution()
    for tally in _all(results, canonical(cell), seeds) or ():
        latency.merge(tally.latency)
    kept: list[list[float]] = []
    for seconds, share in latency.points():
        if not kept or share < kept[-1][1] * (1 - CURVE_STEP):
            kept.append([seconds * 1000, share])
    return kept


def groups_of(rows: Iterable[tuple[Cell, Row]]) -> list[dict[str, Row]]:
    """Rows by policy, for each set of rows whose cells share all but the policy."""
    groups: dict[Cell, dict[str, Row]] = {}
    for cell, row in rows:
        groups.setdefault(cell.but(policy="plain"), {})[cell.policy] = row
    return list(groups.values())
