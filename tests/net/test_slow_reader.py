"""Callers that read slowly or never: their results wait in their slots, and nobody else notices (B23)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.net.bench import Journal, assert_idle, bench_service, until
from tests.net.raw import raw_link, seat
from tiedreq import ReplicaLimits
from tiedreq.core.link_options import LinkTiming
from tiedreq.core.messages import Ended, Failed, Result, Started
from tiedreq.net.link_owner import LinkOptions
from tiedreq.testing import LocalCluster

PATIENT = LinkOptions(timing=LinkTiming(heartbeat_interval=0.25, heartbeat_misses=1000))


def limits(**options: int) -> ReplicaLimits:
    """Small outboxes, and much patience with silence: the caller here still sends, it only doesn't read."""
    return ReplicaLimits(heartbeat_misses_max=1000, **{"outbox_bytes_max": 131_072, **options})


@pytest.mark.parametrize(
    "size", [10, 1_000, 30_000, 60_000, 65_300, 65_400, 65_440, 65_480, 65_500, 65_536, 70_000, 500_000]
)
async def test_results_wait_in_their_slots(autojump_clock: MockClock, size: int) -> None:
    """Whatever their size, also where it is not clear whether they leave in one piece; then all arrive."""
    cluster = LocalCluster(bench_service(), replicas=1, slots=4, limits=limits(outbox_messages_max=40))
    async with cluster as client:
        async with raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
            cluster.network.hold("r0", "slow")
            raw.send(raw.submit(1000, "blob", 6_000_000))  # more than what is under way holds
            await trio.sleep(1)
            for number in range(30):
                raw.send(raw.submit(number, "blob", size))
            await trio.sleep(5)
            assert not raw.downs and not raw.messages
            handle = cluster.handles["r0"]
            (link,) = [link for link in handle._server.links.values() if link.peer and link.peer.name == "raw"]
            starts, heartbeats = 4, 25  # these don't wait for room
            assert link.messages_waiting <= 40 // 2 + starts + heartbeats
            assert link.bytes_waiting <= 6_000_200 + 131_072
            assert handle.status()["running"] == 4, "what is done waits where it was made"
            assert handle.status()["queue"] == 30 - 4 - (handle.status()["done"] - 1)
            cluster.network.release("r0", "slow")
            await until(lambda: len(raw.of(Result)) == 31)
            assert not raw.downs
            assert len({len(result.payload) for result in raw.of(Result)}) == 2
        assert await client.call("work") == "r0"
        await assert_idle(cluster, client)


async def test_large_failures_wait_too(autojump_clock: MockClock) -> None:
    import tiedreq

    service = bench_service()

    @service.method(idempotent=True)
    async def fail(ctx: tiedreq.Context, args: int) -> None:
        raise tiedreq.Failure("c" * 64, "\N{PILE OF POO}" * 4096, bytes(args))

    cluster = LocalCluster(service, replicas=1, slots=4, limits=limits())
    async with cluster, raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
        for size in (10, 45_000, 49_000, 60_000, 65_000, 65_500):
            cluster.network.hold("r0", "slow")
            before = len(raw.of(Failed))
            for number in range(12):
                raw.send(raw.submit(100_000 * size + number, "fail", size))
            await trio.sleep(5)
            cluster.network.release("r0", "slow")
            await until(lambda before=before: len(raw.of(Failed)) == before + 12)  # type: ignore[misc]
            assert not raw.downs


async def test_other_callers_and_notices_are_not_held_up(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=6, limits=limits())
    async with cluster as client:
        async with raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
            cluster.network.hold("r0", "slow")
            for number in range(4):
                raw.send(raw.submit(number, "blob", 3_000_000))
            await trio.sleep(1)
            for _ in range(50):
                assert await client.tied_call("work", 0.01, timeout=1) in cluster.names
            assert client.stats()["failed"] == 0 and journal.doubled == 0
        await trio.sleep(1)
        await assert_idle(cluster, client)


async def test_waiting_results_end_with_their_deadline(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=1, slots=2, limits=limits())
    async with cluster as client, raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
        cluster.network.hold("r0", "slow")
        for number in range(4):
            raw.send(raw.submit(number, "blob", 3_000_000, remaining=2.0))
        await trio.sleep(1)
        assert cluster.handles["r0"].status()["running"] == 2
        await trio.sleep(2)
        status = cluster.handles["r0"].status()
        assert (status["running"], status["queue"]) == (0, 0) and status["expired"] >= 2
        assert await client.call("work", timeout=1) == "r0"
        cluster.network.release("r0", "slow")
        await until(lambda: raw.of(Ended))
        assert not raw.downs


async def test_waiting_results_end_with_their_cancel(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=1, slots=2, limits=limits())
    async with cluster as client, raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
        cluster.network.hold("r0", "slow")
        for number in range(4):
            raw.send(raw.submit(number, "blob", 3_000_000))
        await trio.sleep(1)
        for number in range(4):
            raw.send(raw.cancel(number))
        await trio.sleep(1)
        assert cluster.handles["r0"].status()["running"] == 0
        assert await client.call("work", timeout=1) == "r0"


async def test_who_reads_nothing_and_asks_for_more_is_cut_off(autojump_clock: MockClock) -> None:
    """What can't wait in a slot (refusals, ends) is bounded too: the link is closed, with a code that says why."""
    cluster = LocalCluster(
        bench_service(), replicas=1, slots=2, limits=limits(outbox_messages_max=100, queue_length_max=5)
    )
    async with cluster as client:
        async with raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
            cluster.network.hold("r0", "slow")
            for number in range(0, 100_000, 500):
                assert raw.link is not None
                if not all(raw.link.send(raw.submit(n, "work", 30.0)) for n in range(number, number + 500)):
                    break
                await trio.sleep(0.01)
                assert all(link.messages_waiting <= 110 for link in cluster.handles["r0"]._server.links.values())
            cluster.network.release("r0", "slow")
            await until(lambda: raw.downs)
            assert raw.downs[0].code in ("slow", "lost")
        await trio.sleep(1)
        assert await client.call("work", timeout=1) == "r0"
        await assert_idle(cluster, client)


async def test_a_slow_reader_of_many_small_results(autojump_clock: MockClock) -> None:
    """The outbox is never filled by results to its last message: starts and ends of copies still fit."""
    cluster = LocalCluster(bench_service(), replicas=1, slots=8, limits=limits(outbox_messages_max=64))
    async with cluster as client:
        async with raw_link(seat(cluster, "slow"), cluster.urls["r0"], options=PATIENT) as raw:
            for round_ in range(5):
                cluster.network.hold("r0", "slow")
                raw.send(raw.submit(1000 * round_, "blob", 6_000_000))
                await trio.sleep(1)
                for number in range(1, 200):
                    raw.send(raw.submit(1000 * round_ + number, "blob", 3))
                await trio.sleep(1)
                assert cluster.handles["r0"].status()["queue"] > 100
                for number in range(190, 200):
                    raw.send(raw.cancel(1000 * round_ + number))
                await trio.sleep(1)
                cluster.network.release("r0", "slow")
                await until(lambda done=190 * (round_ + 1): len(raw.of(Result)) >= done)  # type: ignore[misc]
                assert not raw.downs
            assert len(raw.of(Result)) + len(raw.of(Ended)) == 1000
            assert len(raw.of(Started)) == len(raw.of(Result))
        await assert_idle(cluster, client)
