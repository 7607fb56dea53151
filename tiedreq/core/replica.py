"""ReplicaCore: what one replica decides about the copies it holds.

Invariants
* A copy is in the queue, or holds a slot, or is a tombstone. Free slots + executions = slots, always.
* Only ``InputSettled`` fills slots: after a stall a replica first learns what its peers did.
* ``SendPeer(Started)`` stands before ``StartWork`` in one command list.
* A copy ends in exactly one terminal state, and its caller is told which unless the caller is gone.

Not for: choosing replicas, timing backups, or anything else that the caller decides (``core.call``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from tiedreq.core.commands import FinishDrain, ReplicaCommand
from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.copybook import DRAIN_HINT, NEVER, Caller, HeldCopy, HeldMethod
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import (
    Answer,
    CallerConnected,
    CallerLost,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    CreditReceived,
    DrainRequested,
    Fault,
    InputSettled,
    ItemProduced,
    NoticeLatencyMeasured,
    PeerClaimed,
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
from tiedreq.core.messages import Draining, Failed, Message, Next, Result, Submit
from tiedreq.core.names import BACKUP, CALLER_LOST, HANDLER_RAISED, HANDLER_RETURNED, RUNNING, new
from tiedreq.core.notices import NoticeRules
from tiedreq.core.shares import Running
from tiedreq.core.types import UNTIED, Cause, Identity

__all__ = ["HeldCopy", "HeldMethod", "ReplicaCore"]


class ReplicaCore(NoticeRules):
    """The decisions of one replica. ``step`` takes an event and returns what the driver has to do."""

    def __init__(
        self,
        identity: Identity,
        methods: Iterable[HeldMethod],
        *,
        slots: int,
        limits: ReplicaLimits | None = None,
    ) -> None:
        super().__init__(identity, methods, slots=slots, limits=limits)
        self._steps: dict[type, Callable[[Any, float], None]] = {
            SubmitReceived: self._submit_received,
            CancelReceived: self._cancel_received,
            PeerStarted: self._peer_started,
            PeerNext: self._peer_next,
            PeerClaimed: self._peer_claimed,
            ClaimGranted: self._claim_granted,
            ClaimDenied: self._claim_denied,
            WorkFinished: self._work_finished,
            ItemProduced: self._item_produced,
            CreditReceived: self._credit_received,
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

    @property
    def settled(self) -> bool:
        """True while ``InputSettled`` would change nothing: nothing waits, and no drain is under way."""
        queue = self._queue
        return not (queue.shared or self.draining or (queue.limited and queue))

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Decide. Raises ``RemoteViolation``, with nothing changed, when a caller's Submit breaks the protocol."""
        self._steps[type(event)](event, now)
        out, self._out = self._out, []
        return out

    # ---- callers ----------------------------------------------------------------------------------------------

    def _caller_connected(self, event: CallerConnected, now: float) -> None:
        self._callers[event.link] = Caller(event.client, self.limits)
        if self._notice_latencies:
            self._send_caller(event.link, self._report())
        if self.draining:
            self._send_caller(event.link, Draining())

    def _caller_lost(self, event: CallerLost, now: float) -> None:
        caller = self._callers.pop(event.link, None)
        if caller is None:
            return
        for copy in list(caller.copies):
            self._end(self._copies[copy], CopyTrigger.CALLER_LOST, CALLER_LOST, now)

    def _submit_received(self, event: SubmitReceived, now: float) -> None:
        link, submit = event
        caller = self._callers.get(link)
        if caller is None:
            return
        self._check_submit(caller, submit)
        caller.received += 1
        self.stats.submitted += 1
        copy = submit.copy
        if copy in self._executions or self.copy_state(copy) is not None:
            self.stats.duplicate_submits += 1
            return
        method = self._methods.get(submit.method)
        timeout, stoppable = submit.remaining, False
        if method is not None:
            info = method.info
            stoppable = info.stoppable
            if timeout > info.timeout_max:
                timeout = info.timeout_max
        held = HeldCopy(submit, link, now, now + timeout, stoppable)
        ending = self._ending_on_arrival(caller, held, method, now)
        self._copies[copy] = held
        caller.copies[copy] = None
        size = len(submit.payload)
        self._held_bytes += size
        caller.held_bytes += size
        if ending is not None:
            trigger, cause = ending
            self._end(held, trigger, cause, now, retry_after=self._retry_after(cause))
        else:
            self._accept(held)
        if submit.exclusive and copy.rank == 0:
            self._answer_parked(held, now)

    def _accept(self, held: HeldCopy) -> None:
        if held.tied:
            self._ties[held.tie] = held
        held.waiting = True
        self._queue.push(held.submit.method, held.id, held)
        deadlines, deadline = self._deadlines, held.deadline
        heapq.heappush(deadlines, (deadline, held.id))
        if deadline < self.alarm:
            self.alarm = deadline
        if len(deadlines) > 64 + 2 * len(self._copies):
            self._sweep_deadlines()

    def _check_submit(self, caller: Caller, submit: Submit) -> None:
        partners = submit.partners
        client, _, _, rank = submit.copy
        if client != caller.client:
            raise RemoteViolation("submit: the call id is not of this client")
        if rank == UNTIED:
            if partners:
                raise RemoteViolation("submit: an untied copy names partners")
        elif not 0 <= rank < len(partners) or partners[rank] != self.identity:
            raise RemoteViolation(f"submit: rank {rank} of the tie is not this replica")
        elif len(partners) == 2:
            if partners[0].name == partners[1].name:
                raise RemoteViolation("submit: a tie names one replica twice")
        elif len({partner.name for partner in partners}) != len(partners):
            raise RemoteViolation("submit: a tie names one replica twice")

    def _ending_on_arrival(
        self, caller: Caller, held: HeldCopy, method: HeldMethod | None, now: float
    ) -> tuple[CopyTrigger, Cause] | None:
        """How a copy ends that can't even wait, or None. What is already known comes first."""
        submit = held.submit
        early = self._take_markers(held, now) if submit.partners else None
        if caller.cancels.take(submit.copy):
            return CopyTrigger.CALLER_CANCELLED, Cause.CALLER
        if method is None:
            return CopyTrigger.REFUSAL, Cause.UNKNOWN_METHOD
        info = method.info
        if info.stream != (held.stream is not None):
            return CopyTrigger.REFUSAL, Cause.WRONG_KIND
        if not info.idempotent and (held.tied or submit.kind == BACKUP):
            return CopyTrigger.REFUSAL, Cause.NOT_IDEMPOTENT
        if held.tied and (held.tie in self._ties or self._tombstones.get(submit.copy) is not None):
            return CopyTrigger.REFUSAL, Cause.DUPLICATE
        if early is not None:
            return early
        if held.deadline <= now:
            return CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE
        if self.draining:
            return CopyTrigger.REFUSAL, Cause.DRAINING
        # A claiming copy may come back into the queue.
        waiting, limits = len(self._queue) + len(self._claiming), self.limits
        if waiting >= limits.queue_length_max or len(caller.copies) >= limits.copies_per_caller_max:
            return CopyTrigger.REFUSAL, Cause.FULL
        if self._is_too_much(caller, len(submit.payload)):
            return CopyTrigger.REFUSAL, Cause.FULL
        return None

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
            expires_at = caller.cancels.add(event.copy, now)
            self.alarm = NEVER
            if self._cancels_expire_at is None:
                self._cancels_expire_at = expires_at

    # ---- peers ------------------------------------------------------------------------------------------------

    def _notice_latency_measured(self, event: NoticeLatencyMeasured, now: float) -> None:
        if all(peer.name != event.peer for peer in self._links):
            return
        self._notice_latencies[event.peer] = event.seconds
        if self._reported_at is None or now - self._reported_at >= self.limits.report_interval:
            self._reported_at = now
            report = self._report()
            for link in self._callers:
                self._send_caller(link, report)

    # ---- executions -------------------------------------------------------------------------------------------

    def _input_settled(self, event: InputSettled, now: float) -> None:
        queue, shared, executions, slots = self._queue, self._queue.shared, self._executions, self.slots
        if not (shared or (queue.limited and queue)):
            self._check_drained()
            return
        several = queue.several and len(executions) < slots
        running = self._running_by_client() if several else None
        while len(executions) < slots:
            held = queue.take(running)
            if held is None:
                break
            held.waiting = False
            if held.deadline <= now:
                queue.release(held.submit.method)
                self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)
            elif held.submit.exclusive and self._must_claim(held):
                queue.release(held.submit.method)
                self._claim(held, now)
            else:
                self._start(held, now)
                if running is not None:
                    running.add(held.submit.method, held.id[0])
        if shared or (queue.limited and queue):
            for head in queue.heads():
                if head.tied and not head.stoppable and not head.announced and not head.submit.exclusive:
                    head.announced = True
                    self._tell_partners(head, Next(head.id, self._remaining(head, now)))
        if self.draining:
            self._check_drained()

    def _running_by_client(self) -> Running:
        running = self._queue.running(self.slots)
        for held in self._executions.values():
            running.add(held.submit.method, held.id[0])
        return running

    def _work_finished(self, event: WorkFinished, now: float) -> None:
        copy, outcome = event
        held = self._executions.pop(copy, None)
        if held is None:
            return
        if self._queue.limited:
            self._queue.release(held.submit.method)
        service_time = now - held.started_at if now > held.started_at else 0.0
        self.stats.busy_seconds += service_time
        if held.state != RUNNING:
            self.stats.wasted_seconds += service_time
        elif outcome is None and now >= held.deadline:
            self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)
            self.stats.wasted_seconds += service_time
        elif isinstance(outcome, Answer):
            self._finish(held, outcome, service_time, now)
        else:
            fault = outcome if outcome is not None else Fault("internal", "the execution was stopped", b"", True)
            self._finish(held, fault, service_time, now)
        if self.draining:
            self._check_drained()

    def _finish(self, held: HeldCopy, outcome: Answer | Fault, service_time: float, now: float) -> None:
        stats = self.stats
        stats.measure_service(service_time)
        waited = held.started_at - held.arrived_at
        good = isinstance(outcome, Answer)
        self._retire(held, HANDLER_RETURNED if good else HANDLER_RAISED, now)
        load = self._load(held.link, now)
        if isinstance(outcome, Answer):
            stats.done += 1
            message: Message = new(Result, (held.id, outcome.payload, service_time, waited, load))
        else:
            stats.failed += 1
            message = Failed(held.id, *outcome, service_time, waited, load)
        self._send_caller(held.link, message)

    def _stop_enabled(self, event: StopEnabled, now: float) -> None:
        held = self._executions.get(event.copy)
        if held is not None:
            held.stoppable = True
            if held.state == RUNNING:
                self._yield_to_rivals(held, now)

    def _time_passed(self, event: TimePassed, now: float) -> None:
        self.alarm = NEVER
        self._markers.expire(now)
        self._deny_parked(self._parked.expire(now))
        if self._cancels_expire_at is not None and self._cancels_expire_at <= now:
            left = [caller.cancels.expire(now) for caller in self._callers.values()]
            self._cancels_expire_at = min((at for at in left if at is not None), default=None)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, copy = heapq.heappop(self._deadlines)
            held = self._copies.get(copy)
            if held is not None and held.deadline <= now:
                self._end(held, CopyTrigger.DEADLINE_PASSED, Cause.DEADLINE, now)

    # ---- drain and push-back ----------------------------------------------------------------------------------

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        if self.draining:
            return
        self.draining = True
        for link in self._peers:
            self._send_peer(link, Draining())
        for link in self._callers:
            self._send_caller(link, Draining())
        for held in [*self._queue, *self._claiming.values()]:
            if not held.granted:
                self._end(held, CopyTrigger.REFUSAL, Cause.DRAINING, now, retry_after=DRAIN_HINT)
        self._deny_parked(self._parked.clear())
        self._check_drained()

    def _check_drained(self) -> None:
        if self.draining and not self._executions and not len(self._queue) and not self._drain_finished:
            self._drain_finished = True
            self._out.append(FinishDrain())

    def _pushback_requested(self, event: PushbackRequested, now: float) -> None:
        self._pushback_until = max(self._pushback_until, now + event.seconds)
