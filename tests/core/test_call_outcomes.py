"""Design 6, rule 6: what ends a call, with one outcome; and calls that may not run twice."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.parts import BAD_ANSWER
from tests.core.telling import copy_id, copy_name
from tiedreq.core.call_table import CALL_TABLE, CallState, CallTrigger
from tiedreq.core.commands import Outcome, OutcomeKind
from tiedreq.core.errors import UnknownTransition
from tiedreq.core.events import Fault
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Submit
from tiedreq.core.policy import Plain, Tied
from tiedreq.core.types import Cause

RETRYABLE = Fault("busy", "try another", b"", True)
FINAL = Fault("bad argument", "no", b"why", False)
TIE = Tied(backup=None, stagger=0.0)
FULL = ReplicaLimits(queue_length_max=1)


def sent(t: Triangle) -> list[str]:
    """Every copy that was sent, in order, with its replica."""
    return [f"{copy_name(copy)}@{target}" for copy, target in t.watch.targets.items()]


def fill(t: Triangle, *names: str) -> None:
    """Take every slot and every place in the queue of these replicas."""
    for name in names:
        for _ in range(2):
            t.call(at=name, timeout=1000.0)
            t.flush()


# ---- rule 6: what ends a call ---------------------------------------------------------------------------------


def test_s1_one_answer_and_the_losers_are_cancelled_before() -> None:
    t = Triangle("ab")
    call = t.call(Tied(backup=None, stagger=0.0, yield_=False), at="ab")
    t.flush()
    t.finish("a", "1/r0.0")
    t.finish("b", "1/r0.1")
    t.flush()
    assert t.outcome(call) == Outcome(OutcomeKind.ANSWERED, copy_id("1/r0.0"))
    assert t.nodes["b"].core.free_slots == 1


def test_s1_after_its_end_no_event_changes_anything() -> None:
    t = Triangle("ab")
    call = t.call(TIE)
    t.cancel(call)
    core = t.calls[call]
    before = core.snapshot()
    t.cancel(call)
    t.flush()
    t.crash("a")
    t.boot("a")
    t.advance(100.0)
    assert core.snapshot() == before
    assert core.wake_at == float("inf")


def test_b09_a_retryable_failure_does_not_end_the_race_while_a_copy_lives() -> None:
    t = Triangle("ab")
    call = t.call(Tied(backup=None, stagger=0.0, yield_=False), at="ab")
    t.flush()
    t.finish("a", "1/r0.0", RETRYABLE)
    t.flush()
    assert t.outcome(call) is None and t.stats.failovers == 0
    t.finish("b", "1/r0.1")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_b09_a_permanent_failure_does() -> None:
    t = Triangle("ab")
    call = t.call(Tied(backup=None, stagger=0.0, yield_=False), at="ab")
    t.flush()
    t.finish("b", "1/r0.1", FINAL)
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None
    assert (outcome.kind, outcome.copy, outcome.code, outcome.message, outcome.details) == (
        OutcomeKind.FAILED,
        copy_id("1/r0.1"),
        "bad argument",
        "no",
        b"why",
    )


def test_b09_when_all_fail_the_first_failure_is_told() -> None:
    t = Triangle("a", rounds_max=2)
    call = t.call(Plain())
    t.flush()
    t.finish("a", "1/u0", Fault("first", "", b"", True))
    t.flush()
    t.finish("a", "1/u1", Fault("second", "", b"", True))
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None
    assert (outcome.kind, outcome.code, outcome.copy) == (OutcomeKind.FAILED, "first", copy_id("1/u0"))


def test_an_unacceptable_answer_is_a_retryable_failure() -> None:
    t = Triangle("ab", rounds_max=2)
    call = t.call(Plain(), at="ab")
    t.flush()
    t.finish("a", "1/u0", BAD_ANSWER)
    t.flush()
    assert sent(t) == ["1/u0@a", "1/u1@b"]
    t.finish("b", "1/u1", BAD_ANSWER)
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None and (outcome.kind, outcome.code) == (OutcomeKind.FAILED, "unacceptable")


def test_an_unacceptable_answer_does_not_end_the_race_while_a_copy_lives() -> None:
    t = Triangle("ab")
    call = t.call(Tied(backup=None, stagger=0.0, yield_=False), at="ab")
    t.flush()
    t.finish("a", "1/r0.0", BAD_ANSWER)
    t.flush()
    assert t.outcome(call) is None
    t.finish("b", "1/r0.1")
    t.flush()
    assert t.outcome(call) == Outcome(OutcomeKind.ANSWERED, copy_id("1/r0.1"))


@pytest.mark.parametrize(("method", "cause"), [("nowhere", Cause.UNKNOWN_METHOD), ("charge", Cause.NOT_IDEMPOTENT)])
def test_a_refusal_for_good_ends_the_call(method: str, cause: Cause) -> None:
    """A replica that knows less than its welcome said."""
    t = Triangle("ab")
    for name in "ab":
        view = t.view(name)
        view.methods["read"] = view.methods["read"]._replace(idempotent=True)
    call = t.call(TIE, at="ab")
    (flight,) = [flight for flight in t.flights if flight.route == "u>a"]
    assert isinstance(flight.message, Submit)
    index = t.flights.index(flight)
    t.flights[index] = type(flight)(flight.route, flight.link, flight.message._replace(method=method))
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None and (outcome.kind, outcome.cause) == (OutcomeKind.REJECTED, cause)


# ---- calls that may not run twice -----------------------------------------------------------------------------


def test_not_idempotent_lost_under_way_the_outcome_is_unknown() -> None:
    for started in (False, True):
        t = Triangle("ab")
        call = t.call(Plain(), method="charge", at="ab")
        if started:
            t.flush()
        t.crash("a")
        outcome = t.outcome(call)
        assert outcome is not None and (outcome.kind, outcome.cause) == (OutcomeKind.UNKNOWN, Cause.LINK_LOST)


@pytest.mark.parametrize("how", ["drain", "full", "outbox"])
def test_not_idempotent_a_copy_that_certainly_never_ran_is_followed_by_another(how: str) -> None:
    t = Triangle("ab", limits=FULL)
    if how == "drain":
        t.drain("a")
        t.drop("a>u")
    elif how == "full":
        fill(t, "a")
    else:
        t.outbox_full.add("a")
    call = t.call(Plain(), method="charge", at="ab")
    t.flush()
    assert sent(t)[-2:] == [f"{call}/u0@a", f"{call}/u1@b"]
    t.finish("b", f"{call}/u1")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_not_idempotent_a_retryable_failure_or_an_unacceptable_answer_is_final() -> None:
    for outcome in (RETRYABLE, BAD_ANSWER):
        t = Triangle("ab")
        call = t.call(Plain(), method="charge", at="ab")
        t.flush()
        t.finish("a", "1/u0", outcome)
        t.flush()
        assert t.ended(call) == OutcomeKind.FAILED
        assert sent(t) == ["1/u0@a"]


def test_not_idempotent_expired_at_the_replica_is_the_deadline() -> None:
    t = Triangle("ab")
    call = t.call(Plain(), method="charge", at="ab", timeout=1.0)
    t.flush()
    t.lag(1.0)
    t.finish("a", "1/u0", None)
    t.flush()
    assert t.ended(call) == OutcomeKind.DEADLINE


# ---- cancel and sums ------------------------------------------------------------------------------------------


def test_the_users_cancel_stops_what_is_out_and_sends_nothing_more() -> None:
    t = Triangle("abc")
    call = t.call(Tied(backup=None, copies=3, stagger=0.1), at="abc")
    t.flush()
    t.cancel(call)
    t.flush()
    assert t.ended(call) == OutcomeKind.CANCELLED
    assert all(not node.handlers for node in t.nodes.values())
    t.advance(100.0)
    assert len(sent(t)) == 1


def test_b47_sums_hold() -> None:
    t = Triangle("ab")
    done, failed, dropped = t.call(), t.call(), t.call()
    t.flush()
    t.finish("a", f"{done}/u0")
    t.flush()
    t.finish("a", f"{failed}/u0", FINAL)
    t.cancel(dropped)
    t.flush()
    stats = t.stats
    assert stats.calls == stats.answered + stats.failed + stats.cancelled == 3


def test_unlisted_pairs_of_a_call_change_nothing() -> None:
    t = Triangle("ab")
    call = t.call(TIE)
    with pytest.raises(UnknownTransition):
        CALL_TABLE.next(CallState.NEW, CallTrigger.ANSWERED)
    assert t.calls[call].state == CallState.RACING
    assert not [pair for pair in CALL_TABLE.rows if pair[0] == CallState.DONE]


# ---- refusals -------------------------------------------------------------------------------------------------


def test_a_call_that_ends_by_lost_arbiters_is_unavailable_not_overloaded() -> None:
    t = Triangle("ab", rounds_max=1)
    call = t.call(Tied(backup=None, stagger=0.0, exclusive=True), at="ab")
    t.cut("a", "b")
    t.deliver("u>b")
    t.settle("b")
    t.crash("a")
    t.flush()
    assert t.ended(call) == OutcomeKind.UNAVAILABLE


def test_a_call_that_every_replica_refused_goes_round_again_only_after_the_hint() -> None:
    t = Triangle("ab", limits=FULL)
    fill(t, "a", "b")
    sent_before = t.stats.copies_sent
    call = t.call(Tied(backup=None, stagger=0.0), at="ab")
    t.flush()
    assert t.stats.copies_sent - sent_before == 2
    hint = t.calls[call].wake_at
    assert t.now < hint < t.now + 10.0
    t.advance(hint - t.now)
    assert t.stats.copies_sent - sent_before == 4
