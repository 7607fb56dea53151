"""A scripted HTTP service under an httpx transport: what it was asked, and what is still open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import anyio
import httpx

from tiedreq.core.policy import Backup, Hedged
from tiedreq.httpx import HedgedTransport

DELAY = 0.05
"""The delay of backups in most tests, in seconds."""


@dataclass
class Act:
    """What happens to one copy: after ``wait`` seconds the headers, after ``body_wait`` more the first chunk."""

    wait: float = 0.0
    status: int = 200
    chunks: Sequence[bytes] = (b"ok",)
    body_wait: float = 0.0
    gap: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    error: Callable[[], Exception] | None = None
    breaks_after: int | None = None
    """The body breaks after that many chunks."""
    close_wait: float = 0.0


class Body(httpx.AsyncByteStream):
    def __init__(self, act: Act, backend: Backend) -> None:
        self._act, self._backend = act, backend
        self.closed = False
        backend.open += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await anyio.sleep(self._act.body_wait)
        for number, chunk in enumerate(self._act.chunks):
            if number == self._act.breaks_after:
                raise httpx.ReadError("the connection was reset")
            if number:
                await anyio.sleep(self._act.gap)
            assert not self.closed
            self._backend.chunks += 1
            yield chunk

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self._backend.open -= 1
            await anyio.sleep(self._act.close_wait)


class Backend(httpx.AsyncBaseTransport):
    """Plays one act after the other, or, by host, one list of acts for each."""

    def __init__(self, *acts: Act, hosts: dict[str, list[Act]] | None = None) -> None:
        self._acts = list(acts)
        self._hosts = hosts or {}
        self.requests: list[httpx.Request] = []
        self.at: list[float] = []
        self.open = 0
        self.running = 0
        self.cancelled = 0
        self.chunks = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.at.append(anyio.current_time())
        acts = self._hosts.get(request.url.host, self._acts)
        act = acts.pop(0) if len(acts) > 1 else acts[0]
        self.running += 1
        try:
            await anyio.sleep(act.wait)
            if act.error is not None:
                raise act.error()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return httpx.Response(act.status, headers=act.headers, stream=Body(act, self))

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.requests]


def hedging(backend: Backend, after: float | str = DELAY, max_per_call: int = 1, **options: object) -> HedgedTransport:
    policy = Hedged(Backup(after=after, budget=None, since="send", max_per_call=max_per_call))
    return HedgedTransport(backend, **({"policy": policy} | options))  # type: ignore[arg-type]
