"""Invariants of copies at their replicas, and of the two sides of a tie: S2 to S6, S8, S10 to S12."""

from __future__ import annotations

from collections.abc import Iterable

from tiedreq.core.commands import CallCommand, FinishDrain, ReplicaCommand, SendCopy, SendPeer, StartWork, StopWork
from tiedreq.core.events import (
    CallerLost,
    CancelReceived,
    ClaimDenied,
    DrainRequested,
    SubmitReceived,
    WorkFinished,
)
from tiedreq.core.messages import Granted, Started
from tiedreq.core.policy import Auto, Hedged, Tied
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState
from tiedreq.sim.checker import LOST_TO_A_PARTNER, Checker, PeerNews, ending_of
from tiedreq.sim.history import CallStep, Home, ReplicaStep

TOLERANCE = 1e-9


class OneEnding(Checker):
    """S2: an accepted copy ends once, in the state that its caller is told, or dies with its replica. A handler that
    runs for nothing is told to stop.
    """

    name = "S2"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        ending = ending_of(command)
        if ending is None:
            return
        copy, state, cause = ending
        home = self.history.held.get(copy)
        if copy in self.history.ended:
            self.broken(copy, f"ends {state.label} after it had ended {self.history.ended[copy].label}", step.now)
        elif home is None or home.replica != step.identity:
            self.broken(copy, f"ends {state.label} at {step.identity}, where it is not", step.now)
        elif cause != Cause.DUPLICATE and step.core.copy_state(copy) not in (state, None):
            self.broken(copy, f"its caller is told {state.label}, it is {step.core.copy_state(copy)!r}", step.now)

        elif state not in (CopyState.DONE, CopyState.FAILED) and copy in self.history.handlers:
            finished = isinstance(step.event, WorkFinished) and step.event.copy == copy
            if not finished and not any(isinstance(c, StopWork) and c.copy == copy for c in step.commands):
                self.broken(copy, f"ends {state.label}, and its handler is not told to stop", step.now)

    def replica_step(self, step: ReplicaStep) -> None:
        for copy in self._touched(step):
            home = self.history.held.get(copy)
            if home is None or home.replica != step.identity:
                continue
            state = step.core.copy_state(copy)
            if state is None or state.terminal:
                self.broken(copy, f"is gone ({state!r}) and its caller was not told", step.now)
        if isinstance(step.event, CallerLost):
            lost = Home(step.identity, step.event.link)
            for copy in [copy for copy, home in self.history.held.items() if home == lost]:
                self.broken(copy, f"came over link {lost.link}, which is lost, and lives on", step.now)

    def _touched(self, step: ReplicaStep) -> Iterable[CopyId]:
        event = step.event
        if isinstance(event, SubmitReceived):
            return (event.submit.copy,)
        if isinstance(event, CancelReceived | WorkFinished):
            return (event.copy,)
        if isinstance(event, PeerNews):
            return tuple(event.copy._replace(rank=rank) for rank in range(event.copy.rank + 8))
        return tuple(self.history.held) if isinstance(event, DrainRequested) or len(self.history.held) <= 64 else ()


class DroppedForAPartner(Checker):
    """S3: a copy is dropped only when a partner of its round has started, was granted the start, or has announced Next,
    and said so here.
    """

    name = "S3"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        ending = ending_of(command)
        if ending is None or ending[1] != CopyState.DROPPED:
            return
        copy, _, cause = ending
        history, submit = self.history, self.history.submits.get(ending[0])
        if submit is None:
            return
        others = [copy._replace(rank=rank) for rank in range(len(submit.partners)) if rank != copy.rank]
        if cause == Cause.STARTED and isinstance(step.event, ClaimDenied):
            good = submit.exclusive and step.event.copy == copy and step.event.started
            good = good and any(o in history.started or o in history.granted for o in others)
        elif cause == Cause.GRANTED:
            later = [c.message for c in step.commands[index:] if isinstance(c, SendPeer)]
            good = submit.exclusive and any(isinstance(m, Granted) and m.copy in others for m in later)
        elif cause == Cause.STARTED:
            good = any((o, step.identity) in history.heard and o in history.started for o in others)
        elif cause == Cause.NEXT:
            lower = [o for o in others if o.rank < copy.rank]
            good = any((o, step.identity) in history.heard_next and o in history.announced for o in lower)
        else:
            good = False
        if not good:
            self.broken(copy, f"dropped ({cause.label}), but no partner said so and did so", step.now)


