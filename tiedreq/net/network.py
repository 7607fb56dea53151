"""What a server and a client need of a network: to accept transports, and to dial one. Websockets, or memory."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio

from tiedreq.net.transport import Transport
from tiedreq.net.websocket import dial_websocket, serve_websockets
from tiedreq.wire.limits import WireLimits

Handler = Callable[[Transport], Awaitable[None]]


class Network(Protocol):
    """Carries transports between processes."""

    def dial(self, url: str, *, timeout: float) -> AbstractAsyncContextManager[Transport]:
        """A transport to ``url`` for as long as the block runs. Raises ``ConnectError``."""
        ...

    async def accept(
        self, listen: str, handler: Handler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Give each accepted transport to ``handler`` until cancelled; reports the URL that others can dial."""
        ...


class WebsocketNetwork:
    """The real one. ``server_tls`` makes a server listen with TLS, ``client_tls`` is used to dial ``wss://``."""

    def __init__(
        self,
        limits: WireLimits,
        *,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        connections_max: int = 1024,
        connections_per_address_max: int | None = None,
        handshake_timeout: float = 5.0,
    ) -> None:
        self._limits = limits
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._connections_max = connections_max
        self._connections_per_address_max = connections_per_address_max
        self._handshake_timeout = handshake_timeout

    @asynccontextmanager
    async def dial(self, url: str, *, timeout: float) -> AsyncIterator[Transport]:
        """See ``Network.dial``."""
        tls = self._client_tls if url.startswith("wss://") else None
        async with dial_websocket(url, ssl_context=tls, timeout=timeout, limits=self._limits) as transport:
            yield transport

    async def accept(
        self, listen: str, handler: Handler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See ``Network.accept``. Reports the first bound address; any address of this host as a loopback URL."""
        async with trio.open_nursery() as nursery:

            async def run(inner: trio.TaskStatus[object]) -> None:
                await serve_websockets(
                    listen,
                    handler,
                    ssl_context=self._server_tls,
                    limits=self._limits,
                    connections_max=self._connections_max,
                    connections_per_address_max=self._connections_per_address_max,
                    handshake_timeout=self._handshake_timeout,
                    task_status=inner,
                )

            addresses = await nursery.start(lambda task_status: run(task_status))
            scheme = "ws" if self._server_tls is None else "wss"
            host, port = addresses[0][0], addresses[0][1]
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            task_status.started(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
