"""The bytes of one HTTP connection: directly at the socket where there is one, through its stream otherwise (TLS).

At the socket a read waits first, and only one write in ``WRITES_IN_A_ROW`` that found room at once is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from tiedreq.net import sockets

RECEIVE_BYTES = 64 * 1024
WRITES_IN_A_ROW = 16


class Pipe:
    """Reads and writes one stream. One task at a time may read, and one write."""

    __slots__ = ("_in_a_row", "_sending", "_socket", "_written", "stream")

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._sending = False
        self._in_a_row = 0
        self._written = 0

    def receive(self) -> Awaitable[bytes]:
        """What comes next; empty at the end.

        Raises ``trio.BrokenResourceError``, ``ClosedResourceError`` and ``BusyResourceError`` as a stream does.
        """
        if self._socket is None:
            return self._by_stream()
        return sockets.receive(self._socket, RECEIVE_BYTES)

    async def _by_stream(self) -> bytes:
        return bytes(await self.stream.receive_some(RECEIVE_BYTES))

    def write_now(self, data: bytes) -> bool:
        """Write ``data`` if no more is needed than room for all of it, which most often there is.

        False: nothing was written, or a part, and ``send_rest`` is to be called. Raises as ``receive``.
        """
        socket = self._socket
        self._written = 0
        if socket is None or self._sending or self._in_a_row >= WRITES_IN_A_ROW - 1:
            return False
        self._in_a_row += 1
        self._written = sockets.write(socket, data)
        return self._written == len(data)

    async def send_rest(self, data: bytes) -> None:
        """Write what ``write_now`` has left of ``data``. Raises as ``send``."""
        await self.send(data[self._written :] if self._written else data)

    async def send(self, data: bytes) -> None:
        """Write all of ``data``. Raises as ``receive`` does; cancelled, it may have written a part."""
        socket = self._socket
        if socket is None:
            await self.stream.send_all(data)
            return
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        self._sending = True
        try:
            await self._write(socket, data)
        finally:
            self._sending = False

    async def _write(self, socket: trio.socket.SocketType, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._in_a_row = self._in_a_row + 1 if await sockets.send_all(socket, data) else 1
        if self._in_a_row >= WRITES_IN_A_ROW:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()

    async def send_eof(self) -> bool:
        """Say that nothing more comes; False where only closing says that.

        Raises ``trio.BusyResourceError`` while another task is sending, and as ``send`` does.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this connection")
        if not isinstance(self.stream, trio.abc.HalfCloseableStream):
            return False
        await self.stream.send_eof()
        return True
