"""CopyBook: what a replica holds, and the mechanics of holding it: tables, endings, deadlines, sending.

The rules that say when something happens are ``core.replica`` and ``core.exclusive``; this module keeps the books
straight whatever they decide.

Invariants
* A copy waits in the queue, or claims, or holds a slot, or is a tombstone. Free slots + executions = slots, always.
* A copy ends in exactly one terminal state, and its caller is told which unless the caller is gone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

from tiedreq.core.commands import ReplicaCommand, SendCaller, SendPeer, StartWork, StopWork
from tiedreq.core.copy_table import COPY_TABLE, CopyTrigger
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.memory import CancelMarkers, MarkerBook, ParkedClaims, Tombstone, Tombstones
from tiedreq.core.messages import Ended, Message, Report, Started, Submit
from tiedreq.core.names import DUPLICATE, NO_CAUSE, QUEUED, RUNNING, SLOT_FREE, new
from tiedreq.core.replica_stats import ReplicaStats
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, Window
from tiedreq.core.workqueue import WorkQueue

DRAIN_HINT = 1.0
"""Seconds after which a refused caller may come back to a replica that drained, if nothing else is known."""
NEVER = float("-inf")
HINT_MIN, HINT_MAX = 0.01, 5.0
SWEEP_INTERVAL = 0.25
"""Markers past their age go at whole multiples of this many seconds: they do nothing any more, and may be many."""


def _sweep_of(marker: float) -> float:
    """When a marker goes that expires then."""
    return -(-marker // SWEEP_INTERVAL) * SWEEP_INTERVAL


class HeldMethod(NamedTuple):
    """A method as the core needs it: the public row, and the most executions of it at once."""

    info: MethodInfo
    slots: int | None


class HeldStream:
    """What has left of a stream, and what may. ``committed``: it has sent content, and no notice ends it any more."""

    __slots__ = ("bytes", "bytes_granted", "committed", "items", "items_granted", "judged", "paused")

    def __init__(self, window: Window) -> None:
        self.items = self.bytes = 0
        self.items_granted, self.bytes_granted, self.judged = window
        self.committed = False
        self.paused = False

    @property
    def may_send(self) -> bool:
        """True while the caller has granted another item."""
        return self.items < self.items_granted and self.bytes < self.bytes_granted

    def snapshot(self) -> tuple[object, ...]:
        """What the stream's future depends on, as plain values."""
        return (self.items, self.bytes, self.items_granted, self.bytes_granted, self.committed, self.paused)


class HeldCopy:
    """A copy that this replica holds: waiting, running, or stopped with its handler not yet ended.

    ``tied`` is True when partners know of the copy; ``tie``, a ``TieId`` as a plain tuple, means nothing otherwise.
    ``stream`` is None unless its answer is a stream.
    """

    __slots__ = (
        "announced",
        "arrived_at",
        "cause",
        "deadline",
        "doubled",
        "granted",
        "id",
        "link",
        "rivals",
        "started_at",
        "state",
        "stoppable",
        "stream",
        "submit",
        "tie",
        "tied",
        "waiting",
    )

    def __init__(self, submit: Submit, link: int, now: float, deadline: float, stoppable: bool) -> None:
        copy = submit.copy
        self.submit = submit
        self.id = copy
        self.tied = copy[3] != UNTIED
        self.tie = copy[:3]
        self.link = link
        self.state = QUEUED
        self.arrived_at = now
        self.started_at = NEVER
        self.deadline = deadline
        self.stoppable = stoppable
        self.announced = False
        self.doubled = False
        self.rivals: tuple[Identity, ...] = ()  # partners of lower rank that said they run, and are still heard of
        self.granted = False
        self.waiting = False
        self.cause = NO_CAUSE
        self.stream = None if submit.window is None else HeldStream(submit.window)

    def snapshot(self) -> tuple[object, ...]:
        """What the copy's future depends on, as plain values."""
        return (
            self.id,
            self.state,
            self.link,
            self.deadline,
            self.stoppable,
            self.announced,
            self.doubled,
            self.rivals,
            self.granted,
            self.submit.partners,
            None if self.stream is None else self.stream.snapshot(),
        )


Retired = tuple[float, float, float, str, CopyKind, CopyState, Cause, int, int, int, int]
"""What is told of a copy that has ended: when that was, when it had arrived and started (``NEVER``: not at all); its
method and kind, its state and cause, and the four parts of its id. No payload, and nothing of the caller's own."""


