"""The bytes of one connection: what a stream promises holds directly at the socket, too."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from tiedreq.proxy.pipe import WRITES_IN_A_ROW, Pipe

MUCH = bytes(range(256)) * 40_000


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[Pipe, trio.SocketStream]]:
    """A pipe over TCP, and the other end."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    far = await listeners[0].accept()
    async with listeners[0], near, far:
        yield Pipe(near), far


async def all_of(stream: trio.SocketStream, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += await stream.receive_some(65536)
    return found


async def test_bytes_come_and_go_and_end() -> None:
    async with both_ends() as (pipe, far):
        await pipe.send(b"question")
        assert await far.receive_some() == b"question"
        await far.send_all(b"answer")
        assert await pipe.receive() == b"answer"
        assert await pipe.send_eof() and await far.receive_some() == b""
        await far.aclose()
        assert await pipe.receive() == b""


async def test_more_than_the_socket_takes_at_once(nursery: trio.Nursery) -> None:
    async with both_ends() as (pipe, far):
        nursery.start_soon(pipe.send, MUCH)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await pipe.send(b"in between")
        with pytest.raises(trio.BusyResourceError):
            await pipe.send_eof()
        assert await all_of(far, len(MUCH)) == MUCH
        await pipe.send(b"after")
        assert await far.receive_some() == b"after"


async def test_one_task_reads_at_a_time(nursery: trio.Nursery) -> None:
    async with both_ends() as (pipe, far):
        nursery.start_soon(pipe.receive)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await pipe.receive()
        await far.aclose()


async def test_closed_by_another_task(nursery: trio.Nursery) -> None:
    async with both_ends() as (pipe, _far):

        async def close() -> None:
            await wait_all_tasks_blocked()
            await trio.aclose_forcefully(pipe.stream)

        nursery.start_soon(close)
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive()
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive()
        with pytest.raises(trio.ClosedResourceError):
            await pipe.send(b"more")


async def test_reset_by_the_other_side() -> None:
    async with both_ends() as (pipe, far):
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(far)
        with pytest.raises(trio.BrokenResourceError):
            await pipe.receive()
        with pytest.raises(trio.BrokenResourceError):
            await pipe.send(b"more")


async def test_a_cancelled_read_loses_nothing() -> None:
    async with both_ends() as (pipe, far):
        with trio.CancelScope() as scope:
            scope.cancel()
            await pipe.receive()
        assert scope.cancelled_caught
        await far.send_all(b"late")
        assert await pipe.receive() == b"late"


async def test_nothing_is_written_once_cancelled() -> None:
    async with both_ends() as (pipe, far):
        with trio.CancelScope() as scope:
            scope.cancel()
            await pipe.send(b"too late")
        assert scope.cancelled_caught
        await pipe.send(b"next")
        assert await far.receive_some() == b"next"


async def test_what_finds_no_room_at_once_follows(nursery: trio.Nursery) -> None:
    async with both_ends() as (pipe, far):
        assert pipe.write_now(b"all") and await far.receive_some() == b"all"
        assert not pipe.write_now(MUCH)
        nursery.start_soon(pipe.send_rest, MUCH)
        await wait_all_tasks_blocked()
        assert not pipe.write_now(b"busy")
        with pytest.raises(trio.BusyResourceError):
            await pipe.send_rest(b"busy")
        assert await all_of(far, len(MUCH)) == MUCH
        in_a_row = 0
        while pipe.write_now(b"."):
            in_a_row += 1
        assert 0 < in_a_row < WRITES_IN_A_ROW, "others have their turn"
        await pipe.send_rest(b"!")
        assert await all_of(far, in_a_row + 1) == b"." * in_a_row + b"!" and pipe.write_now(b"more")
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(3):
                await trio.sleep(0.01)
                pipe.write_now(b"more")


async def test_who_writes_all_the_time_lets_others_run(nursery: trio.Nursery) -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with both_ends() as (pipe, _far):
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        before = passes
        for _ in range(4 * WRITES_IN_A_ROW):
            await pipe.send(b".")
        assert passes - before >= 3
        nursery.cancel_scope.cancel()


async def test_a_stream_without_a_socket() -> None:
    near, far = memory_stream_pair()
    pipe = Pipe(near)
    assert not pipe.write_now(b"question")
    await pipe.send_rest(b"question")
    assert await far.receive_some() == b"question"
    await far.send_all(b"answer")
    assert await pipe.receive() == b"answer"
    assert await pipe.send_eof() and await far.receive_some() == b""
