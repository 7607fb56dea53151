"""Invariants of a call at its client: S1, S13, and the rules of design section 6 that no other invariant shows."""

from __future__ import annotations

from tiedreq.core.call import CallCore, SentCopy
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, OutcomeKind, SendCopy
from tiedreq.core.events import CallEvent, CopyEnded, CopyStarted
from tiedreq.core.policy import Auto, Hedged, Tied
from tiedreq.core.types import UNTIED, Cause, CopyKind
from tiedreq.sim.checker import LOST_TO_A_PARTNER, Checker
from tiedreq.sim.history import CallStep

TOLERANCE = 1e-9


class OneOutcome(Checker):
    """S1: a call has exactly one outcome; the losers are cancelled before it, and nothing is sent after it."""

    name = "S1"

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        if step.call in self.history.outcomes:
            what = "a second outcome" if isinstance(command, CompleteCall) else f"{type(command).__name__} after it"
            self.broken(step.call, f"the call has ended, then {what}", step.now)
        elif isinstance(command, CompleteCall):
            cancelled = {other.copy for other in step.commands[:index] if isinstance(other, CancelCopy)}
            for sent in step.core.copies.values():
                if sent.alive and sent.id not in cancelled:
                    self.broken(sent.id, "still out, and not cancelled before the call's outcome", step.now)

    def call_step(self, step: CallStep) -> None:
        if (step.core.state == CallState.DONE) != (step.call in self.history.outcomes):
            self.broken(step.call, "has ended without an outcome, or has one and goes on", step.now)


class RoundsEndByFaults(Checker):
    """S13: rounds run out only by at least as many faults as rounds: each round that is over had a fault of its own."""

    name = "S13"

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        copies = [sent for sent in step.core.copies.values() if sent.kind != CopyKind.BACKUP]
        newest = max((sent.round for sent in copies), default=0)
        if isinstance(command, CompleteCall):
            if command.outcome.kind not in (OutcomeKind.OVERLOADED, OutcomeKind.UNAVAILABLE):
                return
            over = range(1, newest + 1)
        elif isinstance(command, SendCopy) and command.submit.kind == CopyKind.FAILOVER:
            over = range(1, newest)
        else:
            return
        for number in over:
            if not any(_met_a_fault(sent) for sent in copies if sent.round == number):
                self.broken(step.call, f"round {number} is over without a fault", step.now)


def _met_a_fault(sent: SentCopy) -> bool:
    if sent.alive or sent.cause == Cause.DUPLICATE:
        return False
    return sent.state not in LOST_TO_A_PARTNER


class NotSentAfterStart(Checker):
    """6.2: once a copy of a round is known to have started, no other copy of that tie is sent."""

    name = "6.2"

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        if not isinstance(command, SendCopy) or command.submit.copy.rank == UNTIED:
            return
        copy = command.submit.copy
        for sent in step.core.copies.values():
            known = sent.started_at is not None or sent.cause == Cause.STARTED
            if known and sent.id != copy and sent.id.rank != UNTIED and sent.id.tie == copy.tie:
                self.broken(copy, f"sent although {sent.id} was known to have met a start", step.now)


class BackupClockRuns(Checker):
    """6.3: the backup clock runs from the start of a copy, whoever told of it."""

    name = "6.3"
    known = False
    """Whether a start that is told was told before: then the clock may have run out since, at the same time."""

    def before_call(self, event: CallEvent, core: CallCore) -> None:
        """A call's core is about to take a step."""
        if isinstance(event, CopyStarted):
            sent = core.copies.get(event.copy)
            self.known = sent is not None and sent.started_at is not None

    def call_step(self, step: CallStep) -> None:
        event, core = step.event, step.core
        if not isinstance(event, CopyStarted | CopyEnded) or core.state == CallState.DONE:
            return
        if isinstance(event, CopyStarted) and self.known:
            return
        policy = core.request.policy
        backup = policy.backup if isinstance(policy, Hedged | Tied | Auto) else None
        sent = core.copies.get(event.copy)
        if backup is None or backup.delay is None or backup.since != "start" or sent is None or sent.link != event.link:
            return
        if sum(other.kind == CopyKind.BACKUP for other in core.copies.values()) >= backup.max_per_call:
            return
        if any(isinstance(c, SendCopy) and c.submit.kind == CopyKind.FAILOVER for c in step.commands):
            return  # what started has failed already: its round is over, and a new one has begun
        told = sent.started_at if isinstance(event, CopyStarted) else sent.ended_at
        by_partner = isinstance(event, CopyEnded) and sent.cause == Cause.STARTED
        if told == step.now and (by_partner or (isinstance(event, CopyStarted) and sent.alive)):
            latest = min(step.now + backup.delay, core.request.deadline)
            if core.wake_at > latest + TOLERANCE:
                self.broken(sent.id, "its start is known, and no backup clock runs", step.now)
