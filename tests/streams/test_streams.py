"""Streams between drivers, in memory and in virtual time: what a user of them sees."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, no_task_left
from tests.streams._play import AT_ONCE, HEDGED, KEEPS_BOTH, Plays, stream_service, taken
from tiedreq import Plain, Policy, Tied
from tiedreq.testing import LocalCluster

THREE = [["item", "a"], 0.001, ["item", "b"], 0.001, ["item", "c"]]


@pytest.mark.parametrize("policy", [Plain(), Tied(), AT_ONCE, HEDGED, None], ids=repr)
async def test_items_come_in_order_with_their_story(autojump_clock: MockClock, policy: Policy | None) -> None:
    cluster = LocalCluster(stream_service(), replicas=3)
    async with cluster as client:
        async with no_task_left(), client.stream("play", [0.01, *THREE], policy=policy, timeout=1.0) as stream:
            assert await taken(stream) == ["a", "b", "c"]
            assert await taken(stream) == []
        assert stream.items == 3 and stream.replica in cluster.names and stream.kind == "first"
        assert stream.first_item == pytest.approx(0.01, abs=0.002)
        assert stream.service_time == pytest.approx(0.01, abs=0.001) and stream.queue_wait == 0.0
        winner = [attempt for attempt in stream.attempts if attempt.replica == stream.replica]
        assert [attempt.end for attempt in winner] == ["done"]
        assert repr(stream) == f"<Stream {stream.call_id} closed, 3 items>"
        await assert_idle(cluster, client)


async def test_the_three_ways_to_open_one(autojump_clock: MockClock) -> None:
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=3, policy=Plain())
    async with cluster as client:
        for opened, copies in ((client.stream, 1), (client.tied_stream, 1), (client.hedged_stream, 1)):
            async with opened("play", THREE) as stream:
                assert await taken(stream) == ["a", "b", "c"]
            assert len(plays.runs) == copies
            plays.runs.clear()
        async with client.tied_stream("play", {"rank 0": [1.0, *THREE], "rank 1": THREE}, policy=KEEPS_BOTH) as stream:
            assert await taken(stream) == ["a", "b", "c"]
            assert stream.kind == "tie" and len(stream.attempts) == 2
        await assert_idle(cluster, client)


async def test_one_that_is_entered_and_closed_without_a_block(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        for script, first in ((THREE, "a"), ([], None)):
            stream = client.stream("play", script)
            await stream.enter()
            assert stream.told() == (stream.replica, stream.queue_wait, stream.service_time)
            assert (stream.replica is None) is (first is None) and await anext(stream, None) == first
            with pytest.raises(tiedreq.UsageError):
                await stream.enter()
            stream.close()
        await assert_idle(cluster, client)


async def test_values_of_every_kind(autojump_clock: MockClock) -> None:
    values = [0, False, {"a": [1, 2.5]}, "text", b"bytes", [], None, "", 2**60]
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client, client.stream("play", [["item", value] for value in values]) as stream:
        assert await taken(stream) == values


async def test_an_empty_stream(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=3)
    async with cluster as client:
        for policy in (Plain(), Tied()):
            async with client.stream("play", [0.001], policy=policy) as stream:
                assert await taken(stream) == [] and stream.replica is None and stream.first_item is None
            async with client.stream("play", [["item", None], ["item", ""]], policy=policy) as stream:
                assert await taken(stream) == [None, ""]
        await assert_idle(cluster, client)


@pytest.mark.parametrize("size", [100, 40_000, 70_000, 300_000])
async def test_large_items_are_not_overtaken(autojump_clock: MockClock, size: int) -> None:
    """Small messages pass large ones on a link; an item that follows does not, nor does the end."""
    script = [["bytes", size], ["item", 1], ["bytes", size], ["item", 2], ["bytes", size]]
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        async with client.tied_stream("play", script) as stream:
            assert await taken(stream) == [bytes(size), 1, bytes(size), 2, bytes(size)]
        await assert_idle(cluster, client)


async def test_a_stream_is_no_method(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        with pytest.raises(tiedreq.UsageError, match=r"'play' is a stream: use .*client.stream\('play'"):
            await client.call("play", [])
        with pytest.raises(tiedreq.UsageError, match=r"'echo' is a method, not a stream: use client.call"):
            async with client.stream("echo", 1):
                pass
        with pytest.raises(tiedreq.UnknownMethod, match="no replica serves 'nothing'"):
            async with client.stream("nothing"):
                pass
        with pytest.raises(tiedreq.UnsafeToDuplicate):
            async with client.tied_stream("once", []):
                pass
        with pytest.raises(tiedreq.BadOption, match="content: 3 is not a plain function"):
            async with client.stream("play", [], content=3):
                pass
        with pytest.raises(TypeError):
            async with client.stream("play", [], accept=bool):
                pass
        async with client.stream("once", THREE) as stream:
            assert await taken(stream) == ["a", "b", "c"]
        assert client.stats()["calls"] == 1


async def test_a_stream_has_one_block(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        stream = client.stream("play", THREE)
        with pytest.raises(tiedreq.UsageError, match="not open"):
            await stream.__anext__()
        with pytest.raises(tiedreq.UsageError, match="has not begun"):
            assert stream.call_id
        async with stream:
            assert await stream.__anext__() == "a"
        with pytest.raises(tiedreq.UsageError, match="not open"):
            await stream.__anext__()
        with pytest.raises(tiedreq.UsageError, match="begun before"):
            async with stream:
                pass


async def test_items_that_are_there_already(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        stream = client.stream("play", [["item", 1], ["item", 2], 0.01, ["item", 3]])
        with pytest.raises(tiedreq.UsageError):
            stream.next_nowait()
        async with stream:
            assert stream.next_nowait() == 1  # the block begins once there is one
            await trio.sleep(0.005)
            assert stream.next_nowait() == 2
            with pytest.raises(trio.WouldBlock):
                stream.next_nowait()
            assert await taken(stream) == [3] and stream.items == 3
            with pytest.raises(trio.WouldBlock):
                stream.next_nowait()
        await assert_idle(cluster, client)


async def test_a_stream_tells_that_it_is_over(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        stream = client.stream("play", [["item", 1], 0.01, ["item", 2]])
        assert not stream.over
        async with stream:
            assert stream.next_nowait() == 1 and not stream.over
            await trio.sleep(0.02)
            assert not stream.over, "an item is left"
            assert stream.next_nowait() == 2 and stream.over
            assert await taken(stream) == []
        async with client.stream("play", [["item", 1], 1.0], timeout=0.1) as stream:
            stream.next_nowait()
            await trio.sleep(0.5)
            assert not stream.over, "it has ended, but not well"
        await assert_idle(cluster, client)


async def test_what_is_there_after_the_time_is_over_is_not_handed_out(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["item", 1], ["item", 2], 1.0], timeout=0.1) as stream:
            await trio.sleep(0.5)
            with pytest.raises(trio.WouldBlock):
                stream.next_nowait()
            with pytest.raises(tiedreq.DeadlineExceeded):
                await anext(stream)
        await assert_idle(cluster, client)


async def test_two_tasks_do_not_share_a_stream(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client, client.stream("play", [["item", 1], 1.0, ["item", 2]]) as stream:
        assert await stream.__anext__() == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(taken, stream)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.__anext__()


async def test_a_generator_in_a_thread() -> None:
    """Each step runs in a worker thread, in real time; leaving early closes it."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)
    async with cluster as client:
        async with client.stream("steps", 200, policy=Plain()) as stream:
            assert await taken(stream) == list(range(200))
        assert [run.end for run in plays.runs] == ["returned"]
        async with client.stream("steps", 1_000_000, policy=Plain()) as stream:
            assert await stream.__anext__() == 0
        await assert_idle(cluster, client)
        assert plays.runs[-1].end == "closed"


def test_what_can_be_a_stream() -> None:
    service = tiedreq.Service("s")

    async def no_generator(ctx: tiedreq.Context, args: Any) -> Any:
        return args

    with pytest.raises(tiedreq.BadOption, match="stream 'no_generator': it is no generator"):
        service.stream()(no_generator)
    with pytest.raises(tiedreq.BadOption, match="with parentheses"):
        service.stream(no_generator)  # type: ignore[arg-type]

    @service.stream(slots=2)
    async def lines(ctx: tiedreq.Context, args: Any) -> Any:
        yield args

    assert service.methods["lines"].info == ("lines", False, True, 600.0, True)
    with pytest.raises(tiedreq.BadOption, match="declared twice"):
        service.stream("lines")(lines)
