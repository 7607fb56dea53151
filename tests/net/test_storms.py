"""Cancel storms: whatever is cancelled, whenever, nothing is left behind and the next call works."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, no_task_left, seconds_at
from tiedreq import Backup, DeadlineExceeded, Hedged, Plain, Policy, ReplicaLimits, Tied
from tiedreq.testing import LocalCluster

HEDGED = Hedged(Backup(after=0.01, since="send"))
POLICIES: tuple[Policy, ...] = (
    Plain(),
    HEDGED,
    Tied(backup=None),
    Tied(backup=None, stagger=0.0),
    Tied(backup=None, exclusive=True),
    Tied(copies=3, stagger=0.0, backup=Backup(after=0.01)),
)


@asynccontextmanager
async def stormy(
    cluster: LocalCluster, *, then: int = 100, policy: Policy | None = None
) -> AsyncIterator[tiedreq.Client]:
    """A client for a storm. After it the sums hold, all slots are free, and so many normal calls succeed."""
    async with cluster as client:
        async with no_task_left():
            yield client
            await assert_idle(cluster, client)
        sums = client.stats()
        assert sums["calls"] == sums["answered"] + sums["failed"] + sums["cancelled"]
        found = await gather(*[lambda: client.call("work", 0.001, policy=policy, timeout=60)] * then)
        assert set(found) <= set(cluster.names)
        await assert_idle(cluster, client)
        assert {link.statistics.times_up for link in client._links.values()} == {1}


@pytest.mark.parametrize("client_latency", [0.0, 0.001])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
async def test_one_slot_and_a_cancel_at_every_moment(
    autojump_clock: MockClock, policy: Policy, client_latency: float
) -> None:
    """B03: the moment of the cancel sweeps over sending, queueing, starting, running and answering."""
    cluster = LocalCluster(bench_service(), replicas=3, slots=1, mesh_latency=0.0005, client_latency=client_latency)
    async with stormy(cluster, policy=policy) as client:
        for step in range(120):
            with trio.move_on_after(step * 4e-5):
                await client.call("work", 0.001, policy=policy)
        async with trio.open_nursery() as nursery:
            for step in range(120):
                nursery.start_soon(cancelled_after, client, step * 4e-5, policy)
    stats = client.stats()
    assert stats["cancelled"] > 120 and stats["answered"] > 100, (
        "the cancels came in time, and the calls after them ran"
    )


async def cancelled_after(client: tiedreq.Client, seconds: float, policy: Policy, args: Any = 0.001) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.call("work", args, policy=policy))
            await trio.sleep(seconds)
            scope.cancel()


async def test_cancels_in_the_very_pass_of_the_start(autojump_clock: MockClock) -> None:
    """B03 without a clock: the cancel comes so many scheduling passes after the call."""
    cluster = LocalCluster(bench_service(), replicas=2, slots=1)
    async with stormy(cluster) as client:
        for policy in (Plain(), Tied(backup=None), Tied(backup=None, stagger=0.0)):
            for passes in range(40):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(client.call, "work", 1, policy=policy))
                    for _ in range(passes):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
                for handle in cluster.handles.values():
                    status = handle.status()
                    assert status["running"] == len(handle._server.executions) <= 1
                    assert status["free"] == 1 - status["running"]


@pytest.mark.parametrize("seed", range(2))
async def test_everything_at_once(autojump_clock: MockClock, seed: int) -> None:
    rng = random.Random(seed)
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=4, slots=2, mesh_latency=0.002, client_latency=0.001)

    async def caller(client: tiedreq.Client) -> None:
        for _ in range(6):
            policy = rng.choice(POLICIES)
            seconds, timeout = rng.expovariate(200), rng.expovariate(50)
            try:
                with trio.move_on_after(rng.expovariate(50)):
                    await client.call("work", seconds, policy=policy, timeout=timeout)
            except DeadlineExceeded:
                pass
            await trio.sleep(rng.expovariate(100))

    async with stormy(cluster) as client, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(caller, client)
    assert not journal.running
    assert {"returned", "cancelled"} == set(journal.ends())


@pytest.mark.parametrize("seed", range(2))
async def test_everything_at_once_while_links_break(autojump_clock: MockClock, seed: int) -> None:
    rng = random.Random(seed)
    cluster = LocalCluster(bench_service(), replicas=4, slots=2, mesh_latency=0.002, client_latency=0.001)
    names = [*cluster.names, "client"]

    async def caller(client: tiedreq.Client) -> None:
        for _ in range(6):
            try:
                with trio.move_on_after(rng.expovariate(10)):
                    await client.call("work", rng.expovariate(100), policy=rng.choice(POLICIES), timeout=3)
            except tiedreq.CallError:
                pass

    async def trouble() -> None:
        for _ in range(30):
            one, other = rng.sample(names, 2)
            if rng.random() < 0.7:
                cluster.network.cut(one, other)
            else:
                cluster.network.hold(one, other)
            await trio.sleep(rng.expovariate(20))
        cluster.network.heal()

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            for _ in range(60):
                nursery.start_soon(caller, client)
        await trio.sleep(10)
        await assert_idle(cluster, client)
        found = await gather(*[lambda: client.tied_call("work", 0.001, timeout=60)] * 50)
        assert set(found) <= set(cluster.names)


async def test_the_notice_overtakes_the_copy(autojump_clock: MockClock) -> None:
    """B02: what goes to one replica is late; the notices of the other are not."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, mesh_latency=0.0)
    async with stormy(cluster) as client:
        for slow in cluster.names:
            started = len(journal)
            cluster.network.hold("client", slow)
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(lambda: client.tied_call("work", 0.3, policy=Tied(backup=None, stagger=0.0)))
                await trio.sleep(0.1)
                assert cluster.handles[slow].sizes()["markers"] > 0
                cluster.network.release("client", slow)
            # Only those whose first copy was the held one started there; no call started twice.
            assert len(journal) - started == 50
        assert sum(handle.status()["dropped_by_peer"] for handle in cluster.handles.values()) > 0
        assert all(handle.sizes()["markers"] == 0 for handle in cluster.handles.values())


