"""Who iterates slowly slows the one who yields, and nobody else; who leaves in any way leaves nothing: B35."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, no_task_left
from tests.streams._play import KEEPS_BOTH, Plays, stream_service, taken
from tiedreq import ClientLimits, Plain
from tiedreq.testing import LocalCluster


@pytest.mark.parametrize("window", [1, 7, 64])
async def test_a_slow_consumer_slows_its_producer(autojump_clock: MockClock, window: int) -> None:
    """Never more than the window is on its way; all of it comes, in order."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=1, client_limits=ClientLimits(stream_items_max=window))
    async with cluster as client:
        async with client.stream("play", [["items", 150, 0.0]], timeout=60.0) as stream:
            await trio.sleep(1.0)
            (run,) = plays.runs
            assert len(run.yielded) <= window + 1
            got = 0
            async for item in stream:
                assert item == ["r0", got]
                got += 1
                await trio.sleep(0.01)
                assert len(run.yielded) <= got + window + 1
        assert got == 150
        await assert_idle(cluster, client)


async def test_bytes_are_bounded_too(autojump_clock: MockClock) -> None:
    plays = Plays()
    limits = ClientLimits(stream_bytes_max=100_000)
    cluster = LocalCluster(stream_service(plays), replicas=1, client_limits=limits)
    async with cluster as client:
        async with client.stream("play", [["bytes", 30_000]] * 40, timeout=60.0) as stream:
            await trio.sleep(1.0)
            (run,) = plays.runs
            assert 4 <= len(run.yielded) <= 5
            assert await taken(stream) == [bytes(30_000)] * 40
        async with client.stream("play", [["bytes", 500_000]] * 5, timeout=60.0) as stream:
            assert await taken(stream) == [bytes(500_000)] * 5
        await assert_idle(cluster, client)


async def test_a_stalled_stream_holds_up_nobody_else(autojump_clock: MockClock) -> None:
    """A stream that nobody takes from: calls and another stream over the same link go on as ever."""
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["bytes", 60_000]] * 100, timeout=60.0) as stalled:
            await trio.sleep(1.0)
            began = trio.current_time()
            assert await client.call("echo", 7) == 7
            async with client.stream("play", [["items", 500, 0.0]]) as stream:
                assert len(await taken(stream)) == 500
            assert trio.current_time() - began < 0.1
            assert len(await taken(stalled)) == 100
        await assert_idle(cluster, client)


async def test_both_copies_are_held_back(autojump_clock: MockClock) -> None:
    """Preambles take no place in the window, but are bounded; a loser's are thrown away."""
    plays = Plays()
    limits = ClientLimits(stream_items_max=4)
    cluster = LocalCluster(stream_service(plays), replicas=2, client_limits=limits)
    script = {"rank 0": [["item", None]] * 100 + [0.5, ["item", 0]], "rank 1": [*[["item", ""]] * 50, 9.0]}
    async with cluster as client:
        async with client.tied_stream("play", script, policy=KEEPS_BOTH) as stream:
            assert await taken(stream) == [None] * 100 + [0]
        await assert_idle(cluster, client)


@pytest.mark.parametrize("way", ["break", "return", "raise", "not at all"])
async def test_ways_to_leave_a_loop(autojump_clock: MockClock, way: str) -> None:
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)

    async def use(client: tiedreq.Client) -> Any:
        async with client.tied_stream("play", [["items", 100, 0.01]]) as stream:
            if way == "not at all":
                return None
            async for item in stream:
                if way == "break":
                    break
                if way == "return":
                    return item
                raise KeyError(way)

    async with cluster as client:
        async with no_task_left():
            if way == "raise":
                with pytest.raises(KeyError):
                    await use(client)
            else:
                await use(client)
            assert client.stats()["in_flight"] == 0
            await assert_idle(cluster, client)
        assert [run.end for run in plays.runs] == ["cancelled"]


async def test_a_step_may_be_cancelled(autojump_clock: MockClock) -> None:
    """``move_on_after`` around one step: no item is lost, and the stream goes on."""
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        async with client.tied_stream("play", [["items", 20, 0.01]]) as stream:
            got: list[Any] = []
            timeouts = 0
            while len(got) < 20:
                with trio.move_on_after(0.003) as scope:
                    got.append(await stream.__anext__())
                timeouts += scope.cancelled_caught
            assert got == [[stream.replica, number] for number in range(20)] and timeouts > 20
            assert await taken(stream) == []
        await assert_idle(cluster, client)


async def test_a_loop_may_be_taken_up_again(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client, client.tied_stream("play", [["items", 10, 0.001]]) as stream:
        async for item in stream:
            assert item[1] == 0
            break
        assert [item[1] for item in await taken(stream)] == list(range(1, 10))


async def test_an_abandoned_generator_around_a_stream(autojump_clock: MockClock) -> None:
    """A user's own async generator around a stream, kept but not finished, and closed from another task."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)

    async def items(client: tiedreq.Client) -> Any:
        async with client.tied_stream("play", [["items", 100, 0.01]]) as stream:
            async for item in stream:
                yield item

    async with cluster as client:
        kept = items(client)
        assert (await kept.__anext__())[1] == 0
        await trio.sleep(0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.aclose)
        assert client.stats()["in_flight"] == 0
        await assert_idle(cluster, client)
        assert [run.end for run in plays.runs] == ["cancelled"]


@pytest.mark.parametrize("moment", range(1, 12, 2))
async def test_cancelled_while_it_opens(autojump_clock: MockClock, moment: int) -> None:
    """At any time before or after the race is decided: nothing is left, and no copy goes on."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2, client_latency=0.001)
    async with cluster as client:
        async with no_task_left():
            with trio.move_on_after(moment * 0.0007):
                async with client.tied_stream("play", [0.003, ["items", 100, 0.01]]) as stream:
                    await taken(stream)
            await assert_idle(cluster, client)
        assert all(run.end == "cancelled" for run in plays.runs)


async def test_slots_are_held_until_the_generator_has_ended(autojump_clock: MockClock) -> None:
    """A generator that cleans up in a shield keeps its slot meanwhile; the next stream waits for it."""
    service = tiedreq.Service("s")
    cleaned: list[float] = []

    @service.stream(idempotent=True)
    async def slow_to_end(ctx: tiedreq.Context, args: Any) -> Any:
        try:
            while True:
                yield trio.current_time()
                await trio.sleep(0.01)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)
            cleaned.append(trio.current_time())

    cluster = LocalCluster(service, replicas=1, slots=1)
    async with cluster as client:
        async with client.stream("slow_to_end") as stream:
            await stream.__anext__()
        async with client.stream("slow_to_end", policy=Plain()) as stream:
            began = await stream.__anext__()
        assert cleaned and began >= cleaned[0]
        await assert_idle(cluster, client)
        assert len(cleaned) == 2
