"""Outcomes are counted apart, and the sums hold: B46, B47."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather
from tiedreq import Backup, Failure, Hedged, Plain, Tied
from tiedreq.testing import LocalCluster

ENDS = ("done", "failed", "dropped_by_peer", "yielded", "cancelled", "expired", "refused")


def counted(cluster: LocalCluster, *names: str) -> dict[str, int]:
    return {name: sum(handle.status()[name] for handle in cluster.handles.values()) for name in names}


def total(cluster: LocalCluster, *names: str) -> int:
    return sum(counted(cluster, *names).values())


async def test_losing_is_no_error(autojump_clock: MockClock) -> None:
    """B46: half of the calls are hedged, all succeed: nothing counts as failed."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=4, mesh_latency=0.001)
    rng = random.Random(1)
    policy = Hedged(Backup(after=0.01, since="send", max_per_call=1, budget=None))
    async with cluster as client:
        for _ in range(300):
            slow = 0.05 if rng.random() < 0.5 else 0.001
            await client.hedged_call("work", slow, policy=policy)
        await assert_idle(cluster, client)
        stats = client.stats()
        assert (stats["answered"], stats["failed"], stats["cancelled"]) == (300, 0, 0)
        assert 100 < stats["backups_sent"] < 200 and stats["backups_won"] == 0
        assert counted(cluster, "failed", "expired", "refused") == {"failed": 0, "expired": 0, "refused": 0}
        assert counted(cluster, "done")["done"] == 300
        assert total(cluster, "cancelled") == stats["backups_sent"], "each loser was cancelled, and is told apart"


async def test_real_errors_are_not_hidden_by_the_winners(autojump_clock: MockClock) -> None:
    """B46: one replica fails one call in ten: its failures are its own, however the calls went."""
    rng = random.Random(2)
    service = bench_service()

    @service.method(idempotent=True)
    async def shaky(ctx: tiedreq.Context, args: Any) -> None:
        await trio.sleep(0.001)
        if ctx.replica == "r1" and rng.random() < 0.1:
            raise Failure("shaky", "", retryable=True)

    cluster = LocalCluster(service, replicas=3, mesh_latency=0.001)
    async with cluster as client:
        for _ in range(400):
            await client.tied_call("shaky")
        await assert_idle(cluster, client)
        failed = {name: handle.status()["failed"] for name, handle in cluster.handles.items()}
        done = {name: handle.status()["done"] for name, handle in cluster.handles.items()}
        assert failed["r0"] == failed["r2"] == 0 and failed["r1"] > 3
        assert 0.03 < failed["r1"] / (failed["r1"] + done["r1"]) < 0.25
        assert client.stats()["answered"] == 400 and client.stats()["failed"] == 0
        assert client.stats()["failovers"] == failed["r1"]


