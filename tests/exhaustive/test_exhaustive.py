"""Every interleaving of small worlds: no invariant is broken, and from every state the calls can end."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.exhaustive.__main__ import one_walk
from tests.exhaustive.case import FAULTS, TIE, Case
from tests.exhaustive.cases import COMPLETE, EVERY_RUN, WHEN_THERE_IS_TIME
from tests.exhaustive.nightly import Nightly
from tests.exhaustive.search import Report, Search
from tests.exhaustive.walks import SHARED, Walker, draw
from tests.mutants.mutants import MUTANTS, Mutant
from tiedreq.core.call import CallCore
from tiedreq.core.events import CallRequested, ResultReceived, TimePassed
from tiedreq.core.policy import Plain

ROOT = Path(__file__).resolve().parent.parent.parent


def show(capsys: pytest.CaptureFixture[str], report: Report) -> None:
    with capsys.disabled():
        print(f"\n{report}", end="", flush=True)


QUICK_STATES_MAX = 15_000
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
def test_as_long_as_told(minutes: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Larger cases and random walks. The walks are new each time; the first seed is told, and what replays one."""
    seed = random.SystemRandom().randrange(10**9)

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", end="", flush=True)

    night = Nightly(WHEN_THERE_IS_TIME, 60 * minutes, seed, say=say).run()
    say(str(night))
    assert not night.broken, "\n".join(night.broken)


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


def test_a_search_that_is_over_leaves_nothing_in_memory() -> None:
    gc.disable()
    try:
        search = Search(Case("gone", 1, ("crash", "evict")))
        search.run()
        tables = weakref.ref(search.world.tables)
        del search
        assert tables() is None
    finally:
        gc.enable()


def test_a_search_that_is_stopped_says_so() -> None:
    report = Search(COMPLETE, states_max=100).run()
    assert not report.complete and report.states < 1_000 and "not all" in str(report)


class Dithering(CallCore):
    """A call that hears no answer and is never at rest: its timer fires for ever, and changes something each time."""

    def _call_requested(self, event: CallRequested, now: float) -> None:
        super()._call_requested(event, now)
        self._backup_at = now + 1.0

    def _time_passed(self, event: TimePassed, now: float) -> None:
        self._untargeted ^= 1
        self._backup_at = now + 1.0

    def _result_received(self, event: ResultReceived, now: float) -> None:
        pass


def test_a_call_that_goes_round_in_circles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state of it is an end, so that only the way back from the ends (L2) shows it."""
    monkeypatch.setattr("tests.exhaustive.parts.CallCore", Dithering)
    report = Search(Case("circles", policies=(Plain(),))).run()
    assert {violation.invariant for violation in report.violations} == {"L2"} and report.complete
    assert "no end can be reached" in report.story()


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="flood"):
        Case("odd", 1, ("flood",))


# ---- a replica that stops for ever ----------------------------------------------------------------------------------


def test_with_two_replicas_only_the_deadline_ends_a_call_whose_starter_has_stopped() -> None:
    case = Case("frozen", 1, ("freeze",))
    assert {violation.invariant for violation in Search(case).run().violations} == {"L1"}
    report = Search(replace(case, deadline_ends=True)).run()
    assert report.complete and not report.violations


def test_the_complete_case_has_every_fault_there_is() -> None:
    assert set(COMPLETE.kinds) == set(FAULTS) and COMPLETE.faults == 2 and COMPLETE.replicas == 2


# ---- random walks, and the night ------------------------------------------------------------------------------------


@pytest.fixture
def break_cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutant], None]:
    """Let searches and walks run with another core."""

    def put(mutant: Mutant) -> None:
        monkeypatch.setattr("tests.exhaustive.parts.ReplicaCore", mutant.replica_core)
        monkeypatch.setattr("tests.exhaustive.parts.CallCore", mutant.call_core)

    return put


def test_a_start_that_is_told_again_after_the_clock_ran_out() -> None:
    """Nowhere to send a backup: the clock runs twice as long then, whoever repeats that the copy started."""
    assert not Walker().walk(911476580).violations


def test_walks_break_nothing_and_are_the_same_when_made_alone() -> None:
    walker = Walker()
    walks = [walker.walk(seed) for seed in range(SHARED - 4, SHARED + 4)]
    assert not [walk.story() for walk in walks if walk.violations]
    assert len({draw(walk.seed) for walk in walks}) == 2
    for walk in (walks[3], walks[7]):
        assert Walker().walk(walk.seed).names == walk.names
    assert sum(walk.faults for walk in walks) > 3 and walker.seen.count > 50


def test_a_walk_meets_what_is_broken(break_cores: Callable[[Mutant], None]) -> None:
    break_cores(MUTANTS["drop without start"])
    walker = Walker()
    broken = next(walk for walk in map(walker.walk, range(100_000)) if walk.violations)
    assert f"replay: python -m tests.exhaustive --walk {broken.seed}" in broken.story()
    assert Walker().walk(broken.seed).violations == broken.violations


def test_a_night_searches_and_walks_until_its_time_is_over() -> None:
    said: list[str] = []
    small, large = Case("small", policies=(Plain(),)), replace(COMPLETE, name="large")
    night = Nightly([small, large], 20.0, 1, say=said.append, clock=count().__next__).run()
    first, second = night.reports
    assert first.complete and not second.complete and second.depth > 1 and 100 < second.states < 4_000
    assert night.seconds >= 20 and night.walks > 3 and night.moves >= night.walked_states > 0 and not night.broken
    assert [line.split()[0] for line in said[:3]] == ["small", "large", "walks"]
    assert "2 cases searched, 1 of them to the end" in str(night) and str(night).endswith("0 broken")


def test_a_night_tells_what_is_broken_and_goes_on_with_the_next_case(break_cores: Callable[[Mutant], None]) -> None:
    break_cores(MUTANTS["ends in silence"])
    cases = [Case("tied"), Case("plain", policies=(Plain(),))]
    night = Nightly(cases, 40.0, 1, say=lambda line: None, clock=count().__next__).run()
    assert [bool(report.violations) for report in night.reports] == [True, False]
    assert night.broken[0].startswith("tied: ")


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.exhaustive", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50
    )


def test_by_hand() -> None:
    done = program("small worlds")
    assert done.returncode == 2 and "no case has a name with 'small worlds' in it" in done.stderr
    done = program("--nightly", "--minutes", "0.01", "--seed", "7", "tie of three, one fault")
    assert done.returncode == 0 and "walks from seed 7 on" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("0 broken")


def test_one_walk_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_walk(7) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == draw(7).describe() and told[1].startswith("  1. ")
    assert told[-1] == "replay: python -m tests.exhaustive --walk 7"
