"""From the bytes of one connection to its messages: frames decoded, chunked messages put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tiedreq.core.errors import RemoteViolation
from tiedreq.core.messages import Chunk, Message
from tiedreq.wire.chunks import Assembler
from tiedreq.wire.codec import UnknownMessage, decode_frame, decode_message
from tiedreq.wire.limits import WireLimits


class Decoded(NamedTuple):
    """What one frame completed: messages in order, and the type codes that nobody here knows."""

    messages: list[Message]
    unknown_types: list[int]


class Unfinished:
    """What many connections together keep of messages that have not arrived whole, in bytes.

    Beyond ``bytes_max`` the connection that keeps the most gives up, until it is less.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self._kept: dict[FrameDecoder, int] = {}

    def keeps(self, decoder: FrameDecoder, size: int) -> None:
        """From now on ``decoder`` keeps so many bytes."""
        self.total += size - self._kept.pop(decoder, 0)
        if size:
            self._kept[decoder] = size
        while self.total > self.bytes_max:
            max(self._kept, key=self._kept.__getitem__).give_up()


class FrameDecoder:
    """Decodes the frames of one connection, in order.

    ``unfinished`` is what it shares with others; ``when_crowded`` is called when it had to give up for their sake.
    """

    def __init__(
        self,
        limits: WireLimits,
        unfinished: Unfinished | None = None,
        when_crowded: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self._assembler = Assembler(limits)
        self._unfinished = unfinished
        self._when_crowded = when_crowded
        self._over = False

    def decode(self, frame: bytes, *, takes_chunks: bool) -> Decoded:
        """The messages of ``frame``. Chunks count as a violation unless ``takes_chunks``.

        Raises ``RemoteViolation``: the connection is then to be closed.
        """
        messages: list[Message] = []
        unknown: list[int] = []
        for message in decode_frame(frame, self._limits):
            if type(message) is Chunk:
                if not takes_chunks:
                    raise RemoteViolation("Chunk before the handshake was over")
                encoded = self._add(message)
                if encoded is None:
                    continue
                message = decode_message(encoded, self._limits)
            if isinstance(message, UnknownMessage):
                unknown.append(message.type_code)
            else:
                messages.append(message)
        return Decoded(messages, unknown)

    def give_up(self) -> None:
        """Forget all that is not whole; from now on chunks are a violation."""
        self.close()
        self._when_crowded()

    def close(self) -> None:
        """The connection is over: nothing is kept for it."""
        self._over = True
        self._assembler = Assembler(self._limits)
        if self._unfinished is not None:
            self._unfinished.keeps(self, 0)

    def _add(self, chunk: Chunk) -> bytes | bytearray | None:
        if self._over:
            raise RemoteViolation("Chunk after this side gave up")
        encoded = self._assembler.add(chunk)
        if self._unfinished is not None:
            self._unfinished.keeps(self, self._assembler.total_bytes)
        return encoded
