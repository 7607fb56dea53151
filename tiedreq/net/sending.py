"""The way out of a link, synchronous: what its owner sends goes into the outbox of the connection that is up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiedreq.core.messages import Message
from tiedreq.core.types import CopyId
from tiedreq.net.outbox import Outbox

_SHED_AT_ONCE = 64


@dataclass(slots=True)
class LinkStatistics:
    """Counted over all connections of a link."""

    messages_sent: int = 0
    messages_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    refused: int = 0
    shed: int = 0
    times_up: int = 0
    times_down: int = 0
    failures: int = 0


class Sending:
    """What a link and its owner share of the way out.

    ``up_id`` is the id of the connection that is up, or 0. ``when_full`` as in ``LinkOptions``. ``too_slow`` is called
    when the outbox is full and the connection is to end for that.
    """

    def __init__(self, outbox: Outbox, when_full: str, too_slow: Callable[[], None]) -> None:
        self.outbox = outbox
        self.when_full = when_full
        self.up_id = 0
        self.statistics = LinkStatistics()
        self._too_slow = too_slow

    def send(self, message: Message) -> bool:
        """See ``Link.send``."""
        if not self.up_id:
            return False
        if self.outbox.put(message):
            self.statistics.messages_sent += 1
            return True
        return self._send_when_full(message)

    def _send_when_full(self, message: Message) -> bool:
        if self.when_full == "shed":
            self.statistics.shed += self.outbox.shed_oldest_notices(_SHED_AT_ONCE)
            if self.outbox.put(message):
                self.statistics.messages_sent += 1
                return True
        self.statistics.refused += 1
        if self.when_full == "close":
            self._too_slow()
        return False

    def left_behind(self) -> tuple[CopyId, ...]:
        """See ``Outbox.left_behind``; nothing while the link is up."""
        return self.outbox.left_behind

    def discard(self, copy: CopyId) -> bool:
        """See ``Link.discard``."""
        return self.outbox.discard(copy)
