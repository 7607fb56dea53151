"""One client can't take what is there for all: places in the queue, bytes, links. In memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather
from tests.net.raw import RawLink, raw_link, seat
from tiedreq import Plain, ReplicaLimits
from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import Chunk, Ended
from tiedreq.core.types import Cause
from tiedreq.observe.client import METHODS_MAX, OTHERS
from tiedreq.testing import LocalCluster
from tiedreq.wire.limits import wire_limits


async def test_a_greedy_client_leaves_room_for_others(autojump_clock: MockClock) -> None:
    """By default: it floods a replica with more than its queue holds, and the calls of others are still taken in."""
    default = ReplicaLimits()
    assert default.copies_per_caller_max <= default.queue_length_max / 4
    limits = ReplicaLimits(queue_length_max=400, copies_per_caller_max=100)
    cluster = LocalCluster(bench_service(), replicas=1, slots=8, limits=limits)
    async with cluster as client:
        async with raw_link(seat(cluster), cluster.urls["r0"]) as greedy:
            for first in range(0, 600, 50):
                greedy.send(*[greedy.submit(number, args=0.01) for number in range(first, first + 50)])
                await trio.sleep(0.001)
            refused = greedy.of(Ended)
            assert refused and {ended.cause for ended in refused} == {Cause.FULL}
            assert cluster.handles["r0"].sizes()["queue"] <= limits.copies_per_caller_max
            answers = await gather(*[lambda: client.call("work", 0.01, timeout=20)] * 50)
            assert answers == ["r0"] * 50
        await assert_idle(cluster, client)


@pytest.mark.parametrize("greedy_clients", [1, 3])
async def test_who_floods_the_queue_does_not_make_others_wait(autojump_clock: MockClock, greedy_clients: int) -> None:
    """By default: each floods a replica with as many calls as it takes, 10 ms of work each; an honest client calls.

    First come, first served it would wait behind thousands of them, for seconds. It has its share of the slots.
    """
    cluster = LocalCluster(bench_service(), replicas=1, slots=4)
    async with cluster as client, AsyncExitStack() as stack:
        flood = ReplicaLimits().copies_per_caller_max
        for number in range(greedy_clients):
            side, place = (
                LinkSide("tiedreq", "client", f"greedy-{number}", 100 + number),
                seat(cluster, f"raw-{number}"),
            )
            greedy = await stack.enter_async_context(raw_link(place, cluster.urls["r0"], side=side))
            for first in range(0, flood, 100):
                greedy.send(*[greedy.submit(each, args=0.01, remaining=60.0) for each in range(first, first + 100)])
                await trio.lowlevel.checkpoint()
        await trio.sleep(0.1)
        assert cluster.handles["r0"].sizes()["queue"] > 0.9 * flood * greedy_clients
        latencies = []
        for _ in range(20):
            reply = await client.request("work", 0.01, timeout=5)
            latencies.append(reply.latency)
        assert max(latencies) < 0.025, "it waits for a slot, not for a queue"
        began = trio.current_time()
        await gather(*[lambda: client.call("work", 0.01, timeout=20)] * 50)
        share = 4 // (greedy_clients + 1)
        assert trio.current_time() - began < 50 * 0.01 / share + 0.05
        assert cluster.handles["r0"].sizes()["queue"] > 0.8 * flood * greedy_clients, "and the others have theirs"


async def test_a_share_that_nobody_uses_is_not_kept_free(autojump_clock: MockClock) -> None:
    """Two clients; when the calls of one are done, the other has all slots."""
    cluster = LocalCluster(bench_service(), replicas=1, slots=4)
    async with cluster as client, cluster.client(name="other") as other:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for one, count in ((client, 4), (other, 60)):
                for _ in range(count):
                    nursery.start_soon(one.call, "work", 0.1)
        assert trio.current_time() - began < 64 / 4 * 0.1 + 0.05


async def test_one_that_sends_large_arguments_leaves_room_too(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(held_bytes_max=4_000_000, held_bytes_per_caller_max=1_000_000)
    cluster = LocalCluster(bench_service(), replicas=1, slots=1, limits=limits)
    async with cluster as client:
        async with raw_link(seat(cluster), cluster.urls["r0"]) as greedy:
            greedy.send(greedy.submit(0, args=5.0))
            await trio.sleep(0.1)
            for number in range(1, 30):
                greedy.send(greedy.submit(number, "size", bytes(100_000)))
                await trio.sleep(0.01)
            assert [ended.cause for ended in greedy.of(Ended)] == [Cause.FULL] * 20
            assert await client.call("size", bytes(100_000), timeout=10) == 100_000
        await assert_idle(cluster, client)


@asynccontextmanager
async def half_sent(cluster: LocalCluster, *sizes: int) -> AsyncIterator[list[RawLink]]:
    """Links that each have begun a message of so many bytes and don't end it."""
    async with AsyncExitStack() as stack:
        links = []
        for number, size in enumerate(sizes):
            side = LinkSide("tiedreq", "client", f"raw{number}", 100 + number)
            link = await stack.enter_async_context(
                raw_link(seat(cluster, f"raw{number}"), cluster.urls["r0"], side=side)
            )
            for _ in range(0, size, 50_000):
                await link.send_unchecked(Chunk(1, False, bytes(50_000)))
            links.append(link)
        await trio.sleep(0.5)
        yield links


