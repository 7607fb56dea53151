"""A stream under a WebSocket library that takes the usual frames out before the library sees them.

The library opens and closes the connection, answers pings, and judges everything unusual. But a binary message in one
frame, which is all that a link ever sends, costs it a parser, two queues and a task. So once the opening handshake is
over such frames are read and written here (RFC 6455, section 5.2), directly at the socket where there is one.

Two ways of reading, one after the other:

* *direct*: ``next_frame`` reads; it returns the usual frames, and hands pings and pongs to the library.
* *by the library*: from the first frame that is neither (a text, a fragment, a close, a breach) every byte goes to the
  library for good, and ``next_frame`` returns None: ask the library. Closing from this side ends direct reading, too.

No frame is lost or reordered in between: what was read directly stays in line before what the library reads.
"""

from __future__ import annotations

import trio

from tiedreq.net import sockets
from tiedreq.net.bell import Bell
from tiedreq.net.framing import FrameParser, binary_frame

RECEIVE_BYTES = 128 * 1024 - 64
"""How much is read at once (more than 128 KiB would be mapped and unmapped for each read)."""
FRAMES_IN_A_ROW = 16
"""So many frames are written without letting other tasks run."""

_HEADERS_END = b"\r\n\r\n"
_SWITCHED = b"HTTP/1.1 101 "

Inner = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class ShortcutStream(trio.abc.Stream):
    """See the module. ``client``: which side of the WebSocket this is. ``frame_bytes_max`` bounds a frame's payload."""

    def __init__(self, inner: Inner, *, client: bool, frame_bytes_max: int) -> None:
        self._inner = inner
        self._socket = inner.socket if isinstance(inner, trio.SocketStream) else None
        self._client = client
        self._opening = bytearray()
        self._opened = False
        self._by_library = False
        self._reading = False
        self._unparsed = b""  # what came with the end of the opening handshake
        self._parser = FrameParser(client=client, frame_bytes_max=frame_bytes_max)
        self._frames = self._parser.frames
        self._for_library = bytearray()
        self._end: Exception | None = None
        self._ended = False
        self._library = Bell()
        self._writing = trio.StrictFIFOLock()
        self._in_a_row = 0

    @property
    def end(self) -> Exception | None:
        """The error that ended reading, if one did."""
        return self._end

    # ---- for the library

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """What the library is to see: the opening handshake, then what ``next_frame`` passes on, or everything."""
        while True:
            if self._for_library:
                data, self._for_library = self._for_library, bytearray()
                return data
            if self._ended:
                await trio.lowlevel.checkpoint()
                if self._end is not None:
                    raise self._end
                return b""
            if not self._opened:
                try:
                    self._opening_read(await self._inner.receive_some(max_bytes))
                except trio.BrokenResourceError as error:
                    self._ended, self._end = True, error
            elif self._by_library and not self._reading:
                return await self._inner.receive_some(max_bytes)
            else:
                await self._library.wait()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """A control frame, or the opening handshake."""
        async with self._writing:
            await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See ``trio.abc.SendStream``."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._inner.aclose()

    def _opening_read(self, data: bytes | bytearray) -> None:
        """Let the library see the opening handshake and not a byte more. (A refusal it may read to its end.)"""
        if not data:
            self._ended = True
            return
        searched = max(0, len(self._opening) - len(_HEADERS_END))
        self._opening += data
        end = self._opening.find(_HEADERS_END, searched)
        if end < 0:
            self._for_library += data
            return
        self._opened = True
        end += len(_HEADERS_END)
        if self._client and not self._opening.startswith(_SWITCHED):
            end, self._by_library = len(self._opening), True
        self._for_library += data[: len(data) - (len(self._opening) - end)]
        self._unparsed = bytes(self._opening[end:])
        self._opening.clear()

    # ---- for the transport

    async def next_frame(self) -> bytes | None:
        """The payload of the next usual frame; None when the library has to be asked."""
        while True:
            if self._frames:
                return self._frames.popleft()
            if self._by_library or self._ended:
                return None
            if self._unparsed:
                data, self._unparsed = self._unparsed, b""
                if self._parse(data) or self._by_library:
                    continue
            await self._read()

    async def send_frame(self, data: bytes) -> None:
        """Write one usual frame. Raises as a stream does; interrupted, it may have written a part."""
        frame = binary_frame(data, mask=self._client)
        if self._socket is not None and self._in_a_row < FRAMES_IN_A_ROW and not self._writing.locked():
            self._in_a_row += 1
            sent = sockets.write(self._socket, frame)
            if sent == len(frame):
                return
            frame = frame[sent:]  # to be gone on with under the lock, which nobody can take in between
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            self._in_a_row = 0
            await self._inner.send_all(frame)
        finally:
            self._writing.release()

    def give_to_library(self) -> None:
        """From now on the library reads: this side closes."""
        self._by_library = True
        self._for_library += self._parser.rest + self._unparsed
        self._parser.rest = self._unparsed = b""
        self._library.ring()

    async def _read(self) -> None:
        """Read once and look at it."""
        self._reading = True
        try:
            if self._socket is None:
                data: bytes | bytearray = await self._inner.receive_some(RECEIVE_BYTES)
            else:
                data = await sockets.receive(self._socket, RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._ended, self._end = True, error
        else:
            if not data:
                self._ended = True
            elif self._by_library:
                self._for_library += data
            else:
                self._parse(bytes(data))
        finally:
            self._reading = False
            if self._by_library or self._ended:
                self._library.ring()

    def _parse(self, data: bytes) -> bool:
        """Take all complete frames out of what was read; True if there were any. Unusual ones end direct reading."""
        parser = self._parser
        found = parser.feed(data)
        if parser.controls:
            self._for_library += parser.controls
            parser.controls.clear()
            self._library.ring()
        if parser.unusual:
            self.give_to_library()
        return found
