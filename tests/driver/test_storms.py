"""Cancel storms, large replies, replicas that come and go: nothing is left behind. In virtual time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.driver.test_every_point import at_baseline, make_service, until
from tiedreq.testing import LocalCluster

TIED = tiedreq.Tied(stagger=0.0)


@pytest.mark.parametrize("policy", [tiedreq.Plain(), TIED, tiedreq.Tied(exclusive=True, stagger=0.0)])
async def test_a_slot_is_never_lost_to_a_cancel(autojump_clock: MockClock, policy: tiedreq.Policy) -> None:
    """B03: one slot; 500 calls cancelled over every moment between sending and the handler's end."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=2, slots=1, mesh_latency=0.0005, client_latency=0.0005)

    async def cancelled_after(client: tiedreq.Client, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await client.call("work", 0.001, policy=policy)

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for index in range(500):
                nursery.start_soon(cancelled_after, client, 0.00001 * index)
                await trio.sleep(0.0001)
        await at_baseline(cluster, client, running)
        for _ in range(100):
            assert await client.call("work", 0.0, policy=policy, timeout=1.0) in cluster.names


async def test_cancels_that_overtake_and_callers_that_leave(autojump_clock: MockClock) -> None:
    """B02, B07: calls end by answer, cancel, time-out and by their client going away, all at once."""
    running: Counter[str] = Counter()
    rng = random.Random(7)
    cluster = LocalCluster(make_service(running), replicas=3, slots=2, mesh_latency=0.002)
    ends: Counter[str] = Counter()

    async def one(client: tiedreq.Client) -> None:
        try:
            with trio.move_on_after(rng.expovariate(1 / 0.02)) as scope:
                policy = rng.choice([TIED, tiedreq.Hedged(tiedreq.Backup(after=0.002, since="send")), tiedreq.Tied()])
                await client.call("work", rng.expovariate(1 / 0.005), policy=policy, timeout=rng.uniform(0, 0.05))
            ends["cancelled" if scope.cancelled_caught else "answered"] += 1
        except tiedreq.DeadlineExceeded:
            ends["late"] += 1

    async def visitor(name: str) -> None:
        async with cluster.client(name=name) as guest, trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(one, guest)
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for index in range(5):
                nursery.start_soon(visitor, f"visitor-{index}")
            for _ in range(1000):
                nursery.start_soon(one, client)
                await trio.sleep(0.001)
        await at_baseline(cluster, client, running)
        assert min(ends["cancelled"], ends["answered"], ends["late"]) > 50, ends
        assert all(handle.sizes()["callers"] == 1 for handle in cluster.handles.values())
        await trio.sleep(tiedreq.ReplicaLimits().marker_age_max + 1)
        for handle in cluster.handles.values():
            sizes = handle.sizes()
            assert sizes["markers"] == sizes["cancel_markers"] == 0


@pytest.mark.parametrize("size", [512 * 1024, 10_000_000])
async def test_losers_do_not_take_a_large_answer_with_them(autojump_clock: MockClock, size: int) -> None:
    """B06, B07: both copies answer within a moment of each other; the winner's answer arrives whole."""
    service = tiedreq.Service("large")

    @service.method(idempotent=True)
    async def large(ctx: tiedreq.Context, args: int) -> bytes:
        await trio.sleep(0.001)
        return ctx.replica.encode() * (args // 2)

    cluster = LocalCluster(service, replicas=2, mesh_latency=0.01)
    async with cluster as client:
        for policy in (TIED, tiedreq.Hedged(tiedreq.Backup(after=0.001, min_after=0.0, since="send"))):
            for _ in range(3):
                answer = await client.call("large", size, policy=policy)
                assert len(answer) == size
                assert answer in (b"r0" * (size // 2), b"r1" * (size // 2))
        await at_baseline(cluster, client, Counter())


async def test_calls_that_end_together(autojump_clock: MockClock) -> None:
    """B07: thousands of hedged calls whose two legs end in the same instant."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=2, slots=64, mesh_latency=0.001)
    policy = tiedreq.Hedged(tiedreq.Backup(after=0.0, min_after=0.0, since="send"))

    async def some(client: tiedreq.Client) -> None:
        for _ in range(100):
            await client.call("work", 0.001, policy=policy)

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(some, client)
        await at_baseline(cluster, client, running)
        assert client.stats()["answered"] == 2000


async def test_a_replica_that_cannot_be_dialed_holds_nothing_up(autojump_clock: MockClock) -> None:
    """B07, B19: a black hole among the addresses; calls go elsewhere, and closing the client does not hang."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=3)
    async with cluster as client:
        cluster.network.partition(["guest"], ["r2"])
        began = trio.current_time()
        async with cluster.client(name="guest") as guest:
            assert set(guest.stats()["replicas"]) == {"r0", "r1"}
            for _ in range(20):
                assert await guest.tied_call("work", 0.001, timeout=1.0) in ("r0", "r1")
        assert trio.current_time() - began < 10
        await at_baseline(cluster, client, running)


async def test_silence_is_a_loss(autojump_clock: MockClock) -> None:
    """B21: a replica falls silent without closing; calls with a 2 s deadline are answered elsewhere; it comes back."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=3)
    async with cluster as client:
        cluster.network.partition(["client", "r1", "r2"], ["r0"])
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(lambda: client.tied_call("work", 0.01, timeout=2.0))
                await trio.sleep(0.01)
        assert client.stats()["failed"] == 0
        await until(lambda: set(client.stats()["replicas"]) == {"r1", "r2"})
        cluster.network.heal()
        await until(lambda: set(client.stats()["replicas"]) == {"r0", "r1", "r2"})
        await at_baseline(cluster, client, running)


async def test_a_rolling_restart_under_load_loses_no_call(autojump_clock: MockClock) -> None:
    """B43: every replica is drained and started again while tied calls go on."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=4, slots=2)
    answered = 0

    async def one(client: tiedreq.Client) -> None:
        nonlocal answered
        assert await client.tied_call("work", 0.005, timeout=2.0) in cluster.names
        answered += 1

    async def restart_all() -> None:
        for name in cluster.names:
            cluster.handles[name].drain()
            await until(lambda name=name: not cluster.running(name))  # type: ignore[misc]
            await cluster.start(name)
            await trio.sleep(0.5)

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart_all)
            for _ in range(3000):
                nursery.start_soon(one, client)
                await trio.sleep(0.002)
        assert answered == 3000
        await at_baseline(cluster, client, running)


async def test_both_replicas_of_a_pair_drain_together(autojump_clock: MockClock) -> None:
    """B43: what waits at two draining replicas is moved to the third."""
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=3, slots=1)
    async with cluster as client:
        answers: Counter[str] = Counter()

        async def one() -> None:
            answers[await client.tied_call("work", 0.02, timeout=5.0)] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(one)
            await trio.sleep(0.03)
            cluster.handles["r0"].drain()
            cluster.handles["r1"].drain()
        assert sum(answers.values()) == 30
        assert answers["r2"] >= 20


async def test_a_caller_that_does_not_read_keeps_its_slots_and_nobody_elses(autojump_clock: MockClock) -> None:
    """B23: results wait in their slot while their caller takes nothing; other callers are served."""
    service = tiedreq.Service("large")

    @service.method(idempotent=True)
    async def large(ctx: tiedreq.Context, args: int) -> bytes:
        return b"x" * args

    limits = tiedreq.ReplicaLimits(outbox_bytes_max=200_000, heartbeat_misses_max=40)
    cluster = LocalCluster(service, replicas=1, slots=4, limits=limits)
    async with cluster as client, cluster.client(name="slow") as slow:
        cluster.network.hold("r0", "slow")

        async def one() -> None:
            with trio.move_on_after(2.0):
                await slow.call("large", 2_000_000)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
            await trio.sleep(0.5)
            assert 1 <= cluster.handles["r0"].status()["running"] <= 4
            for handle in cluster.handles.values():
                assert handle.status()["queue"] <= 20
        cluster.network.heal()
        assert len(await client.call("large", 10, timeout=5.0)) == 10
        await at_baseline(cluster, client, Counter())
