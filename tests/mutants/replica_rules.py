"""Rules of a replica that no invariant of the simulator's checkers states: what one step has to say and do.

Each is judged by one step alone: the replica before it, the event, the commands, the replica after it. Broken rules
raise ``BadStep``, with the place of the rule in the design.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiedreq.core.commands import ReplicaCommand, SendCaller, SendPeer, StartWork
from tiedreq.core.copybook import HeldCopy
from tiedreq.core.events import (
    CallerConnected,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    DrainRequested,
    InputSettled,
    NoticeLatencyMeasured,
    PeerClaimed,
    PeerConnected,
    PeerNext,
    PeerStarted,
    PushbackRequested,
    ReplicaEvent,
    StopEnabled,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.memory import MarkerKind
from tiedreq.core.messages import Denied, Draining, Ended, Failed, Granted, Message, Next, Report, Result, Started
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState, Identity

CLOSE = 1e-9


class BadStep(AssertionError):
    """A core took a step that a rule of the design forbids."""


class Telling:
    """Somebody who finds that something is broken, and raises it unless a subclass keeps it."""

    def broken(self, error: AssertionError) -> None:
        """Something is broken."""
        raise error


def need(good: object, rule: str, what: str) -> None:
    """Raise ``BadStep`` unless ``good``."""
    if not good:
        raise BadStep(f"{rule}: {what}")


class Before:
    """What a step is compared with."""

    def __init__(self, core: ReplicaCore, event: ReplicaEvent, now: float) -> None:
        self.queued = len(core._queue)
        self.free = core.free_slots
        self.marked = self._marked(core, event, now)
        self.order = [held.id for held in core._copies.values() if held.waiting]
        self.announced = {held.id for held in core._copies.values() if held.announced}
        self.running = [held for held in core._copies.values() if held.state == CopyState.RUNNING]
        self.granted = [held.id for held in core._copies.values() if held.granted]
        self.draining = core.draining
        late = isinstance(event, TimePassed)
        self.late = [held.id for held in core._copies.values() if late and held.deadline <= now]
        self.reported_at = core._reported_at
        self.unsent = core.stats.notices_unsent
        cancelled = event.copy if isinstance(event, CancelReceived) else None
        self.unknown = cancelled is not None and core.copy_state(cancelled) is None
        self.unknown = self.unknown and core._tombstones.get(cancelled) is None  # type: ignore[arg-type]
        self.pushback_until = core._pushback_until
        copy: CopyId | None = getattr(event, "copy", None)
        self.held: HeldCopy | None = None
        self.state: CopyState | None = None
        self.stoppable = False
        self.rivals: tuple[Identity, ...] = ()
        if copy is not None:
            own = isinstance(event, WorkFinished | StopEnabled | ClaimGranted | ClaimDenied)
            self.held = core._executions.get(copy) or core._copies.get(copy) if own else core._ties.get(copy[:3])
        if self.held is not None:
            self.state, self.stoppable, self.rivals = self.held.state, self.held.stoppable, self.held.rivals
        tombstone = core._tombstones.get(copy) if isinstance(event, PeerClaimed) and copy is not None else None
        self.grantee = tombstone.grantee if tombstone is not None else None

    @staticmethod
    def _marked(core: ReplicaCore, event: ReplicaEvent, now: float) -> bool:
        """True when the partner that says Next had said Started before."""
        peer = core._peers.get(event.link) if isinstance(event, PeerNext) else None
        if peer is None or not isinstance(event, PeerNext):
            return False
        marker = core._markers._books.get(peer, {}).get(event.copy)
        return marker is not None and marker.kind == MarkerKind.STARTED and marker.expires_at > now


class Step:
    """One step under judgement."""

    def __init__(
        self, before: Before, core: ReplicaCore, event: ReplicaEvent, commands: list[ReplicaCommand], now: float
    ) -> None:
        self.before, self.core, self.event, self.commands, self.now = before, core, event, commands, now

    def told_peers(self, kind: type) -> list[tuple[int, Any]]:
        """Link and message of every notice of a kind."""
        return [(c.link, c.message) for c in self.commands if isinstance(c, SendPeer) and type(c.message) is kind]

    def told_callers(self) -> list[tuple[int, Message]]:
        """Link and message of all that callers are told."""
        return [(c.link, c.message) for c in self.commands if isinstance(c, SendCaller)]

    def ended(self, copy: CopyId) -> CopyState | None:
        """The state in which a copy ended in this step."""
        for command in self.commands:
            if isinstance(command, SendCaller) and isinstance(command.message, Ended) and command.message.copy == copy:
                return command.message.state
        return None

    def partner(self, copy: CopyId, link: int) -> bool:
        """True when the news comes from the partner that the tie names, and is not of the held copy itself."""
        held, peer = self.before.held, self.core._peers.get(link)
        if held is None or peer is None or not 0 <= copy.rank < len(held.submit.partners):
            return False
        return copy.rank != held.id.rank and held.submit.partners[copy.rank] == peer

    def live_links(self, held: HeldCopy) -> set[int]:
        """Links to the partners of a copy."""
        others = [p for rank, p in enumerate(held.submit.partners) if rank != held.id.rank]
        return {self.core._links[partner] for partner in others if partner in self.core._links}


def loads(step: Step) -> None:
    """What every message to a caller carries."""
    core, before = step.core, step.before
    until = core._pushback_until
    for link, message in step.told_callers():
        load = getattr(message, "load", None)
        if load is None:
            continue
        low, high = sorted((before.queued, len(core._queue)))
        need(low <= load.queued <= high, "5.8", f"told a queue of {load.queued}, it was {low} to {high}")
        low, high = sorted((before.free, core.free_slots))
        need(low <= load.free <= high, "5.8", f"told {load.free} free slots, there were {low} to {high}")
        caller = core._callers.get(link)
        need(caller is None or load.received == caller.received, "5.8", "told another number of Submits")
        need(abs(load.pushback - max(0.0, until - step.now)) <= CLOSE, "5.8", "push-back is not told")
        if isinstance(message, Ended) and message.cause in (Cause.FULL, Cause.DRAINING):
            need(message.retry_after > 0, "5", "refused without a hint when to come back")
        ended = sum(isinstance(other, Ended) for _, other in step.told_callers())
        if isinstance(message, Ended) and message.cause != Cause.DUPLICATE and ended <= core.limits.tombstones_max:
            need(core._tombstones.get(message.copy) is not None, "5.7", f"{message.copy} leaves no tombstone")


def pushback(step: Step) -> None:
    event = step.event
    if isinstance(event, PushbackRequested):
        need(step.core._pushback_until >= step.now + event.seconds - CLOSE, "5.8", "push-back is not kept")


def times(step: Step) -> None:
    """Service times are measured by the replica, from start to end."""
    held = step.before.held
    for _, message in step.told_callers():
        if isinstance(message, Result | Failed) and held is not None:
            taken, waited = step.now - held.started_at, held.started_at - held.arrived_at
            need(abs(message.service_time - taken) <= CLOSE, "5.8", "another service time than was measured")
            need(abs(message.queue_wait - waited) <= CLOSE, "5.8", "another wait than was measured")


def report(step: Step) -> None:
    event, core, at = step.event, step.core, step.before.reported_at
    if not isinstance(event, NoticeLatencyMeasured) or all(peer.name != event.peer for peer in core._links):
        return
    if at is None or step.now - at >= core.limits.report_interval:
        told = {link for link, message in step.told_callers() if isinstance(message, Report)}
        need(told == set(core._callers), "5.8", "the measured notice latencies are not told")


def started(step: Step) -> None:
    """A partner started."""
    event, held, state = step.event, step.before.held, step.before.state
    if not isinstance(event, PeerStarted) or held is None or not step.partner(event.copy, event.link):
        return
    if held.id in step.before.granted:
        need(held.id in step.core._copies, "5, exclusive", "a granted copy hears Started")
    elif state == CopyState.RUNNING and event.copy.rank > held.id.rank:
        told = [message.copy for link, message in step.told_peers(Started) if link == event.link]
        need(held.id in told, "5.3", "a higher rank is not answered Started")
    elif state == CopyState.RUNNING:
        _yields(step, held)


def _yields(step: Step, held: HeldCopy) -> None:
    may = step.before.stoppable or isinstance(step.event, StopEnabled)
    may = may and held.submit.yield_ and not held.submit.exclusive
    may = may and (held.stream is None or not held.stream.committed)
    ended = held.state == CopyState.YIELDED
    need(ended or not may, "5.3", f"{held.id} goes on beside a lower rank")
    need(may or not ended, "5.3", f"{held.id} yields, though it never may")


def stop_enabled(step: Step) -> None:
    held = step.before.held
    was_running = step.before.state == CopyState.RUNNING and bool(step.before.rivals)
    if isinstance(step.event, StopEnabled) and held is not None and was_running:
        _yields(step, held)


def next_told(step: Step) -> None:
    """What can't be stopped is announced at the head of the queue."""
    if not isinstance(step.event, InputSettled):
        return
    told: dict[CopyId, set[int]] = {}
    for link, message in step.told_peers(Next):
        told.setdefault(message.copy, set()).add(link)
    for head in step.core._queue.heads():
        if head.tied and not head.stoppable and not head.submit.exclusive and head.id not in step.before.announced:
            need(told.get(head.id, set()) >= step.live_links(head), "5.4", f"{head.id} is at the head and says no Next")


