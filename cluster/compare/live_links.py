"""A network between a client and replicas on the same host, as far from each other as a cell wants them.

Both directions are delayed at the client: what it sends by a delay line, what it receives by waiting until each frame
is due. A frame never arrives before the one ahead of it. Links between replicas are shaped by the replicas themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

import trio

from tiedreq.net.network import Handler, Network
from tiedreq.net.shaping import DelayLine
from tiedreq.net.transport import Transport
from tiedreq.units import LatencyLaw, LatencySpec

__all__ = ["ShapedNetwork"]

FRAMES_MAX = 4096
"""Frames that are under way to the client at once; the replica's own writer waits beyond."""

Law = Callable[[], float]


class ShapedNetwork:
    """Dials over ``inner``; frames between ``client`` and the replica of each URL take the latency of ``spec``.

    ``names`` says which replica a URL leads to, ``zones`` where the client and replicas are by name.
    """

    def __init__(
        self,
        inner: Network,
        spec: LatencySpec,
        *,
        client: str,
        names: Mapping[str, str],
        rng: Random,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        self._inner = inner
        self._spec = spec
        self._client = client
        self._names = names
        self._rng = rng
        self._zones = zones or {}

    @asynccontextmanager
    async def dial(self, url: str, *, timeout: float) -> AsyncIterator[Transport]:
        """See ``Network.dial``."""
        replica = self._names[url]
        here, far = self._zones.get(self._client, ""), self._zones.get(replica, "")
        there = self._spec.law(self._client, replica, here, far)
        back = self._spec.law(replica, self._client, far, here)
        line = DelayLine(self._draw(there))
        async with line.dial(lambda: self._inner.dial(url, timeout=timeout)) as shaped:
            arrivals = _Arrivals(shaped, self._draw(back))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(arrivals.read)
                yield arrivals
                nursery.cancel_scope.cancel()

    async def accept(
        self, listen: str, handler: Handler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See ``Network.accept``; what is accepted is not shaped."""
        await self._inner.accept(listen, handler, task_status=task_status)

    def _draw(self, law: LatencyLaw) -> Law:
        return lambda: law.sample(self._rng)


class _Arrivals:
    """A transport whose frames are received some time after they came."""

    def __init__(self, inner: Transport, law: Law) -> None:
        self._inner = inner
        self._law = law
        self._send, self._receive = trio.open_memory_channel[tuple[float, bytes | None]](FRAMES_MAX)
        self._next: tuple[float, bytes | None] | None = None

    async def read(self) -> None:
        """Take note of what comes and when, until the transport is closed."""
        while True:
            frame = await self._inner.receive_frame()
            await self._send.send((trio.current_time() + self._law(), frame))
            if frame is None:
                return

    @property
    def peer(self) -> str:
        """The inner transport's."""
        return self._inner.peer

    @property
    def closed_because(self) -> str:
        """The inner transport's."""
        return self._inner.closed_because

    async def send_frame(self, frame: bytes) -> None:
        """See ``Transport.send_frame``."""
        await self._inner.send_frame(frame)

    async def receive_frame(self) -> bytes | None:
        """See ``Transport.receive_frame``. A receive that is interrupted loses nothing."""
        if self._next is None:
            self._next = await self._receive.receive()
        due, frame = self._next
        if frame is not None and due > trio.current_time():
            await trio.sleep_until(due)
        if frame is not None:  # the end is told again to whoever asks again
            self._next = None
        return frame

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """See ``Transport.aclose``."""
        await self._inner.aclose(code, reason)

    def abort(self) -> None:
        """See ``Transport.abort``."""
        self._inner.abort()
