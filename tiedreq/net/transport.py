"""What a link needs from whatever carries its bytes: whole frames in order, both ways, until it is closed.

A transport decides nothing. Whoever makes one (a dial, a server, a memory network) owns its background task and hands
it out inside an async context manager, so that nothing is left when the block ends.
"""

from __future__ import annotations

from typing import Protocol

CLOSE_SECONDS = 1.0
"""No orderly close takes longer than this; then the connection is torn down."""


class TransportClosed(Exception):
    """The transport can carry nothing any more; the message says why, as far as is known."""


class Transport(Protocol):
    """Carries frames between two processes.

    One task may send and one may receive at a time. A send that is interrupted in the middle tears the transport: it is
    aborted, because half a frame may be on its way.
    """

    @property
    def peer(self) -> str:
        """The other side's address, in words."""
        ...

    @property
    def closed_because(self) -> str:
        """Why ``receive_frame`` returned None, in words; empty while it has not."""
        ...

    async def send_frame(self, frame: bytes) -> None:
        """Hand a frame over; waits while the other side takes nothing. Raises ``TransportClosed``.

        A frame that was handed over has not necessarily arrived.
        """
        ...

    async def receive_frame(self) -> bytes | None:
        """The next frame, or None once the transport is closed, by whichever side."""
        ...

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close in order, within ``CLOSE_SECONDS`` even when cancelled. ``code`` as in RFC 6455. Idempotent."""
        ...

    def abort(self) -> None:
        """Tear down at once; whoever sends or receives is woken. Idempotent."""
        ...