async def test_a_cancel_takes_back_what_has_not_left(autojump_clock: MockClock) -> None:
    """B07: a copy cancelled before its frame is written is never written."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=1)
    async with stormy(cluster) as client:
        cluster.network.hold("client", "r0")
        blocker = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            with blocker:
                nursery.start_soon(lambda: client.call("size", bytes(2_000_000)))
            await trio.sleep(0.05)
            for _ in range(20):
                nursery.start_soon(client.call, "work", 60)
            await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        cluster.network.release("client", "r0")
        await trio.sleep(1)
        assert cluster.handles["r0"].status()["calls"] == len(journal) == 0
        assert next(iter(client._links.values())).statistics.times_up == 1


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_large_message_given_up_half_way_tears_nothing(autojump_clock: MockClock, how: str) -> None:
    """B24: the caller goes away while its copy is being written; the link and its other calls go on."""
    cluster = LocalCluster(bench_service(), replicas=1)
    async with stormy(cluster) as client:
        for size in (100_000, 1_000_000, 10_000_000):
            cluster.network.hold("client", "r0")
            outcome: list[str] = []

            async def large(size: int = size, outcome: list[str] = outcome) -> None:
                try:
                    with trio.move_on_after(0.2 if how == "cancel" else 60) as scope:
                        await client.call("size", bytes(size), timeout=60 if how == "cancel" else 0.2)
                    outcome.append("cancelled" if scope.cancelled_caught else "answered")
                except DeadlineExceeded:
                    outcome.append("expired")

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(large)
                nursery.start_soon(client.call, "work", 0.1)
                await trio.sleep(0.3)
                cluster.network.release("client", "r0")
            assert outcome == [{"cancel": "cancelled", "deadline": "expired"}[how]] * 3
            assert await client.call("size", bytes(size)) == size
        assert next(iter(client._links.values())).statistics.times_up == 1


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        (HEDGED, 524_288),
        (HEDGED, 10_000_000),
        (Tied(backup=None, stagger=0.0), 524_288),
        (Tied(backup=None, stagger=0.0, yield_=False), 10_000_000),
        (Tied(backup=Backup(after=0.01)), 524_288),
    ],
)
async def test_cancelling_the_losers_leaves_the_winner_alone(
    autojump_clock: MockClock, policy: Policy, size: int
) -> None:
    """B06: large answers, from both copies at nearly the same time."""
    service = tiedreq.Service("s")

    @service.method(idempotent=True)
    async def fetch(ctx: tiedreq.Context, args: Any) -> bytes:
        await trio.sleep(seconds_at(args, ctx.replica))
        return ctx.replica[-1].encode() * size

    cluster = LocalCluster(service, replicas=2, mesh_latency=0.2)
    async with cluster as client, no_task_left():
        for args in (0.02, {"r0": 0.03, "r1": 0.02}, {"r0": 0.02, "r1": 0.021}):
            for found in await gather(*[partial(client.call, "fetch", args, policy=policy)] * 2):
                assert len(found) == size and len(set(found)) == 1
        await assert_idle(cluster, client)
        assert client.stats()["failovers"] == 0


async def test_both_legs_finish_at_once(autojump_clock: MockClock) -> None:
    """B07: hedged calls whose answers come within a millisecond of each other, at either side of the deadline."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, client_latency=0.0005)
    rng = random.Random(7)
    async with stormy(cluster) as client:
        for _ in range(20):
            times = [{"r0": 0.01 + rng.random() * 0.002, "r1": 0.001 + rng.random() * 0.002} for _ in range(50)]
            calls = [partial(client.hedged_call, "work", args, policy=HEDGED, timeout=0.06) for args in times]
            found = await gather(*calls)
            assert set(found) <= {"r0", "r1"}
        assert client.stats()["backups_sent"] > 100


