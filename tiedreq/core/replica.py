"""ReplicaCore: what one replica decides about the copies it holds.

Invariants
* A copy is in the queue, or holds a slot, or is a tombstone. Free slots + executions = slots, always.
* Only ``InputSettled`` fills slots: after a stall a replica first learns what its peers did.
* ``SendPeer(Started)`` stands before ``StartWork`` in one command list.
* Of two running copies of a tie only the one of higher rank decides, so that both can't stop.
* A copy ends in exactly one terminal state, and its caller is told which unless the caller is gone.

Not for: choosing replicas, timing backups, or anything else that the caller decides (``core.call``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tiedreq.core.commands import FinishDrain, ReplicaCommand, SendCaller, SendPeer, StartWork, StopWork
from tiedreq.core.copy_table import COPY_TABLE, CopyTrigger
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import (
    Answer,
    CallerConnected,
    CallerLost,
    CancelReceived,
    DrainRequested,
    Fault,
    InputSettled,
    NoticeLatencyMeasured,
    PeerConnected,
    PeerLost,
    PeerNext,
    PeerStarted,
    PushbackRequested,
    ReplicaEvent,
    StopEnabled,
    SubmitReceived,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.memory import BoundedSet, MarkerBook, MarkerKind, Tombstones
from tiedreq.core.messages import Draining, Ended, Failed, Message, Next, Report, Result, Started, Submit
from tiedreq.core.replica_stats import ReplicaStats
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, TieId
from tiedreq.core.workqueue import WorkQueue

DRAIN_HINT = 1.0
"""Seconds after which a refused caller may come back to a replica that drained, if nothing else is known."""
HINT_MIN, HINT_MAX = 0.01, 5.0


class HeldMethod(NamedTuple):
    """A method as the core needs it: the public row, and the most executions of it at once."""

    info: MethodInfo
    slots: int | None


class HeldCopy:
    """A copy that this replica holds: waiting, running, or stopped with its handler not yet ended."""

    __slots__ = (
        "announced",
        "arrived_at",
        "deadline",
        "doubled",
        "link",
        "started_at",
        "state",
        "stoppable",
        "submit",
        "waiting",
    )

    def __init__(self, submit: Submit, link: int, now: float, deadline: float, stoppable: bool) -> None:
        self.submit = submit
        self.link = link
        self.state = CopyState.QUEUED
        self.arrived_at = now
        self.started_at = 0.0
        self.deadline = deadline
        self.stoppable = stoppable
        self.announced = False
        self.doubled = False
        self.waiting = False

    @property
    def id(self) -> CopyId:
        """The copy's identity."""
        return self.submit.copy

    @property
    def tied(self) -> bool:
        """True when partners know of this copy."""
        return self.submit.copy.rank != UNTIED

    def snapshot(self) -> tuple[object, ...]:
        """What the copy's future depends on, as plain values."""
        return (
            self.id,
            self.state,
            self.link,
            self.deadline,
            self.stoppable,
            self.announced,
            self.submit.partners,
        )


class _Caller:
    """A client's link: its nonce, what it holds here, and the cancels that overtook their Submit."""

    __slots__ = ("cancels", "client", "copies", "received")

    def __init__(self, client: int, cancels_max: int) -> None:
        self.client = client
        self.received = 0
        self.copies: dict[CopyId, None] = {}
        self.cancels = BoundedSet(cancels_max)


