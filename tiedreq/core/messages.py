"""Messages between processes: nouns and participles, one class each.

They are values; ``tiedreq.wire.codec`` turns them into bytes. Durations are seconds. ``payload`` is opaque: it is
encoded once per call by the caller and decoded next to the handler.
"""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.types import Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, Window

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Hello(NamedTuple):
    """The first message of each side of a link.

    ``role`` is ``"client"`` or ``"replica"``. For a client ``incarnation`` is its nonce. The acceptor's ``proof``
    answers the dialer's ``challenge``; the dialer's is empty (its own answer is ``Proof``).
    """

    protocol_min: int
    protocol_max: int
    cluster: str
    role: str
    name: str
    incarnation: int
    challenge: bytes
    proof: bytes


class Proof(NamedTuple):
    """The dialer's answer to the acceptor's challenge."""

    proof: bytes


class Welcome(NamedTuple):
    """What an accepted side may know of a replica. On a mesh link both sides send one.

    ``zone`` is where it runs: replicas of one zone may fail together. Empty: it doesn't say.
    """

    slots: int
    draining: bool
    payload_bytes_max: int
    methods: tuple[MethodInfo, ...]
    zone: str = ""


class Goodbye(NamedTuple):
    """The last message of a link, with the reason in words."""

    code: str
    reason: str


class Heartbeat(NamedTuple):
    """Asks for a ``HeartbeatEcho`` with the same number."""

    number: int


class HeartbeatEcho(NamedTuple):
    """The answer to a ``Heartbeat``, sent by the loop that handles every other message."""

    number: int


class Chunk(NamedTuple):
    """A part of one large message. ``stream`` numbers the message on its link, parts come in order."""

    stream: int
    last: bool
    data: bytes


class Unsupported(NamedTuple):
    """The answer to a message whose type is unknown here. Never answered itself."""

    type_code: int


class Draining(NamedTuple):
    """This incarnation accepts no new work."""


class Report(NamedTuple):
    """Now and then, to callers: the measured notice latency to each peer, in seconds."""

    notice_latencies: tuple[tuple[str, float], ...]


class Submit(NamedTuple):
    """A copy, from a caller to a replica.

    ``partners`` lists the replica of every rank of the tie, this one included; empty for an untied copy.
    ``remaining`` is the time left until the call's deadline. ``layered`` says that a layer above already ties or
    hedges. ``key`` is the caller's idempotency key, or None. ``window``, for a stream only, is its initial credit.
    """

    copy: CopyId
    kind: CopyKind
    method: str
    payload: bytes
    remaining: float
    partners: tuple[Identity, ...]
    yield_: bool
    exclusive: bool
    layered: bool
    key: str | None
    metadata: tuple[tuple[str, str], ...]
    window: Window | None = None


class Cancel(NamedTuple):
    """The caller no longer wants this copy."""

    copy: CopyId


class Started(NamedTuple):
    """This copy's handler starts now. To the caller with ``load``; to the partners of a tie without."""

    copy: CopyId
    remaining: float
    load: Load | None


class Next(NamedTuple):
    """To the partners of a tie: this copy is at the head of its queue and its handler can't be stopped."""

    copy: CopyId
    remaining: float


class Claim(NamedTuple):
    """(exclusive ties) To the arbiter, the partner of rank 0: may this copy start?

    ``arbiter`` is the arbiter's incarnation as the Submit named it, ``claimant`` the sender's own.
    """

    copy: CopyId
    arbiter: int
    claimant: int


class Granted(NamedTuple):
    """(exclusive ties) The answer to a Claim: this copy may start, and no other of its tie ever will."""

    copy: CopyId


class Denied(NamedTuple):
    """(exclusive ties) The answer to a Claim: another copy started or may start (``started``), or nothing is known."""

    copy: CopyId
    started: bool


class Inquiry(NamedTuple):
    """From a client: how is this replica? Answered with ``Status``, whatever waits in the queue.

    ``about`` asks for more than the status: what a replica does not know it answers with its status.
    """

    number: int
    about: str = ""


class Status(NamedTuple):
    """The answer to an ``Inquiry`` with the same number. ``payload`` is an encoded map."""

    number: int
    payload: bytes


class Item(NamedTuple):
    """An item of a stream, the ``number``-th from 0; they leave in order.

    ``service_time`` is how long its handler had run by then, ``queue_wait`` how long the copy had waited before.
    ``load`` comes with the item that commits the replica to the stream.
    """

    copy: CopyId
    number: int
    payload: bytes
    service_time: float
    queue_wait: float
    load: Load | None


class Credit(NamedTuple):
    """From a caller: its stream may be sent until so many items, and so many bytes of payloads, have left in all."""

    copy: CopyId
    items: int
    bytes: int


class Result(NamedTuple):
    """The handler returned. ``service_time`` and ``queue_wait`` as the replica measured them.

    Of a stream it is the end, and ``payload`` is the number of its items.
    """

    copy: CopyId
    payload: bytes
    service_time: float
    queue_wait: float
    load: Load


class Failed(NamedTuple):
    """The handler raised. ``details`` is an encoded value, or empty."""

    copy: CopyId
    code: str
    message: str
    details: bytes
    retryable: bool
    service_time: float
    queue_wait: float
    load: Load


class Ended(NamedTuple):
    """The copy ended without an answer: dropped, yielded, cancelled, expired or refused, and why.

    ``retry_after`` is the hint of a refusal (0 without one); ``service_time`` is 0 for a copy that never started.
    """

    copy: CopyId
    state: CopyState
    cause: Cause
    retry_after: float
    service_time: float
    load: Load


Message = (
    Hello
    | Proof
    | Welcome
    | Goodbye
    | Heartbeat
    | HeartbeatEcho
    | Chunk
    | Unsupported
    | Draining
    | Report
    | Submit
    | Cancel
    | Started
    | Next
    | Claim
    | Granted
    | Denied
    | Inquiry
    | Status
    | Item
    | Credit
    | Result
    | Failed
    | Ended
)