def next_heard(step: Step) -> None:
    event, held = step.event, step.before.held
    if isinstance(event, PeerNext) and step.before.marked:
        marker = step.core._markers._books.get(step.core._peers[event.link], {}).get(event.copy)
        need(marker is not None and marker.kind == MarkerKind.STARTED, "4", "a late Next takes the place of Started")
    if not isinstance(event, PeerNext) or held is None or not step.partner(event.copy, event.link):
        return
    if step.before.state == CopyState.RUNNING:
        need(step.told_peers(Started), "5.4", "Next meets a running copy, which does not say so")
    elif step.before.state == CopyState.QUEUED and event.copy.rank < held.id.rank and not held.submit.exclusive:
        need(held.state == CopyState.DROPPED, "5.4", "a queued copy does not drop for a Next of lower rank")


def deadlines(step: Step) -> None:
    late = [copy for copy in step.before.late if copy in step.core._copies]
    need(not late, "5", f"{late} live on beyond their deadline")


def cancels(step: Step) -> None:
    """A Cancel that overtakes its Submit is kept for it."""
    event, core = step.event, step.core
    if isinstance(event, CancelReceived) and event.link in core._callers and step.before.unknown:
        kept = [copy for copy, _ in core._callers[event.link].cancels.snapshot()]
        need(event.copy in kept, "5", f"a Cancel of {event.copy}, which is yet to come, is forgotten")