async def test_a_deadline_soon_after_the_hedge(autojump_clock: MockClock) -> None:
    """B07: deadline 60 ms, hedge delay 10 ms, replicas that are slower than that."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, slots=300)
    async with stormy(cluster) as client:
        call = partial(client.hedged_call, "work", 0.5, policy=HEDGED, timeout=0.06)
        found = await gather(*[call] * 500)
        assert {type(each) for each in found} == {DeadlineExceeded}
        await trio.sleep(0.01)
        assert not journal.running


async def test_a_replica_that_cannot_be_reached_harms_nobody(autojump_clock: MockClock) -> None:
    """B07: one leg would be stuck in connecting (a black hole); it is no target."""
    cluster = LocalCluster(bench_service(), replicas=3, timeout=2)
    cluster.network.partition(["client"], ["r2"])
    async with cluster as client:
        assert sorted(client.stats()["replicas"]) == ["r0", "r1"]
        async with no_task_left():
            for _ in range(50):
                assert await client.hedged_call("work", 0.02, policy=HEDGED) in ("r0", "r1")
                with trio.move_on_after(0.01):
                    await client.tied_call("work", 1)
            await assert_idle(cluster, client)
        cluster.network.heal()
        await trio.sleep(10)
        assert sorted(client.stats()["replicas"]) == ["r0", "r1", "r2"]


async def test_cancelled_while_queued_the_gauges_equal_the_queue(autojump_clock: MockClock) -> None:
    """B47: a thousand queued calls, cancelled in every order."""
    rng, journal = random.Random(5), Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1, mesh_latency=0.001)
    async with stormy(cluster) as client, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(1000)]

        async def call(scope: trio.CancelScope) -> None:
            with scope:
                await client.call("work", 60, policy=Tied(backup=None, stagger=0.0), timeout=60)

        for scope in scopes:
            nursery.start_soon(call, scope)
        await trio.sleep(0.1)
        rng.shuffle(scopes)
        for count, scope in enumerate(scopes, 1):
            scope.cancel()
            if count % 50 == 0:
                await trio.sleep(0.01)
                running = sum(handle.status()["running"] for handle in cluster.handles.values())
                assert running == len(journal.running) <= 2
                for handle in cluster.handles.values():
                    core, sizes = handle._server.core, handle.sizes()
                    waiting = list(core._queue)
                    assert handle.status()["queue"] == sizes["queue"] == len(waiting)
                    assert len(waiting) == 1000 - count - running, "what was not cancelled waits, unless it runs"
                    assert sizes["copies"] == sizes["queue"] + handle.status()["running"]
                    assert len({held.id for held in waiting}) == len(waiting)


async def test_a_flood_of_early_notices_stays_within_its_bound(autojump_clock: MockClock) -> None:
    """Every staggered call leaves a notice without a copy at the other replica: bounded in number and in age."""
    limits = ReplicaLimits(markers_per_peer_max=50, marker_age_max=1.0)
    cluster = LocalCluster(bench_service(), replicas=2, limits=limits)
    async with cluster as client:
        for _ in range(300):
            await client.tied_call("work", 0.001)
            assert all(handle.sizes()["markers"] <= 50 for handle in cluster.handles.values())
        await trio.sleep(2)
        assert all(handle.sizes()["markers"] == 0 for handle in cluster.handles.values())
        await assert_idle(cluster, client)
