"""Large messages cut into chunks that travel between other messages, and put together again.

A stream number stands for one message on one link, its chunks come in order, ``last`` ends it. An empty last chunk
abandons the message: nothing comes of it. The assembler keeps what the limits allow and no more, whatever arrives.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.messages import Chunk
from tiedreq.wire.limits import WireLimits


def split(encoded: bytes, stream: int, chunk_bytes: int) -> Iterator[Chunk]:
    """The chunks of one encoded message, each of ``chunk_bytes`` bytes but the last."""
    if not encoded or chunk_bytes < 1:
        raise BadOption("a message of at least one byte is split into chunks of at least one byte")
    view = memoryview(encoded)
    for start in range(0, len(encoded), chunk_bytes):
        end = start + chunk_bytes
        yield Chunk(stream, end >= len(encoded), bytes(view[start:end]))


def abandoned(stream: int) -> Chunk:
    """The chunk that ends a stream whose message is no longer wanted."""
    return Chunk(stream, True, b"")


class Assembler:
    """Puts the chunked messages of one link together.

    Bounded by ``chunk_streams_max`` open streams, ``message_bytes_max`` bytes each, ``chunk_total_bytes_max`` together.
    """

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._open: dict[int, bytearray | None] = {}
        self._total = 0

    @property
    def streams(self) -> int:
        """Streams that have begun and not ended."""
        return len(self._open)

    @property
    def total_bytes(self) -> int:
        """Bytes kept for all of them."""
        return self._total

    def add(self, chunk: Chunk) -> bytes | bytearray | None:
        """The encoded message when this chunk completes one, for ``codec.decode_message``.

        Raises ``RemoteViolation`` when a limit is exceeded; the link is then to be closed.
        """
        if not chunk.data and not chunk.last:
            raise RemoteViolation("Chunk: expected data in a chunk that is not the last")
        if chunk.stream not in self._open:
            if len(self._open) >= self._limits.chunk_streams_max:
                raise RemoteViolation(f"Chunk: more than {self._limits.chunk_streams_max} messages in chunks at once")
            self._open[chunk.stream] = bytearray()
        kept = self._open[chunk.stream]
        if chunk.last and (kept is None or not chunk.data):
            self._forget(chunk.stream)
            return None
        if kept is None:
            return None
        self._check_sizes(len(kept) + len(chunk.data), len(chunk.data))
        kept += chunk.data
        self._total += len(chunk.data)
        if not chunk.last:
            return None
        self._forget(chunk.stream)
        return kept

    def discard(self, stream: int) -> None:
        """Drop what arrived of a message, and what is still to arrive. Unknown streams don't matter."""
        if stream in self._open:
            self._forget(stream)
            self._open[stream] = None

    def _check_sizes(self, message_bytes: int, more: int) -> None:
        if message_bytes > self._limits.message_bytes_max:
            raise RemoteViolation(f"Chunk: a message of more than {self._limits.message_bytes_max} bytes")
        if self._total + more > self._limits.chunk_total_bytes_max:
            raise RemoteViolation(f"Chunk: more than {self._limits.chunk_total_bytes_max} bytes in unfinished messages")

    def _forget(self, stream: int) -> None:
        kept = self._open.pop(stream)
        self._total -= len(kept) if kept is not None else 0
