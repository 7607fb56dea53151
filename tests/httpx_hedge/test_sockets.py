"""The transport in tasks with httpx's own connections: real time and real sockets, on Trio and on asyncio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx
import pytest
import trio

from tests.httpx_hedge._backend import hedging
from tests.httpx_hedge._server import PATIENCE, SOON, Server, first_hangs
from tiedreq.httpx import HedgedTransport


def on_asyncio(main: Callable[[], Awaitable[Any]]) -> Any:
    async def awaited() -> Any:
        result = await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(awaited())


@pytest.fixture(params=[trio.run, on_asyncio], ids=["trio", "asyncio"])
def run(request):
    return request.param


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not true():  # noqa: ASYNC110  # what is waited for happens in another thread
            await anyio.sleep(0.002)


def connections(transport: HedgedTransport) -> list[str]:
    """What the pool of the transport's own connections holds."""
    return [repr(connection) for connection in transport._async_inner._pool.connections]  # type: ignore[union-attr]


def test_the_losers_connection_is_closed_and_the_winners_kept(run, serve) -> None:
    server = serve(first_hangs)

    async def main() -> None:
        transport = hedging(None, SOON)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            assert (await client.get(server.url)).content == b"ok"
            await until(lambda: server.closed_by_client == 1)
            assert len(connections(transport)) == 1 and "IDLE" in connections(transport)[0]
            assert (await client.get(server.url)).content == b"ok"

    run(main)


def test_a_caller_that_leaves_closes_every_connection(run, serve) -> None:
    server = serve(lambda server, number, connection: server.hang(connection))

    async def main() -> None:
        transport = hedging(None, SOON)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(client.get, server.url)
                    await until(lambda: server.requests == 2)
                    scope.cancel()
            assert connections(transport) == []
            await until(lambda: server.closed_by_client == 2)

    run(main)


def test_the_winner_streams_on_and_its_connection_is_used_again(run, serve) -> None:
    body = bytes(range(256)) * 2000

    def answer(server: Server, number: int, connection: socket.socket) -> None:
        if number == 1:
            server.hang(connection)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 50_000):
            connection.sendall(body[start : start + 50_000])

    server = serve(answer)

    async def main() -> None:
        transport = hedging(None, SOON)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            for _ in range(2):
                async with client.stream("GET", server.url) as response:
                    assert b"".join([chunk async for chunk in response.aiter_raw()]) == body
            assert len(connections(transport)) == 1

    run(main)


def test_a_body_that_is_not_read_closes_its_connection(run, serve) -> None:
    def answer(server: Server, number: int, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        server.hang(connection)

    server = serve(answer)

    async def main() -> None:
        transport = hedging(None, PATIENCE)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            async with client.stream("GET", server.url) as response:
                assert response.status_code == 200
            assert connections(transport) == []
            await until(lambda: server.closed_by_client == 1)

    run(main)


def test_timeouts_are_httpxs_own(run, serve) -> None:
    server = serve(lambda server, number, connection: server.hang(connection))

    async def main() -> None:
        async with httpx.AsyncClient(
            transport=hedging(None, SOON), timeout=httpx.Timeout(PATIENCE, read=0.1)
        ) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(server.url)
            await until(lambda: server.closed_by_client == server.requests)

    run(main)
