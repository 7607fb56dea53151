"""A real ``grpc.aio`` server on loopback whose replies are scripted, and a channel to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from tiedreq.core.policy import Backup, Hedged
from tiedreq.grpc import Hedging

DELAY = 0.02
"""The delay of backups, in seconds. Nothing asserts how long anything takes."""
UNARY, STREAM, OTHER = "/test.Search/Get", "/test.Search/List", "/test.Search/Put"
HANG = "hang"
"""Wait until the client cancels."""


@dataclass
class Service:
    """``acts`` says what each copy meets, the last one for ever: ``HANG``, messages, or what is awaited for them."""

    acts: list[Any]
    metadata: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    remaining: list[float | None] = field(default_factory=list)

    async def _act(self, context: grpc.aio.ServicerContext) -> list[bytes]:
        self.metadata.append(dict(context.invocation_metadata() or ()))
        self.remaining.append(context.time_remaining())
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        if act == HANG:
            await asyncio.Event().wait()
        if callable(act):
            act = await act(context)
        return [act] if isinstance(act, bytes) else act

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.running += 1
        try:
            return (await self._act(context))[0]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def stream(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        self.running += 1
        try:
            for message in await self._act(context):
                if message == HANG:
                    await asyncio.Event().wait()
                yield message
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "test.Search",
            {
                "Get": grpc.unary_unary_rpc_method_handler(self.unary),
                "Put": grpc.unary_unary_rpc_method_handler(self.unary),
                "List": grpc.unary_stream_rpc_method_handler(self.stream),
            },
        )


def fails(code: grpc.StatusCode, pushback: str | None = None, wait: asyncio.Event | None = None) -> Any:
    async def act(context: grpc.aio.ServicerContext) -> Any:
        if wait is not None:
            await wait.wait()
        trailing = (("grpc-retry-pushback-ms", pushback),) if pushback is not None else ()
        await context.abort(code, "as told", trailing)

    return act


def after(event: asyncio.Event, *messages: bytes) -> Any:
    async def act(context: grpc.aio.ServicerContext) -> Any:
        await event.wait()
        return list(messages)

    return act


def hedging(max_per_call: int = 1, delay: float = DELAY, **options: Any) -> Hedging:
    policy = Hedged(Backup(after=delay, budget=None, since="send", max_per_call=max_per_call))
    return Hedging(["/test.Search/Get", "/test.Search/List"], **({"policy": policy} | options))


@asynccontextmanager
async def connected(service: Service, hedge: Hedging) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", interceptors=hedge.interceptors) as channel:
            yield channel
            await until(lambda: service.running == 0)
            assert hedge.stats()["in_flight"] == 0
            assert all(host["outstanding"] == 0 for host in hedge.stats()["hosts"].values())
    finally:
        await server.stop(None)


async def until(true: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own limit ends it."""
    while not true():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.002)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def awaited() -> Any:
        before = asyncio.all_tasks()
        result = await main()
        await until(lambda: not {task for task in asyncio.all_tasks() - before if "tiedreq" in repr(task)})
        return result

    return asyncio.run(awaited())
