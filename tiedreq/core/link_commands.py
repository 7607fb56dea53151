"""What a link's driver has to do: the commands that ``LinkCore.step`` returns, to be carried out in order."""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.messages import Hello, Message, Welcome


class Dial(NamedTuple):
    """Make a transport, then report ``TransportConnected`` or ``DialFailed`` with this epoch."""

    epoch: int


class Transmit(NamedTuple):
    """Send a message of the link itself. Goes ahead of whatever waits."""

    epoch: int
    message: Message


class TransmitWelcome(NamedTuple):
    """Send a ``Welcome`` made *now*: it says whether this side is draining at this moment."""

    epoch: int


class CloseTransport(NamedTuple):
    """Tear this connection down, within a bound.

    ``abrupt`` is False when what was transmitted before should still leave (a Goodbye), True when the other side is
    gone or silent. Nothing may be sent on the connection afterwards. While dialing: give the dial up.
    """

    epoch: int
    code: str
    reason: str
    abrupt: bool


class AnnounceUp(NamedTuple):
    """Tell the owner that the link can be used.

    ``welcome`` is None for an accepted client (clients send none). ``previous_incarnation`` is what the same slot last
    met, None the first time: another number means that the peer was restarted.
    """

    epoch: int
    peer: Hello
    welcome: Welcome | None
    previous_incarnation: int | None


class AnnounceDown(NamedTuple):
    """Tell the owner that a link that was up is no more. ``by_peer``: the other side said so with a Goodbye."""

    epoch: int
    code: str
    reason: str
    by_peer: bool


class AnnounceFailure(NamedTuple):
    """Tell the owner that an attempt never came up.

    ``lasting``: trying again can't help until somebody changes a token, a cluster name or a version.
    """

    epoch: int
    code: str
    reason: str
    lasting: bool


class Deliver(NamedTuple):
    """Hand these messages to the owner, in order. Never empty, only between AnnounceUp and AnnounceDown."""

    epoch: int
    messages: tuple[Message, ...]


LinkCommand = Dial | Transmit | TransmitWelcome | CloseTransport | AnnounceUp | AnnounceDown | AnnounceFailure | Deliver