class NotAllGone(Checker):
    """S4: never are all copies of a tie dropped or yielded, with none that finished, failed, was refused or died."""

    name = "S4"

    def replica_step(self, step: ReplicaStep) -> None:
        for command in step.commands:
            ending = ending_of(command)
            if ending is None or ending[1] not in LOST_TO_A_PARTNER or ending[0].rank == UNTIED:
                continue
            sent = self.history.sent.get(ending[0].tie, ())
            if sent and all(self.history.ended.get(copy) in LOST_TO_A_PARTNER for copy in sent):
                self.broken(ending[0], f"all {len(sent)} copies of the tie gave way to each other", step.now)


class NoStartAfterEnd(Checker):
    """S5: a copy starts at most once, where it was accepted, and never after it ended or its caller cancelled it."""

    name = "S5"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if not isinstance(command, StartWork):
            return
        copy = command.submit.copy
        home = self.history.held.get(copy)
        if copy in self.history.started:
            self.broken(copy, "starts a second time", step.now)
        elif copy in self.history.ended:
            self.broken(copy, f"starts after it ended {self.history.ended[copy].label}", step.now)
        elif home is None or home.replica != step.identity:
            self.broken(copy, f"starts at {step.identity}, which does not hold it", step.now)
        elif step.now < self.history.cancelled.get(copy, step.now):
            self.broken(copy, "starts although its caller had cancelled it", step.now)


class RunsOnce(Checker):
    """6, unsafe: of a call that may not run twice only one copy ever starts."""

    name = "once"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if not isinstance(command, StartWork) or command.submit.copy.call not in self.history.once:
            return
        copy = command.submit.copy
        for other in self.history.started:
            if other.call == copy.call and other != copy:
                self.broken(copy, f"starts, though its call may run once and {other} has started", step.now)


class NoLateStart(Checker):
    """S6: a copy starts beside a partner only while the partner's notice is under way, or was lost with its link, or
    its marker was evicted or has expired. Each start is told to every partner that can be reached, before it happens.
    """

    name = "S6"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if not isinstance(command, StartWork) or command.submit.copy.rank == UNTIED:
            return
        copy, partners = command.submit.copy, command.submit.partners
        told = {
            other.link
            for other in step.commands[:index]
            if isinstance(other, SendPeer) and isinstance(other.message, Started) and other.message.copy == copy
        }
        for rank, partner in enumerate(partners):
            if rank == copy.rank:
                continue
            link = self.history.current.get((step.identity, partner))
            if link is not None and link not in told:
                self.broken(copy, f"starts before {partner} is told", step.now)
            other = copy._replace(rank=rank)
            heard = self.history.heard.get((other, step.identity))
            if heard is not None and not heard.evicted and step.now < heard.until - TOLERANCE:
                self.broken(copy, f"starts although {step.identity.name} knew that {other} had started", step.now)


class NothingNewWhileDraining(Checker):
    """5.10: a replica that drains starts nothing but what an arbiter had let it, and leaves when nothing is held."""

    name = "5.10"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if isinstance(command, StartWork) and step.core.draining:
            if command.submit.copy not in self.history.granted:
                self.broken(command.submit.copy, "starts at a replica that drains", step.now)
        elif isinstance(command, FinishDrain):
            for copy, home in self.history.held.items():
                if home.replica == step.identity:
                    self.broken(copy, "is held by a replica that leaves", step.now)


class ExclusiveStart(Checker):
    """S7: of an exclusive tie one copy starts at most, and one of higher rank only when the arbiter has let it."""

    name = "S7"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        history = self.history
        if isinstance(command, SendPeer) and isinstance(command.message, Granted):
            copy = command.message.copy
            others = [copy._replace(rank=rank) for rank in range(16) if rank != copy.rank]
            for other in others:
                if other in history.started or other in history.granted:
                    self.broken(copy, f"granted the start that {other} has", step.now)
        elif isinstance(command, StartWork) and command.submit.exclusive:
            copy = command.submit.copy
            if copy.rank > 0 and copy not in history.granted:
                self.broken(copy, "starts although no arbiter let it", step.now)
            for rank in range(len(command.submit.partners)):
                other = copy._replace(rank=rank)
                if rank != copy.rank and other in history.started:
                    self.broken(copy, f"starts although {other} has started", step.now)


