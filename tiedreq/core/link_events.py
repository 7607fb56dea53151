"""What happens to a link: the events that ``LinkCore.step`` takes.

Events of a connection carry its ``epoch``; an epoch that is not the current one changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.messages import Message


class LinkWanted(NamedTuple):
    """(dialer) The owner wants this link from now on."""


class TransportConnected(NamedTuple):
    """Bytes can flow both ways. For an acceptor this begins its only epoch, ``epoch`` is then ignored."""

    epoch: int


class DialFailed(NamedTuple):
    """(dialer) No transport could be made; ``reason`` in words, ``code`` as in ``AnnounceFailure``."""

    epoch: int
    reason: str
    code: str = "unreachable"


class FrameArrived(NamedTuple):
    """One frame, decoded: its messages in order, and the type codes that nobody here knows."""

    epoch: int
    messages: tuple[Message, ...]
    unknown_types: tuple[int, ...] = ()


class ViolationFound(NamedTuple):
    """Bytes arrived that are no valid frame, or broke a rule of a later stage; ``reason`` in words."""

    epoch: int
    reason: str


class TransportLost(NamedTuple):
    """The connection is gone; ``reason`` in words."""

    epoch: int
    reason: str


class TimePassed(NamedTuple):
    """The time that ``wake_at`` asked for has come."""


class CloseRequested(NamedTuple):
    """The owner closes the link for good; the other side is told ``code`` and ``reason``."""

    code: str
    reason: str


class DropRequested(NamedTuple):
    """The owner ends this connection (a dialer tries again); the other side is told ``code`` and ``reason``."""

    epoch: int
    code: str
    reason: str


LinkEvent = (
    LinkWanted
    | TransportConnected
    | DialFailed
    | FrameArrived
    | ViolationFound
    | TransportLost
    | TimePassed
    | CloseRequested
    | DropRequested
)
