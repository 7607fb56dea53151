"""Events: what happened, in the past tense. The only input of a replica's and a call's core.

``link`` is the number of one connection in this process (its epoch): news from an old connection names a number that
the core no longer knows, and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.messages import Submit
from tiedreq.core.types import Cause, CopyId, CopyState, Identity


class CallerConnected(NamedTuple):
    """A client's link is up. ``client`` is the nonce it proved at hello."""

    link: int
    client: int


class CallerLost(NamedTuple):
    """A client's link is gone."""

    link: int


class PeerConnected(NamedTuple):
    """A mesh link is up."""

    link: int
    peer: Identity


class PeerLost(NamedTuple):
    """A mesh link is gone."""

    link: int


class SubmitReceived(NamedTuple):
    """A caller sent a copy."""

    link: int
    submit: Submit


class CancelReceived(NamedTuple):
    """A caller no longer wants a copy."""

    link: int
    copy: CopyId


class PeerStarted(NamedTuple):
    """A partner's copy started. ``remaining`` bounds how long a marker of it lives."""

    link: int
    copy: CopyId
    remaining: float


class PeerNext(NamedTuple):
    """A partner's copy is at the head of its queue and can't be stopped once it runs."""

    link: int
    copy: CopyId
    remaining: float


class PeerClaimed(NamedTuple):
    """A partner's copy of an exclusive tie asks whether it may start. Incarnations as its ``Claim`` names them."""

    link: int
    copy: CopyId
    arbiter: int
    claimant: int


class ClaimGranted(NamedTuple):
    """The arbiter lets a copy of ours start."""

    link: int
    copy: CopyId


class ClaimDenied(NamedTuple):
    """The arbiter does not let a copy of ours start: another did or may, or (``started`` False) it knows nothing."""

    link: int
    copy: CopyId
    started: bool


class Answer(NamedTuple):
    """A handler returned ``payload``."""

    payload: bytes


class Fault(NamedTuple):
    """A handler raised. ``details`` is an encoded value, or empty."""

    code: str
    message: str
    details: bytes
    retryable: bool


class WorkFinished(NamedTuple):
    """A handler has ended and its slot is free. ``outcome`` is None when it was stopped."""

    copy: CopyId
    outcome: Answer | Fault | None


class ItemProduced(NamedTuple):
    """The handler of a stream has an item. ``content`` as the usual rule has it."""

    copy: CopyId
    payload: bytes
    content: bool


class CreditReceived(NamedTuple):
    """A caller grants a stream more: see ``messages.Credit``."""

    link: int
    copy: CopyId
    items: int
    bytes: int


class StopEnabled(NamedTuple):
    """A handler in a thread has said how it can be stopped."""

    copy: CopyId


class DrainRequested(NamedTuple):
    """The replica is to finish what runs and leave."""


class PushbackRequested(NamedTuple):
    """No backups should come here for ``seconds``."""

    seconds: float


class NoticeLatencyMeasured(NamedTuple):
    """Half the round trip of a notice to ``peer``, in seconds."""

    peer: str
    seconds: float


class TimePassed(NamedTuple):
    """The time that ``wake_at`` named has come (or any other: it is harmless)."""


class InputSettled(NamedTuple):
    """All input that was ready has been given to the core. Only this fills slots."""


class CallRequested(NamedTuple):
    """The user made the call."""


class CopyStarted(NamedTuple):
    """A replica said that a copy's handler started."""

    link: int
    copy: CopyId


class ResultReceived(NamedTuple):
    """A replica answered. ``acceptable`` is the verdict of the caller's ``accept``; the rest as it measured it."""

    link: int
    copy: CopyId
    acceptable: bool
    service_time: float = 0.0
    queue_wait: float = 0.0


class ItemReceived(NamedTuple):
    """A replica sent an item of ``size`` bytes. ``content`` is the verdict of the caller's rule."""

    link: int
    copy: CopyId
    number: int
    size: int
    content: bool
    service_time: float = 0.0
    queue_wait: float = 0.0


class ItemRefused(NamedTuple):
    """A replica sent an item that can't be used here, and why: its stream is of no use any more."""

    link: int
    copy: CopyId
    code: str
    message: str
    service_time: float = 0.0


class ItemTaken(NamedTuple):
    """The user has taken the next item, of ``size`` bytes."""

    size: int


class FailureReceived(NamedTuple):
    """A replica's handler failed."""

    link: int
    copy: CopyId
    code: str
    message: str
    details: bytes
    retryable: bool
    service_time: float = 0.0


class CopyEnded(NamedTuple):
    """A replica said that a copy ended without an answer. ``service_time`` is 0 for one that never started."""

    link: int
    copy: CopyId
    state: CopyState
    cause: Cause
    retry_after: float
    service_time: float = 0.0


class CopyUnsent(NamedTuple):
    """A copy could not be handed to its link: nothing left."""

    copy: CopyId


class LinkLost(NamedTuple):
    """The link to a replica is gone, with all that was under way on it.

    ``drained``: the replica ended it in order, after everything that it had to say. A copy of which it said nothing has
    never started.
    """

    link: int
    drained: bool = False


class ReplicaAvailable(NamedTuple):
    """A replica has become reachable."""


class CallerCancelled(NamedTuple):
    """The user no longer wants the call."""


ReplicaEvent = (
    CallerConnected
    | CallerLost
    | PeerConnected
    | PeerLost
    | SubmitReceived
    | CancelReceived
    | PeerStarted
    | PeerNext
    | PeerClaimed
    | ClaimGranted
    | ClaimDenied
    | WorkFinished
    | ItemProduced
    | CreditReceived
    | StopEnabled
    | DrainRequested
    | PushbackRequested
    | NoticeLatencyMeasured
    | TimePassed
    | InputSettled
)

CallEvent = (
    CallRequested
    | CopyStarted
    | ResultReceived
    | ItemReceived
    | ItemRefused
    | ItemTaken
    | FailureReceived
    | CopyEnded
    | CopyUnsent
    | LinkLost
    | ReplicaAvailable
    | CallerCancelled
    | TimePassed
)
