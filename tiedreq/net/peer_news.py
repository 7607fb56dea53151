"""What a peer's messages mean to a replica's core."""

from __future__ import annotations

from collections.abc import Iterator

from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import ClaimDenied, ClaimGranted, PeerClaimed, PeerNext, PeerStarted, ReplicaEvent
from tiedreq.core.messages import Claim, Denied, Draining, Granted, Message, Next, Started


def peer_events(link: int, messages: list[Message]) -> Iterator[ReplicaEvent]:
    """What a peer's messages mean to the core. Raises ``RemoteViolation`` for what peers don't send."""
    for message in messages:
        event = _peer_event(link, message)
        if event is not None:
            yield event


def _peer_event(link: int, message: Message) -> ReplicaEvent | None:
    if type(message) is Started:
        return PeerStarted(link, message.copy, message.remaining)
    if isinstance(message, Next):
        return PeerNext(link, message.copy, message.remaining)
    if isinstance(message, Claim):
        return PeerClaimed(link, message.copy, message.arbiter, message.claimant)
    if isinstance(message, Granted):
        return ClaimGranted(link, message.copy)
    if isinstance(message, Denied):
        return ClaimDenied(link, message.copy, message.started)
    if isinstance(message, Draining):
        return None
    raise RemoteViolation(f"{type(message).__name__} from a replica")
