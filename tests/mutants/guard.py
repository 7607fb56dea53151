"""What a driver of cores sees without any checker: starts at the wrong time, calls that end wrongly or stand still."""

from __future__ import annotations

from typing import Any

from tests.mutants.call_rules import ruled_call
from tests.mutants.replica_rules import ruled
from tiedreq.core.call import CallCore
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, CompleteCall, OutcomeKind, ReplicaCommand, StartWork
from tiedreq.core.events import CallEvent, InputSettled, ReplicaEvent, ResultReceived, SubmitReceived
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import CopyId, CopyKind, CopyState


class BadStart(AssertionError):
    """A handler was to start at a time when none may."""


def guarded(kind: type[ReplicaCore]) -> type[ReplicaCore]:
    """That core; ``broken`` hears of a step that breaks a rule, and of a start before input has settled, or when the
    copy's time is up.
    """

    class Guarded(ruled(kind)):  # type: ignore[misc]  # a class that is made at run time
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._due: dict[CopyId, float] = {}

        def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
            if isinstance(event, SubmitReceived):
                self._due.setdefault(event.submit.copy, now + event.submit.remaining)
            commands: list[ReplicaCommand] = super().step(event, now)
            for command in commands:
                if isinstance(command, StartWork):
                    if not isinstance(event, InputSettled):
                        self.broken(BadStart(f"{command.submit.copy} starts before input has settled"))
                    if self._due[command.submit.copy] <= now:
                        self.broken(BadStart(f"{command.submit.copy} starts when its time is up"))
            return commands

    return Guarded


class BadCall(AssertionError):
    """A call ended with an answer that its user had turned down, or goes on without a living copy."""


def guarded_call(kind: type[CallCore]) -> type[CallCore]:
    """That core; ``broken`` hears of a step that breaks a rule, of an answer that wins though it was turned down, and
    of a call that may have one more round and goes on with nothing but a backup.
    """

    class Guarded(ruled_call(kind)):  # type: ignore[misc]  # a class that is made at run time
        def step(self, event: CallEvent, now: float) -> list[CallCommand]:
            commands: list[CallCommand] = super().step(event, now)
            if isinstance(event, ResultReceived) and not event.acceptable:
                for command in commands:
                    if isinstance(command, CompleteCall) and command.outcome.kind == OutcomeKind.ANSWERED:
                        self.broken(BadCall(f"{event.copy} wins with an answer that was turned down"))
            if self.state == CallState.RACING and _lingers(self):
                self.broken(BadCall(f"{self.request.id} has no living copy but a backup, and no new round"))
            return commands

    return Guarded


def _lingers(core: CallCore) -> bool:
    """True when the copies of the newest round are gone without an answer, another may follow, and does not."""
    copies = [sent for sent in core.copies.values() if sent.kind != CopyKind.BACKUP]
    newest = max((sent.round for sent in copies), default=0)
    if newest >= core._rounds_max:
        return False
    return all(
        not sent.alive and sent.state not in (CopyState.DONE, CopyState.FAILED)
        for sent in copies
        if sent.round == newest
    )