class Caller:
    """A client's link: its nonce, what it holds here, and the cancels that overtook their Submit."""

    __slots__ = ("cancels", "client", "copies", "held_bytes", "received")

    def __init__(self, client: int, limits: ReplicaLimits) -> None:
        self.client = client
        self.received = 0
        self.held_bytes = 0
        self.copies: dict[CopyId, None] = {}
        self.cancels = CancelMarkers(limits.cancel_markers_per_caller_max, limits.marker_age_max)


class CopyBook:
    """The books of one replica.

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
        self._held_bytes = 0
        self._executions: dict[CopyId, HeldCopy] = {}
        self._ties: dict[tuple[int, int, int], HeldCopy] = {}
        self._tombstones = Tombstones(self.limits.tombstones_max)
        self._markers = MarkerBook(self.limits.markers_per_peer_max, self.limits.marker_age_max)
        self._claiming: dict[CopyId, HeldCopy] = {}
        self._parked = ParkedClaims(self.limits.parked_claims_max, self.limits.parked_claim_age_max)
        self._callers: dict[int, Caller] = {}
        self._cancels_expire_at: float | None = None
        self._peers: dict[int, Identity] = {}
        self._links: dict[Identity, int] = {}
        self._deadlines: list[tuple[float, CopyId]] = []
        self._pushback_until = 0.0
        self._notice_latencies: dict[str, float] = {}
        self._reported_at: float | None = None
        self._drain_finished = False
        self._out: list[ReplicaCommand] = []
        self.alarm = math.inf
        """Not later than ``wake_at``, for who can't afford to ask for that after each event; infinity: no need to."""
        self.retired: list[Retired] | None = None
        """Copies that have ended, if somebody wants to know: who made this a list empties it."""

    # ---- what can be seen -------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When the core wants ``TimePassed`` next, on its clock; None for not at all."""
        at = self._wake_at()
        self.alarm = math.inf if at is None else at
        return at

    def _marked(self, until: float) -> None:
        """A marker has come that lives so long."""
        if not self._markers.known or (until < self.alarm and _sweep_of(until) < self.alarm):
            self.alarm = NEVER

    def _sweep_deadlines(self) -> None:
        """Leave those of copies that have ended out."""
        deadlines, copies = self._deadlines, self._copies
        deadlines[:] = [entry for entry in deadlines if entry[1] in copies]
        heapq.heapify(deadlines)

    def _wake_at(self) -> float | None:
        deadlines, copies = self._deadlines, self._copies
        if len(deadlines) > 64 + 2 * len(copies):
            self._sweep_deadlines()
        while deadlines and deadlines[0][1] not in copies:
            heapq.heappop(deadlines)
        at = deadlines[0][0] if deadlines else None
        marker = self._markers.wake_at
        if marker is not None:
            sweep = _sweep_of(marker)
            if at is None or sweep < at:
                at = sweep
        parked = self._parked.wake_at
        if parked is not None and (at is None or parked < at):
            at = parked
        cancels = self._cancels_expire_at
        return cancels if cancels is not None and (at is None or cancels < at) else at

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
        """A copy that waits, claims or runs here, to look at; None once it has ended."""
        return self._copies.get(copy)

    def copies_of(self, call: CallId) -> list[HeldCopy]:
        """The copies of a call that wait, claim or run here."""
        return [held for copy, held in self._copies.items() if copy[:2] == call]

    def executing(self) -> list[HeldCopy]:
        """The copies whose handlers have not ended, stopped or not."""
        return list(self._executions.values())

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
            "claiming": len(self._claiming),
            "parked_claims": len(self._parked),
            "markers": len(self._markers),
            "cancel_markers": sum(len(caller.cancels) for caller in self._callers.values()),
            "callers": len(self._callers),
            "peers": len(self._peers),
            "deadlines": len(self._deadlines),
        }

    def snapshot(self) -> tuple[object, ...]:
        """All that decisions depend on but the counters, as hashable plain values (times are absolute)."""
        return (
            self.identity,
            self.draining,
            self._drain_finished,
            tuple(held.id for held in self._queue),
            self._queue.snapshot(),
            tuple(held.snapshot() for held in self._copies.values()),
            tuple((held.id, held.state) for held in self._executions.values()),
            self._tombstones.snapshot(),
            self._markers.snapshot(),
            self._parked.snapshot(),
            tuple((link, c.client, c.cancels.snapshot()) for link, c in sorted(self._callers.items())),
            tuple(sorted(self._peers.items())),
            tuple(sorted(self._links.items())),
            self._pushback_until,
            tuple(sorted(self._notice_latencies.items())),
        )

    # ---- starts and endings ---------------------------------------------------------------------------------------

    def _start(self, held: HeldCopy, now: float) -> None:
        copy, stats = held.id, self.stats
        held.state = COPY_TABLE.next(held.state, SLOT_FREE)
        held.started_at = now
        self._executions[copy] = held
        stats.started += 1
        stats.queue_wait_seconds += now - held.arrived_at
        deadline = held.deadline
        remaining = deadline - now if deadline > now else 0.0
        if held.tied:
            self._tell_partners(held, new(Started, (copy, remaining, None)))
        self._out.append(new(StartWork, (held.submit, deadline)))
        self._send_caller(held.link, new(Started, (copy, remaining, self._load(held.link, now))))

    def _end(self, held: HeldCopy, trigger: CopyTrigger, cause: Cause, now: float, *, retry_after: float = 0.0) -> None:
        """End a copy without an answer, and tell its caller."""
        was_running = held.state == RUNNING
        held.cause = cause
        state = self._retire(held, trigger, now, remember=cause != DUPLICATE)
        service_time = 0.0
        if was_running:
            service_time = max(0.0, now - held.started_at)
            if held.id in self._executions:
                self._out.append(StopWork(held.id, cause))
        self.stats.count_ending(state, cause)
        if held.stream is not None:
            self.stats.items_wasted += held.stream.items
        if cause != Cause.CALLER_LOST:
            load = self._load(held.link, now)
            self._send_caller(held.link, Ended(held.id, state, cause, retry_after, service_time, load))

    def _retire(self, held: HeldCopy, trigger: CopyTrigger, now: float, *, remember: bool = True) -> CopyState:
        """Move a copy to a terminal state, out of every table, and into the tombstones."""
        copy, was = held.id, held.state
        held.state = COPY_TABLE.next(was, trigger)
        if held.waiting:
            held.waiting = False
            self._queue.remove(held.submit.method, copy)
        del self._copies[copy]
        size = len(held.submit.payload)
        self._held_bytes -= size
        if self.retired is not None:
            method, kind, begun = held.submit.method, held.submit.kind, held.started_at
            number, round_, rank = copy.number, copy.round, copy.rank
            self.retired.append(
                (now, held.arrived_at, begun, method, kind, held.state, held.cause, copy.client, number, round_, rank)
            )
        caller = self._callers.get(held.link)
        if caller is not None:
            caller.copies.pop(copy, None)
            caller.held_bytes -= size
        if held.tied and self._ties.get(held.tie) is held:
            del self._ties[held.tie]
        if self._claiming:
            self._claiming.pop(copy, None)
        if remember:
            started, submit = was == RUNNING, held.submit
            if submit.exclusive:
                self._tombstones.add(Tombstone(copy, held.state, started, submit.partners))
            else:
                self._tombstones.bury(held.tie if held.tied else copy, copy[3], held.state, started)
        return held.state

    # ---- small parts ------------------------------------------------------------------------------------------

    def _retry_after(self, cause: Cause) -> float:
        """A hint for a refused caller, in seconds: how long the queue takes to empty, or the time of a restart."""
        if cause == Cause.DRAINING:
            return DRAIN_HINT
        if cause != Cause.FULL:
            return 0.0
        wait = len(self._queue) * self.stats.mean_service_seconds / self.slots
        return min(max(wait, HINT_MIN), HINT_MAX)

    def _is_too_much(self, caller: Caller, size: int) -> bool:
        """Whether arguments of ``size`` bytes are more than may be held; who holds nothing may always add one copy."""
        if not caller.copies:
            return False
        own, all_ = caller.held_bytes + size, self._held_bytes + size
        return own > self.limits.held_bytes_per_caller_max or all_ > self.limits.held_bytes_max

    @staticmethod
    def _remaining(held: HeldCopy, now: float) -> float:
        return held.deadline - now if held.deadline > now else 0.0

    def _load(self, link: int, now: float) -> Load:
        caller = self._callers.get(link)
        received = caller.received if caller is not None else 0
        pushback = self._pushback_until - now if self._pushback_until > now else 0.0
        queue = self._queue
        queued = len(queue) if queue.limited else len(queue.shared)
        return new(Load, (queued, self.slots - len(self._executions), received, pushback))

    def _report(self) -> Report:
        return Report(tuple(sorted(self._notice_latencies.items())))

    def _send_caller(self, link: int, message: Message) -> None:
        if link in self._callers:
            self._out.append(new(SendCaller, (link, message)))

    def _send_peer(self, link: int, message: Message) -> None:
        self._out.append(new(SendPeer, (link, message)))

    def _tell_partners(self, held: HeldCopy, message: Message) -> None:
        own, rank = held.id[3], -1
        for partner in held.submit.partners:
            rank += 1
            if rank != own:
                link = self._links.get(partner)
                if link is None:
                    self.stats.notices_unsent += 1
                else:
                    self._out.append(new(SendPeer, (link, message)))
