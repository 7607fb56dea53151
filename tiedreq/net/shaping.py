"""A delay line per directed link: what one side sends to the other arrives later, in order, or not at all.

It stands between a link and its transport, on the sending side, so that replicas on one machine can be as far apart as
an experiment wants. A line outlives the connections that it is attached to, and its law can be changed while it runs.
Loss exists only as a cut: what is carried is a stream, and a stream that loses something is broken.

Not for limiting bandwidth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from tiedreq.core.errors import BadOption
from tiedreq.net.bell import Bell
from tiedreq.net.edge import no_groups
from tiedreq.net.transport import CLOSE_SECONDS, Transport, TransportClosed

Law = Callable[[], float]
"""Draws the delay of one frame, in seconds, 0 or more."""

LINE_BYTES_MAX = 4 * 1024 * 1024
"""What may be under way on one line by default."""


def constant(seconds: float) -> Law:
    """The law of a line that delays every frame alike."""
    if not 0 <= seconds < float("inf"):
        raise BadOption(f"a delay must be 0 or more seconds, not {seconds!r}")
    return lambda: seconds


class DelayLine:
    """What happens to frames in one direction between two processes.

    A frame arrives after the drawn delay, but never before the one sent ahead of it. ``bytes_max`` bounds what is under
    way: a sender waits beyond it. Without a law, and while nothing waits, frames go straight to the transport.
    """

    def __init__(self, law: Law | None = None, *, bytes_max: int = LINE_BYTES_MAX) -> None:
        if bytes_max < 1:
            raise BadOption(f"bytes_max must be at least 1, not {bytes_max}")
        self.blocked = False
        self._law = law
        self._bytes_max = bytes_max
        self._attached: dict[_Shaped, None] = {}

    def set_law(self, law: Law | None) -> None:
        """From now on frames are delayed by this law, or not at all; those under way keep their time."""
        self._law = law

    def block(self) -> None:
        """Let nothing arrive: to the other side this one falls silent. Frames under way wait, too."""
        self.blocked = True

    def unblock(self) -> None:
        """Let frames pass again; those that waited arrive at once."""
        self.blocked = False
        for shaped in self._attached:
            shaped.wake()

    def cut(self) -> int:
        """Break the connections that exist, losing what is under way. Says how many there were."""
        hit = list(self._attached)
        for shaped in hit:
            shaped.abort()
        return len(hit)

    @property
    def is_open(self) -> bool:
        """True while it neither delays nor blocks."""
        return self._law is None and not self.blocked

    def draw(self) -> float:
        """The delay of the next frame, in seconds."""
        return self._law() if self._law is not None else 0.0

    @asynccontextmanager
    async def attach(self, transport: Transport) -> AsyncIterator[Transport]:
        """``transport`` with its sending side on this line, for as long as the block runs."""
        shaped = _Shaped(self, transport, self._bytes_max)
        self._attached[shaped] = None
        try:
            with no_groups():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(shaped.pump)
                    yield shaped
                    nursery.cancel_scope.cancel()
        finally:
            del self._attached[shaped]

    @asynccontextmanager
    async def dial(self, connect: Callable[[], AbstractAsyncContextManager[Transport]]) -> AsyncIterator[Transport]:
        """What ``connect`` makes, attached to this line."""
        async with connect() as transport, self.attach(transport) as shaped:
            yield shaped


class _Shaped:
    """A transport whose frames go through a line. One pump task is the only one that sends on the inner transport."""

    def __init__(self, line: DelayLine, inner: Transport, bytes_max: int) -> None:
        self._line = line
        self._inner = inner
        self._bytes_max = bytes_max
        self._frames: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._broken = ""
        self._bell = Bell()
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def peer(self) -> str:
        """The inner transport's."""
        return self._inner.peer

    @property
    def closed_because(self) -> str:
        """The inner transport's."""
        return self._inner.closed_because

    async def send_frame(self, frame: bytes) -> None:
        """See ``Transport.send_frame``. A send that is interrupted leaves nothing behind on the line."""
        if self._line.is_open and not self._frames and not self._broken:
            await self._inner.send_frame(frame)
            return
        await trio.lowlevel.checkpoint()
        while not self._broken and self._frames and self._bytes + len(frame) > self._bytes_max:
            await self._changed.park()
        if self._broken:
            raise TransportClosed(self._broken)
        self._frames.append((trio.current_time() + self._line.draw(), frame))
        self._bytes += len(frame)
        self._bell.ring()

    async def receive_frame(self) -> bytes | None:
        """See ``Transport.receive_frame``."""
        return await self._inner.receive_frame()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """See ``Transport.aclose``. What is under way arrives first, if it does so in time."""
        with trio.CancelScope(deadline=trio.current_time() + CLOSE_SECONDS, shield=True):
            while self._frames and not self._broken:
                await self._changed.park()
        self._break("the connection was closed here")
        await self._inner.aclose(code, reason)

    def abort(self) -> None:
        """See ``Transport.abort``."""
        self._break("the connection was torn down here")
        self._inner.abort()

    def wake(self) -> None:
        """The line may let frames pass again."""
        self._bell.ring()

    async def pump(self) -> None:
        """Hand each frame over at its time, or right behind the one before it. Only tear-down interrupts a send."""
        try:
            while True:
                if not self._frames or self._line.blocked:
                    await self._bell.wait()
                    continue
                due = self._frames[0][0]
                if due > trio.current_time():
                    await trio.sleep_until(due)
                    continue
                await self._inner.send_frame(self._frames[0][1])
                if self._frames:
                    self._bytes -= len(self._frames.popleft()[1])
                self._changed.unpark_all()
        except TransportClosed as error:
            self._break(str(error))
        finally:
            self._break("the connection was torn down here")  # whoever waits for frames to arrive waits in vain

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._frames.clear()
        self._bytes = 0
        self._changed.unpark_all()
