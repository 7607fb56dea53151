"""Published figures that are well determined, repeated under the rules of their publications.

Figures agree within 10 %; those of short published runs also where they are within what such runs give. Which don't
agree, and why, is in docs/results.md.
"""

from __future__ import annotations

import dataclasses

import pytest

from cluster.compare.agreement import articles
from cluster.compare.agreement.judge import Line
from cluster.compare.agreement.published import PUBLISHED, Published
from cluster.compare.simulated import run_cell

pytestmark = pytest.mark.agreement

CALLS = 15_000
"""Of published runs that are longer than that, so much of the beginning is repeated."""
SHARE = 0.1
"""Of the length of a run in which nothing ends well."""

LONG = {
    "rare-stalls 2500/s, after 30": "p50 p99 p99.9 executions",
    "rare-stalls 4500/s, none": "p50 p99 p99.9 executions",
    "stragglers, none": "p50 p90 p99",
    "stragglers, after 10": "p50 p90 p95 p99 p99.9",
    "stragglers, after 50": "p50 p90 p99 p99.9",
    "stragglers, p90, budget 10 %": "p50 p90 p95 p99",
    "cold-cache, none": "p50 p90 p95 p99",
    "cold-cache, after 1": "p50 p90 p95",
    "search-incident, none": "p50 p99",
    "search-incident, after 90, budget 5 %": "p50 p99",
}
EXTRA = {
    "rare-stalls 2500/s, after 30": 0.2,
    "stragglers, after 10": 0.6,
    "stragglers, after 50": 0.4,
    "search-incident, after 90, budget 5 %": 0.5,
}
"""Points of a per cent by which the share of calls with a backup may differ."""

SHORT = {
    "slow-replica, all healthy": "p99 p99.9",
    "slow-replica, random": "p90 p99",
    "slow-replica, after 100": "p99 p99.9 extra|calls",
    "long-tail 100/s, none": "p99 p99.9",
    "long-tail 100/s, after 100": "p99 p99.9",
}
RUNS = 16


def named(name: str) -> Published:
    (row,) = [row for row in PUBLISHED if row.name == name]
    return row


def measure(row: Published) -> dict[str, Line]:
    results = {task: run_cell(task.cell, task.seed) for task in articles.tasks_of([row], 1.0)}
    return {line.quantity: line for line in articles.lines_of([row], results, 1.0)}


def shorter(row: Published, share: float) -> Published:
    """One run of a part of the published length."""
    cell = row.cell
    if cell.duration is not None:
        return dataclasses.replace(row, cell=cell.but(duration=cell.duration * share), runs=1)
    assert cell.calls is not None
    return dataclasses.replace(row, cell=cell.but(calls=int(cell.calls * share)), runs=1)


@pytest.mark.parametrize("name", LONG)
def test_figures_of_long_published_runs(name: str) -> None:
    row = named(name)
    calls = row.cell.measured_calls
    lines = measure(shorter(row, min(1.0, CALLS / calls)))
    assert [lines[quantity] for quantity in LONG[name].split() if not lines[quantity].agrees] == []
    if name in EXTRA:
        extra = lines["extra calls"]
        assert extra.measured == pytest.approx(extra.expected, abs=EXTRA[name])


@pytest.mark.parametrize("name", SHORT)
def test_figures_of_short_published_runs_are_within_what_such_runs_give(name: str) -> None:
    lines = measure(dataclasses.replace(named(name), runs=RUNS))
    quantities = [quantity.replace("|", " ") for quantity in SHORT[name].split()]
    assert [lines[quantity] for quantity in quantities if not lines[quantity].agrees] == []


def test_two_copies_that_nothing_stops_are_ruinous_at_high_load() -> None:
    """The queues grow all the time, so latencies are in proportion to the length of the run."""
    lines = measure(shorter(named("rare-stalls 4500/s, two at once"), SHARE))
    assert lines["executions"].measured == lines["executions"].expected == 2
    assert lines["p50"].measured / SHARE == pytest.approx(lines["p50"].expected, rel=0.1)
    assert lines["p99"].measured / SHARE == pytest.approx(lines["p99"].expected, rel=0.1)


@pytest.mark.parametrize("words", ["idle", "busy"])
def test_a_tie_takes_off_what_was_published(words: str) -> None:
    row = named(f"bigtable {words}, tied")
    assert row.without is not None
    cell, without = row.cell.but(calls=4_000), row.without.but(calls=4_000)
    lines = measure(dataclasses.replace(row, cell=cell, without=without, runs=1))
    assert lines["busy time ratio"].measured == pytest.approx(1.0, abs=0.02)
    assert all(lines[f"{name} ratio"].measured < 1 for name in ("p50", "p90", "p99", "p99.9"))
