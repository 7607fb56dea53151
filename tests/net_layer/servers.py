"""Servers that the WebSocket tests talk to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import trio

from tests.net_layer.ends import LIMITS, OverWebsockets
from tiedreq.net.listeners import bound_address
from tiedreq.net.transport import Transport
from tiedreq.net.websocket import dial_websocket

HANG = 4.0
"""Nothing here takes this long unless it hangs."""


async def echo(transport: Transport) -> None:
    while (frame := await transport.receive_frame()) is not None:
        await transport.send_frame(frame)


async def idle(transport: Transport) -> None:
    await trio.sleep_forever()


def dial(url: str, **options: Any) -> AbstractAsyncContextManager[Transport]:
    return dial_websocket(url, limits=options.pop("limits", LIMITS), **options)


async def tcp_server(nursery: trio.Nursery, handler: Callable[[trio.SocketStream], Awaitable[None]]) -> str:
    """Something that listens and is no WebSocket server."""
    listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
    return f"ws://127.0.0.1:{bound_address(listeners[0]).port}"


async def never_read(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


class Serving:
    """A WebSocket server whose handler may be chosen, with a proof of life: ``alive`` makes an echo."""

    def __init__(self) -> None:
        self.world = OverWebsockets()

    async def start(self, nursery: trio.Nursery, handler=echo, **options) -> Serving:
        await self.world.serve(nursery, handler, **options)
        return self

    async def alive(self) -> None:
        with trio.fail_after(HANG):
            async with self.world.dial() as transport:
                await transport.send_frame(b"are you there")
                assert await transport.receive_frame() == b"are you there"

    async def raw(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.world.port)


SHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)
"""A request to open a WebSocket, without the empty line that ends it."""