def settled(step: Step) -> None:
    """Slots are filled, in the order of arrival of each client's copies, whoever can be told of it."""
    core, before = step.core, step.before
    if not isinstance(step.event, InputSettled):
        return
    if core.free_slots > 0 and not core._queue._limits:
        need(not len(core._queue), "5", "slots stay free while copies wait")
    begun = [command.submit for command in step.commands if isinstance(command, StartWork)]
    for submit in begun:
        method = core._methods[submit.method].info
        twice = submit.copy.rank != UNTIED or submit.kind == CopyKind.BACKUP
        need(method.idempotent or not twice, "6, unsafe", f"{submit.copy} starts, and may not run twice")
        if submit.copy in before.order and submit.copy not in before.granted:
            for earlier in before.order[: before.order.index(submit.copy)]:
                held = core._copies.get(earlier) if earlier[0] == submit.copy[0] else None  # clients may take turns
                waits = held is not None and held.waiting and held.submit.method == submit.method
                need(not waits, "6.3", f"{submit.copy} overtakes {earlier} in the queue")
    missing = sum(
        partner not in core._links
        for submit in begun
        for rank, partner in enumerate(submit.partners)
        if rank != submit.copy.rank
    )
    need(core.stats.notices_unsent - before.unsent >= missing, "7", "notices that find no link are not counted")


