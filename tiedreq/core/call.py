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
from dataclasses import dataclass
from typing import Any

from tiedreq.core.call_stats import CallStats
from tiedreq.core.call_table import CALL_TABLE, CallState, CallTrigger
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, Outcome, OutcomeKind, SendCopy
from tiedreq.core.events import (
    CallerCancelled,
    CallEvent,
    CallRequested,
    CopyEnded,
    CopyStarted,
    CopyUnsent,
    FailureReceived,
    LinkLost,
    ReplicaAvailable,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.messages import Submit
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Backup, Hedged, Policy, Tied
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.stagger import stagger_times
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState, Identity

__all__ = ["CallCore", "CallRequest", "CallStats", "SentCopy"]

NEVER = float("inf")
RETARGET_MIN = 0.001
"""Seconds after which a backup that found no replica looks again, at least."""

_ENDING = {
    OutcomeKind.ANSWERED: CallTrigger.ANSWERED,
    OutcomeKind.DEADLINE: CallTrigger.DEADLINE_PASSED,
    OutcomeKind.CANCELLED: CallTrigger.CANCELLED,
    OutcomeKind.FAILED: CallTrigger.FAILED,
    OutcomeKind.REJECTED: CallTrigger.FAILED,
    OutcomeKind.UNKNOWN: CallTrigger.FAILED,
    OutcomeKind.OVERLOADED: CallTrigger.ROUNDS_SPENT,
    OutcomeKind.UNAVAILABLE: CallTrigger.ROUNDS_SPENT,
}


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What the user asked for. ``payload`` is encoded once; ``deadline`` is on the core's clock."""

    id: CallId
    method: str
    idempotent: bool
    payload: bytes
    policy: Policy
    deadline: float
    key: str | None = None
    layered: bool = False
    metadata: tuple[tuple[str, str], ...] = ()


class CallCore:
    """The decisions of one call. ``step`` takes an event and returns what the driver has to do."""

    def __init__(self, request: CallRequest, replicas: ReplicaTable, stats: CallStats, *, rounds_max: int) -> None:
        self.request = request
        self.state = CallState.NEW
        self.copies: dict[CopyId, SentCopy] = {}
        self._replicas = replicas
        self._stats = stats
        self._rounds_max = rounds_max
        self._rounds = 0
        self._untied = 0
        self._partners: tuple[Identity, ...] = ()
        self._unsent: list[tuple[float, int, ReplicaView]] = []
        self._backup_at = NEVER
        self._ceiling_at = NEVER
        self._backups = 0
        self._untargeted = 0
        self._failure: FailureReceived | None = None
        self._retry_after = 0.0
        self._out: list[CallCommand] = []
        policy = request.policy
        self._tie = policy if isinstance(policy, Tied) and request.idempotent else None
        backup = policy.backup if isinstance(policy, Hedged | Tied) else None
        self._backup: Backup | None = backup if request.idempotent else None
        self._steps: dict[type, Callable[[Any, float], None]] = {
            CallRequested: self._call_requested,
            CopyStarted: self._copy_started,
            ResultReceived: self._result_received,
            FailureReceived: self._failure_received,
            CopyEnded: self._copy_ended,
            CopyUnsent: self._copy_unsent,
            LinkLost: self._link_lost,
            ReplicaAvailable: self._replica_available,
            CallerCancelled: self._caller_cancelled,
            TimePassed: self._time_passed,
        }

    def step(self, event: CallEvent, now: float) -> list[CallCommand]:
        """Decide. After the call has ended every event changes nothing."""
        if self.state == CallState.DONE:
            return []
        self._steps[type(event)](event, now)
        out, self._out = self._out, []
        return out

    @property
    def wake_at(self) -> float:
        """When the core wants ``TimePassed`` next, on its clock; infinity once the call has ended."""
        if self.state == CallState.DONE:
            return NEVER
        unsent = self._unsent[0][0] if self._unsent else NEVER
        return min(self.request.deadline, self._backup_at, self._ceiling_at, unsent)

    def snapshot(self) -> tuple[object, ...]:
        """Everything that the future depends on, as hashable plain values (times are absolute)."""
        return (
            self.request.id,
            self.state,
            tuple(copy.snapshot() for copy in self.copies.values()),
            self._rounds,
            self._untied,
            self._partners,
            tuple((at, rank, view.link) for at, rank, view in self._unsent),
            self._backup_at,
            self._ceiling_at,
            self._backups,
            self._untargeted,
            self._failure,
        )

    # ---- rounds -----------------------------------------------------------------------------------------------

    def _call_requested(self, event: CallRequested, now: float) -> None:
        self._stats.calls += 1
        self._new_round(now)

    def _new_round(self, now: float) -> None:
        if now >= self.request.deadline:
            self._complete(Outcome(OutcomeKind.DEADLINE), now)
            return
        chosen = self._choose_round(now)
        self._backup_at = self._ceiling_at = NEVER
        if not chosen:
            self.state = CALL_TABLE.next(self.state, CallTrigger.NONE_REACHABLE)
            return
        if self._rounds >= self._rounds_max:
            self._give_up(now)
            return
        self.state = CALL_TABLE.next(self.state, CallTrigger.ROUND_SENT)
        self._rounds += 1
        if self._rounds > 1:
            self._stats.failovers += 1
        if len(chosen) == 1:
            self._partners = ()
            kind = CopyKind.FIRST if self._rounds == 1 else CopyKind.FAILOVER
            self._send(self._untied_id(), kind, chosen[0], now)
        else:
            self._stats.ties += 1
            self._partners = tuple(view.identity for view in chosen)
            self._unsent = [
                (now + wait, rank, view)
                for rank, (wait, view) in enumerate(zip(self._waits(chosen, now), chosen, strict=True))
            ]
            self._send_due(now)
        self._arm_from_send(now)

    def _waits(self, chosen: list[ReplicaView], now: float) -> list[float]:
        """Seconds after the first copy at which each copy of the tie is to be sent."""
        assert self._tie is not None
        if self._tie.stagger == "auto":
            return stagger_times(chosen, now)
        return [rank * self._tie.stagger for rank in range(len(chosen))]

    def _choose_round(self, now: float) -> list[ReplicaView]:
        """Replicas for a round, in order of rank: untried ones first, one with a waiting backup of this call last."""
        method = self.request.method
        width = self._tie.copies if self._tie is not None else 1
        busy = {copy.replica for copy in self.copies.values() if copy.alive}
        tried = {copy.replica for copy in self.copies.values()}
        chosen: list[ReplicaView] = []
        for excluded in (tried, busy):
            self._fill(chosen, width, self._replicas.candidates(method, now, excluded), now)
        if not chosen:
            self._fill(chosen, width, self._replicas.candidates(method, now), now)
        return chosen

    def _fill(self, chosen: list[ReplicaView], width: int, pool: list[ReplicaView], now: float) -> None:
        """Move the picker's choices from ``pool`` to ``chosen`` until that has ``width``."""
        pool = [view for view in pool if view not in chosen]
        while len(chosen) < width:
            view = self._replicas.choose(pool, now)
            if view is None:
                return
            chosen.append(view)
            pool.remove(view)

    def _untied_id(self) -> CopyId:
        copy = CopyId(self.request.id.client, self.request.id.number, self._untied, UNTIED)
        self._untied += 1
        return copy

    def _send_due(self, now: float) -> None:
        """Send the copies of the tie whose time has come."""
        while self._unsent and self._unsent[0][0] <= now:
            self._send_next_of_tie(now)

    def _send_next_of_tie(self, now: float) -> None:
        _, rank, view = self._unsent.pop(0)
        identity = self.request.id
        kind = CopyKind.FAILOVER if self._rounds > 1 else CopyKind.TIE if rank else CopyKind.FIRST
        self._send(CopyId(identity.client, identity.number, self._rounds - 1, rank), kind, view, now)

    def _send(self, copy: CopyId, kind: CopyKind, view: ReplicaView, now: float) -> None:
        request = self.request
        self.copies[copy] = SentCopy(copy, kind, view, self._rounds, now)
        self._stats.copies_sent += 1
        view.sent += 1
        submit = Submit(
            copy=copy,
            kind=kind,
            method=request.method,
            payload=request.payload,
            remaining=request.deadline - now,
            partners=self._partners if copy.rank != UNTIED else (),
            yield_=self._tie is not None and self._tie.yield_,
            exclusive=copy.rank != UNTIED and self._tie is not None and self._tie.exclusive,
            layered=request.layered,
            key=request.key,
            metadata=request.metadata,
        )
        self._out.append(SendCopy(view.link, submit))

    # ---- what replicas say ------------------------------------------------------------------------------------

    def _find(self, link: int, copy: CopyId) -> SentCopy | None:
        """The copy that an event speaks of, if it is still out on that very link."""
        sent = self.copies.get(copy)
        return sent if sent is not None and sent.link == link and sent.alive else None

    def _copy_started(self, event: CopyStarted, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is not None and sent.started_at is None:
            sent.started_at = now
            self._start_known(sent, now)

    def _start_known(self, sent: SentCopy, now: float) -> None:
        """A copy of the round has started, here or at the partner that made this one end."""
        if sent.round == self._rounds and sent.id.rank != UNTIED:
            self._unsent.clear()
        backup = self._backup
        if backup is not None and backup.since == "start" and self._backups < backup.max_per_call:
            self._ceiling_at = NEVER
            self._arm(now + backup.delay)

    def _result_received(self, event: ResultReceived, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        self._mark(sent, CopyState.DONE, Cause.NONE, now)
        if event.acceptable:
            if sent.kind == CopyKind.BACKUP:
                self._stats.backups_won += 1
            self._complete(Outcome(OutcomeKind.ANSWERED, sent.id), now)
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
        self._mark(sent, CopyState.FAILED, Cause.NONE, now)
        if not event.retryable:
            self._complete(_failed(event), now)
            return
        if self._failure is None:
            self._failure = event
        self._check_round(now)

    def _copy_ended(self, event: CopyEnded, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        self._mark(sent, event.state, event.cause, now)
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

    def _mark(self, sent: SentCopy, state: CopyState | None, cause: Cause, now: float) -> None:
        sent.state = state
        sent.cause = cause
        sent.ended_at = now

    # ---- failover ---------------------------------------------------------------------------------------------

    def _check_round(self, now: float) -> None:
        """Decide whether the round is over, and what then."""
        if self.state != CallState.RACING:
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
        self._new_round(now)

    def _check_waiting(self, now: float) -> None:
        """No replica was reachable; a backup that was the last hope may have ended. Go on waiting for a replica."""
        if self.state == CallState.WAITING and not any(sent.alive for sent in self.copies.values()):
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
            self._complete(_failed(self._failure), now)
            return
        ended = [sent for sent in self.copies.values() if not sent.alive]
        for state, kind in ((CopyState.REFUSED, OutcomeKind.OVERLOADED), (CopyState.EXPIRED, OutcomeKind.DEADLINE)):
            decisive = [sent for sent in ended if sent.state == state]
            if decisive:
                hint = self._retry_after if kind == OutcomeKind.OVERLOADED else 0.0
                self._complete(Outcome(kind, decisive[-1].id, decisive[-1].cause, retry_after=hint), now)
                return
        self._complete(Outcome(OutcomeKind.UNAVAILABLE, ended[-1].id, ended[-1].cause), now)

    def _replica_available(self, event: ReplicaAvailable, now: float) -> None:
        if self.state == CallState.WAITING:
            self._new_round(now)

    # ---- backups ----------------------------------------------------------------------------------------------

    def _arm(self, at: float) -> None:
        if at < self.request.deadline:
            self._backup_at = min(self._backup_at, at)

    def _arm_from_send(self, now: float) -> None:
        """Set the clock that counts from the sending: the delay itself, or the ceiling over a frozen queue."""
        backup = self._backup
        if backup is None or self._backups >= backup.max_per_call:
            return
        if backup.since == "send":
            self._arm(now + backup.delay)
        elif now + backup.ceiling < self.request.deadline:
            self._ceiling_at = now + backup.ceiling

    def _send_backup(self, now: float) -> None:
        """Send a backup; with no replica for it, look again after twice the time as before."""
        backup = self._backup
        self._backup_at = self._ceiling_at = NEVER
        if backup is None or self._backups >= backup.max_per_call:
            return
        view = self._choose_backup(now)
        if view is None:
            if not self._untargeted:
                self._stats.backups_without_target += 1
            self._arm(now + max(backup.delay, RETARGET_MIN) * 2**self._untargeted)
            self._untargeted += 1
            return
        self._untargeted = 0
        self._backups += 1
        self._stats.backups_sent += 1
        self._send(self._untied_id(), CopyKind.BACKUP, view, now)
        self._arm_from_send(now)

    def _choose_backup(self, now: float) -> ReplicaView | None:
        """A replica without a living copy of this call and without push-back: one never tried, if there is one."""
        method = self.request.method
        held = {sent.replica for sent in self.copies.values() if sent.alive}
        held.update(view.name for _, _, view in self._unsent)
        tried = {sent.replica for sent in self.copies.values()} | held
        for excluded in (tried, held):
            pool = [v for v in self._replicas.candidates(method, now, excluded) if v.pushback_until <= now]
            if pool:
                return self._replicas.choose(pool, now)
        return None

    # ---- time and endings -------------------------------------------------------------------------------------

    def _time_passed(self, event: TimePassed, now: float) -> None:
        if now >= self.request.deadline:
            self._complete(Outcome(OutcomeKind.DEADLINE), now)
            return
        self._send_due(now)
        if now >= min(self._backup_at, self._ceiling_at):
            self._send_backup(now)

    def _caller_cancelled(self, event: CallerCancelled, now: float) -> None:
        self._complete(Outcome(OutcomeKind.CANCELLED), now)

    def _complete(self, outcome: Outcome, now: float) -> None:
        self.state = CALL_TABLE.next(self.state, _ENDING[outcome.kind])
        self._unsent.clear()
        for sent in self.copies.values():
            if sent.alive:
                self._out.append(CancelCopy(sent.link, sent.id))
        if outcome.kind == OutcomeKind.ANSWERED:
            self._stats.answered += 1
        elif outcome.kind == OutcomeKind.CANCELLED:
            self._stats.cancelled += 1
        else:
            self._stats.failed += 1
        self._out.append(CompleteCall(outcome))


def _failed(event: FailureReceived) -> Outcome:
    return Outcome(OutcomeKind.FAILED, event.copy, code=event.code, message=event.message, details=event.details)
