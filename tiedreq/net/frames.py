"""From the bytes of one connection to its messages: frames decoded, chunked messages put together."""

from __future__ import annotations

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


class FrameDecoder:
    """Decodes the frames of one connection, in order."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._assembler = Assembler(limits)

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
                encoded = self._assembler.add(message)
                if encoded is None:
                    continue
                message = decode_message(encoded, self._limits)
            if isinstance(message, UnknownMessage):
                unknown.append(message.type_code)
            else:
                messages.append(message)
        return Decoded(messages, unknown)