def drain(step: Step) -> None:
    event, core, before = step.event, step.core, step.before
    callers = {link for link, message in step.told_callers() if isinstance(message, Draining)}
    if isinstance(event, DrainRequested) and not before.draining:
        need(callers == set(core._callers), "5.10", "a drain is not told to callers")
        peers = {link for link, _ in step.told_peers(Draining)}
        need(peers == set(core._peers), "5.10", "a drain is not told to peers")
        need(all(held.state == CopyState.RUNNING for held in before.running), "5.10", "a drain ends what runs")
        need(all(copy in core._copies for copy in before.granted), "5.10", "a drain ends what was granted")
    elif isinstance(event, CallerConnected) and core.draining:
        need(event.link in callers, "5.10", "who connects is not told of the drain")


def incarnations(step: Step) -> None:
    event, core = step.event, step.core
    if isinstance(event, PeerConnected):
        for peer in core._peers.values():
            same = peer.name != event.peer.name or peer == event.peer
            need(same, "7", f"{peer} is still there beside its new incarnation")


def claims(step: Step) -> None:
    """Both sides of a claim."""
    event, core, held = step.event, step.core, step.before.held
    if isinstance(event, ClaimGranted | ClaimDenied):
        peer = core._peers.get(event.link)
        if held is None or step.before.state != CopyState.CLAIMING or held.submit.partners[0] != peer:
            return
        if isinstance(event, ClaimGranted):
            first = next(iter(core._queue), None)
            need(first is held and held.granted, "5, exclusive", "a granted copy is not at the head of the queue")
        else:
            wanted = CopyState.DROPPED if event.started else CopyState.REFUSED
            need(step.ended(event.copy) == wanted, "5, exclusive", f"a denied copy does not end {wanted.label}")
    elif isinstance(event, PeerClaimed):
        peer = core._peers.get(event.link)
        if peer is None:
            return
        said = [message for kind in (Granted, Denied) for _, message in step.told_peers(kind)]
        if peer.incarnation != event.claimant:
            need(not step.commands, "5, exclusive", "a claim of an earlier incarnation is answered")
        elif event.arbiter != core.identity.incarnation:
            need(said == [Denied(event.copy, False)], "5, exclusive", "a claim to an earlier incarnation is not denied")
        elif step.before.grantee == peer and peer is not None:
            need(Granted(event.copy) in said, "5, exclusive", "asked again, the arbiter says something else")
        elif core.draining:
            need(said, "5.10", "a replica that drains leaves a claim without an answer")


RULES: tuple[Callable[[Step], None], ...] = (
    loads,
    pushback,
    times,
    report,
    started,
    stop_enabled,
    next_told,
    next_heard,
    deadlines,
    cancels,
    settled,
    drain,
    incarnations,
    claims,
)


def ruled(kind: type[ReplicaCore]) -> type[ReplicaCore]:
    """That core; a step that breaks a rule is told to ``broken``."""

    class Ruled(Telling, kind):  # type: ignore[misc, valid-type]  # a class that is made at run time
        def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
            before = Before(self, event, now)
            commands: list[ReplicaCommand] = super().step(event, now)
            step = Step(before, self, event, commands, now)
            try:
                for rule in RULES:
                    rule(step)
            except BadStep as error:
                self.broken(error)
            return commands

    return Ruled
