"""What a call does with its copies: it sends them, marks what became of them, sends backups, and completes.

``core.call`` decides what follows from news; here is how it is done, with the books kept: counters, the replicas'
outstanding copies, and the account of what was learned.
"""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.call_stats import CallStats
from tiedreq.core.call_table import CALL_TABLE, CallState, CallTrigger
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, Outcome, OutcomeKind, SendCopy
from tiedreq.core.events import FailureReceived
from tiedreq.core.lessons import CallAccount, LearningBook
from tiedreq.core.messages import Submit
from tiedreq.core.names import ANSWERED, BACKUP, CANCELLED, FAILOVER, FIRST, NEW, OVER, TIE, new
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Backup, Hedged, Policy, ceiling, shape_of
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState, Identity, Window

NEVER = float("inf")
RETARGET_MIN = 0.001
"""Seconds after which a backup that found no replica looks again, at least."""

ENDING = {
    OutcomeKind.ANSWERED: CallTrigger.ANSWERED,
    OutcomeKind.DEADLINE: CallTrigger.DEADLINE_PASSED,
    OutcomeKind.CANCELLED: CallTrigger.CANCELLED,
    OutcomeKind.FAILED: CallTrigger.FAILED,
    OutcomeKind.REJECTED: CallTrigger.FAILED,
    OutcomeKind.UNKNOWN: CallTrigger.FAILED,
    OutcomeKind.OVERLOADED: CallTrigger.ROUNDS_SPENT,
    OutcomeKind.UNAVAILABLE: CallTrigger.ROUNDS_SPENT,
    OutcomeKind.INTERRUPTED: CallTrigger.BROKE_OFF,
}
"""What each outcome is to the state of a call."""


_NO_ACCOUNT = CallAccount(None, "", None, 0.0, True)
"""Until the call begins, and where nothing is learned; it keeps nothing."""


class CallRequest(NamedTuple):
    """What the user asked for. ``payload`` is encoded once; ``deadline`` is on the core's clock.

    ``stoppable``: handlers of the method can be stopped, as far as the replicas say. ``window``: of a stream only.
    """

    id: CallId
    method: str
    idempotent: bool
    payload: bytes
    policy: Policy
    deadline: float
    key: str | None = None
    layered: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    stoppable: bool = True
    window: Window | None = None


