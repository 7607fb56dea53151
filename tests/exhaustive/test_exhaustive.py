"""Every interleaving of small worlds: no invariant is broken, and from every state the calls can end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.exhaustive.case import TIE, Case
from tests.exhaustive.cases import COMPLETE, EVERY_RUN, WHEN_THERE_IS_TIME
from tests.exhaustive.search import Report, Search

STATES_MAX = 3_000_000
"""Where a search without an end stops: it holds every state in memory, about 2 kB each."""


def show(capsys: pytest.CaptureFixture[str], report: Report) -> None:
    with capsys.disabled():
        print(f"\n{report}", end="", flush=True)


QUICK_STATES_MAX = 20_000
"""Searches with a larger floor run with the long kinds: together they take some minutes."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.soak] if case.floor > QUICK_STATES_MAX else [])
        for case in EVERY_RUN
    ],
)
def test_nothing_breaks(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    report = Search(case).run()
    show(capsys, report)
    assert not report.violations, report.story()
    assert report.complete
    assert report.states >= case.floor, "the search has lost moves"


def test_the_search_is_large_enough() -> None:
    assert COMPLETE.floor >= 100_000
    assert all(case.floor > 1 for case in EVERY_RUN), "each search has a floor"


@pytest.mark.soak
@pytest.mark.parametrize("case", WHEN_THERE_IS_TIME, ids=lambda case: case.name)
def test_nothing_breaks_in_larger_worlds(case: Case, minutes: float, capsys: pytest.CaptureFixture[str]) -> None:
    report = Search(case, states_max=STATES_MAX, seconds_max=60 * minutes).run()
    show(capsys, report)
    assert not report.violations, report.story()


@pytest.mark.parametrize("kinds", [("drain",), ("raise", "cancel"), ("evict", "age", "fill")], ids="-".join)
def test_the_reduction_hides_nothing(kinds: tuple[str, ...]) -> None:
    """Replicas come into the same states when each message is delivered on its own that changes nothing."""
    case = Case("reduced", 1, kinds, policies=(TIE,), queue_max=1, markers_max=1)
    reduced, plain = Search(case), Search(replace(case, reduced=False))
    assert not reduced.run().violations and not plain.run().violations
    assert reduced.world.tables.busy_states() == plain.world.tables.busy_states()
    assert plain.report.states > 2 * reduced.report.states


def test_two_searches_are_the_same() -> None:
    case = Case("twice", 1, ("crash",), policies=(TIE,))
    first, second = Search(case).run(), Search(case).run()
    assert (first.states, first.moves, first.ends) == (second.states, second.moves, second.ends)


def test_a_search_that_is_stopped_says_so() -> None:
    report = Search(COMPLETE, states_max=100).run()
    assert not report.complete and report.states < 1_000 and "not all" in str(report)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="flood"):
        Case("odd", 1, ("flood",))
