"""StreamCore: a call whose answer is a stream of items.

The race is decided by the first item with *content* of any copy, not by a whole answer. Until then everything is as
for any call, with three differences: items without content (preambles) are kept per copy; an error decides nothing
while another copy lives, whatever its kind; nor does a stream that ends without content, which is the answer only if
nobody has a better one. From then on only the winner counts: its items go to the user in order, the other copies are
cancelled, no backup is sent, and nothing is tried again, because the user has a part of the answer.

Invariants
* ``DeliverItems`` names one copy only, and the losers' ``CancelCopy`` stand before it.
* A copy is never granted more than the window beyond what the user has taken of it. Preambles that are kept count as
  taken, but their number and bytes are bounded, and a copy that has more of them is given up.

What is learned of a stream is the service time up to the first content, and that a loser took at least so long.
"""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.call import CallCore, failure_outcome
from tiedreq.core.call_copies import ENDING, NEVER, CallRequest
from tiedreq.core.call_stats import CallStats
from tiedreq.core.call_table import CALL_TABLE, CallTrigger
from tiedreq.core.commands import CancelCopy, CompleteCall, DeliverItems, GrantCredit, Outcome, OutcomeKind
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import (
    CopyEnded,
    CopyStarted,
    FailureReceived,
    ItemReceived,
    ItemRefused,
    ItemTaken,
    LinkLost,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.lessons import LearningBook
from tiedreq.core.picker import ReplicaTable
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import Cause, CopyId, CopyKind, CopyState, Window

PREAMBLES_MAX = 1024
"""More items without content are not kept of one copy."""
TOO_LONG = "preamble"
"""The code of the failure of a copy that has more of them."""


class Lane:
    """What came of one copy, and what it was granted. Counts of items and of payload bytes, since its beginning."""

    __slots__ = ("bytes", "bytes_granted", "items", "items_granted", "kept_bytes", "kept_items", "taken", "taken_bytes")

    def __init__(self, window: Window) -> None:
        self.items = self.bytes = 0
        self.items_granted, self.bytes_granted, _ = window
        self.kept_items = self.kept_bytes = 0
        self.taken = self.taken_bytes = 0

    def arrived(self, number: int, size: int) -> None:
        """Count an item. Raises ``RemoteViolation``, with nothing changed, for one out of turn or beyond the credit."""
        if number != self.items:
            raise RemoteViolation(f"item: number {number} where {self.items} is next")
        if self.items >= self.items_granted or self.bytes >= self.bytes_granted:
            raise RemoteViolation(f"item: number {number} is beyond the credit")
        self.items += 1
        self.bytes += size

    def grant(self, window: Window) -> bool:
        """Grant what is free again; False while that is less than half the window."""
        free_items = window.items - self.items_granted + max(self.taken, self.kept_items)
        free_bytes = window.bytes - self.bytes_granted + max(self.taken_bytes, self.kept_bytes)
        if 2 * free_items < window.items and 2 * free_bytes < window.bytes:
            return False
        self.items_granted += free_items
        self.bytes_granted += free_bytes
        return True

    def snapshot(self) -> tuple[object, ...]:
        """What the stream's future depends on, as plain values."""
        return tuple(getattr(self, name) for name in self.__slots__)


class _Empty(NamedTuple):
    """A copy whose stream ended without content."""

    copy: CopyId


class StreamCore(CallCore):
    """The decisions of one call that is answered by a stream."""

    def __init__(
        self,
        request: CallRequest,
        replicas: ReplicaTable,
        stats: CallStats,
        *,
        rounds_max: int,
        learning: LearningBook | None = None,
    ) -> None:
        super().__init__(request, replicas, stats, rounds_max=rounds_max, learning=learning)
        assert request.window is not None
        self.window = request.window
        self.winner: SentCopy | None = None
        """The copy that decided the race; None before."""
        self._lanes: dict[CopyId, Lane] = {}
        self._last_resort: _Empty | FailureReceived | None = None

    @property
    def items(self) -> int:
        """Items that came of the winner so far."""
        return 0 if self.winner is None else self._lanes[self.winner.id].items

    def received(self, copy: CopyId) -> int:
        """Items that came of one copy so far."""
        lane = self._lanes.get(copy)
        return 0 if lane is None else lane.items

    def snapshot(self) -> tuple[object, ...]:
        """As ``CallCopies.snapshot``."""
        lanes = tuple((copy, lane.snapshot()) for copy, lane in self._lanes.items())
        winner = None if self.winner is None else self.winner.id
        return (*super().snapshot(), winner, lanes, self._last_resort)

    # ---- items ------------------------------------------------------------------------------------------------

    def _item_received(self, event: ItemReceived, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        lane = self._lanes.get(sent.id)
        if lane is None:
            lane = self._lanes[sent.id] = Lane(self.window)
        lane.arrived(event.number, event.size)
        if self.winner is sent:
            self._out.append(DeliverItems(sent.id))
        elif event.content:
            self._decide(sent, event, now)
        else:
            self._keep(sent, lane, event, now)

    def _keep(self, sent: SentCopy, lane: Lane, event: ItemReceived, now: float) -> None:
        """An item without content waits until it is known whose stream this is; its place in the window is free."""
        lane.kept_items += 1
        lane.kept_bytes += event.size
        if lane.kept_items > PREAMBLES_MAX or lane.kept_bytes > self.window.bytes:
            text = f"no content in {lane.kept_items} items of {lane.kept_bytes} bytes"
            self._give_up_on(sent, TOO_LONG, text, True, event.service_time, now)
        else:
            self._grant(sent, lane)

    def _item_refused(self, event: ItemRefused, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is not None:
            self._give_up_on(sent, event.code, event.message, False, event.service_time, now)

    def _give_up_on(self, sent: SentCopy, code: str, text: str, retryable: bool, busy: float, now: float) -> None:
        """Its stream is of no use: as if its handler had failed, but the handler has to be stopped."""
        self._out.append(CancelCopy(sent.link, sent.id))
        self._failure_received(FailureReceived(sent.link, sent.id, code, text, b"", retryable, busy), now)

    def _grant(self, sent: SentCopy, lane: Lane) -> None:
        if lane.grant(self.window):
            self._out.append(GrantCredit(sent.link, sent.id, lane.items_granted, lane.bytes_granted))

    def _item_taken(self, event: ItemTaken, now: float) -> None:
        sent = self.winner
        if sent is None:
            return
        lane = self._lanes[sent.id]
        lane.taken += 1
        lane.taken_bytes += event.size
        if sent.alive:
            self._grant(sent, lane)

    # ---- the race is decided ----------------------------------------------------------------------------------

    def _decide(self, sent: SentCopy, event: ItemReceived, now: float) -> None:
        """The first content: everything that was learned by the race is learned now, whatever becomes of the rest."""
        self.state = CALL_TABLE.next(self.state, CallTrigger.CONTENT_CAME)
        self.winner = sent
        self._unsent.clear()
        self._backup_at = self._ceiling_at = self._round_at = NEVER
        if sent.kind == CopyKind.BACKUP:
            self._stats.backups_won += 1
        method, busy = self.request.method, event.service_time
        view = self._replicas.get(sent.link)
        sent.state = CopyState.DONE
        sent.queue_wait = event.queue_wait
        sent.service_time = sent.busy = busy
        if view is not None:
            self._replicas.copy_ended(view, sent, method, busy, now, final=False)
        self._account.ended(sent, view, now, busy, event.queue_wait, used=True, final=False)
        losers = [copy for copy in self.copies.values() if copy.alive and copy is not sent]
        self._account.lost(losers, sent.id, now)
        for loser in losers:
            self._stop(loser, now, lost=True)
        sent.state = None
        self._out.append(DeliverItems(sent.id))

    def _stop(self, sent: SentCopy, now: float, *, lost: bool) -> None:
        """Cancel a copy that is out. Of a loser the picker learns that it took at least so long."""
        view = self._replicas.get(sent.link)
        if view is not None:
            view.outstanding -= 1
            if lost:
                self._replicas.copy_stopped(view, sent, self.request.method, now)
        sent.state, sent.cause, sent.ended_at = CopyState.CANCELLED, Cause.CALLER, now
        self._out.append(CancelCopy(sent.link, sent.id))

    def _winner_ended(self, state: CopyState | None, cause: Cause, now: float) -> SentCopy:
        """The winner is over: the books of the race are closed already."""
        sent = self.winner
        assert sent is not None
        sent.state, sent.cause, sent.ended_at = state, cause, now
        view = self._replicas.get(sent.link)
        if view is not None:
            view.outstanding -= 1
        return sent

    def _complete(self, outcome: Outcome, now: float) -> None:
        if self.winner is None:
            super()._complete(outcome, now)
            return
        if self.winner.alive:
            self._stop(self.winner, now, lost=False)
        self.state = CALL_TABLE.next(self.state, ENDING[outcome.kind])
        if outcome.kind == OutcomeKind.ANSWERED:
            self._stats.answered += 1
        elif outcome.kind == OutcomeKind.CANCELLED:
            self._stats.cancelled += 1
        else:
            self._stats.failed += 1
        self._out.append(CompleteCall(outcome))

    # ---- what replicas say, and time --------------------------------------------------------------------------

    def _copy_started(self, event: CopyStarted, now: float) -> None:
        if self.winner is None:
            super()._copy_started(event, now)

    def _result_received(self, event: ResultReceived, now: float) -> None:
        """The end of a stream. One without content is kept as the last resort, and outranks a failure there."""
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        if self.winner is sent:
            sent.busy = event.service_time
            self._winner_ended(CopyState.DONE, Cause.NONE, now)
            self._complete(Outcome(OutcomeKind.ANSWERED, sent.id), now)
            return
        used = False
        if not isinstance(self._last_resort, _Empty):
            self._last_resort = _Empty(sent.id)
            used = not any(copy.alive and copy is not sent for copy in self.copies.values())
        self._mark(sent, CopyState.DONE, Cause.NONE, now, event.service_time, wait=event.queue_wait, used=used)
        self._check_round(now)

    def _failure_received(self, event: FailureReceived, now: float) -> None:
        sent = self._find(event.link, event.copy)
        if sent is None:
            return
        if self.winner is sent:
            self._winner_ended(CopyState.FAILED, Cause.NONE, now)
            self._complete(failure_outcome(event), now)
        elif event.retryable:
            super()._failure_received(event, now)
        else:
            self._mark(sent, CopyState.FAILED, Cause.NONE, now, event.service_time, final=True)
            if self._last_resort is None:
                self._last_resort = event
            self._check_round(now)

    def _check_round(self, now: float) -> None:
        """With a last resort there is no further round: it is the outcome as soon as no copy can better it."""
        last = self._last_resort
        if last is None:
            super()._check_round(now)
        elif not any(sent.alive for sent in self.copies.values()):
            if isinstance(last, _Empty):
                self._stats.backups_won += self.copies[last.copy].kind == CopyKind.BACKUP
                self._out.append(DeliverItems(last.copy))
                self._complete(Outcome(OutcomeKind.ANSWERED, last.copy), now)
            else:
                self._complete(failure_outcome(last), now)

    def _copy_ended(self, event: CopyEnded, now: float) -> None:
        if self.winner is None:
            super()._copy_ended(event, now)
            return
        sent = self._find(event.link, event.copy)
        if sent is not None:
            self._winner_ended(event.state, event.cause, now)
            expired = event.state == CopyState.EXPIRED
            kind = OutcomeKind.DEADLINE if expired else OutcomeKind.INTERRUPTED
            self._complete(Outcome(kind, sent.id, event.cause), now)

    def _link_lost(self, event: LinkLost, now: float) -> None:
        if self.winner is None:
            super()._link_lost(event, now)
        elif self.winner.link == event.link:
            sent = self._winner_ended(None, Cause.LINK_LOST, now)
            self._complete(Outcome(OutcomeKind.INTERRUPTED, sent.id, Cause.LINK_LOST), now)

    def _time_passed(self, event: TimePassed, now: float) -> None:
        if self.winner is None:
            super()._time_passed(event, now)
        elif now >= self.request.deadline:
            self._complete(Outcome(OutcomeKind.DEADLINE, self.winner.id), now)
