"""Commands: what a driver has to do, in order, before it gives the core its next event.

Each class states the driver's obligation. A driver has no choice in any of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tiedreq.core.messages import Message, Submit
from tiedreq.core.types import Cause, CopyId


class StartWork(NamedTuple):
    """Run the handler of this copy now. Answer with exactly one ``WorkFinished``, whatever happens.

    ``deadline`` is on the core's clock.
    """

    submit: Submit
    deadline: float


class StopWork(NamedTuple):
    """Stop the handler of this copy if that can be done. ``WorkFinished`` follows when it has ended."""

    copy: CopyId
    cause: Cause


class PauseWork(NamedTuple):
    """Ask the handler of this stream for no further item until ``ResumeWork``: its caller has granted no more."""

    copy: CopyId


class ResumeWork(NamedTuple):
    """Go on with a paused stream."""

    copy: CopyId


class SendPeer(NamedTuple):
    """Put a notice into the outbox of this mesh link. It is lost with the link."""

    link: int
    message: Message


class SendCaller(NamedTuple):
    """Put a message into the outbox of this client link. It is lost with the link."""

    link: int
    message: Message


class FinishDrain(NamedTuple):
    """Nothing runs any more: flush the outboxes and leave."""


class SendCopy(NamedTuple):
    """Put a copy into the outbox of this replica's link, or answer with ``CopyUnsent``."""

    link: int
    submit: Submit


class CancelCopy(NamedTuple):
    """Tell a replica that a copy is no longer wanted; a copy still in the outbox never leaves."""

    link: int
    copy: CopyId


class GrantCredit(NamedTuple):
    """Tell a replica how much of its stream it may send in all: see ``messages.Credit``."""

    link: int
    copy: CopyId
    items: int
    bytes: int


class DeliverItems(NamedTuple):
    """Hand all that is kept of this copy's items to the user, in order. What is kept of other copies can go."""

    copy: CopyId


class OutcomeKind(IntEnum):
    """How a call ends."""

    ANSWERED = 0
    FAILED = 1  # a handler's failure: code, message, details
    DEADLINE = 2
    OVERLOADED = 3  # every replica asked refused
    UNAVAILABLE = 4  # replicas were lost
    UNKNOWN = 5  # lost while a call that may not run twice was under way
    REJECTED = 6  # refused for good: unknown method, not idempotent
    CANCELLED = 7  # by the user
    INTERRUPTED = 8  # a stream broke off after the race was decided


class Outcome(NamedTuple):
    """The one outcome of a call. ``copy`` is the copy that decided it, if one did; ``retry_after`` in seconds."""

    kind: OutcomeKind
    copy: CopyId | None = None
    cause: Cause = Cause.NONE
    code: str = ""
    message: str = ""
    details: bytes = b""
    retry_after: float = 0.0


class CompleteCall(NamedTuple):
    """Hand the outcome to the user. Follows exactly once, after the commands that cancel the losers."""

    outcome: Outcome


ReplicaCommand = StartWork | StopWork | PauseWork | ResumeWork | SendPeer | SendCaller | FinishDrain
CallCommand = SendCopy | CancelCopy | GrantCredit | DeliverItems | CompleteCall
