"""Messages between the launcher and its children: one JSON object a line, over pipes.

Both sides are ours and speak the same version, so a line that can't be read is a defect, not bad input. Not for the
wire between replicas and clients (``tiedreq.wire``).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import trio

LINE_BYTES_MAX = 16 * 1024 * 1024
LOG_LINE_BYTES_MAX = 64 * 1024
_CHUNK_BYTES = 64 * 1024


class BadLine(Exception):
    """The other side of a control pipe sent what is not one JSON object, or a line that is too long."""


class _Lines:
    """Cuts what a stream delivers into lines; a line of more than ``longest`` bytes is cut in pieces.

    An iterator and no generator: one that is left half-way needs no closing.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, longest: int, rest: bytes = b"") -> None:
        self._stream = stream
        self._longest = longest
        self._lines: deque[bytes] = deque()
        self._last = b""
        self._take(rest)

    async def line(self) -> bytes:
        """The next line, without its end. Raises ``StopAsyncIteration`` when the other side has closed its end."""
        while not self._lines:
            try:
                chunk = await self._stream.receive_some(_CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                chunk = b""
            if chunk:
                self._take(bytes(chunk))
            elif self._last:
                self._lines.append(self._last)
                self._last = b""
            else:
                raise StopAsyncIteration
        return self._lines.popleft()

    def _take(self, chunk: bytes) -> None:
        *lines, self._last = (self._last + chunk).split(b"\n")
        self._lines.extend(lines)
        if len(self._last) > self._longest:
            self._lines.append(self._last)
            self._last = b""


class MessageReader:
    """The messages until the other side closes its end; ``rest`` was read before. Iterating raises ``BadLine``."""

    def __init__(self, stream: trio.abc.ReceiveStream, *, rest: bytes = b"") -> None:
        self._lines = _Lines(stream, LINE_BYTES_MAX, rest)

    def __aiter__(self) -> MessageReader:
        return self

    async def __anext__(self) -> dict[str, Any]:
        return parse(await self._lines.line())


class LogReader:
    """What a program writes to its standard error, line by line; overlong lines are cut in pieces."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._lines = _Lines(stream, LOG_LINE_BYTES_MAX)

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> str:
        return (await self._lines.line()).decode("utf-8", "replace").rstrip("\r")


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
