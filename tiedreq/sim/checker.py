"""What a checker is: one invariant, fed by the steps of the production cores, that reports what breaks it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from tiedreq.core.call import CallCore
from tiedreq.core.commands import CallCommand, ReplicaCommand, SendCaller
from tiedreq.core.events import ClaimDenied, ClaimGranted, PeerClaimed, PeerNext, PeerStarted
from tiedreq.core.messages import Ended, Failed, Result
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import Cause, CopyId, CopyState
from tiedreq.sim.history import CallStep, History, ReplicaStep

LOST_TO_A_PARTNER = (CopyState.DROPPED, CopyState.YIELDED)

PeerNews = PeerStarted | PeerNext | PeerClaimed | ClaimGranted | ClaimDenied
"""What one replica hears from another about a tie. Each names a copy."""


class Violation(NamedTuple):
    """An invariant that was broken: which, by what call or copy, why, and when on the driver's clock."""

    invariant: str
    subject: str
    reason: str
    at: float

    def __str__(self) -> str:
        return f"{self.invariant} {self.subject}: {self.reason}"


class Checker:
    """One invariant. A subclass overrides the hooks that it needs; ``history`` holds all that was before.

    ``replica_command`` and ``call_command`` see one command before it is folded into the history (the event already
    is), ``replica_step`` and ``call_step`` the whole step afterwards.
    """

    name: ClassVar[str]

    def __init__(self, history: History, violations: list[Violation]) -> None:
        self.history = history
        self._violations = violations

    def broken(self, subject: object, reason: str, now: float) -> None:
        """Report a violation."""
        self._violations.append(Violation(self.name, str(subject), reason, now))

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        """A replica decided ``step.commands[index]``."""

    def replica_step(self, step: ReplicaStep) -> None:
        """A replica's step has been folded."""

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        """A call decided ``step.commands[index]``."""

    def call_step(self, step: CallStep) -> None:
        """A call's step has been folded."""

    def quiescent(self, replicas: Iterable[ReplicaCore], calls: Iterable[CallCore], now: float) -> None:
        """Nothing is left to happen: no message is under way, no handler runs, no timer waits."""


def ending_of(command: object) -> tuple[CopyId, CopyState, Cause] | None:
    """The copy that a replica's command tells the end of, how it ended, and why."""
    if isinstance(command, SendCaller):
        message = command.message
        if isinstance(message, Ended):
            return message.copy, message.state, message.cause
        if isinstance(message, Result):
            return message.copy, CopyState.DONE, Cause.NONE
        if isinstance(message, Failed):
            return message.copy, CopyState.FAILED, Cause.NONE
    return None
