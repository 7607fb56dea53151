"""CallCore: what the client decides about one call: copies, backups, failover, and its one outcome.

Invariants
* ``CompleteCall`` is issued once, after the commands that cancel every copy that is still out.
* All tied copies of one round are at different replicas; a new round has a new number, so old notices can't touch it.
* A backup and a lone copy have an identity of their own that no tie knows, and a backup never counts as a living copy
  for failover: only an answer from it can end the call.
* Once a copy of a tie is known to have started, copies of that tie that were not sent are not sent any more.

Not for: queues and executions (``core.replica``), or the choice among replicas (``core.picker``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tiedreq.core.call_copies import NEVER, CallCopies, CallRequest
from tiedreq.core.call_stats import CallStats
from tiedreq.core.call_table import CALL_TABLE, CallTrigger
from tiedreq.core.commands import CallCommand, Outcome, OutcomeKind
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import (
    CallerCancelled,
    CallEvent,
    CallRequested,
    CopyEnded,
    CopyStarted,
    CopyUnsent,
    FailureReceived,
    ItemReceived,
    ItemRefused,
    ItemTaken,
    LinkLost,
    ReplicaAvailable,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.lessons import CallAccount
from tiedreq.core.names import ANSWERED, BACKUP, DONE, FAILOVER, FIRST, NO_CAUSE, OVER, RACING, ROUND_SENT, WAITING, new
from tiedreq.core.picker import ReplicaView
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.stagger import notice_latency, stagger_times
from tiedreq.core.types import UNTIED, Cause, CopyKind, CopyState

__all__ = ["CallCore", "CallRequest", "CallStats", "SentCopy"]


class CallCore(CallCopies):
    """The decisions of one call. ``step`` takes an event and returns what the driver has to do.

    ``learning`` is what the client knows of its methods, and the brake; without it there is neither.
    """

    __slots__ = ()
    _steps: ClassVar[dict[type, Callable[[Any, Any, float], None]]]

    def __init_subclass__(cls) -> None:
        cls._steps = _steps_of(cls)

    def step(self, event: CallEvent, now: float) -> list[CallCommand]:
        """Decide. After the call has ended every event changes nothing."""
        if self.state == OVER:
            return []
        self._steps[type(event)](self, event, now)
        out, self._out = self._out, []
        return out

    # ---- rounds -----------------------------------------------------------------------------------------------

    def _call_requested(self, event: CallRequested, now: float) -> None:
        self._stats.calls += 1
        if self._learning is not None:
            request = self.request
            self._account = CallAccount(self._learning, request.method, self._backup, now, request.stoppable)
            if self._tie is not None and not self._account.ties_allowed(now):
                self._tie = None
                self._stats.ties_withheld += 1
        if self._tie is not None and self._observing:
            self._tie = None
            self._stats.ties_observed += 1
        self._new_round(now)

    def _new_round(self, now: float) -> None:
        if now >= self.request.deadline:
            self._complete(Outcome(OutcomeKind.DEADLINE), now)
            return
        chosen = self._choose_round(now)
        self._backup_at = self._ceiling_at = self._stuck_at = self._round_at = NEVER
        if not chosen:
            self.state = CALL_TABLE.next(self.state, CallTrigger.NONE_REACHABLE)
            return
        if self._rounds >= self._rounds_max:
            self._give_up(now)
            return
        self.state = CALL_TABLE.next(self.state, ROUND_SENT)
        self._rounds += 1
        if self._rounds > 1:
            self._stats.failovers += 1
        if len(chosen) == 1:
            self._partners = ()
            kind = FIRST if self._rounds == 1 else FAILOVER
            self._send(self._untied_id(), kind, chosen[0], now)
        else:
            self._stats.ties += 1
            waits = self._waits(chosen, now)
            if len(chosen) == 2:
                first, second = chosen
                self._partners = (first.identity, second.identity)
                self._unsent = [(now + waits[0], 0, first), (now + waits[1], 1, second)]
            else:
                self._partners = tuple([view.identity for view in chosen])
                self._unsent = [(now + wait, rank, chosen[rank]) for rank, wait in enumerate(waits)]
            self._send_due(now)
        self._arm_from_send(now)

    def _waits(self, chosen: list[ReplicaView], now: float) -> list[float]:
        """Seconds after the first copy at which each copy of the tie is to be sent."""
        tie = self._tie
        assert tie is not None
        if tie.stagger == "auto":
            account = self._account
            times = stagger_times(chosen, now, account.mean)
            if account.braked and not tie.exclusive:
                hold = account.hold(now, notice_latency(chosen[0], chosen[1]))
                times[1:] = [max(time, hold) for time in times[1:]]
            return times
        return [rank * tie.stagger for rank in range(len(chosen))]

    def _choose_round(self, now: float) -> list[ReplicaView]:
        """Replicas for a round, in order of rank: untried ones first, one with a waiting backup of this call last."""
        method, replicas = self.request.method, self._replicas
        chosen: list[ReplicaView]
        width = self._tie.copies if self._tie is not None else 1
        if not self.copies:
            chosen = []
            replicas.choose_more(chosen, width, method, now, self._account.mean)
            if len(chosen) > 1 and now >= replicas.trial_at:
                replicas.try_out(chosen, method, now)
            return chosen
        busy = {copy.replica for copy in self.copies.values() if copy.alive}
        tried = {copy.replica for copy in self.copies.values()}
        chosen = []
        for excluded in (tried, busy):
            self._replicas.choose_more(chosen, width, method, now, self._account.mean, excluded)
        if not chosen:
            self._replicas.choose_more(chosen, width, method, now, self._account.mean)
        if len(chosen) > 1:
            self._replicas.try_out(chosen, method, now)
        return chosen

    # ---- what replicas say ------------------------------------------------------------------------------------

    def _copy_started(self, event: CopyStarted, now: float) -> None:
        sent = self._find(event[0], event[1])
        if sent is not None and sent.started_at is None:
            sent.started_at = now
            self._start_known(sent, now)

    def _start_known(self, sent: SentCopy, now: float) -> None:
        """A copy of the round has started, here or at the partner that made this one end."""
        if sent.round == self._rounds and sent.id[3] != UNTIED and self._unsent:
            self._unsent.clear()
        backup = self._backup
        if backup is not None and backup.since == "start" and self._backups < backup.max_per_call:
            self._ceiling_at = NEVER
            delay = self._account.delay(backup, now)
            if delay is not None:
                self._arm(now + delay)
            else:
                self._arm_if_stuck(now)

    def _result_received(self, event: ResultReceived, now: float) -> None:
        link, copy, used, service_time, queue_wait = event
        sent = self._find(link, copy)
        if sent is None:
            return
        self._mark(sent, DONE, NO_CAUSE, now, service_time, wait=queue_wait, used=used)
        if used:
            if sent.kind == BACKUP:
                self._stats.backups_won += 1
            self._complete(new(Outcome, (ANSWERED, sent.id, NO_CAUSE, "", "", b"", 0.0)), now)
            return
        if self._failure is None:
            self._failure = FailureReceived(
                event.link, event.copy, "unacceptable", "accept() turned the answer down", b"", True
            )
        self._check_round(now)

    def _failure_received(self, event: FailureReceived, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        self._mark(sent, CopyState.FAILED, Cause.NONE, now, event.service_time, final=not event.retryable)
        if not event.retryable:
            self._complete(failure_outcome(event), now)
            return
        if self._failure is None:
            self._failure = event
        self._check_round(now)

    def _copy_ended(self, event: CopyEnded, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        self._mark(sent, event.state, event.cause, now, event.service_time)
        if event.state == CopyState.REFUSED:
            if not event.cause.retryable:
                self._complete(Outcome(OutcomeKind.REJECTED, sent.id, event.cause), now)
                return
            self._refused(sent, event, now)
        elif event.cause == Cause.STARTED:
            self._start_known(sent, now)
        self._check_round(now)

    def _refused(self, sent: SentCopy, event: CopyEnded, now: float) -> None:
        """A refusal moves the next copy of the tie up: it goes at once, in the same round."""
        if event.retry_after > 0:
            self._retry_after = event.retry_after
        view = self._replicas.get(event.link)
        if view is not None and event.cause == Cause.DRAINING:
            view.draining = True
        if event.cause == Cause.ARBITER_LOST and sent.round == self._rounds and self._partners:
            self._replicas.suspect(self._partners[0].name, now)
        self._move_up(sent, now)

    def _move_up(self, refused: SentCopy, now: float) -> None:
        """The next copy of the tie takes the place of one that certainly will not run."""
        if self._unsent and refused.round == self._rounds and refused.id.rank != UNTIED and now < self.request.deadline:
            self._send_next_of_tie(now)

    def _copy_unsent(self, event: CopyUnsent, now: float) -> None:
        sent = self.copies.get(event.copy)
        if sent is None or not sent.alive:
            return
        self._mark(sent, CopyState.REFUSED, Cause.UNSENT, now)
        view = self._replicas.get(sent.link)
        if view is not None:
            view.sent -= 1
        self._move_up(sent, now)
        self._check_round(now)

    def _link_lost(self, event: LinkLost, now: float) -> None:
        lost = [sent for sent in self.copies.values() if sent.alive and sent.link == event.link]
        for sent in lost:
            if event.drained and sent.started_at is None:
                self._mark(sent, CopyState.REFUSED, Cause.DRAINING, now)
            else:
                self._mark(sent, None, Cause.LINK_LOST, now)
        self._unsent = [entry for entry in self._unsent if entry[2].link != event.link]
        if lost:
            self._check_round(now)

    # ---- failover ---------------------------------------------------------------------------------------------

    def _check_round(self, now: float) -> None:
        """Decide whether the round is over, and what then."""
        if self.state != RACING:
            self._check_waiting(now)
            return
        round_copies = [
            sent for sent in self.copies.values() if sent.round == self._rounds and sent.kind != CopyKind.BACKUP
        ]
        if any(sent.alive for sent in round_copies):
            return
        self._unsent.clear()
        backup_alive = any(sent.alive for sent in self.copies.values())
        answered_badly = any(sent.state in (CopyState.DONE, CopyState.FAILED) for sent in round_copies)
        if answered_badly and backup_alive:
            return
        if not self.request.idempotent and not self._may_run_again(round_copies, now):
            return
        if self._rounds >= self._rounds_max:
            if not backup_alive:
                self._give_up(now)
            return
        self._fail_over(round_copies, backup_alive, now)

    def _fail_over(self, gone: list[SentCopy], backup_alive: bool, now: float) -> None:
        """Another round, if the brake allows it; after a refusal by all, not before the time that they named."""
        if not self._account.try_failover(gone, now, self._stats.under_way):
            self._stats.failovers_denied += 1
            if not backup_alive:
                self._give_up(now)
            return
        if self._retry_after <= 0 or any(sent.cause != Cause.FULL for sent in gone):
            self._new_round(now)
            return
        tried = {sent.replica for sent in self.copies.values()}
        if any(view.name not in tried for view in self._replicas.candidates(self.request.method, now)):
            self._new_round(now)
        elif now + self._retry_after < self.request.deadline:
            self.state = CALL_TABLE.next(self.state, CallTrigger.NONE_REACHABLE)
            self._round_at = now + self._retry_after
        elif not backup_alive:
            self._give_up(now)

    def _check_waiting(self, now: float) -> None:
        """No replica was reachable; a backup that was the last hope may have ended. Go on waiting for a replica."""
        hinted = self._round_at < NEVER
        if self.state == WAITING and not hinted and not any(sent.alive for sent in self.copies.values()):
            self._new_round(now)

    def _may_run_again(self, round_copies: list[SentCopy], now: float) -> bool:
        """For a call that may not run twice: only a copy that certainly never ran may be followed by another."""
        for sent in round_copies:
            if sent.state == CopyState.FAILED or sent.state == CopyState.DONE:
                self._give_up(now)
                return False
            if sent.state == CopyState.EXPIRED:
                self._complete(Outcome(OutcomeKind.DEADLINE, sent.id, sent.cause), now)
                return False
            if sent.state != CopyState.REFUSED:
                self._complete(Outcome(OutcomeKind.UNKNOWN, sent.id, sent.cause), now)
                return False
        return True

    def _give_up(self, now: float) -> None:
        """No round is left. The rule: a handler's first failure, else a refusal, else what became of the last copy."""
        if self._failure is not None:
            self._complete(failure_outcome(self._failure), now)
            return
        ended = [sent for sent in self.copies.values() if not sent.alive]
        for state, kind in ((CopyState.REFUSED, OutcomeKind.OVERLOADED), (CopyState.EXPIRED, OutcomeKind.DEADLINE)):
            decisive = [sent for sent in ended if sent.state == state]
            if decisive and decisive[-1].cause != Cause.ARBITER_LOST:
                hint = self._retry_after if kind == OutcomeKind.OVERLOADED else 0.0
                self._complete(Outcome(kind, decisive[-1].id, decisive[-1].cause, retry_after=hint), now)
                return
        self._complete(Outcome(OutcomeKind.UNAVAILABLE, ended[-1].id, ended[-1].cause), now)

    def _replica_available(self, event: ReplicaAvailable, now: float) -> None:
        if self.state == WAITING:
            self._new_round(now)

    # ---- time and endings -------------------------------------------------------------------------------------

    def _time_passed(self, event: TimePassed, now: float) -> None:
        if now >= self.request.deadline:
            self._complete(Outcome(OutcomeKind.DEADLINE), now)
            return
        self._send_due(now)
        if now >= self._round_at and self.state == WAITING:
            self._new_round(now)
        if now >= self._backup_at or now >= self._ceiling_at:
            self._send_backup(now)

    def _item_received(self, event: ItemReceived, now: float) -> None:
        """Only a stream has items: see ``core.stream_call``."""
        raise RemoteViolation(f"item: the answer to {event.copy} is no stream")

    def _item_refused(self, event: ItemRefused, now: float) -> None:
        """Only a stream has items."""

    def _item_taken(self, event: ItemTaken, now: float) -> None:
        """Only a stream has items."""

    def _caller_cancelled(self, event: CallerCancelled, now: float) -> None:
        self._complete(Outcome(OutcomeKind.CANCELLED), now)


def failure_outcome(event: FailureReceived) -> Outcome:
    """The outcome of a call that a handler's failure ends."""
    return Outcome(OutcomeKind.FAILED, event.copy, code=event.code, message=event.message, details=event.details)


_STEP_NAMES = {
    CallRequested: "_call_requested",
    CopyStarted: "_copy_started",
    ResultReceived: "_result_received",
    ItemReceived: "_item_received",
    ItemRefused: "_item_refused",
    ItemTaken: "_item_taken",
    FailureReceived: "_failure_received",
    CopyEnded: "_copy_ended",
    CopyUnsent: "_copy_unsent",
    LinkLost: "_link_lost",
    ReplicaAvailable: "_replica_available",
    CallerCancelled: "_caller_cancelled",
    TimePassed: "_time_passed",
}


def _steps_of(cls: type[CallCore]) -> dict[type, Callable[[Any, Any, float], None]]:
    """Which method takes which event. One table per class: a call makes none of its own."""
    return {event: getattr(cls, name) for event, name in _STEP_NAMES.items()}


CallCore._steps = _steps_of(CallCore)
