"""The rules of streams, one step of a core at a time: what is committed, granted and learned, and what decides."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallRequest
from tiedreq.core.call_stats import CallStats
from tiedreq.core.call_table import CallState
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.lessons import LearningBook
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.stream_call import PREAMBLES_MAX, TOO_LONG, StreamCore
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, Window

A, B = Identity("a", 1), Identity("b", 2)
CALLER, PEER, CLIENT = 1, 2, 7
STREAM = MethodInfo("tell", True, True, 600.0, True)
METHOD = MethodInfo("ask", True, True, 600.0)
WINDOW = Window(2, 100, False)
LOW, HIGH = CopyId(CLIENT, 1, 0, 0), CopyId(CLIENT, 1, 0, 1)
LINKS = {"a": 11, "b": 12, "c": 13}


# ---- a replica -------------------------------------------------------------------------------------------------------


def submit(copy: CopyId, window: Window | None = WINDOW, method: str = "tell") -> m.Submit:
    partners = () if copy.rank == UNTIED else (A, B)
    return m.Submit(copy, CopyKind.FIRST, method, b"", 10.0, partners, True, False, False, None, (), window)


class Replica:
    """Replica a or b with its caller and the other one connected."""

    def __init__(self, me: Identity, *, slots: int = 1) -> None:
        self.core = ReplicaCore(me, [HeldMethod(STREAM, None), HeldMethod(METHOD, None)], slots=slots)
        self.now = 5.0
        self.give(e.CallerConnected(CALLER, CLIENT))
        self.give(e.PeerConnected(PEER, B if me == A else A))

    def give(self, event: e.ReplicaEvent) -> list[Any]:
        return self.core.step(event, self.now)

    def start(self, copy: CopyId, window: Window = WINDOW) -> None:
        self.give(e.SubmitReceived(CALLER, submit(copy, window)))
        assert any(isinstance(command, c.StartWork) for command in self.give(e.InputSettled()))

    def item(self, copy: CopyId, payload: bytes = b"x", *, content: bool = True) -> list[Any]:
        return self.give(e.ItemProduced(copy, payload, content))


def state(replica: Replica, copy: CopyId) -> CopyState | None:
    return replica.core.copy_state(copy)


def test_before_content_a_copy_yields_as_any() -> None:
    b = Replica(B)
    b.start(HIGH)
    b.item(HIGH, content=False)
    commands = b.give(e.PeerStarted(PEER, LOW, 10.0))
    assert [type(command) for command in commands] == [c.StopWork, c.SendCaller]
    assert state(b, HIGH) == CopyState.YIELDED


def test_a_copy_that_has_sent_content_is_committed() -> None:
    b = Replica(B)
    b.start(HIGH)
    (sent,) = b.item(HIGH)
    assert sent.message.load is not None and sent.message.number == 0
    assert b.give(e.PeerStarted(PEER, LOW, 10.0)) == [] and state(b, HIGH) == CopyState.RUNNING
    assert b.core.stats.double_starts == 1
    (done,) = b.give(e.WorkFinished(HIGH, e.Answer(b"\x01")))
    assert isinstance(done.message, m.Result)


def test_with_a_rule_of_the_callers_own_any_item_commits() -> None:
    b = Replica(B)
    b.start(HIGH, WINDOW._replace(judged=True))
    b.item(HIGH, content=False)
    assert b.give(e.PeerStarted(PEER, LOW, 10.0)) == [] and state(b, HIGH) == CopyState.RUNNING


def test_the_lower_rank_says_started_again_committed_or_not() -> None:
    a = Replica(A)
    a.start(LOW)
    for _ in range(2):
        (command,) = a.give(e.PeerStarted(PEER, HIGH, 10.0))
        assert command == c.SendPeer(PEER, m.Started(LOW, 10.0, None))
        a.item(LOW)


def test_a_stop_that_is_enabled_late_ends_no_committed_copy() -> None:
    b = Replica(B)
    b.start(HIGH)
    held = b.core.held(HIGH)
    assert held is not None
    held.stoppable = False
    b.give(e.PeerStarted(PEER, LOW, 10.0))
    b.item(HIGH)
    assert b.give(e.StopEnabled(HIGH)) == [] and state(b, HIGH) == CopyState.RUNNING


def test_credit_in_items() -> None:
    a = Replica(A)
    a.start(LOW)
    assert [type(command) for command in a.item(LOW)] == [c.SendCaller]
    assert [type(command) for command in a.item(LOW)] == [c.SendCaller, c.PauseWork]
    assert a.item(LOW) == [] and a.core.stats.items_wasted == 1
    assert a.give(e.CreditReceived(CALLER, LOW, 1, 1)) == [], "totals never shrink"
    assert a.give(e.CreditReceived(PEER, LOW, 9, 900)) == [], "a link that the copy did not come over"
    assert a.give(e.CreditReceived(CALLER, LOW, 3, 100)) == [c.ResumeWork(LOW)]
    assert a.give(e.CreditReceived(CALLER, LOW, 4, 100)) == []
    for number in (2, 3):
        assert a.item(LOW)[0].message.number == number


def test_credit_in_bytes() -> None:
    """An item of any size may be the last one."""
    a = Replica(A)
    a.start(LOW, Window(100, 50, False))
    assert [type(command) for command in a.item(LOW, bytes(49))] == [c.SendCaller]
    assert [type(command) for command in a.item(LOW, bytes(1000))] == [c.SendCaller, c.PauseWork]
    assert a.give(e.CreditReceived(CALLER, LOW, 100, 1049)) == []
    assert a.give(e.CreditReceived(CALLER, LOW, 100, 1050)) == [c.ResumeWork(LOW)]


def test_what_a_stopped_handler_yields_is_thrown_away() -> None:
    a = Replica(A)
    a.start(LOW)
    a.give(e.CancelReceived(CALLER, LOW))
    assert a.item(LOW) == [] and a.core.stats.items_wasted == 1
    assert a.give(e.CreditReceived(CALLER, LOW, 9, 900)) == []
    assert a.core.free_slots == 0
    a.give(e.WorkFinished(LOW, None))
    assert a.core.free_slots == 1


@pytest.mark.parametrize(("method", "window"), [("tell", None), ("ask", WINDOW)])
def test_the_wrong_kind_is_refused_for_good(method: str, window: Window | None) -> None:
    a = Replica(A)
    (command,) = a.give(e.SubmitReceived(CALLER, submit(LOW, window, method)))
    assert command.message.state == CopyState.REFUSED and command.message.cause == Cause.WRONG_KIND
    assert not Cause.WRONG_KIND.retryable


# ---- a call ----------------------------------------------------------------------------------------------------------


class Caller:
    """One stream, and the replicas a, b and c."""

    def __init__(self, policy: Policy, *, window: Window = WINDOW, replicas: str = "ab", learns: bool = False) -> None:
        self.table = ReplicaTable(Random(0), "random")
        for name in replicas:
            welcome = m.Welcome(4, False, 1 << 20, (STREAM,))
            self.table.add(ReplicaView(LINKS[name], Identity(name, 1), welcome))
        self.stats, self.now = CallStats(), 0.0
        self.book = LearningBook() if learns else None
        request = CallRequest(CallId(CLIENT, 1), "tell", True, b"", policy, 10.0, window=window)
        self.core = StreamCore(request, self.table, self.stats, rounds_max=3, learning=self.book)
        self.sent = [command.submit for command in self.give(e.CallRequested()) if isinstance(command, c.SendCopy)]

    def give(self, event: e.CallEvent) -> list[Any]:
        return self.core.step(event, self.now)

    def link(self, copy: CopyId) -> int:
        return self.core.copies[copy].link

    def start(self, *copies: CopyId) -> None:
        for copy in copies:
            self.give(e.CopyStarted(self.link(copy), copy))

    def item(self, copy: CopyId, number: int, *, content: bool = True, size: int = 1, busy: float = 0.0) -> list[Any]:
        return self.give(e.ItemReceived(self.link(copy), copy, number, size, content, busy))


KEEP = Tied(backup=None, stagger=0.0, yield_=False)


def both() -> Caller:
    caller = Caller(KEEP)
    assert [sent.copy for sent in caller.sent] == [LOW, HIGH] and caller.sent[0].window == WINDOW
    caller.start(LOW, HIGH)
    return caller


def test_the_first_content_decides_and_the_losers_are_cancelled_before() -> None:
    caller = both()
    assert caller.item(LOW, 0, content=False, size=0) == [c.GrantCredit(caller.link(LOW), LOW, 3, 100)]
    assert caller.item(HIGH, 0) == [c.CancelCopy(caller.link(LOW), LOW), c.DeliverItems(HIGH)]
    assert caller.core.state == CallState.STREAMING and caller.core.winner is caller.core.copies[HIGH]
    assert caller.item(LOW, 1) == [], "a loser's items are nobody's"
    assert caller.item(HIGH, 1) == [c.DeliverItems(HIGH)]
    assert caller.give(e.ResultReceived(caller.link(LOW), LOW, True)) == []
    (done,) = caller.give(e.ResultReceived(caller.link(HIGH), HIGH, True))
    assert done.outcome == c.Outcome(c.OutcomeKind.ANSWERED, HIGH) and caller.stats.answered == 1
    assert all(view.outstanding == 0 for view in caller.table.views())


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failure_before_content_lets_the_other_win(retryable: bool) -> None:
    caller = both()
    failure = e.FailureReceived(caller.link(LOW), LOW, "bad", "", b"", retryable)
    assert caller.give(failure) == []
    assert caller.item(HIGH, 0) == [c.DeliverItems(HIGH)]


def test_a_final_failure_of_the_last_copy_is_the_outcome() -> None:
    caller = both()
    caller.give(e.FailureReceived(caller.link(LOW), LOW, "bad", "first", b"", False))
    (done,) = caller.give(e.CopyEnded(caller.link(HIGH), HIGH, CopyState.YIELDED, Cause.STARTED, 0.0))
    assert done.outcome.kind == c.OutcomeKind.FAILED and done.outcome.message == "first"


def test_an_empty_end_is_an_answer_when_nobody_has_a_better_one() -> None:
    caller = both()
    caller.item(LOW, 0, content=False)
    assert caller.give(e.ResultReceived(caller.link(LOW), LOW, True)) == []
    commands = caller.give(e.FailureReceived(caller.link(HIGH), HIGH, "bad", "", b"", False))
    assert commands[0] == c.DeliverItems(LOW)
    assert commands[1].outcome == c.Outcome(c.OutcomeKind.ANSWERED, LOW)


def test_after_content_nothing_is_tried_again() -> None:
    for event, kind in (
        (lambda link: e.LinkLost(link), c.OutcomeKind.INTERRUPTED),
        (lambda link: e.CopyEnded(link, HIGH, CopyState.EXPIRED, Cause.DEADLINE, 0.0), c.OutcomeKind.DEADLINE),
        (lambda link: e.CopyEnded(link, HIGH, CopyState.CANCELLED, Cause.CALLER, 0.0), c.OutcomeKind.INTERRUPTED),
        (lambda link: e.FailureReceived(link, HIGH, "bad", "", b"", True), c.OutcomeKind.FAILED),
    ):
        caller = both()
        caller.item(HIGH, 0)
        (done,) = caller.give(event(caller.link(HIGH)))
        assert done.outcome.kind == kind and caller.core.state == CallState.DONE
        assert caller.stats.failovers == 0


def test_the_deadline_and_the_user_end_the_winner() -> None:
    for event, kind in (
        (e.TimePassed(), c.OutcomeKind.DEADLINE),
        (e.CallerCancelled(), c.OutcomeKind.CANCELLED),
    ):
        caller = both()
        caller.item(HIGH, 0)
        caller.now = 10.0
        cancel, done = caller.give(event)
        assert cancel == c.CancelCopy(caller.link(HIGH), HIGH) and done.outcome.kind == kind


def test_the_backup_clock_stops_at_the_first_content() -> None:
    caller = Caller(Hedged(Backup(after=1.0, since="send", budget=None)), replicas="abc")
    (first,) = caller.sent
    caller.start(first.copy)
    assert caller.core.wake_at == 1.0
    caller.item(first.copy, 0)
    assert caller.core.wake_at == 10.0
    caller.now = 2.0
    assert caller.give(e.TimePassed()) == []


def test_a_backup_that_has_content_first_wins() -> None:
    caller = Caller(Hedged(Backup(after=1.0, since="send", budget=None)), replicas="abc")
    (first,) = caller.sent
    caller.now = 1.0
    (command,) = caller.give(e.TimePassed())
    backup = command.submit.copy
    assert command.submit.kind == CopyKind.BACKUP and command.submit.window == WINDOW
    assert caller.item(backup, 0) == [c.CancelCopy(caller.link(first.copy), first.copy), c.DeliverItems(backup)]
    assert caller.stats.backups_won == 1


def test_what_is_learned_is_the_time_to_the_first_content() -> None:
    """As the replica measured it; however long the stream goes on, and however it ends."""
    caller = Caller(Tied(backup=Backup(), stagger=0.0), learns=True)
    assert caller.book is not None
    caller.start(LOW)
    caller.now = 0.5
    caller.item(LOW, 0, busy=0.2)
    lesson = caller.core._account.lesson
    assert lesson is not None

    def earned() -> int:
        return lesson.budget.deposited - lesson.budget.floored

    assert earned() == round(0.05 * 0.2e9), "its share of 0.2 s of useful work, in nanoseconds"
    caller.now = 5.0
    caller.give(e.CallerCancelled())
    assert earned() == round(0.05 * 0.2e9)


def test_an_empty_end_that_is_the_answer_is_useful_work() -> None:
    caller = Caller(Hedged(Backup(after=1.0, since="send")), replicas="abc", learns=True)
    (first,) = caller.sent
    lesson = caller.core._account.lesson
    assert lesson is not None
    before = lesson.budget.deposited - lesson.budget.floored
    (done,) = caller.give(e.ResultReceived(caller.link(first.copy), first.copy, True, 0.2))[1:]
    assert done.outcome.kind == c.OutcomeKind.ANSWERED
    assert lesson.budget.deposited - lesson.budget.floored - before == round(0.05 * 0.2e9)


def test_an_empty_end_of_a_backup_may_win() -> None:
    for first_ends_before in (True, False):
        caller = Caller(Hedged(Backup(after=1.0, since="send", budget=None)), replicas="abc")
        (first,) = caller.sent
        caller.now = 1.0
        (command,) = caller.give(e.TimePassed())
        backup = command.submit.copy
        failure = e.FailureReceived(caller.link(first.copy), first.copy, "bad", "", b"", False)
        empty = e.ResultReceived(caller.link(backup), backup, True)
        for event in (failure, empty) if first_ends_before else (empty, failure):
            commands = caller.give(event)
        assert commands[-1].outcome == c.Outcome(c.OutcomeKind.ANSWERED, backup)
        assert caller.stats.backups_won == 1


def test_credit_follows_what_the_user_takes() -> None:
    caller = Caller(Plain(), window=Window(4, 1000, False))
    (only,) = caller.sent
    for number in range(4):
        assert caller.item(only.copy, number) == [c.DeliverItems(only.copy)]
    with pytest.raises(RemoteViolation, match="beyond the credit"):
        caller.item(only.copy, 4)
    assert caller.give(e.ItemTaken(1)) == []
    assert caller.give(e.ItemTaken(1)) == [c.GrantCredit(caller.link(only.copy), only.copy, 6, 1002)]
    assert caller.item(only.copy, 4) == [c.DeliverItems(only.copy)]


def test_an_item_out_of_turn_is_a_breach() -> None:
    caller = Caller(Plain())
    (only,) = caller.sent
    for number in (1, 7):
        with pytest.raises(RemoteViolation, match=f"number {number} where 0 is next"):
            caller.item(only.copy, number)
    caller.item(only.copy, 0)


def test_preambles_leave_the_window_open_and_are_bounded() -> None:
    caller = both()
    link = caller.link(LOW)
    granted = []
    for number in range(PREAMBLES_MAX):
        granted += [command.items for command in caller.item(LOW, number, content=False, size=0)]
    assert granted == list(range(3, PREAMBLES_MAX + 3))
    assert caller.item(LOW, PREAMBLES_MAX, content=False, size=0) == [c.CancelCopy(link, LOW)]
    assert caller.core.copies[LOW].state == CopyState.FAILED
    caller.give(e.LinkLost(caller.link(HIGH)))
    assert caller.core._failure is not None and caller.core._failure.code == TOO_LONG


def test_preambles_are_bounded_in_bytes() -> None:
    caller = both()
    assert caller.item(LOW, 0, content=False, size=100) != [] and caller.core.copies[LOW].alive
    assert caller.item(LOW, 1, content=False, size=1) == [c.CancelCopy(caller.link(LOW), LOW)]


def test_an_item_that_is_of_no_use_stops_its_stream() -> None:
    caller = both()
    link = caller.link(LOW)
    assert caller.give(e.ItemRefused(link, LOW, "too_large", "")) == [c.CancelCopy(link, LOW)]
    caller.item(HIGH, 0)
    cancel, done = caller.give(e.ItemRefused(caller.link(HIGH), HIGH, "bad_payload", "why"))
    assert isinstance(cancel, c.CancelCopy) and done.outcome.code == "bad_payload"


def test_the_load_of_a_committing_item_is_the_replicas() -> None:
    a = Replica(A, slots=2)
    a.start(LOW)
    assert a.item(LOW, content=False)[0].message.load is None
    assert a.item(LOW)[0].message.load == Load(0, 1, 1, 0.0)