async def test_unfinished_messages_of_all_links_have_a_limit(autojump_clock: MockClock) -> None:
    """The link that keeps the most is closed, whoever it was that asked for more; what it kept is free."""
    limits = ReplicaLimits(payload_bytes_max=1024, unfinished_bytes_max=1)
    assert wire_limits(limits.payload_bytes_max).chunk_total_bytes_max == 2 * 1024 * 1024
    cluster = LocalCluster(bench_service(), replicas=1, limits=limits)
    async with cluster as client:
        unfinished = cluster.handles["r0"]._server._options.unfinished
        assert unfinished is not None
        async with half_sent(cluster, 700_000, 900_000, 600_000) as links:
            assert [[down.code for down in link.downs] for link in links] == [[], ["crowded"], []]
            assert unfinished.total == 1_300_000
            assert await client.call("work") == "r0"
        await trio.sleep(1)
        assert unfinished.total == 0
        async with half_sent(cluster, 900_000, 900_000) as links:
            assert not any(link.downs for link in links)
        await assert_idle(cluster, client)
        assert unfinished.total == 0


async def test_a_restarted_replica_is_not_flooded(autojump_clock: MockClock) -> None:
    """B18: three at 60 % of what they can do; the one that comes back has a share of the calls and no heap of them."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, slots=2)
    deepest = 0
    async with cluster as client, trio.open_nursery() as nursery:

        async def load() -> None:
            for _ in range(1200):
                nursery.start_soon(lambda: client.call("work", 0.02, policy=Plain(), timeout=20))
                await trio.sleep(1 / 180)

        nursery.start_soon(load)
        await trio.sleep(2)
        cluster.stop("r0")
        await trio.sleep(0.2)
        await cluster.start("r0")
        back = trio.current_time()
        while trio.current_time() < back + 2:
            deepest = max(deepest, cluster.handles["r0"].status()["queue"])
            await trio.sleep(0.01)
        begun = [run.replica for run in journal.runs if run.began > back]
        assert 0.2 < begun.count("r0") / len(begun) < 0.45
        assert deepest <= 8
    assert client.stats()["answered"] == 1200


async def test_names_that_others_choose_are_no_labels(autojump_clock: MockClock) -> None:
    """B48: methods that nobody has, clients with ever new names, and calls with keys."""
    cluster = LocalCluster(bench_service(), replicas=1)
    async with cluster as client:
        assert await client.call("work", key="k0") == "r0"
        before = (await client.inquire("snapshot"))["r0"]
        for number in range(20):
            side = LinkSide("tiedreq", "client", f"client {number}", 1000 + number)
            async with raw_link(seat(cluster, f"raw{number}"), cluster.urls["r0"], side=side) as raw:
                raw.send(*[raw.submit(each, f"method {number} {each}") for each in range(50)])
                raw.send(raw.submit(50, "work", key=f"key {number}"))
                await trio.sleep(0.1)
                assert {ended.cause for ended in raw.of(Ended)} == {Cause.UNKNOWN_METHOD}
        await trio.sleep(1)
        after = (await client.inquire("snapshot"))["r0"]
        assert set(after["methods"]) == set(before["methods"]) == {"work", "once", "blob", "size"}
        assert after["methods"]["work"]["answered"] == 21
        assert after["endings"] == {"refused": {"unknown method": 1000}}
        assert set(after["links"]) == set(before["links"]) and after["callers"] == 1
        await assert_idle(cluster, client)


async def test_a_client_labels_so_many_methods_and_no_more(autojump_clock: MockClock) -> None:
    """B48: of a service with more methods than that, the rest share a row, and the sums hold."""
    service = tiedreq.Service("many")

    async def nothing(ctx: tiedreq.Context, args: object) -> None:
        await trio.lowlevel.checkpoint()

    names = [f"method{number}" for number in range(METHODS_MAX + 44)]
    for name in names:
        service.method(name)(nothing)
    async with LocalCluster(service, replicas=1) as client:
        for name in names:
            await client.call(name)
        assert client.observer is not None
        rows = client.observer.snapshot()["methods"]
        assert len(rows) == METHODS_MAX + 1
        (others,) = [row for row in rows if row["method"] == OTHERS]
        assert others["calls"] == 44 and sum(row["calls"] for row in rows) == len(names)
