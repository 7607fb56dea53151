"""Broken replicas: each breaks one rule of a copy at its replica (design section 5), or of links (section 4)."""

from __future__ import annotations

from typing import Any

from tiedreq.core.commands import ReplicaCommand, SendCaller, SendPeer, StartWork
from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.copybook import Caller, HeldCopy, HeldMethod
from tiedreq.core.events import (
    CallerLost,
    CancelReceived,
    DrainRequested,
    InputSettled,
    PeerConnected,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.memory import MarkerBook, MarkerKind, Tombstone, Tombstones
from tiedreq.core.messages import Started
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyState, Identity


class StartedAfterStartWork(ReplicaCore):
    """5.1: the notice stands after ``StartWork``: a replica that stops in between runs in secret."""

    def _start(self, held: HeldCopy, now: float) -> None:
        before = len(self._out)
        super()._start(held, now)
        self._out[before:] = sorted(self._out[before:], key=lambda command: not isinstance(command, StartWork))


class SilentStart(ReplicaCore):
    """5.1: a start is not told to the partners at all."""

    def _start(self, held: HeldCopy, now: float) -> None:
        before = len(self._out)
        super()._start(held, now)
        self._out[before:] = [command for command in self._out[before:] if not isinstance(command, SendPeer)]


class StartsBeforeInputHasSettled(ReplicaCore):
    """5.2: slots are filled by the first event of a batch, so that a start does not see the rest of it."""

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        commands = super().step(event, now)
        return commands if isinstance(event, InputSettled) else commands + super().step(InputSettled(), now)


class NoYield(ReplicaCore):
    """5.3: a copy runs on beside one of lower rank."""

    def _yield_to_rivals(self, held: HeldCopy, now: float) -> None:
        pass


class YieldsAfterItsFirstItem(ReplicaCore):
    """5.3: a stream that has sent content yields like any copy: its caller has cancelled the other one by then."""

    @staticmethod
    def _committed(held: HeldCopy) -> bool:
        return False


class EveryRankYields(ReplicaCore):
    """5.3: the lower rank yields as well, so that both stop."""

    def _both_started(self, held: HeldCopy, event: PeerStarted, now: float) -> None:
        self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class YieldByTime(ReplicaCore):
    """5.3: the copy that has not run for long yields, whatever its rank; two that began together both do."""

    def _both_started(self, held: HeldCopy, event: PeerStarted, now: float) -> None:
        if now - held.started_at < 0.02:
            self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class LowerRankStaysSilent(ReplicaCore):
    """5.3: the lower rank does not say Started again when it hears of a higher one: a lost notice is never mended."""

    def _both_started(self, held: HeldCopy, event: PeerStarted, now: float) -> None:
        if event.copy.rank < held.id.rank:
            super()._both_started(held, event, now)


class NextOfAnyRank(ReplicaCore):
    """5.4: a queued copy drops for a Next of higher rank as well: each may drop for the other."""

    def _peer_next(self, event: PeerNext, now: float) -> None:
        _, held = self._partner(event.link, event.copy)
        if held is not None and held.state == CopyState.QUEUED:
            self._end(held, CopyTrigger.PARTNER_NEXT, Cause.NEXT, now)
        else:
            super()._peer_next(event, now)


class NoMarkers(ReplicaCore):
    """5.5: a notice that overtakes its copy is forgotten."""

    def _early_notice(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float, now: float) -> None:
        pass


class AnyPeersMarkers(MarkerBook):
    """Finds a marker whoever sent it."""

    def take(self, peer: Identity, copy: CopyId, now: float) -> MarkerKind | None:
        kinds = [super(AnyPeersMarkers, self).take(other, copy, now) for other in list(self._books)]
        return next((kind for kind in kinds if kind is not None), None)


class MarkerOfAnyPeer(ReplicaCore):
    """5.5: a marker acts although it does not come from the partner that the Submit names."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._markers = AnyPeersMarkers(self.limits.markers_per_peer_max, self.limits.marker_age_max)


class MarkersForEver(ReplicaCore):
    """5.5: a marker lives as long as its call, however long that is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._markers = MarkerBook(self.limits.markers_per_peer_max, 1e9)


class DropWithoutStart(ReplicaCore):
    """5, S3: a copy that can't start at once is dropped in the hope that its partner starts."""

    def _input_settled(self, event: InputSettled, now: float) -> None:
        super()._input_settled(event, now)
        for held in list(self._queue):
            if held.tied:
                self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class EndsInSilence(ReplicaCore):
    """5.7: the caller of a dropped copy is not told."""

    def _end(self, held: HeldCopy, trigger: CopyTrigger, cause: Cause, now: float, *, retry_after: float = 0.0) -> None:
        before = len(self._out)
        super()._end(held, trigger, cause, now, retry_after=retry_after)
        if held.state == CopyState.DROPPED:
            self._out[before:] = [command for command in self._out[before:] if not isinstance(command, SendCaller)]


class SlotNotReleased(ReplicaCore):
    """5.7: the slot of a handler that was stopped stays taken after it has ended."""

    def _work_finished(self, event: WorkFinished, now: float) -> None:
        held = self._executions.get(event.copy)
        if held is None or held.state == CopyState.RUNNING:
            super()._work_finished(event, now)


class SlotReleasedEarly(ReplicaCore):
    """5.7: a slot is free as soon as its copy has ended, though the handler still runs."""

    def _end(self, held: HeldCopy, trigger: CopyTrigger, cause: Cause, now: float, *, retry_after: float = 0.0) -> None:
        super()._end(held, trigger, cause, now, retry_after=retry_after)
        if self._executions.pop(held.id, None) is not None:
            self._queue.release(held.submit.method)


class Forgetful(Tombstones):
    """Remembers nothing."""

    def get(self, copy: CopyId) -> Tombstone | None:
        return None


class TombstonesIgnored(ReplicaCore):
    """5.7: a copy that has ended is not known any more: when its Submit arrives again, it runs again."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tombstones = Forgetful(self.limits.tombstones_max)


class CallerLostKeepsCopies(ReplicaCore):
    """5.9: what came over a caller's lost link waits and runs on."""

    def _caller_lost(self, event: CallerLost, now: float) -> None:
        self._callers.pop(event.link, None)


class CancelIgnoredWhileQueued(ReplicaCore):
    """5.7: a caller's Cancel ends a running copy only."""

    def _cancel_received(self, event: CancelReceived, now: float) -> None:
        held = self._copies.get(event.copy)
        if held is None or held.state != CopyState.QUEUED:
            super()._cancel_received(event, now)


class ExpiredStillRuns(ReplicaCore):
    """5: a queued copy whose time is up gets more of it, and runs for nobody."""

    def _give_more_time(self, now: float) -> None:
        for held in self._queue:
            if held.deadline <= now:
                held.deadline = now + 1.0

    def _time_passed(self, event: TimePassed, now: float) -> None:
        self._give_more_time(now)
        super()._time_passed(event, now)

    def _input_settled(self, event: InputSettled, now: float) -> None:
        self._give_more_time(now)
        super()._input_settled(event, now)


class DrainDrops(ReplicaCore):
    """5.10: a replica that drains ends its queue DROPPED, so that the caller does not move it."""

    def _end(self, held: HeldCopy, trigger: CopyTrigger, cause: Cause, now: float, *, retry_after: float = 0.0) -> None:
        if cause == Cause.DRAINING and held.waiting:
            trigger, cause = CopyTrigger.PARTNER_STARTED, Cause.STARTED
        super()._end(held, trigger, cause, now, retry_after=retry_after)


class DrainTakesWork(ReplicaCore):
    """5.10: a replica that drains accepts new copies, and may never have done."""

    def _ending_on_arrival(
        self, caller: Caller, held: HeldCopy, method: HeldMethod | None, now: float
    ) -> tuple[CopyTrigger, Cause] | None:
        ending = super()._ending_on_arrival(caller, held, method, now)
        return None if ending is not None and ending[1] == Cause.DRAINING else ending


class DrainForgetsItsQueue(ReplicaCore):
    """5.10: a replica that drains leaves its queue where it is."""

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        self.draining = True
        self._check_drained()


class QueueWithoutLimit(ReplicaCore):
    """5, S8: a full queue takes one more."""

    def _ending_on_arrival(
        self, caller: Caller, held: HeldCopy, method: HeldMethod | None, now: float
    ) -> tuple[CopyTrigger, Cause] | None:
        ending = super()._ending_on_arrival(caller, held, method, now)
        return None if ending is not None and ending[1] == Cause.FULL else ending


class RoundIgnored(ReplicaCore):
    """4: a notice of one round touches the copy of another."""

    def _peer_started(self, event: PeerStarted, now: float) -> None:
        for held in self._ties.values():
            if held.id.call == event.copy.call:
                event = event._replace(copy=event.copy._replace(round=held.id.round))
                break
        super()._peer_started(event, now)


class NoticeEndsBackup(ReplicaCore):
    """4, S12: a notice of a tie ends a backup of the same call."""

    def _peer_started(self, event: PeerStarted, now: float) -> None:
        super()._peer_started(event, now)
        for held in list(self._copies.values()):
            if held.id.rank == UNTIED and held.id.call == event.copy.call:
                self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class NoticesOfLostLinks(ReplicaCore):
    """4, S9: the epoch of a link is ignored: what comes over one that is lost is heeded."""

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        link = getattr(event, "link", None)
        if isinstance(event, PeerStarted | PeerNext) and link not in self._peers and self._peers:
            # The new link of that peer, as far as this one can know: the one that the tie names.
            held = self._ties.get(event.copy.tie)
            named = held.submit.partners[event.copy.rank] if held is not None else None
            event = event._replace(link=self._links.get(named, link))  # type: ignore[arg-type]
        return super().step(event, now)


class OldLossEndsNewCopies(ReplicaCore):
    """4, S9: the late news that a caller's old link was lost ends the copies that came over its new one."""

    def _caller_lost(self, event: CallerLost, now: float) -> None:
        lost = self._callers.get(event.link)
        super()._caller_lost(event, now)
        for caller in list(self._callers.values()):
            if lost is not None and caller.client == lost.client:
                for copy in list(caller.copies):
                    self._end(self._copies[copy], CopyTrigger.CALLER_LOST, Cause.CALLER_LOST, now)


class OldLossForgetsNewLink(ReplicaCore):
    """4, S9: the late news that a peer's old link was lost makes its new one unknown."""

    def _forget_peer(self, link: int, now: float) -> None:
        peer = self._peers.get(link)
        if peer is not None:
            self._links[peer] = link
        super()._forget_peer(link, now)


class NoResync(ReplicaCore):
    """5.3, 7: after a reconnect a running copy is not told again; what was lost with the old link stays lost."""

    def _peer_connected(self, event: PeerConnected, now: float) -> None:
        before = len(self._out)
        super()._peer_connected(event, now)
        self._out[before:] = [
            command
            for command in self._out[before:]
            if not (isinstance(command, SendPeer) and isinstance(command.message, Started))
        ]
