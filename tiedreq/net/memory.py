"""Transports in memory: a pair of them, and a network of named servers that can be cut, held and partitioned.

For tests and local clusters under virtual time (``trio.testing.MockClock(autojump_threshold=0)``): nothing here touches
a socket or a thread. Frames arrive at once and in order; add ``tiedreq.net.shaping`` for latency.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from tiedreq.errors import ConnectError
from tiedreq.net.quiet import QuietLog
from tiedreq.net.transport import Transport, TransportClosed

PIPE_BYTES_MAX = 256 * 1024
"""What one direction holds that nobody has read: about what sockets hold."""

logger = logging.getLogger("tiedreq.memory")

Handler = Callable[[Transport], Awaitable[None]]


class _Pipe:
    """One direction: frames in order, a bound, and an end that is seen after what was sent before it."""

    def __init__(self) -> None:
        self.held = False
        self.ended = ""
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._changed = trio.lowlevel.ParkingLot()

    async def put(self, frame: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while not self.ended and self._frames and self._bytes + len(frame) > PIPE_BYTES_MAX:
            await self._changed.park()
        if self.ended:
            raise TransportClosed(self.ended)
        self._frames.append(frame)
        self._bytes += len(frame)
        self._changed.unpark_all()

    async def get(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        while self.held or (not self._frames and not self.ended):
            await self._changed.park()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._bytes -= len(frame)
        self._changed.unpark_all()
        return frame

    def end(self, why: str, *, drop: bool) -> None:
        """Nothing more is put; with ``drop`` what is under way is lost."""
        self.ended = self.ended or why
        if drop:
            self._frames.clear()
            self._bytes = 0
        self._changed.unpark_all()

    def hold(self, held: bool) -> None:
        """While held nothing arrives, not even the end."""
        self.held = held
        self._changed.unpark_all()


class MemoryTransport:
    """One end of a pair. See ``Transport``."""

    def __init__(self, peer: str, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._peer = peer
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed_here = False
        self._sending = False

    @property
    def peer(self) -> str:
        """The name that the other side was given."""
        return self._peer

    @property
    def closed_because(self) -> str:
        """Why nothing more is received."""
        return "the connection was torn down here" if self._closed_here else self._incoming.ended

    async def send_frame(self, frame: bytes) -> None:
        """See ``Transport.send_frame``."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this transport")
        self._sending = True
        try:
            await self._outgoing.put(frame)
        except TransportClosed:
            raise
        except BaseException:
            self.abort()
            raise
        finally:
            self._sending = False

    async def receive_frame(self) -> bytes | None:
        """See ``Transport.receive_frame``."""
        if self._closed_here:
            await trio.lowlevel.checkpoint()
            return None
        return await self._incoming.get()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """See ``Transport.aclose``. What was sent before still arrives."""
        self._end(f"closed with code {code}" + (f": {reason}" if reason else ""), drop=False)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def abort(self) -> None:
        """See ``Transport.abort``."""
        self._end("the connection broke", drop=True)

    def _end(self, why: str, *, drop: bool) -> None:
        if self._closed_here:
            return
        self._closed_here = True
        self._outgoing.end(why, drop=drop)
        self._incoming.hold(False)
        self._incoming.end(why, drop=True)


def memory_pair(first: str = "first", second: str = "second") -> tuple[MemoryTransport, MemoryTransport]:
    """Two transports that are each other's other side; the first one's peer is called ``second``."""
    there, back = _Pipe(), _Pipe()
    return MemoryTransport(second, there, back), MemoryTransport(first, back, there)


class _Connection:
    """What the network needs to disturb a pair: its direction from the dialer to the server, and back."""

    def __init__(self, dialer: str, server: str) -> None:
        self.dialer = dialer
        self.server = server
        self.there, self.back = _Pipe(), _Pipe()

    def pipe(self, source: str, target: str) -> _Pipe | None:
        if (self.dialer, self.server) == (source, target):
            return self.there
        if (self.dialer, self.server) == (target, source):
            return self.back
        return None


class MemoryNetwork:
    """Servers under names, and who dials them.

    ``hold`` stops one direction between two names (frames wait, dials hang), ``release`` lets go; ``partition`` and
    ``heal`` do that between groups; ``cut`` breaks the connections that exist.
    """

    def __init__(self) -> None:
        self._servers: dict[str, Callable[[Transport], None]] = {}
        self._connections: dict[_Connection, None] = {}
        self._held: dict[tuple[str, str], None] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._quiet = QuietLog(logger)

    @property
    def connections(self) -> int:
        """Connections that exist."""
        return len(self._connections)

    async def serve(
        self, name: str, handler: Handler, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept dials to ``name`` until cancelled; ``handler`` gets each transport, which ends when it returns."""
        if name in self._servers:
            raise OSError(f"somebody already serves {name!r}")
        try:
            async with trio.open_nursery() as nursery:
                self._servers[name] = lambda transport: nursery.start_soon(self._handle, handler, transport)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._servers.pop(name, None)

    async def _handle(self, handler: Handler, transport: Transport) -> None:
        try:
            await handler(transport)
        except Exception as error:
            self._quiet.log("handler", logging.ERROR, "connection from %s failed", transport.peer, error=error)
        finally:
            await transport.aclose()

    @asynccontextmanager
    async def dial(self, source: str, target: str, *, timeout: float = 5.0) -> AsyncIterator[Transport]:
        """A transport from ``source`` to the server ``target``. Raises ``ConnectError``."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            while (source, target) in self._held or (target, source) in self._held:
                await self._changed.park()
        if (source, target) in self._held or (target, source) in self._held:
            raise ConnectError(f"{target}: no connection within {timeout:g} s")
        serve = self._servers.get(target)
        if serve is None:
            raise ConnectError(f"{target}: nobody listens")
        connection = _Connection(source, target)
        self._connections[connection] = None
        ours = MemoryTransport(target, connection.there, connection.back)
        serve(MemoryTransport(source, connection.back, connection.there))
        try:
            yield ours
        finally:
            del self._connections[connection]
            await ours.aclose()

    def cut(self, one: str, other: str) -> int:
        """Break every connection between two names; what is under way is lost. Says how many there were."""
        hit = [each for each in self._connections if each.pipe(one, other) is not None]
        for connection in hit:
            for pipe in (connection.there, connection.back):
                pipe.hold(False)
                pipe.end("the connection broke", drop=True)
        return len(hit)

    def hold(self, source: str, target: str) -> None:
        """From now on nothing gets from ``source`` to ``target``, and neither can dial the other."""
        self._held[source, target] = None
        self._apply(source, target, held=True)

    def release(self, source: str, target: str) -> None:
        """Undo ``hold``: what waited arrives."""
        self._held.pop((source, target), None)
        self._apply(source, target, held=False)
        self._changed.unpark_all()

    def partition(self, one_side: list[str], other_side: list[str]) -> None:
        """Hold both directions between every two names of different sides."""
        for one in one_side:
            for other in other_side:
                self.hold(one, other)
                self.hold(other, one)

    def heal(self) -> None:
        """Release everything."""
        for source, target in list(self._held):
            self.release(source, target)

    def _apply(self, source: str, target: str, *, held: bool) -> None:
        for connection in self._connections:
            pipe = connection.pipe(source, target)
            if pipe is not None:
                pipe.hold(held)
