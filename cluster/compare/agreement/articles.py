"""Published figures next to the laboratory, each under the rules of its own publication as far as they can be had.

A published run has a length. ``measured`` is over several runs together; next to it stands what single runs of the
published length give, from the least to the most. Published and measured agree when they are within 10 %, or when
the published one is within what such runs give.

Durations are milliseconds, shares are per cent. What a publication's rule has that our policies don't is in ``rule``.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.compare.agreement.judge import Line
from cluster.compare.agreement.published import PUBLISHED, Published
from cluster.compare.cell import Cell
from cluster.compare.grid import Results, Task
from cluster.compare.tally import Tally

__all__ = ["BOUND", "PUBLISHED", "Published", "lines_of", "tasks_of"]

BOUND = 0.10
ROUNDING = 0.051
"""Shares are published with one digit."""
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
RATIO = " ratio"


def seeds_of(published: Published, scale: float) -> range:
    """How often the published run is repeated."""
    return range(1, 1 + max(1, round(published.runs * scale)))


def _cells(published: Published) -> list[Cell]:
    return [published.cell] if published.without is None else [published.cell, published.without]


def tasks_of(rows: Sequence[Published], scale: float) -> list[Task]:
    """All runs that these rows need."""
    needed = [Task(cell, seed) for row in rows for cell in _cells(row) for seed in seeds_of(row, scale)]
    return list(dict.fromkeys(needed))


def lines_of(rows: Sequence[Published], results: Results, scale: float) -> list[Line]:
    """What was measured, next to what was published."""
    return [line for row in rows for line in _lines(row, results, seeds_of(row, scale))]


def _lines(row: Published, results: Results, seeds: range) -> list[Line]:
    runs = [[results[Task(cell, seed)] for cell in _cells(row)] for seed in seeds]
    together = [Tally() for _ in _cells(row)]
    for tallies in runs:
        for whole, tally in zip(together, tallies, strict=True):
            whole.merge(tally)
    lines = []
    for name, expected in row.figures.items():
        values = [figure(name, tallies) for tallies in runs]
        measured = figure(name, together)
        agrees = abs(measured - expected) <= BOUND * expected + _rounding(name) or min(values) <= expected <= max(
            values
        )
        note = "" if agrees else row.why
        calls = together[0].calls // len(runs)
        several = len(runs) > 1
        low, high = (min(values), max(values)) if several else (None, None)
        lines.append(Line(row.name, name, expected, measured, low, high, BOUND, agrees, calls, note))
    return lines


def _rounding(name: str) -> float:
    return ROUNDING if name == "extra calls" else 0.0


def figure(name: str, tallies: Sequence[Tally]) -> float:
    """A number by its name, of a run under a policy and, for ratios, of the one without."""
    if name.endswith(RATIO):
        base = name.removesuffix(RATIO)
        return figure(base, tallies[:1]) / figure(base, tallies[1:])
    (tally,) = tallies[:1]
    if name in PERCENTILES:
        return 1000 * (tally.latency.percentile(PERCENTILES[name]) or 0.0)
    if name == "extra calls":
        return 100 * tally.backups_sent / tally.calls
    if name == "executions":
        return tally.executions / tally.calls
    assert name == "busy time", name
    return tally.busy_seconds / tally.calls