class WithinLimits(Checker):
    """S8: every collection is within its limit."""

    name = "S8"

    def replica_step(self, step: ReplicaStep) -> None:
        core, limits, sizes = step.core, step.core.limits, step.core.sizes()
        copies = limits.queue_length_max + core.slots + sizes["claiming"]
        bounds = {
            "queue": limits.queue_length_max,
            "copies": min(copies, limits.copies_per_caller_max * max(1, sizes["callers"])),
            "executions": core.slots,
            "ties": sizes["copies"],
            "claiming": sizes["copies"],
            "parked_claims": limits.parked_claims_max,
            "tombstones": limits.tombstones_max,
            "markers": limits.markers_per_peer_max * sizes["peers"],
            "cancel_markers": limits.cancel_markers_per_caller_max * sizes["callers"],
        }
        for name, most in bounds.items():
            if sizes[name] > most:
                self.broken(step.identity, f"{name}: {sizes[name]}, the limit is {most}", step.now)

    def call_step(self, step: CallStep) -> None:
        backups = sum(sent.kind == CopyKind.BACKUP for sent in step.core.copies.values())
        policy = step.core.request.policy
        backup = policy.backup if isinstance(policy, Hedged | Tied | Auto) else None
        most = backup.max_per_call if backup is not None else 0
        if backups > most:
            self.broken(step.call, f"backups: {backups}, the limit is {most}", step.now)


class SlotsAddUp(Checker):
    """S10: free slots and running handlers are all the slots, counted by the handlers themselves."""

    name = "S10"

    def replica_step(self, step: ReplicaStep) -> None:
        core = step.core
        handlers = self.history.handlers_at(step.identity)
        if core.free_slots < 0 or core.free_slots + handlers != core.slots or core.running != handlers:
            reason = f"{core.free_slots} free and {handlers} handlers, of {core.slots} slots ({core.running} taken)"
            self.broken(step.identity, reason, step.now)


class LowestRankRuns(Checker):
    """S11: when the notices of a double start have been handled, only the lowest rank runs, unless a handler can't be
    stopped or a stream has sent content. A copy yields to a lower rank only, and only when it was told.
    """

    name = "S11"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        ending = ending_of(command)
        if ending is None or ending[1] != CopyState.YIELDED:
            return
        copy = ending[0]
        lower = (copy._replace(rank=rank) for rank in range(copy.rank))
        if not any((o, step.identity) in self.history.heard and o in self.history.started for o in lower):
            self.broken(copy, "yields, but no copy of lower rank had told it of a start", step.now)

    def replica_step(self, step: ReplicaStep) -> None:
        history = self.history
        for running in list(history.running.values()):
            for high in running:
                submit = history.submits[high]
                if high in history.unstoppable or not submit.yield_ or submit.exclusive or high in history.committed:
                    continue
                for low in running:
                    if low.rank < high.rank and self._settled(low, high):
                        self.broken(high, f"runs on beside {low}, and no notice is under way", step.now)

    def _settled(self, low: CopyId, high: CopyId) -> bool:
        history = self.history
        a, b = history.started[low], history.started[high]
        return (
            (a, b) in history.current
            and (b, a) in history.current
            and (low, b) not in history.pending
            and (high, a) not in history.pending
        )


class BackupsAreAlone(Checker):
    """S12: no peer's notice ends a backup (or any other untied copy), and a backup has an identity of its own."""

    name = "S12"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        ending = ending_of(command)
        if ending is not None and ending[0].rank == UNTIED and ending[1] in LOST_TO_A_PARTNER:
            self.broken(ending[0], f"has no partners, but ended {ending[1].label}", step.now)
        elif isinstance(step.event, PeerNews):
            copy = command.copy if isinstance(command, StopWork) else ending[0] if ending else None
            if copy is not None and copy.rank == UNTIED:
                self.broken(copy, "ended by a peer's notice", step.now)

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        if isinstance(command, SendCopy) and command.submit.kind == CopyKind.BACKUP:
            submit = command.submit
            if submit.copy.rank != UNTIED or submit.partners:
                self.broken(submit.copy, "a backup that is tied", step.now)