class ReplicaCore:
    """The decisions of one replica. ``step`` takes an event and returns what the driver has to do.

    ``stats`` counts; gauges (``queue_length``, ``running``, ``free_slots``) are computed from the queue itself.
    """

    def __init__(
        self,
        identity: Identity,
        methods: Iterable[HeldMethod],
        *,
        slots: int,
        limits: ReplicaLimits | None = None,
    ) -> None:
        self.identity = identity
        self.slots = slots
        self.limits = limits if limits is not None else ReplicaLimits()
        self.stats = ReplicaStats()
        self.draining = False
        self._methods = {method.info.name: method for method in methods}
        self._queue: WorkQueue[HeldCopy] = WorkQueue(
            {name: method.slots for name, method in self._methods.items() if method.slots is not None}
        )
        self._copies: dict[CopyId, HeldCopy] = {}
        self._executions: dict[CopyId, HeldCopy] = {}
        self._ties: dict[TieId, HeldCopy] = {}
        self._tombstones = Tombstones(self.limits.tombstones_max)
        self._markers = MarkerBook(self.limits.markers_per_peer_max, self.limits.marker_age_max)
        self._callers: dict[int, _Caller] = {}
        self._peers: dict[int, Identity] = {}
        self._links: dict[Identity, int] = {}
        self._deadlines: list[tuple[float, CopyId]] = []
        self._pushback_until = 0.0
        self._notice_latencies: dict[str, float] = {}
        self._reported_at: float | None = None
        self._drain_finished = False
        self._out: list[ReplicaCommand] = []
        self._steps: dict[type, Callable[[Any, float], None]] = {
            SubmitReceived: self._submit_received,
            CancelReceived: self._cancel_received,
            PeerStarted: self._peer_started,
            PeerNext: self._peer_next,
            WorkFinished: self._work_finished,
            InputSettled: self._input_settled,
            TimePassed: self._time_passed,
            StopEnabled: self._stop_enabled,
            CallerConnected: self._caller_connected,
            CallerLost: self._caller_lost,
            PeerConnected: self._peer_connected,
            PeerLost: self._peer_lost,
            DrainRequested: self._drain_requested,
            PushbackRequested: self._pushback_requested,
            NoticeLatencyMeasured: self._notice_latency_measured,
        }

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Decide. Raises ``RemoteViolation``, with nothing changed, when a caller's Submit breaks the protocol."""
        self._steps[type(event)](event, now)
        out, self._out = self._out, []
        return out

    # ---- what can be seen -------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When the core wants ``TimePassed`` next, on its clock; None for not at all."""
        self._prune_deadlines()
        marker = self._markers.wake_at
        if not self._deadlines:
            return marker
        first = self._deadlines[0][0]
        return first if marker is None or first < marker else marker

    @property
    def queue_length(self) -> int:
        """Copies that wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Slots that are taken, by live executions or by stopped ones that have not ended yet."""
        return len(self._executions)

    @property
    def free_slots(self) -> int:
        """Slots that are free."""
        return self.slots - len(self._executions)

    @property
    def markers_evicted(self) -> int:
        """Markers that went because there were too many, so far."""
        return self._markers.evicted

    def held(self, copy: CopyId) -> HeldCopy | None:
        """A copy that waits or runs here, to look at; None once it has ended."""
        return self._copies.get(copy)

    def copy_state(self, copy: CopyId) -> CopyState | None:
        """The state of a copy that is held or remembered here."""
        held = self._copies.get(copy)
        if held is not None:
            return held.state
        tombstone = self._tombstones.get(copy)
        return tombstone.state if tombstone is not None and tombstone.copy == copy else None

    def caller_link(self, copy: CopyId) -> int | None:
        """The link over which a live copy came."""
        held = self._copies.get(copy)
        return held.link if held is not None else None

    def sizes(self) -> dict[str, int]:
        """The length of every collection, by name: for limits, leak checks and metrics."""
        return {
            "queue": len(self._queue),
            "copies": len(self._copies),
            "executions": len(self._executions),
            "ties": len(self._ties),
            "tombstones": len(self._tombstones),
            "markers": len(self._markers),
            "cancel_markers": sum(len(caller.cancels) for caller in self._callers.values()),
            "callers": len(self._callers),
            "peers": len(self._peers),
            "deadlines": len(self._deadlines),
        }

    def snapshot(self) -> tuple[object, ...]:
        """Everything that the future depends on, as hashable plain values (times are absolute)."""
        return (
            self.identity,
            self.draining,
            self._drain_finished,
            tuple(held.id for held in self._queue),
            tuple(held.snapshot() for held in self._copies.values()),
            tuple((held.id, held.state) for held in self._executions.values()),
            self._tombstones.snapshot(),
            self._markers.snapshot(),
            tuple((link, c.client, c.cancels.snapshot()) for link, c in sorted(self._callers.items())),
            tuple(sorted(self._peers.items())),
        )

    # ---- callers ----------------------------------------------------------------------------------------------

    def _caller_connected(self, event: CallerConnected, now: float) -> None:
        self._callers[event.link] = _Caller(event.client, self.limits.cancel_markers_per_caller_max)
        if self._notice_latencies:
            self._send_caller(event.link, self._report())
        if self.draining:
            self._send_caller(event.link, Draining())

    def _caller_lost(self, event: CallerLost, now: float) -> None:
        caller = self._callers.pop(event.link, None)
        if caller is None:
            return
        for copy in list(caller.copies):
            self._end(self._copies[copy], CopyTrigger.CALLER_LOST, Cause.CALLER_LOST, now)

    def _submit_received(self, event: SubmitReceived, now: float) -> None:
        caller = self._callers.get(event.link)
        if caller is None:
            return
        submit = event.submit
        self._check_submit(caller, submit)
        caller.received += 1
        self.stats.submitted += 1
        copy = submit.copy
        if copy in self._copies or ((tombstone := self._tombstones.get(copy)) and tombstone.copy == copy):
            self.stats.duplicate_submits += 1
            return
        method = self._methods.get(submit.method)
        timeout = submit.remaining if method is None else min(submit.remaining, method.info.timeout_max)
        held = HeldCopy(submit, event.link, now, now + timeout, method is not None and method.info.stoppable)
        ending = self._ending_on_arrival(caller, held, method, now)
        self._copies[copy] = held
        caller.copies[copy] = None
        if ending is not None:
            trigger, cause = ending
            self._end(held, trigger, cause, now, retry_after=self._retry_after(cause))
            return
        if held.tied:
            self._ties[copy.tie] = held
        held.waiting = True
        self._queue.push(submit.method, copy, held)
        heapq.heappush(self._deadlines, (held.deadline, copy))

    def _check_submit(self, caller: _Caller, submit: Submit) -> None:
        copy, partners = submit.copy, submit.partners
        if copy.client != caller.client:
            raise RemoteViolation("submit: the call id is not of this client")
        if copy.rank == UNTIED:
            if partners:
                raise RemoteViolation("submit: an untied copy names partners")
        elif copy.rank >= len(partners) or partners[copy.rank] != self.identity:
            raise RemoteViolation(f"submit: rank {copy.rank} of the tie is not this replica")
        elif len({partner.name for partner in partners}) != len(partners):
            raise RemoteViolation("submit: a tie names one replica twice")

    def _ending_on_arrival(
        self, caller: _Caller, held: HeldCopy, method: HeldMethod | None, now: float
    ) -> tuple[CopyTrigger, Cause] | None:
        """How a copy ends that can't even wait, or None. What is already known comes first."""
        submit = held.submit
        early = self._take_markers(held, now)
        if caller.cancels.discard(submit.copy):
            return CopyTrigger.CALLER_CANCELLED, Cause.CALLER
        if method is None:
            return CopyTrigger.REFUSAL, Cause.UNKNOWN_METHOD
        if not method.info.idempotent and (held.tied or submit.kind == CopyKind.BACKUP):
            return CopyTrigger.REFUSAL, Cause.NOT_IDEMPOTENT
        if held.tied and (submit.copy.tie in self._ties or self._tombstones.get(submit.copy) is not None):
            return CopyTrigger.REFUSAL, Cause.DUPLICATE
        if early is not None:
            return early
        if held.deadline <= now:
            return CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE
        if self.draining:
            return CopyTrigger.REFUSAL, Cause.DRAINING
        if len(self._queue) >= self.limits.queue_length_max or len(caller.copies) >= self.limits.copies_per_caller_max:
            return CopyTrigger.REFUSAL, Cause.FULL
        return None

    def _take_markers(self, held: HeldCopy, now: float) -> tuple[CopyTrigger, Cause] | None:
        """What partners had said before this copy arrived: a start drops it, Next of a lower rank too."""
        copy = held.id
        found: tuple[CopyTrigger, Cause] | None = None
        for rank, partner in enumerate(held.submit.partners):
            if rank == copy.rank:
                continue
            kind = self._markers.take(partner, copy._replace(rank=rank), now)
            if kind == MarkerKind.STARTED:
                found = CopyTrigger.PARTNER_STARTED, Cause.STARTED
            elif kind == MarkerKind.NEXT and rank < copy.rank and found is None:
                found = CopyTrigger.PARTNER_NEXT, Cause.NEXT
        return found

    def _cancel_received(self, event: CancelReceived, now: float) -> None:
        caller = self._callers.get(event.link)
        if caller is None:
            return
        held = self._copies.get(event.copy)
        if held is not None:
            if held.link == event.link:
                self._end(held, CopyTrigger.CALLER_CANCELLED, Cause.CALLER, now)
            return
        tombstone = self._tombstones.get(event.copy)
        if tombstone is None or tombstone.copy != event.copy:
            caller.cancels.add(event.copy)

    # ---- peers ------------------------------------------------------------------------------------------------

    def _peer_connected(self, event: PeerConnected, now: float) -> None:
        peer = event.peer
        for known in [known for known in self._links if known.name == peer.name and known != peer]:
            self._forget_peer(self._links[known])
        self._peers[event.link] = peer
        self._links[peer] = event.link
        for held in self._copies.values():
            if held.tied and peer in held.submit.partners:
                if held.state == CopyState.RUNNING:
                    self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
                elif held.announced:
                    self._send_peer(event.link, Next(held.id, self._remaining(held, now)))

    def _peer_lost(self, event: PeerLost, now: float) -> None:
        self._forget_peer(event.link)

    def _forget_peer(self, link: int) -> None:
        peer = self._peers.pop(link, None)
        if peer is not None and self._links.get(peer) == link:
            del self._links[peer]
            self._markers.forget(peer)
            self._notice_latencies.pop(peer.name, None)

    def _partner(self, link: int, copy: CopyId) -> tuple[Identity | None, HeldCopy | None]:
        """Who speaks of ``copy``, and this replica's live copy of the same tie if the tie names that partner."""
        peer = self._peers.get(link)
        if peer is None or copy.rank == UNTIED:
            self.stats.stale_notices += 1
            return None, None
        held = self._ties.get(copy.tie)
        if held is None:
            return peer, None
        partners = held.submit.partners
        if copy.rank >= len(partners) or copy.rank == held.id.rank or partners[copy.rank] != peer:
            self.stats.stale_notices += 1
            return None, None
        return peer, held

    def _peer_started(self, event: PeerStarted, now: float) -> None:
        peer, held = self._partner(event.link, event.copy)
        if peer is None:
            return
        self.stats.notices += 1
        if held is None:
            self._early_notice(peer, event.copy, MarkerKind.STARTED, event.remaining, now)
        elif held.state == CopyState.QUEUED:
            self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)
        else:
            self._both_started(held, event, now)

    def _both_started(self, held: HeldCopy, event: PeerStarted, now: float) -> None:
        """Two copies of one tie run. The higher rank is the only decider; the lower goes on and says so again."""
        self.stats.late_notices += 1
        if event.copy.rank > held.id.rank:
            self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
            return
        if not held.doubled:
            held.doubled = True
            self.stats.double_starts += 1
        if held.submit.yield_ and held.stoppable:
            self._end(held, CopyTrigger.PARTNER_STARTED, Cause.STARTED, now)

    def _peer_next(self, event: PeerNext, now: float) -> None:
        peer, held = self._partner(event.link, event.copy)
        if peer is None:
            return
        self.stats.notices += 1
        if held is None:
            self._early_notice(peer, event.copy, MarkerKind.NEXT, event.remaining, now)
        elif held.state == CopyState.RUNNING:
            self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
        elif event.copy.rank < held.id.rank:
            self._end(held, CopyTrigger.PARTNER_NEXT, Cause.NEXT, now)

    def _early_notice(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float, now: float) -> None:
        """A notice with no live copy here: too late for one that has ended, else a marker for one to come."""
        tombstone = self._tombstones.get(copy)
        if tombstone is None:
            if remaining > 0:
                self._markers.add(peer, copy, kind, remaining, now)
            return
        if tombstone.started and kind == MarkerKind.STARTED:
            self.stats.late_notices += 1

    def _notice_latency_measured(self, event: NoticeLatencyMeasured, now: float) -> None:
        self._notice_latencies[event.peer] = event.seconds
        if self._reported_at is None or now - self._reported_at >= self.limits.report_interval:
            self._reported_at = now
            report = self._report()
            for link in self._callers:
                self._send_caller(link, report)

    # ---- executions -------------------------------------------------------------------------------------------

    def _input_settled(self, event: InputSettled, now: float) -> None:
        while len(self._executions) < self.slots:
            held = self._queue.take()
            if held is None:
                break
            held.waiting = False
            if held.deadline <= now:
                self._queue.release(held.submit.method)
                self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)
            else:
                self._start(held, now)
        for head in self._queue.heads():
            if head.tied and not head.stoppable and not head.announced:
                head.announced = True
                self._tell_partners(head, Next(head.id, self._remaining(head, now)))

    def _start(self, held: HeldCopy, now: float) -> None:
        held.state = COPY_TABLE.next(held.state, CopyTrigger.SLOT_FREE)
        held.started_at = now
        self._executions[held.id] = held
        self.stats.started += 1
        self.stats.queue_wait_seconds += now - held.arrived_at
        if held.tied:
            self._tell_partners(held, Started(held.id, self._remaining(held, now), None))
        self._out.append(StartWork(held.submit, held.deadline))
        self._send_caller(held.link, Started(held.id, self._remaining(held, now), self._load(held.link, now)))

    def _work_finished(self, event: WorkFinished, now: float) -> None:
        held = self._executions.pop(event.copy, None)
        if held is None:
            return
        self._queue.release(held.submit.method)
        service_time = max(0.0, now - held.started_at)
        self.stats.busy_seconds += service_time
        outcome = event.outcome
        if held.state != CopyState.RUNNING:
            self.stats.wasted_seconds += service_time
        elif outcome is None and now >= held.deadline:
            self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)
            self.stats.wasted_seconds += service_time
        elif isinstance(outcome, Answer):
            self._finish(held, outcome, service_time, now)
        else:
            fault = outcome if outcome is not None else Fault("internal", "the execution was stopped", b"", True)
            self._finish(held, fault, service_time, now)
        self._check_drained()

    def _finish(self, held: HeldCopy, outcome: Answer | Fault, service_time: float, now: float) -> None:
        self.stats.measure_service(service_time)
        waited = held.started_at - held.arrived_at
        good = isinstance(outcome, Answer)
        self._retire(held, CopyTrigger.HANDLER_RETURNED if good else CopyTrigger.HANDLER_RAISED)
        load = self._load(held.link, now)
        if isinstance(outcome, Answer):
            self.stats.done += 1
            message: Message = Result(held.id, outcome.payload, service_time, waited, load)
        else:
            self.stats.failed += 1
            message = Failed(held.id, *outcome, service_time, waited, load)
        self._send_caller(held.link, message)

    def _stop_enabled(self, event: StopEnabled, now: float) -> None:
        held = self._executions.get(event.copy)
        if held is not None:
            held.stoppable = True

    # ---- endings ----------------------------------------------------------------------------------------------

    def _end(self, held: HeldCopy, trigger: CopyTrigger, cause: Cause, now: float, *, retry_after: float = 0.0) -> None:
        """End a copy without an answer, and tell its caller."""
        was_running = held.state == CopyState.RUNNING
        state = self._retire(held, trigger, remember=cause != Cause.DUPLICATE)
        service_time = 0.0
        if was_running:
            service_time = max(0.0, now - held.started_at)
            if held.id in self._executions:
                self._out.append(StopWork(held.id, cause))
        self.stats.count_ending(state, cause)
        if cause != Cause.CALLER_LOST:
            load = self._load(held.link, now)
            self._send_caller(held.link, Ended(held.id, state, cause, retry_after, service_time, load))

    def _retire(self, held: HeldCopy, trigger: CopyTrigger, *, remember: bool = True) -> CopyState:
        """Move a copy to a terminal state, out of every table, and into the tombstones."""
        copy, was = held.id, held.state
        held.state = COPY_TABLE.next(was, trigger)
        if held.waiting:
            held.waiting = False
            self._queue.remove(held.submit.method, copy)
        del self._copies[copy]
        caller = self._callers.get(held.link)
        if caller is not None:
            caller.copies.pop(copy, None)
        if held.tied and self._ties.get(copy.tie) is held:
            del self._ties[copy.tie]
        if remember:
            self._tombstones.add(copy, held.state, was == CopyState.RUNNING)
        return held.state

    def _time_passed(self, event: TimePassed, now: float) -> None:
        self._markers.expire(now)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, copy = heapq.heappop(self._deadlines)
            held = self._copies.get(copy)
            if held is not None and held.deadline <= now:
                self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)

    def _prune_deadlines(self) -> None:
        """Forget deadlines of ended copies: from the front, and all once they are the greater part."""
        deadlines, copies = self._deadlines, self._copies
        if len(deadlines) > 64 + 2 * len(copies):
            deadlines[:] = [entry for entry in deadlines if entry[1] in copies]
            heapq.heapify(deadlines)
        while deadlines and deadlines[0][1] not in copies:
            heapq.heappop(deadlines)

    # ---- drain and push-back ----------------------------------------------------------------------------------

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        if self.draining:
            return
        self.draining = True
        for link in self._peers:
            self._send_peer(link, Draining())
        for link in self._callers:
            self._send_caller(link, Draining())
        for held in list(self._queue):
            self._end(held, CopyTrigger.REFUSAL, Cause.DRAINING, now, retry_after=DRAIN_HINT)
        self._check_drained()

    def _check_drained(self) -> None:
        if self.draining and not self._executions and not self._drain_finished:
            self._drain_finished = True
            self._out.append(FinishDrain())

    def _pushback_requested(self, event: PushbackRequested, now: float) -> None:
        self._pushback_until = max(self._pushback_until, now + event.seconds)

    # ---- small parts ------------------------------------------------------------------------------------------

    def _retry_after(self, cause: Cause) -> float:
        """A hint for a refused caller, in seconds: how long the queue takes to empty, or the time of a restart."""
        if cause == Cause.DRAINING:
            return DRAIN_HINT
        if cause != Cause.FULL:
            return 0.0
        wait = len(self._queue) * self.stats.mean_service_seconds / self.slots
        return min(max(wait, HINT_MIN), HINT_MAX)

    @staticmethod
    def _remaining(held: HeldCopy, now: float) -> float:
        return max(0.0, held.deadline - now)

    def _load(self, link: int, now: float) -> Load:
        caller = self._callers.get(link)
        received = caller.received if caller is not None else 0
        return Load(
            len(self._queue), self.slots - len(self._executions), received, max(0.0, self._pushback_until - now)
        )

    def _report(self) -> Report:
        return Report(tuple(sorted(self._notice_latencies.items())))

    def _send_caller(self, link: int, message: Message) -> None:
        if link in self._callers:
            self._out.append(SendCaller(link, message))

    def _send_peer(self, link: int, message: Message) -> None:
        self._out.append(SendPeer(link, message))

    def _tell_partners(self, held: HeldCopy, message: Message) -> None:
        for rank, partner in enumerate(held.submit.partners):
            if rank != held.id.rank:
                link = self._links.get(partner)
                if link is None:
                    self.stats.notices_unsent += 1
                else:
                    self._send_peer(link, message)
