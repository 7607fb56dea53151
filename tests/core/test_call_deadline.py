"""One deadline for the whole call: it travels as time left, and nothing is sent past it."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.events import Fault
from tiedreq.core.messages import Ended, Failed, Result, Submit
from tiedreq.core.policy import Backup, Hedged, Plain, Tied

RETRYABLE = Fault("busy", "", b"", True)


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_expired_on_entry_sends_nothing(timeout: float) -> None:
    t = Triangle()
    call = t.call(Tied(backup=None, stagger=0.0), timeout=timeout)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert not t.flights


def test_time_left_travels_and_shrinks() -> None:
    t = Triangle()
    t.call(Tied(backup=None, stagger=0.25), timeout=1.0)
    t.advance(0.25)
    lefts = [f.message.remaining for f in t.flights if isinstance(f.message, Submit)]
    assert lefts == [1.0, 0.75]


def test_the_deadline_ends_the_call_and_cancels_what_is_out() -> None:
    t = Triangle()
    call = t.call(Tied(backup=None, stagger=0.0), timeout=1.0)
    t.advance(1.0)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert [t.under_way(route) for route in ("u>a", "u>b")] == [["Submit", "Cancel"]] * 2


def test_no_copy_of_a_tie_is_sent_past_the_deadline() -> None:
    t = Triangle()
    t.call(Tied(backup=None, stagger=2.0), timeout=1.0)
    t.advance(5.0)
    assert t.under_way("u>b") == []


def test_no_backup_is_armed_past_the_deadline() -> None:
    t = Triangle()
    call = t.call(Hedged(Backup(after=1.0, since="send")), timeout=1.0)
    assert t.calls[call].wake_at == t.now + 1.0
    t.advance(1.0)
    assert t.stats.backups_sent == t.stats.backups_without_target == 0


def test_a_refusal_after_the_deadline_sends_nothing() -> None:
    t = Triangle()
    t.drain("a")
    t.flights.clear()
    call = t.call(Tied(backup=None, stagger=0.5), timeout=1.0)
    t.deliver("u>a")
    t.lag(1.0)
    t.deliver("a>u", Ended)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert t.under_way("u>b") == []


def test_a_lost_link_after_the_deadline_ends_the_call() -> None:
    t = Triangle("a")
    t.call(Plain(), timeout=1.0)
    t.lag(1.5)
    t.cut("u", "a")
    assert t.ended(1) == OutcomeKind.DEADLINE


def test_a_retryable_failure_after_the_deadline_sends_nothing() -> None:
    t = Triangle()
    call = t.call(Plain(), timeout=1.0)
    t.flush()
    t.finish("a", "1/u0", RETRYABLE)
    t.lag(1.0)
    t.deliver("a>u", Failed)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert t.under_way("u>b") == []


def test_a_replica_that_comes_after_the_deadline_gets_nothing() -> None:
    t = Triangle("a")
    t.crash("a")
    call = t.call(Plain(), timeout=1.0)
    assert t.calls[call].state == CallState.WAITING
    t.lag(1.0)
    t.boot("a")
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert t.flights == []


def test_result_meets_deadline_whichever_the_call_hears_first_decides() -> None:
    for late, expected in ((False, OutcomeKind.ANSWERED), (True, OutcomeKind.DEADLINE)):
        t = Triangle()
        call = t.call(Plain(), timeout=1.0)
        t.flush()
        t.finish("a", "1/u0")
        if late:
            t.advance(1.0)
        else:
            t.lag(1.0)
        t.deliver("a>u", Result)
        assert t.ended(call) == expected


def test_a_queued_copy_expires_with_its_call() -> None:
    t = Triangle()
    t.call(at="a", timeout=5.0)
    call = t.call(at="a", timeout=1.0)
    t.flush()
    t.advance(1.0)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert t.state("a", "2/u0") is not None and t.nodes["a"].core.queue_length == 0


def test_no_attempt_outlives_the_deadline_of_the_whole_call() -> None:
    """Five attempts that each fail after 0.4 s in a call that has 1 s."""
    t = Triangle()
    call = t.call(Plain(), timeout=1.0)
    for _ in range(5):
        t.flush()
        for name in t.nodes:
            for copy in t.running(name):
                t.advance(0.4)
                if copy in t.running(name):
                    t.finish(name, f"1/u{copy.round}", RETRYABLE)
    assert t.ended(call) == OutcomeKind.DEADLINE
    assert t.stats.copies_sent == 3
