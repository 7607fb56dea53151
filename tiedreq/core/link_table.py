"""The states of a link, and every transition between them, for the side that dials and the side that accepts.

A dialer's link is a *slot*: it lives through many connections, each with an epoch of its own. An acceptor's link is
one connection and ends with it.
"""

from __future__ import annotations

from enum import Enum

from tiedreq.core.transitions import Table


class LinkState(Enum):
    """Where a link is."""

    IDLE = "idle"
    DIALING = "dialing"
    GREETING = "greeting"  # waits for the other side's Hello
    PROVING = "proving"  # the Hellos are exchanged; the acceptor waits for Proof, the dialer for Welcome
    WELCOMING = "welcoming"  # mesh acceptor only: the dialer is proven, its Welcome is awaited
    UP = "up"
    BACKING_OFF = "backing off"
    CLOSED = "closed"


class LinkTrigger(Enum):
    """What moves a link from one state to another."""

    WANTED = "wanted"
    CONNECTED = "connected"
    DIAL_FAILED = "dial failed"
    HELLO_ACCEPTED = "hello accepted"
    CLIENT_PROVEN = "client proven"
    REPLICA_PROVEN = "replica proven"
    WELCOMED = "welcomed"
    ENDED = "ended"
    REFUSED_FOR_GOOD = "refused for good"
    RETRY_DUE = "retry due"
    CLOSE_REQUESTED = "close requested"


_NOTES = {
    LinkTrigger.WANTED: "The owner wants this link from now on.",
    LinkTrigger.CONNECTED: "Bytes can flow; a new epoch.",
    LinkTrigger.DIAL_FAILED: "No transport could be made, or not in time.",
    LinkTrigger.HELLO_ACCEPTED: "The other side's Hello fits: protocol, cluster, and (dialer) its proof and name.",
    LinkTrigger.CLIENT_PROVEN: "A client's proof holds and it is admitted.",
    LinkTrigger.REPLICA_PROVEN: "A replica's proof holds and it is admitted.",
    LinkTrigger.WELCOMED: "The other side's Welcome arrived.",
    LinkTrigger.ENDED: "The connection was lost, fell silent, took too long to open, broke the protocol, or was ended "
    "by a Goodbye of either side.",
    LinkTrigger.REFUSED_FOR_GOOD: "Another token, cluster or protocol, and the owner does not want to try again.",
    LinkTrigger.RETRY_DUE: "The back-off is over.",
    LinkTrigger.CLOSE_REQUESTED: "The owner closes the link.",
}

_S = LinkState
_T = LinkTrigger
_OPEN_DIALER = (_S.GREETING, _S.PROVING, _S.UP)
_OPEN_ACCEPTOR = (_S.GREETING, _S.PROVING, _S.WELCOMING, _S.UP)

DIALER_TABLE: Table[LinkState, LinkTrigger] = Table(
    "link, dialing side",
    _S.IDLE,
    {
        (_S.IDLE, _T.WANTED): _S.DIALING,
        (_S.DIALING, _T.CONNECTED): _S.GREETING,
        (_S.DIALING, _T.DIAL_FAILED): _S.BACKING_OFF,
        (_S.GREETING, _T.HELLO_ACCEPTED): _S.PROVING,
        (_S.PROVING, _T.WELCOMED): _S.UP,
        **{(state, _T.ENDED): _S.BACKING_OFF for state in _OPEN_DIALER},
        **{(state, _T.REFUSED_FOR_GOOD): _S.CLOSED for state in _OPEN_DIALER},
        (_S.BACKING_OFF, _T.RETRY_DUE): _S.DIALING,
        **{
            (state, _T.CLOSE_REQUESTED): _S.CLOSED
            for state in (_S.IDLE, _S.DIALING, *_OPEN_DIALER, _S.BACKING_OFF, _S.CLOSED)
        },
    },
    _NOTES,
)

ACCEPTOR_TABLE: Table[LinkState, LinkTrigger] = Table(
    "link, accepting side",
    _S.IDLE,
    {
        (_S.IDLE, _T.CONNECTED): _S.GREETING,
        (_S.GREETING, _T.HELLO_ACCEPTED): _S.PROVING,
        (_S.PROVING, _T.CLIENT_PROVEN): _S.UP,
        (_S.PROVING, _T.REPLICA_PROVEN): _S.WELCOMING,
        (_S.WELCOMING, _T.WELCOMED): _S.UP,
        **{(state, _T.ENDED): _S.CLOSED for state in _OPEN_ACCEPTOR},
        **{(state, _T.CLOSE_REQUESTED): _S.CLOSED for state in (_S.IDLE, *_OPEN_ACCEPTOR, _S.CLOSED)},
    },
    _NOTES,
)
