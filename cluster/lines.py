"""Messages between the launcher and its children: one JSON object a line, over pipes.

Both sides are ours and speak the same version, so a line that can't be read is a defect, not bad input. Not for the
wire between replicas and clients (``tiedreq.wire``).
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import trio

LINE_BYTES_MAX = 16 * 1024 * 1024
LOG_LINE_BYTES_MAX = 64 * 1024
_CHUNK_BYTES = 64 * 1024


class BadLine(Exception):
    """The other side of a control pipe sent what is not one JSON object, or a line that is too long."""


async def read_lines(stream: trio.abc.ReceiveStream, *, rest: bytes = b"") -> AsyncIterator[dict[str, Any]]:
    """The messages until the other side closes its end; ``rest`` was read before. Raises ``BadLine``."""
    async for line in _split(stream, rest):
        if len(line) > LINE_BYTES_MAX:
            raise BadLine(f"a line of more than {LINE_BYTES_MAX} bytes")
        yield parse(line)


async def read_log(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """What a program writes to its standard error, line by line; overlong lines are cut in pieces."""
    async for line in _split(stream, b"", cut=LOG_LINE_BYTES_MAX):
        yield line.decode("utf-8", "replace").rstrip("\r")


async def _split(stream: trio.abc.ReceiveStream, rest: bytes, *, cut: int = 0) -> AsyncIterator[bytes]:
    buffer = bytearray(rest)
    while True:
        *lines, last = bytes(buffer).split(b"\n")
        for line in lines:
            yield line
        buffer = bytearray(last)
        if len(buffer) > (cut or LINE_BYTES_MAX):
            yield bytes(buffer)
            buffer.clear()
        try:
            chunk = await stream.receive_some(_CHUNK_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            chunk = b""
        if not chunk:
            break
        buffer += chunk
    if buffer:
        yield bytes(buffer)


def parse(line: bytes) -> dict[str, Any]:
    """One message. Raises ``BadLine``."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise BadLine(f"not JSON: {line[:80]!r}: {error}") from None
    if not isinstance(message, dict):
        raise BadLine(f"not a JSON object: {line[:80]!r}")
    return message


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineSender:
    """Sends messages from any number of tasks, whole lines one after the other."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._lock = trio.Lock()

    async def send(self, message: Mapping[str, Any]) -> bool:
        """Send; False when the other side is gone. Cancelled in between, nothing more can be sent."""
        line = encode(message)
        async with self._lock:
            try:
                await self._stream.send_all(line)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
        return True

    async def aclose(self) -> None:
        """Close this side of the pipe."""
        await self._stream.aclose()


def read_first_line(descriptor: int) -> tuple[dict[str, Any] | None, bytes]:
    """Wait for the first message without Trio; also what was read behind it. None when the other side is gone."""
    buffer = b""
    while b"\n" not in buffer:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return None, b""
        buffer += chunk
    line, _, rest = buffer.partition(b"\n")
    return parse(line), rest
