"""What a link's owner hears and chooses: callbacks, options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.link_options import LinkTiming
from tiedreq.core.messages import Hello, Message, Welcome
from tiedreq.errors import ConnectError
from tiedreq.net.frames import Unfinished
from tiedreq.net.outbox import OutboxLimits
from tiedreq.wire.limits import WireLimits

if TYPE_CHECKING:
    from tiedreq.net.link import Link


class LinkUp(NamedTuple):
    """A connection can be used. ``link_id`` is unique in this process and grows.

    ``welcome`` is None for an accepted client. ``previous_incarnation`` is what a dialed link last met, None at first.
    """

    link_id: int
    peer: Hello
    welcome: Welcome | None
    previous_incarnation: int | None


class LinkDown(NamedTuple):
    """A connection that was up is no more. ``by_peer``: the other side said Goodbye with this code and reason."""

    link_id: int
    code: str
    reason: str
    by_peer: bool


class LinkOwner:
    """What an owner hears of a link. Override what matters; every method is synchronous and must not raise."""

    def on_up(self, link: Link, up: LinkUp) -> None:
        """Always before the first ``on_messages`` of this link id. What is sent from here on arrives after Welcome."""

    def on_down(self, link: Link, down: LinkDown) -> None:
        """Exactly once for each ``on_up``, and the last that is heard of this link id."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """What one frame brought, in order; never empty. Never one of the link's own messages."""

    def on_failure(self, link: Link, error: ConnectError) -> None:
        """An attempt did not come up. ``AuthRefused`` and ``VersionMismatch`` last until somebody changes something."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a link behaves.

    ``when_full``: what ``send`` does when the outbox is full. ``"refuse"``: say False. ``"shed"``: drop the oldest
    notices instead (mesh links). ``"close"``: say False and end the connection with Goodbye("slow").
    ``unfinished``: shared by links that together keep no more of unfinished messages than it allows; the one that keeps
    the most ends with Goodbye("crowded").
    """

    timing: LinkTiming = field(default_factory=LinkTiming)
    outbox: OutboxLimits = field(default_factory=OutboxLimits)
    wire: WireLimits = field(default_factory=WireLimits)
    when_full: str = "refuse"
    unfinished: Unfinished | None = None

    def __post_init__(self) -> None:
        if self.when_full not in ("refuse", "shed", "close"):
            raise BadOption(f"when_full must be refuse, shed or close, not {self.when_full!r}")


def link_options(
    limits: ClientLimits | ReplicaLimits, wire: WireLimits, when_full: str, unfinished: Unfinished | None = None
) -> LinkOptions:
    """The options of all links of a client or a replica with these limits."""
    return LinkOptions(
        timing=LinkTiming(
            heartbeat_interval=limits.heartbeat_interval,
            heartbeat_misses=limits.heartbeat_misses_max,
            handshake_timeout=limits.handshake_timeout,
        ),
        outbox=OutboxLimits(
            messages_max=limits.outbox_messages_max,
            bytes_max=limits.outbox_bytes_max,
            bulk_bytes_max=limits.outbox_bytes_max,
        ),
        wire=wire,
        when_full=when_full,
        unfinished=unfinished,
    )
