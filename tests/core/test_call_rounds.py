"""Design 6, rules 1, 2 and 6: what a round sends, what it keeps back, and failover in a new one."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.telling import NONCE, copy_id, copy_name
from tiedreq.core.call import CallCore, CallRequest
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import OutcomeKind, SendCopy
from tiedreq.core.events import CallRequested, CopyEnded, CopyStarted, Fault, LinkLost, ResultReceived
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Failed, Started, Submit
from tiedreq.core.policy import Plain, Tied
from tiedreq.core.types import UNTIED, CallId, Cause, CopyKind, CopyState

RETRYABLE = Fault("busy", "try another", b"", True)
TIE = Tied(backup=None, stagger=0.0)
STAGGERED = Tied(backup=None, stagger=0.1)
FULL = ReplicaLimits(queue_length_max=1)


def submits(t: Triangle, name: str) -> list[Submit]:
    return [f.message for f in t.flights if f.route == f"u>{name}" and isinstance(f.message, Submit)]


def sent(t: Triangle) -> list[str]:
    """Every copy that was sent, in order, with its replica."""
    return [f"{copy_name(copy)}@{target}" for copy, target in t.watch.targets.items()]


def fill(t: Triangle, *names: str) -> None:
    """Take every slot and every place in the queue of these replicas."""
    for name in names:
        for _ in range(2):
            t.call(at=name, timeout=1000.0)
            t.flush()


# ---- what a round sends ---------------------------------------------------------------------------------------


def test_rule_1_the_copies_of_a_tie_are_at_different_replicas_and_name_each_other() -> None:
    t = Triangle("abc")
    t.call(Tied(backup=None, copies=3, stagger=0.0), at="bca")
    assert sent(t) == ["1/r0.0@b", "1/r0.1@c", "1/r0.2@a"]
    partners = tuple(t.nodes[name].identity for name in "bca")
    for name in "abc":
        (submit,) = submits(t, name)
        assert (submit.partners, submit.yield_, submit.exclusive) == (partners, True, False)
    assert [submits(t, name)[0].kind for name in "bca"] == [CopyKind.FIRST, CopyKind.TIE, CopyKind.TIE]


def test_b19_one_replica_makes_a_lone_copy_of_any_policy() -> None:
    t = Triangle("a")
    t.call(Tied(backup=None, copies=3))
    (submit,) = submits(t, "a")
    assert (submit.copy.rank, submit.partners, submit.kind) == (UNTIED, (), CopyKind.FIRST)


def test_a_tie_of_three_with_two_replicas_is_a_tie_of_two() -> None:
    t = Triangle("ab")
    t.call(Tied(backup=None, copies=3, stagger=0.0))
    assert sent(t) == ["1/r0.0@a", "1/r0.1@b"]


def test_a_method_that_may_not_run_twice_is_sent_once_whatever_the_policy() -> None:
    t = Triangle("ab")
    t.call(TIE, method="charge")
    assert sent(t) == ["1/u0@a"]


def test_replicas_that_do_not_serve_the_method_are_not_asked() -> None:
    t = Triangle("ab")
    del t.view("a").methods["read"]
    t.call(TIE, at="ab")
    assert sent(t) == ["1/u0@b"]


def test_what_the_user_asked_for_travels_with_every_copy() -> None:
    t = Triangle("ab")
    request = CallRequest(
        CallId(NONCE, 1),
        "read",
        True,
        b"payload",
        Tied(backup=None, stagger=0.0, yield_=False, exclusive=True),
        t.now + 1.0,
        key="key",
        layered=True,
        metadata=(("trace", "1"),),
    )
    core = CallCore(request, t.table, t.stats, rounds_max=5)
    commands = core.step(CallRequested(), t.now)
    submits = [command.submit for command in commands if isinstance(command, SendCopy)]
    assert [submit.copy.rank for submit in submits] == [0, 1]
    for submit in submits:
        assert (submit.method, submit.payload, submit.key) == ("read", b"payload", "key")
        assert (submit.metadata, submit.layered) == ((("trace", "1"),), True)
        assert (submit.yield_, submit.exclusive) == (False, True)


# ---- rule 2: the copies that are not sent yet -----------------------------------------------------------------


def test_rule_2_copy_1_goes_when_its_time_has_come() -> None:
    t = Triangle("ab")
    t.call(STAGGERED)
    t.advance(0.0999)
    assert sent(t) == ["1/r0.0@a"]
    t.advance(0.0001)
    assert sent(t) == ["1/r0.0@a", "1/r0.1@b"]


def test_rule_2_once_copy_0_is_known_to_have_started_copy_1_is_not_sent() -> None:
    t = Triangle("ab")
    t.call(STAGGERED)
    t.flush()
    t.advance(1.0)
    assert sent(t) == ["1/r0.0@a"]


def test_rule_2_with_three_copies_a_start_known_from_dropped_keeps_the_third_back() -> None:
    t = Triangle("abc")
    t.call(Tied(backup=None, copies=3, stagger=0.1), at="abc")
    t.deliver("u>a")
    t.settle("a")
    t.hold("a>u")
    t.advance(0.1)
    t.flush()
    assert t.calls[1].copies[copy_id("1/r0.1")].cause == Cause.STARTED
    t.advance(1.0)
    assert sent(t) == ["1/r0.0@a", "1/r0.1@b"]


def test_rule_2_copy_0_refused_before_copy_1_was_sent_moves_it_up_in_the_same_round() -> None:
    t = Triangle("ab", limits=FULL)
    fill(t, "a")
    call = t.call(STAGGERED, at="ab")
    t.flush()
    assert sent(t)[-2:] == [f"{call}/r0.0@a", f"{call}/r0.1@b"]
    assert t.stats.failovers == 0


def test_rule_2_a_full_outbox_moves_it_up_too_and_counts_as_not_sent() -> None:
    t = Triangle("ab")
    t.outbox_full.add("a")
    t.call(STAGGERED, at="ab")
    assert sent(t) == ["1/r0.0@a", "1/r0.1@b"]
    assert (t.view("a").sent, t.view("b").sent) == (0, 1)
    assert t.stats.failovers == 0


def test_rule_2_copy_0_gone_in_any_other_way_with_copy_1_unsent_ends_the_tie() -> None:
    for how in ("lost", "failed", "stopped"):
        t = Triangle("abc")
        t.call(STAGGERED, at="abc")
        if how == "lost":
            t.crash("a")
        else:
            t.deliver("u>a")
            t.settle("a")
            t.drop("a>u", Started)
            t.finish("a", "1/r0.0", RETRYABLE if how == "failed" else None)
            t.flush()
        assert sent(t)[1] == "1/r1.0@b", how
        assert t.stats.failovers == 1
        t.advance(1.0)
        assert "1/r0.1@b" not in sent(t)


def test_rule_2_an_unsent_copy_whose_replica_is_lost_is_not_sent() -> None:
    t = Triangle("ab")
    t.freeze("a")
    t.call(STAGGERED, at="ab")
    t.crash("b")
    t.advance(1.0)
    assert sent(t) == ["1/r0.0@a"]
    assert t.ended(1) is None


def test_rule_2_copy_1_refused_with_copy_2_unsent_moves_that_up() -> None:
    t = Triangle("abc", limits=FULL)
    fill(t, "b")
    t.freeze("a")
    call = t.call(Tied(backup=None, copies=3, stagger=0.1), at="abc", timeout=100.0)
    t.advance(0.1)
    t.flush()
    assert sent(t)[-1] == f"{call}/r0.2@c"


# ---- rule 6: failover -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dropped", "yielded", "refused", "lost"])
def test_rule_6_every_way_to_be_gone_leads_to_a_new_round(how: str) -> None:
    t = Triangle("abcd")
    call = t.call(TIE, at="abcd")
    if how == "dropped":
        t.deliver("u>a")
        t.settle("a")
        t.flush()
    elif how == "yielded":
        t.flush()
    elif how == "refused":
        t.drain("b")
        t.deliver("u>b")
    t.crash("a")
    if how == "lost":
        t.crash("b")
    t.flush()
    assert sent(t)[2:] == ["1/r1.0@c", "1/r1.1@d"], how
    assert t.ended(call) is None


def test_s9_a_failover_is_a_new_round_so_that_old_notices_cannot_touch_it() -> None:
    t = Triangle("ab")
    t.call(TIE, at="ab")
    t.hold("a>b", "b>a")
    t.flush()
    t.finish("a", "1/r0.0", RETRYABLE)
    t.finish("b", "1/r0.1", RETRYABLE)
    t.deliver("a>u", Failed)
    t.deliver("b>u", Failed)
    t.deliver("u>b", Submit, "1/r1.1")
    t.deliver("a>b", Started, "1/r0.0")
    assert t.state("b", "1/r1.1") == CopyState.QUEUED
    assert t.nodes["b"].core.sizes()["markers"] == 0


def test_failover_prefers_untried_replicas_and_then_any() -> None:
    t = Triangle("abc", rounds_max=5)
    t.call(Plain(), at="abc")
    for copy, name in (("1/u0", "a"), ("1/u1", "b"), ("1/u2", "c")):
        t.flush()
        t.finish(name, copy, RETRYABLE)
    t.flush()
    assert sent(t) == ["1/u0@a", "1/u1@b", "1/u2@c", "1/u3@a"]


def test_none_reachable_no_round_is_spent_and_a_replica_that_comes_is_used() -> None:
    t = Triangle("a", rounds_max=2)
    call = t.call(Plain(), timeout=100.0)
    t.crash("a")
    assert t.calls[call].state == CallState.WAITING
    t.boot("a")
    assert (t.calls[call].state, t.stats.copies_sent) == (CallState.RACING, 2)
    t.crash("a")
    assert t.ended(call) == OutcomeKind.UNAVAILABLE


def test_a_call_made_while_none_is_reachable_waits() -> None:
    t = Triangle("a")
    t.crash("a")
    call = t.call(TIE, timeout=5.0)
    assert (t.calls[call].state, t.stats.copies_sent) == (CallState.WAITING, 0)
    t.boot("a")
    t.flush()
    t.finish("a", "1/u0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_s13_rounds_run_out_after_as_many_losses() -> None:
    t = Triangle("abc", rounds_max=3)
    call = t.call(Plain(), at="abc")
    for name in "abc":
        assert t.outcome(call) is None
        t.crash(name)
        t.boot(name)
    outcome = t.outcome(call)
    assert outcome is not None and (outcome.kind, outcome.cause) == (OutcomeKind.UNAVAILABLE, Cause.LINK_LOST)


def test_every_replica_refuses_overloaded_with_a_hint() -> None:
    t = Triangle("ab", limits=FULL, rounds_max=3)
    fill(t, "a", "b")
    call = t.call(Plain(), at="ab")
    t.flush()
    assert t.outcome(call) is None  # both are asked again after the time that they named
    t.advance(0.01)
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None and (outcome.kind, outcome.cause) == (OutcomeKind.OVERLOADED, Cause.FULL)
    assert outcome.retry_after == pytest.approx(0.01)
    assert t.stats.copies_sent == 4 + 3


def test_the_outcomes_cause_is_that_of_the_copy_that_decided() -> None:
    """One refusal, then a loss: overloaded, because of the refusal."""
    t = Triangle("ab", limits=FULL, rounds_max=2)
    fill(t, "a")
    call = t.call(Plain(), at="ab")
    t.flush()
    t.crash("b")
    outcome = t.outcome(call)
    assert outcome is not None
    assert (outcome.kind, outcome.copy, outcome.cause) == (OutcomeKind.OVERLOADED, copy_id(f"{call}/u0"), Cause.FULL)


def test_s9_the_late_loss_of_an_old_link_touches_only_what_went_over_it() -> None:
    t = Triangle("a")
    call = t.call(Plain())
    t.cut("u", "a", told="a")
    t.connect("u", "a")
    second = t.call(Plain())
    t.tell_lost("u", "a")
    t.flush()
    assert sorted(copy_name(copy) for copy in t.nodes["a"].handlers) == ["2/u0"]
    t.finish("a", "2/u0")
    t.flush()
    t.finish("a", "1/u1")
    t.flush()
    assert (t.ended(call), t.ended(second)) == (OutcomeKind.ANSWERED, OutcomeKind.ANSWERED)


def test_what_comes_over_another_link_than_the_copy_went_is_not_heeded() -> None:
    t = Triangle("a")
    call = t.call(Plain())
    t.flush()
    core = t.calls[call]
    before = core.snapshot()
    copy = copy_id("1/u0")
    for event in (
        CopyStarted(99, copy),
        CopyEnded(99, copy, CopyState.REFUSED, Cause.FULL, 0.0),
        ResultReceived(99, copy, True),
        LinkLost(99),
    ):
        assert core.step(event, t.now) == []
    assert core.snapshot() == before
