"""Streams from asyncio and from threads: the same names, the same items, and nothing left when the block ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tiedreq
from tests.streams._play import Plays, stream_service
from tiedreq import DeadlineExceeded, Plain, RemoteFailure
from tiedreq.testing import AsyncioCluster, BlockingCluster

MANY = [["item", None], ["items", 200, 0.0]]


def test_in_threads() -> None:
    plays = Plays()
    with BlockingCluster(stream_service(plays), replicas=2, virtual_time=True) as client:
        for opened in (client.stream, client.tied_stream, client.hedged_stream):
            with opened("play", MANY, timeout=5.0) as stream:
                items = list(stream)
            assert items[0] is None and [number for _, number in items[1:]] == list(range(200))
            assert stream.replica in ("r0", "r1") and stream.kind == "first" and stream.first_item is not None
            assert stream.items == 201 and stream.attempts and stream.call_id
        with client.stream("play", [["items", 10_000, 0.001]], policy=Plain(), timeout=60.0) as stream:
            assert next(stream)[1] == 0
        with pytest.raises(tiedreq.UsageError, match="not open"):
            next(stream)
        with pytest.raises(RemoteFailure), client.stream("play", [["items", 3, 0.0], ["fail", False]]) as stream:
            assert [next(stream)[1] for _ in range(3)] == [0, 1, 2]
            next(stream)
        with pytest.raises(DeadlineExceeded), client.stream("play", [["items", 3, 0.5]], timeout=1.0) as stream:
            list(stream)
        with pytest.raises(tiedreq.UsageError, match="is a method"), client.stream("echo"):
            pass
        assert client.stats()["in_flight"] == 0


def test_in_asyncio() -> None:
    async def main() -> None:
        plays = Plays()
        cluster = AsyncioCluster(stream_service(plays), replicas=2)
        async with cluster as client:
            for opened in (client.stream, client.tied_stream, client.hedged_stream):
                async with opened("play", MANY, timeout=30.0) as stream:
                    items = [item async for item in stream]
                assert items[0] is None and [number for _, number in items[1:]] == list(range(200))
            got: list[Any] = []
            async with client.tied_stream("play", [["items", 30, 0.005]], timeout=30.0) as stream:
                while len(got) < 30:
                    try:
                        async with asyncio.timeout(0.004):
                            got.append(await stream.__anext__())
                    except TimeoutError:
                        pass
            assert [number for _, number in got] == list(range(30)), "a step that is cancelled loses nothing"
            task = asyncio.create_task(_endless(client))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.stats()["in_flight"] == 0

    asyncio.run(main())


async def _endless(client: tiedreq.aio.Client) -> None:
    async with client.tied_stream("play", [["items", 100_000, 0.001]], timeout=60.0) as stream:
        async for _ in stream:
            pass
