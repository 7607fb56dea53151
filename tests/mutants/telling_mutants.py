"""Broken replicas: what they say, hear, remember and let go of (design sections 5 and 7)."""

from __future__ import annotations

import heapq
from typing import Any

from tiedreq.core.commands import ReplicaCommand, SendCaller, SendPeer
from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.copybook import Caller, HeldCopy, HeldMethod
from tiedreq.core.events import (
    Answer,
    CancelReceived,
    DrainRequested,
    Fault,
    InputSettled,
    NoticeLatencyMeasured,
    PeerConnected,
    PeerNext,
    PushbackRequested,
    ReplicaEvent,
    StopEnabled,
    TimePassed,
)
from tiedreq.core.memory import MarkerBook, MarkerKind, Tombstones
from tiedreq.core.messages import Draining, Ended, Message, Next, Result
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import Cause, CopyId, CopyKind, CopyState, Identity, Load


class RefusedWithoutHint(ReplicaCore):
    """5: who is refused is not told when to come back."""

    def _retry_after(self, cause: Cause) -> float:
        return 0.0


class RunsPastItsDeadline(ReplicaCore):
    """5: a handler runs on when its call's time is up."""

    def _time_passed(self, event: TimePassed, now: float) -> None:
        late = [held for held in self._executions.values() if held.deadline <= now]
        for held in late:
            held.deadline = now + 5.0
            heapq.heappush(self._deadlines, (held.deadline, held.id))
        super()._time_passed(event, now)


class CancelsAreForgotten(ReplicaCore):
    """5: a caller's Cancel that overtakes its Submit is forgotten, and the copy runs."""

    def _cancel_received(self, event: CancelReceived, now: float) -> None:
        if event.copy in self._copies:
            super()._cancel_received(event, now)


class LastComeFirstServed(ReplicaCore):
    """5: the copy that came last starts first."""

    def _accept(self, held: HeldCopy) -> None:
        super()._accept(held)
        self._queue.remove(held.submit.method, held.id)
        self._queue.push_front(held.submit.method, held.id, held)


class UnstoppableYields(ReplicaCore):
    """5.3: a copy yields whose handler can't be stopped, so that its slot works for nobody."""

    def _yield_to_rivals(self, held: HeldCopy, now: float) -> None:
        if held.rivals and held.submit.yield_ and not held.submit.exclusive:
            self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class YieldsAgainstItsPolicy(ReplicaCore):
    """5.3: a copy yields though its Submit says that it never does."""

    def _yield_to_rivals(self, held: HeldCopy, now: float) -> None:
        if held.rivals and held.stoppable and not held.submit.exclusive:
            self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)


class StopEnabledInVain(ReplicaCore):
    """5.3: a handler that says at last how it can be stopped does not yield to the rank that it knows of."""

    def _stop_enabled(self, event: StopEnabled, now: float) -> None:
        held = self._executions.get(event.copy)
        if held is not None:
            held.stoppable = True


class NoNext(ReplicaCore):
    """5.4: a copy that can't be stopped reaches the head of its queue and says nothing."""

    def _tell_partners(self, held: HeldCopy, message: Message) -> None:
        if not isinstance(message, Next):
            super()._tell_partners(held, message)


class DeafToNext(ReplicaCore):
    """5.4: a queued copy of higher rank stays when it hears of a Next."""

    def _peer_next(self, event: PeerNext, now: float) -> None:
        _, held = self._partner(event.link, event.copy)
        if held is None or held.state != CopyState.QUEUED:
            super()._peer_next(event, now)


class NextMeetsSilence(ReplicaCore):
    """5.4: a running copy does not answer the Next of its partner, which then starts."""

    def _peer_next(self, event: PeerNext, now: float) -> None:
        _, held = self._partner(event.link, event.copy)
        if held is None or held.state != CopyState.RUNNING:
            super()._peer_next(event, now)


class MarkersWithoutNumber(ReplicaCore):
    """5.5: early notices are kept, however many there are."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._markers = MarkerBook(1_000_000, self.limits.marker_age_max)


class NextOutweighsStarted(MarkerBook):
    """Keeps what was said last."""

    def add(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float, now: float) -> None:
        book = self._books.get(peer)
        if kind == MarkerKind.NEXT and book is not None and copy in book:
            del book[copy]
        super().add(peer, copy, kind, remaining, now)


class LateNextUndoesAStart(ReplicaCore):
    """4: the order of two notices decides: a Next that arrives after Started takes its place."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._markers = NextOutweighsStarted(self.limits.markers_per_peer_max, self.limits.marker_age_max)


class DropsWithoutCause(ReplicaCore):
    """5.7: a dropped copy does not name its cause, so that no backup's clock starts."""

    def _send_caller(self, link: int, message: Message) -> None:
        if isinstance(message, Ended) and message.state == CopyState.DROPPED:
            message = message._replace(cause=Cause.NONE)
        super()._send_caller(link, message)


