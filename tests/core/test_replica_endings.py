"""Design 5, rules 7 to 10: one ending each, what callers are told, a caller that is lost, and drain."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.parts import ANSWER
from tests.core.solo import CALLER_LINK, PEER_LINKS, Solo
from tests.core.telling import NONCE, copy_id
from tiedreq.core import events as e
from tiedreq.core.commands import OutcomeKind, SendCaller
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Ended, Failed, Report, Result, Started
from tiedreq.core.policy import Plain, Tied
from tiedreq.core.types import Cause, CopyKind, CopyState, Load

FAULT = e.Fault("bad argument", "no", b"details", False)


def message(solo: Solo, event: e.ReplicaEvent, kind: type) -> object:
    """The one message of a type that a step sends to the caller."""
    commands = solo.core.step(event, solo.now)
    (found,) = [c.message for c in commands if isinstance(c, SendCaller) and isinstance(c.message, kind)]
    return found


# ---- rule 7: one terminal state, and the caller is told -------------------------------------------------------


def test_rule_7_returned_and_raised() -> None:
    solo = Solo()
    solo.run("1/u0")
    solo.now += 0.25
    result = message(solo, e.WorkFinished(copy_id("1/u0"), ANSWER), Result)
    assert isinstance(result, Result)
    assert (result.payload, result.service_time, result.queue_wait) == (b"answer", 0.25, 0.0)
    solo.run("2/u0")
    failed = message(solo, e.WorkFinished(copy_id("2/u0"), FAULT), Failed)
    assert isinstance(failed, Failed)
    assert failed[1:5] == tuple(FAULT)
    assert (solo.state("1/u0"), solo.state("2/u0")) == (CopyState.DONE, CopyState.FAILED)


def test_rule_8_service_time_and_wait_are_the_replicas_own() -> None:
    solo = Solo()
    solo.run("1/u0")
    solo.submit("2/u0")
    solo.now += 0.5
    solo.finish("1/u0")
    solo.settle()
    solo.now += 0.125
    result = message(solo, e.WorkFinished(copy_id("2/u0"), ANSWER), Result)
    assert isinstance(result, Result)
    assert (result.service_time, result.queue_wait) == (0.125, 0.5)


def test_rule_7_cancelled_is_told_too() -> None:
    solo = Solo()
    solo.run("1/u0")
    solo.submit("2/u0")
    assert solo.cancel("2/u0") == ["SendCaller u Ended 2/u0 cancelled (caller)"]
    assert solo.cancel("1/u0") == ["StopWork 1/u0 (caller)", "SendCaller u Ended 1/u0 cancelled (caller)"]
    assert solo.cancel("1/u0") == []


def test_rule_7_a_stopped_copy_keeps_its_slot_until_its_handler_returns() -> None:
    solo = Solo()
    solo.run("1/u0", method="scan")
    solo.cancel("1/u0")
    solo.submit("2/u0")
    assert solo.settle() == []
    assert (solo.core.free_slots, solo.core.running) == (0, 1)
    assert solo.finish("1/u0") == [], "its caller has been told already"
    assert "StartWork 2/u0" in solo.settle()


@pytest.mark.parametrize("outcome", [ANSWER, FAULT, None])
def test_rule_7_whatever_a_stopped_handler_says_is_not_told(outcome: e.Answer | e.Fault | None) -> None:
    solo = Solo()
    solo.run("1/u0")
    solo.cancel("1/u0")
    assert solo.finish("1/u0", outcome) == []
    assert solo.state("1/u0") == CopyState.CANCELLED
    assert solo.core.stats.done == solo.core.stats.failed == 0
    assert solo.held() == {}


def test_a_handler_that_was_stopped_by_nobody_is_an_internal_fault_before_the_deadline_and_expiry_after_it() -> None:
    solo = Solo()
    solo.run("1/u0")
    assert solo.finish("1/u0", None) == ["SendCaller u Failed 1/u0 internal retryable"]
    solo.run("2/u0", remaining=1.0)
    solo.now += 1.0
    assert solo.finish("2/u0", None) == ["SendCaller u Ended 2/u0 expired (deadline)"]


def test_an_answer_at_the_deadline_is_an_answer() -> None:
    solo = Solo()
    solo.run("1/u0", remaining=1.0)
    solo.now += 1.0
    assert solo.finish("1/u0") == ["SendCaller u Result 1/u0"]
    assert solo.wait(0.0) == []


def test_b46_lost_races_are_no_failures() -> None:
    solo = Solo()
    solo.submit("1/r0.1", tie="ba")
    solo.started("1/r0.0")
    solo.run("2/r0.1", tie="ba")
    solo.started("2/r0.0")
    solo.finish("2/r0.1", None)
    stats = solo.core.stats
    assert (stats.failed, stats.done) == (0, 0)
    assert stats.endings == {(CopyState.DROPPED, Cause.STARTED): 1, (CopyState.YIELDED, Cause.STARTED): 1}


def test_wasted_seconds_are_those_whose_result_was_not_used() -> None:
    solo = Solo()
    for number, ending in enumerate(("finish", "cancel"), 1):
        solo.run(f"{number}/u0")
        solo.now += 0.5
        if ending == "cancel":
            solo.cancel(f"{number}/u0")
            solo.now += 0.25
        solo.finish(f"{number}/u0")
    assert (solo.core.stats.busy_seconds, solo.core.stats.wasted_seconds) == (1.25, 0.75)


# ---- deadlines ------------------------------------------------------------------------------------------------


def test_b28_expired_work_does_not_start_even_before_its_alarm() -> None:
    solo = Solo()
    solo.run("1/u0")
    for number in range(2, 6):
        solo.submit(f"{number}/u0", remaining=0.5)
    solo.submit("6/u0")
    solo.now += 0.5
    solo.finish("1/u0")
    lines = solo.settle()
    assert [line for line in lines if "expired" in line] == [
        f"SendCaller u Ended {number}/u0 expired (deadline)" for number in range(2, 6)
    ]
    assert "StartWork 6/u0" in lines


def test_a_running_copy_is_stopped_at_its_deadline() -> None:
    solo = Solo()
    solo.run("1/u0", remaining=1.0)
    assert solo.core.wake_at == 101.0
    assert solo.wait(1.0) == ["StopWork 1/u0 (deadline)", "SendCaller u Ended 1/u0 expired (deadline)"]
    assert solo.core.wake_at is None


def test_no_time_left_on_arrival() -> None:
    solo = Solo()
    assert solo.submit("1/u0", remaining=0.0) == ["SendCaller u Ended 1/u0 expired (deadline)"]


def test_the_methods_own_limit_counts() -> None:
    solo = Solo()
    solo.run("1/u0", remaining=1000.0)
    assert solo.core.wake_at == 160.0


def test_time_left_never_is_negative_in_a_notice() -> None:
    solo = Solo(peers="")
    solo.run("1/r0.0", remaining=1.0)
    solo.now += 2.0
    commands = solo.core.step(e.PeerConnected(2, solo.core.identity._replace(name="b", incarnation=2)), solo.now)
    (started,) = [getattr(command, "message", None) for command in commands]
    assert isinstance(started, Started)
    assert started.remaining == 0.0


# ---- rule 8: what every message says --------------------------------------------------------------------------


def test_rule_8_every_message_says_how_loaded_the_replica_is() -> None:
    solo = Solo(slots=2)
    solo.run("1/u0")
    assert solo.load() == Load(queued=0, free=1, received=2, pushback=0.0)
    solo.submit("2/u0")
    solo.submit("3/u0")
    started = message(solo, e.InputSettled(), Started)
    assert isinstance(started, Started)
    assert started.load == Load(queued=1, free=0, received=4, pushback=0.0)


def test_received_counts_what_came_over_this_link() -> None:
    solo = Solo(slots=3)
    solo.give(e.CallerConnected(7, NONCE))
    solo.submit("1/u0", link=7)
    solo.submit("1/u0", link=7)
    solo.submit("2/u0")
    found = {}
    for command in solo.core.step(e.InputSettled(), solo.now):
        if isinstance(command, SendCaller) and isinstance(command.message, Started):
            found[command.link] = command.message.load
    assert {link: load.received for link, load in found.items() if load is not None} == {7: 2, CALLER_LINK: 1}


def test_rule_8_push_back_is_said_until_it_is_over() -> None:
    solo = Solo()
    solo.give(e.PushbackRequested(2.0))
    solo.give(e.PushbackRequested(0.5))
    solo.now += 0.5
    assert solo.load().pushback == 1.5
    solo.now += 2.0
    assert solo.load("98/u0").pushback == 0.0


def test_rule_8_notice_latencies_are_reported_now_and_then() -> None:
    solo = Solo(limits=ReplicaLimits(report_interval=0.5))
    assert solo.give(e.NoticeLatencyMeasured("b", 0.001)) == ["SendCaller u Report"]
    assert solo.give(e.NoticeLatencyMeasured("c", 0.002)) == []
    solo.now += 0.5
    report = message(solo, e.NoticeLatencyMeasured("b", 0.003), Report)
    assert report == Report((("b", 0.003), ("c", 0.002)))
    assert solo.give(e.CallerConnected(7, NONCE)) == ["SendCaller ? Report"]


def test_notice_latencies_belong_to_a_connection() -> None:
    solo = Solo()
    solo.give(e.NoticeLatencyMeasured("b", 0.001))
    solo.give(e.PeerLost(PEER_LINKS["b"]))
    assert solo.give(e.NoticeLatencyMeasured("b", 0.001)) == [], "late news of a link that is gone"
    solo.now += 10.0
    assert message(solo, e.NoticeLatencyMeasured("c", 0.002), Report) == Report((("c", 0.002),))


# ---- rule 9: a caller is lost ---------------------------------------------------------------------------------


def test_rule_9_all_that_came_over_the_link_goes_without_a_word() -> None:
    solo = Solo(slots=1)
    solo.run("1/u0")
    solo.submit("2/u0")
    assert solo.give(e.CallerLost(CALLER_LINK)) == ["StopWork 1/u0 (caller lost)"]
    assert (solo.state("1/u0"), solo.state("2/u0")) == (CopyState.CANCELLED, CopyState.CANCELLED)
    assert solo.finish("1/u0", None) == []
    assert solo.held() == {}


def test_rule_9_and_s9_the_late_loss_of_an_old_link_touches_nothing_that_came_over_the_new_one() -> None:
    solo = Solo(slots=2)
    solo.run("1/u0")
    solo.give(e.CallerConnected(7, NONCE))
    solo.submit("2/u0", link=7)
    solo.settle()
    solo.give(e.CallerLost(CALLER_LINK))
    assert (solo.state("1/u0"), solo.state("2/u0")) == (CopyState.CANCELLED, CopyState.RUNNING)
    assert solo.give(e.CallerLost(CALLER_LINK)) == []


def test_s9_what_comes_over_a_link_that_is_gone_changes_nothing() -> None:
    solo = Solo()
    solo.give(e.CallerLost(CALLER_LINK))
    before = solo.core.snapshot()
    assert solo.submit("1/u0") == []
    assert solo.cancel("1/u0") == []
    assert solo.core.snapshot() == before


# ---- rule 10: drain -------------------------------------------------------------------------------------------


def test_rule_10_drain_says_so_moves_its_queue_finishes_what_runs_and_is_done() -> None:
    solo = Solo(slots=1)
    solo.run("1/u0")
    solo.submit("2/r0.0")
    assert solo.give(e.DrainRequested()) == [
        "SendPeer b Draining",
        "SendPeer c Draining",
        "SendCaller u Draining",
        "SendCaller u Ended 2/r0.0 refused (draining) retry_after=1",
    ]
    assert solo.give(e.DrainRequested()) == [], "a second request changes nothing"
    assert solo.submit("3/u0") == ["SendCaller u Ended 3/u0 refused (draining) retry_after=1"]
    assert solo.finish("1/u0") == ["SendCaller u Result 1/u0", "FinishDrain"]
    assert solo.settle() == []


def test_rule_10_an_idle_replica_is_drained_at_once() -> None:
    assert Solo().give(e.DrainRequested())[-1] == "FinishDrain"


def test_rule_10_a_stopped_handler_that_still_ends_is_waited_for() -> None:
    solo = Solo()
    solo.run("1/u0", method="scan")
    solo.cancel("1/u0")
    assert "FinishDrain" not in solo.give(e.DrainRequested())
    assert solo.finish("1/u0") == ["FinishDrain"]


def test_rule_10_who_connects_to_a_draining_replica_is_told() -> None:
    solo = Solo()
    solo.give(e.DrainRequested())
    assert solo.give(e.CallerConnected(7, NONCE)) == ["SendCaller ? Draining"]


def test_rule_10_what_is_known_comes_before_draining() -> None:
    solo = Solo()
    solo.started("1/r0.0")
    solo.give(e.DrainRequested())
    assert solo.submit("1/r0.1", tie="ba") == ["SendCaller u Ended 1/r0.1 dropped (started)"]


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None, stagger=0.0)])
def test_b43_drain_of_one_loses_no_call(policy: Plain | Tied) -> None:
    t = Triangle("abc")
    for name in "ab":
        t.call(at=name, timeout=100.0)
    t.flush()
    waiting = [t.call(policy, at="abc", timeout=100.0) for _ in range(3)]
    t.flush()
    t.drain("a")
    t.flush()
    for _ in range(20):
        for name in t.nodes:
            for copy in t.running(name):
                t.finish(name, str(copy).partition("-")[2])
        t.flush()
    assert {t.ended(call) for call in (1, 2, *waiting)} == {OutcomeKind.ANSWERED}
    assert t.nodes["a"].drained


def test_b43_both_replicas_of_a_pair_drained_together() -> None:
    t = Triangle("abc")
    for name in "ab":
        t.call(at=name, timeout=100.0)
    t.flush()
    call = t.call(Tied(backup=None, stagger=0.0), at="ab", timeout=100.0)
    t.flush()
    t.drain("a")
    t.drain("b")
    t.flush()
    assert [copy.call.number for copy in t.running("c")] == [call]


def test_b43_a_draining_replica_is_chosen_for_nothing_and_its_next_incarnation_is() -> None:
    t = Triangle("ab")
    t.drain("a")
    t.flush()
    call = t.call(at="ab")
    assert t.under_way("u>b") == ["Submit"]
    t.restart("a")
    t.call(at="ab")
    assert t.under_way("u>a") == ["Submit"]
    assert t.outcome(call) is None


# ---- refusals -------------------------------------------------------------------------------------------------


def test_a_full_queue_says_how_long_it_takes_to_empty() -> None:
    solo = Solo(slots=2, limits=ReplicaLimits(queue_length_max=10))
    solo.run("1/u0")
    solo.now += 0.4
    solo.finish("1/u0")
    for number in range(2, 14):
        solo.submit(f"{number}/u0")
        if number == 3:
            solo.settle()
    assert solo.submit("20/u0") == ["SendCaller u Ended 20/u0 refused (full) retry_after=2"]


def test_a_hint_has_a_floor_and_a_roof() -> None:
    for service_time, hint in ((0.0, "0.01"), (100.0, "5")):
        solo = Solo(limits=ReplicaLimits(queue_length_max=1))
        solo.run("1/u0", remaining=1000.0)
        solo.now += service_time if service_time < 60 else 59.0
        solo.finish("1/u0")
        solo.submit("2/u0")
        assert solo.submit("3/u0") == [f"SendCaller u Ended 3/u0 refused (full) retry_after={hint}"]


def test_a_method_that_is_not_here() -> None:
    assert Solo().submit("1/u0", method="nowhere") == ["SendCaller u Ended 1/u0 refused (unknown method)"]


@pytest.mark.parametrize(("copy", "kind"), [("1/r0.0", CopyKind.FIRST), ("1/u0", CopyKind.BACKUP)])
def test_b10_what_may_not_run_twice_is_refused_at_the_replica_too(copy: str, kind: CopyKind) -> None:
    solo = Solo()
    assert solo.submit(copy, method="charge", kind=kind) == [f"SendCaller u Ended {copy} refused (not idempotent)"]


@pytest.mark.parametrize("kind", [CopyKind.FIRST, CopyKind.FAILOVER])
def test_b10_one_copy_of_it_runs(kind: CopyKind) -> None:
    solo = Solo()
    assert solo.submit("1/u0", method="charge", kind=kind) == []


def test_the_reason_for_an_ending_is_in_the_message() -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba")
    solo.now += 0.5
    ended = message(solo, e.PeerStarted(PEER_LINKS["b"], copy_id("1/r0.0"), 1.0), Ended)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.cause, ended.service_time) == (CopyState.YIELDED, Cause.STARTED, 0.5)