class CallCopies:
    """The copies of one call."""

    __slots__ = (
        "_account",
        "_backup",
        "_backup_at",
        "_backups",
        "_ceiling_at",
        "_denials",
        "_failure",
        "_learning",
        "_observing",
        "_out",
        "_partners",
        "_replicas",
        "_retry_after",
        "_round_at",
        "_rounds",
        "_rounds_max",
        "_stats",
        "_stuck_at",
        "_tie",
        "_unsent",
        "_untargeted",
        "_untied",
        "copies",
        "request",
        "state",
    )

    def __init__(
        self,
        request: CallRequest,
        replicas: ReplicaTable,
        stats: CallStats,
        *,
        rounds_max: int,
        learning: LearningBook | None = None,
    ) -> None:
        self.request = request
        self.state: CallState = NEW
        self.copies: dict[CopyId, SentCopy] = {}
        self._replicas = replicas
        self._stats = stats
        self._rounds_max = rounds_max
        self._rounds = 0
        self._untied = 0
        self._partners: tuple[Identity, ...] = ()
        self._unsent: list[tuple[float, int, ReplicaView]] = []
        self._backup_at = NEVER
        self._ceiling_at = self._stuck_at = NEVER
        self._backups = 0
        self._untargeted = 0
        self._failure: FailureReceived | None = None
        self._retry_after = 0.0
        self._out: list[CallCommand] = []
        self._round_at = NEVER
        self._denials = 0
        self._tie, self._backup = shape_of(request.policy, request.idempotent, request.stoppable)
        self._observing = request.policy.observe_only
        self._learning = learning
        self._account = _NO_ACCOUNT

    @property
    def wake_at(self) -> float:
        """When the core wants ``TimePassed`` next, on its clock; infinity once the call has ended."""
        if self.state == OVER:
            return NEVER
        at = self.request.deadline
        unsent = self._unsent
        if unsent and unsent[0][0] < at:
            at = unsent[0][0]
        if self._backup_at < at:
            at = self._backup_at
        if self._ceiling_at < at:
            at = self._ceiling_at
        return self._round_at if self._round_at < at else at

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
            self._stuck_at,
            self._round_at,
            self._backups,
            self._untargeted,
            self._denials,
            self._retry_after,
            self._failure,
        )

    # ---- sending ----------------------------------------------------------------------------------------------

    def _untied_id(self) -> CopyId:
        client, number = self.request.id
        copy = new(CopyId, (client, number, self._untied, UNTIED))
        self._untied += 1
        return copy

    def _send_due(self, now: float) -> None:
        """Send the copies of the tie whose time has come."""
        while self._unsent and self._unsent[0][0] <= now:
            self._send_next_of_tie(now)

    def _send_next_of_tie(self, now: float) -> None:
        _, rank, view = self._unsent.pop(0)
        client, number = self.request.id
        kind = FAILOVER if self._rounds > 1 else TIE if rank else FIRST
        self._send(new(CopyId, (client, number, self._rounds - 1, rank)), kind, view, now)

    def _send(self, copy: CopyId, kind: CopyKind, view: ReplicaView, now: float) -> None:
        _, method, _, payload, _, deadline, key, layered, metadata, _, window = self.request
        self.copies[copy] = SentCopy(copy, kind, view, self._rounds, now)
        self._stats.copies_sent += 1
        view.sent += 1
        view.outstanding += 1
        account = self._account
        if account.lesson is not None:
            account.sent(view)
        tie, tied = self._tie, copy[3] != UNTIED
        yields, exclusive = (False, False) if tie is None else (tie.yield_, tied and tie.exclusive)
        partners = self._partners if tied else ()
        left = deadline - now
        submit = (copy, kind, method, payload, left, partners, yields, exclusive, layered, key, metadata, window)
        self._out.append(new(SendCopy, (view.link, new(Submit, submit))))

    def _find(self, link: int, copy: CopyId) -> SentCopy | None:
        """The copy that an event speaks of, if it is still out on that very link."""
        sent = self.copies.get(copy)
        return sent if sent is not None and sent.ended_at is None and sent.link == link else None

    def _mark(
        self,
        sent: SentCopy,
        state: CopyState | None,
        cause: Cause,
        now: float,
        busy: float = 0.0,
        *,
        wait: float = 0.0,
        used: bool = False,
        final: bool = False,
    ) -> None:
        sent.state = state
        sent.cause = cause
        sent.ended_at = now
        if state == CopyState.DONE:
            sent.queue_wait = wait
            sent.service_time = sent.busy = busy
        view = self._replicas.get(sent.link)
        if view is not None:
            view.outstanding -= 1
            self._replicas.copy_ended(view, sent, self.request.method, busy, now, final=final)
        account = self._account
        if account.lesson is not None:
            account.ended(sent, view, now, busy, wait, used=used, final=final)

    # ---- backups ----------------------------------------------------------------------------------------------

    def _arm(self, at: float) -> None:
        if at < self._backup_at and at < self.request.deadline:
            self._backup_at = at

    def _arm_from_send(self, now: float) -> None:
        """Set the clock that counts from the sending: the delay itself, or the ceiling over a frozen queue."""
        backup = self._backup
        if backup is None or self._backups >= backup.max_per_call:
            return
        delay = self._account.delay(backup, now)
        if backup.since == "start":
            at = now + ceiling(delay)
            self._ceiling_at = at if at < self.request.deadline else NEVER
        elif delay is not None:
            self._arm(now + delay)
        else:
            self._arm_if_stuck(now)

    def _arm_if_stuck(self, now: float) -> None:
        """Where no delay is worth it a copy may stand still all the same: set the clock to when that is certain."""
        at = now + self._account.stuck_after
        self._stuck_at = self._ceiling_at = at if at < self.request.deadline else NEVER

    def _send_backup(self, now: float) -> None:
        """Send a backup; with no replica for it, or no budget, look again after twice the time as before."""
        backup = self._backup
        self._backup_at = self._ceiling_at = NEVER
        if backup is None or self._backups >= backup.max_per_call:
            return
        view = self._choose_backup(now)
        if view is None:
            self._stats.backups_without_target += not self._untargeted
            self._again(backup, self._untargeted, now)
            self._untargeted += 1
            return
        self._untargeted = 0
        stuck = now >= self._stuck_at
        may, ticket = self._account.try_backup(now, first=not self._backups, again=self._denials > 0, stuck=stuck)
        if not may:
            self._stats.backups_denied += not self._denials
            self._again(backup, self._denials, now)
            self._denials += 1
            return
        self._denials = 0
        self._stuck_at = NEVER
        self._backups += 1
        if self._observing:
            self._stats.backups_observed += 1
            self._account.observed(ticket, now)
        else:
            self._stats.backups_sent += 1
            self._send(self._untied_id(), BACKUP, view, now)
            next(reversed(self.copies.values())).ticket = ticket
        self._arm_from_send(now)

    def _again(self, backup: Backup, times: int, now: float) -> None:
        delay = self._account.delay(backup, now)
        self._arm(now + max(RETARGET_MIN if delay is None else delay, RETARGET_MIN) * 2 ** min(times, 16))

    def _choose_backup(self, now: float) -> ReplicaView | None:
        """A replica without a living copy of this call and without push-back: one never tried, if there is one."""
        replicas = self._replicas
        links = dict.fromkeys(sent.link for sent in self.copies.values() if sent.alive)
        links.update((view.link, None) for _, _, view in self._unsent)
        out = [view for link in links if (view := replicas.get(link)) is not None]
        held = {sent.replica for sent in self.copies.values() if sent.alive}
        held.update(view.name for _, _, view in self._unsent)
        tried = {sent.replica for sent in self.copies.values()} | held
        for excluded in (tried, held):
            view = replicas.choose_backup(self.request.method, now, self._account.mean, excluded, out)
            if view is not None:
                return view
        return None

    def _complete(self, outcome: Outcome, now: float) -> None:
        self.state = CALL_TABLE.next(self.state, ENDING[outcome.kind])
        self._unsent.clear()
        policy, answered = self.request.policy, outcome.kind == ANSWERED
        cancelled = not (answered and isinstance(policy, Hedged) and not policy.cancel_losers)
        alive = [sent for sent in self.copies.values() if sent.ended_at is None]
        for sent in alive:
            view = self._replicas.get(sent.link)
            if view is not None:
                view.outstanding -= 1
                self._replicas.copy_stopped(view, sent, self.request.method, now)
            if cancelled:
                self._out.append(CancelCopy(sent.link, sent.id))
        account = self._account
        if account.lesson is not None:
            account.lost(alive, outcome.copy if answered else None, now, cancelled=cancelled)
        if answered:
            self._stats.answered += 1
        elif outcome.kind == CANCELLED:
            self._stats.cancelled += 1
        else:
            self._stats.failed += 1
        self._out.append(new(CompleteCall, (outcome,)))