class RefusalsAreForgotten(ReplicaCore):
    """5.7: a refused copy leaves no tombstone: its Submit, arriving again, is taken."""

    def _retire(self, held: HeldCopy, trigger: CopyTrigger, now: float, *, remember: bool = True) -> CopyState:
        return super()._retire(held, trigger, now, remember=remember and trigger != CopyTrigger.REFUSAL)


class TombstonesWithoutNumber(ReplicaCore):
    """5.7: every copy that ever ended is remembered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tombstones = Tombstones(1_000_000)


class CountsTheSlotsTwice(ReplicaCore):
    """5.6, 5.8: callers are told of one free slot more than there is."""

    def _load(self, link: int, now: float) -> Load:
        load = super()._load(link, now)
        return load._replace(free=load.free + 1)


class SaysNothingOfItsQueue(ReplicaCore):
    """5.6, 5.8: callers are told of an empty queue."""

    def _load(self, link: int, now: float) -> Load:
        return super()._load(link, now)._replace(queued=0)


class PushbackUntold(ReplicaCore):
    """5.8: that no backups are wanted is not told to callers."""

    def _load(self, link: int, now: float) -> Load:
        return super()._load(link, now)._replace(pushback=0.0)


class PushbackForgotten(ReplicaCore):
    """5.8: a handler's wish for no backups is forgotten."""

    def _pushback_requested(self, event: PushbackRequested, now: float) -> None:
        pass


class WaitCountsAsService(ReplicaCore):
    """5.8: the time in the queue is told as part of the service time."""

    def _finish(self, held: HeldCopy, outcome: Answer | Fault, service_time: float, now: float) -> None:
        before = len(self._out)
        super()._finish(held, outcome, service_time, now)
        for place in range(before, len(self._out)):
            command = self._out[place]
            if isinstance(command, SendCaller) and isinstance(command.message, Result):
                whole = now - held.arrived_at
                self._out[place] = command._replace(message=command.message._replace(service_time=whole))


class LatenciesUntold(ReplicaCore):
    """5.8: measured notice latencies are kept to itself."""

    def _notice_latency_measured(self, event: NoticeLatencyMeasured, now: float) -> None:
        links, self._callers = self._callers, {}
        super()._notice_latency_measured(event, now)
        self._callers = links


class DrainsInSilence(ReplicaCore):
    """5.10: nobody is told of a drain."""

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        super()._drain_requested(event, now)
        self._out = [
            command
            for command in self._out
            if not (isinstance(command, SendPeer | SendCaller) and isinstance(command.message, Draining))
        ]


class DrainStopsWhatRuns(ReplicaCore):
    """5.10: a replica that drains does not finish what runs."""

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        for held in list(self._executions.values()):
            if held.state == CopyState.RUNNING and held.stoppable:
                self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DRAINING, now)
        super()._drain_requested(event, now)


class OldIncarnationStays(ReplicaCore):
    """7: a new incarnation of a peer does not displace the old one: what waits for that one waits on."""

    def _peer_connected(self, event: PeerConnected, now: float) -> None:
        former = {link: peer for link, peer in self._peers.items() if peer.name == event.peer.name}
        for link in former:
            del self._peers[link]
        super()._peer_connected(event, now)
        self._peers = {**former, **self._peers}


class WaitsForTheMesh(ReplicaCore):
    """7: a copy does not start while a partner can't be told of it."""

    def _input_settled(self, event: InputSettled, now: float) -> None:
        waiting = [held for held in self._queue if held.tied and not self._all_hear(held)]
        for held in waiting:
            self._queue.remove(held.submit.method, held.id)
        super()._input_settled(event, now)
        for held in waiting:
            self._queue.push(held.submit.method, held.id, held)

    def _all_hear(self, held: HeldCopy) -> bool:
        return all(p in self._links for rank, p in enumerate(held.submit.partners) if rank != held.id.rank)


class UnsentNoticesAreNotCounted(ReplicaCore):
    """7: a notice that finds no link is not counted."""

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        before = self.stats.notices_unsent
        commands = super().step(event, now)
        self.stats.notices_unsent = before
        return commands


class UnsafeIsAccepted(ReplicaCore):
    """6, unsafe: a replica runs a tied copy or a backup of a method that may not run twice."""

    def _ending_on_arrival(
        self, caller: Caller, held: HeldCopy, method: HeldMethod | None, now: float
    ) -> tuple[CopyTrigger, Cause] | None:
        ending = super()._ending_on_arrival(caller, held, method, now)
        return None if ending is not None and ending[1] == Cause.NOT_IDEMPOTENT else ending


class BackupsJumpTheQueue(ReplicaCore):
    """6.3: a backup does not wait in the ordinary queue, but starts before all that waits."""

    def _accept(self, held: HeldCopy) -> None:
        super()._accept(held)
        if held.submit.kind == CopyKind.BACKUP:
            self._queue.remove(held.submit.method, held.id)
            self._queue.push_front(held.submit.method, held.id, held)