@pytest.mark.parametrize("seed", range(3))
async def test_the_sums_hold_at_all_times(autojump_clock: MockClock, seed: int) -> None:
    rng = random.Random(seed)
    journal = Journal()
    service = bench_service(journal)

    @service.method(idempotent=True)
    async def mixed(ctx: tiedreq.Context, args: Any) -> str:
        await trio.sleep(rng.expovariate(200))
        if rng.random() < 0.1:
            raise Failure("mixed", "", retryable=rng.random() < 0.5)
        return ctx.kind

    policies: list[tiedreq.Policy] = [
        Plain(),
        Tied(backup=None),
        Tied(backup=None, stagger=0.0),
        Tied(backup=None, exclusive=True, stagger=0.0),
        Tied(stagger=0.0, backup=Backup(after=0.002)),
        Hedged(Backup(after=0.004, since="send")),
    ]
    kinds: list[str] = []
    limits = tiedreq.ReplicaLimits(queue_length_max=20)
    cluster = LocalCluster(service, replicas=3, slots=2, mesh_latency=0.001, limits=limits)

    async def call(client: tiedreq.Client) -> None:
        try:
            with trio.move_on_after(rng.expovariate(20)):
                reply = await client.request("mixed", policy=rng.choice(policies), timeout=rng.expovariate(20))
                kinds.append(reply.kind)
        except tiedreq.CallError:
            pass

    def check(client: tiedreq.Client) -> None:
        stats = client.stats()
        open_calls = stats["calls"] - stats["answered"] - stats["failed"] - stats["cancelled"]
        assert open_calls == stats["in_flight"]
        assert stats["answered"] >= stats["backups_won"]
        for handle in cluster.handles.values():
            status, sizes = handle.status(), handle.sizes()
            core = handle._server.core
            assert status["free"] + status["running"] == status["slots"]
            assert status["queue"] == sizes["queue"] == len(list(core._queue))
            assert status["calls"] == sum(status[end] for end in ENDS) + sizes["copies"]
            assert status["started"] >= status["done"] + status["failed"] + status["yielded"]
            assert sizes["executions"] == sizes["tasks"] == status["running"]

    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for _ in range(250):
                nursery.start_soon(call, client)
                await trio.sleep(rng.expovariate(500))
                check(client)
        check(client)
        await assert_idle(cluster, client)
        stats = client.stats()
        assert stats["answered"] == len(kinds)
        assert stats["backups_won"] == kinds.count("backup"), "primary wins and backup wins make all answers"
        submitted = total(cluster, "calls")
        assert submitted <= stats["copies_sent"], "what was cancelled before it left was never there"


async def test_wasted_and_busy_seconds(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, mesh_latency=0.01)
    async with cluster as client:
        for _ in range(10):
            await client.tied_call("work", 0.1, policy=Tied(backup=None, stagger=0.0))
        await client.call("work", 0.5)
        with trio.move_on_after(0.2):
            await client.call("work", 5)
        await assert_idle(cluster, client)
        busy = sum(handle.status()["busy_seconds"] for handle in cluster.handles.values())
        wasted = sum(handle.status()["wasted_seconds"] for handle in cluster.handles.values())
        seen = sum((run.ended or 0) - run.began for run in journal.runs)
        assert busy == pytest.approx(seen)
        assert wasted == pytest.approx(
            sum((run.ended or 0) - run.began for run in journal.runs if run.end != "returned")
        )


async def test_status_is_plain_and_asked_over_the_wire(autojump_clock: MockClock) -> None:
    import json

    cluster = LocalCluster(bench_service(), replicas=3)
    async with cluster as client:
        await gather(*[partial(client.tied_call, "work", 0.1)] * 10)
        found = await client.replica_status()
        assert sorted(found) == ["r0", "r1", "r2"]
        for name, status in found.items():
            assert json.loads(json.dumps(status)) == status
            here = cluster.handles[name].status()
            assert status["done"] == here["done"] and status["links"].keys() == here["links"].keys()
            assert all(link["up"] and link["notice_latency_ms"] > 0 for link in here["links"].values())
        cluster.network.partition(["client"], ["r1"])
        before = trio.current_time()
        assert sorted(await client.replica_status(timeout=0.5)) == ["r0", "r2"]
        assert trio.current_time() - before == pytest.approx(0.5)
        cluster.network.heal()
        with trio.move_on_after(0) as scope:
            await client.replica_status()
        assert scope.cancelled_caught and not client._inquiries._waiting


async def test_a_copy_that_was_taken_back_before_it_left_is_no_load_of_its_replica(autojump_clock: MockClock) -> None:
    """Else a replica would look busier with each of them, and get less and less to do."""
    async with LocalCluster(bench_service(), replicas=3) as client:
        taken_back = []
        for link in client._links.values():
            sending = link.sending
            discard = sending.discard
            sending.discard = lambda copy, discard=discard: discard(copy) and (taken_back.append(copy) or True)  # type: ignore[method-assign]
        for _ in range(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call, "work", 0.01)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        await trio.sleep(1)
        await gather(*[partial(client.call, "work", 0.01, policy=Plain()) for _ in range(12)])
        assert len(taken_back) > 2
        assert [view.unreported() for view in client._replicas.views()] == [0, 0, 0]
