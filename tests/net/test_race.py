"""Tied calls on idle replicas: with the automatic stagger one copy starts; without, both, and one of them yields."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from tests.net.bench import Journal, assert_idle, bench_service, gather
from tiedreq import Tied
from tiedreq.testing import LocalCluster

CALLS = 150
SERVICE = 0.1


def counted(cluster: LocalCluster, name: str) -> float:
    return float(sum(handle.status()[name] for handle in cluster.handles.values()))


@pytest.mark.parametrize("client_latency", [0.0, 0.001])
@pytest.mark.parametrize("mesh_latency", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("replicas", [2, 4])
async def test_automatic_stagger_on_idle_replicas(
    autojump_clock: MockClock, mesh_latency: float, client_latency: float, replicas: int
) -> None:
    journal = Journal()
    cluster = LocalCluster(
        bench_service(journal), replicas=replicas, mesh_latency=mesh_latency, client_latency=client_latency
    )
    async with cluster as client:
        for _ in range(CALLS):
            await client.tied_call("work", 0.005)
        assert journal.doubled < 0.01 * CALLS
        assert journal.doubled == counted(cluster, "double_starts")
        assert client.stats()["answered"] == CALLS
        await assert_idle(cluster, client)


@pytest.mark.parametrize("mesh_latency", [0.001, 0.01])
async def test_automatic_stagger_at_a_tenth_of_the_load(autojump_clock: MockClock, mesh_latency: float) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=4, slots=8, mesh_latency=mesh_latency, client_latency=0.001)
    rng = random.Random(1)
    async with cluster as client, trio.open_nursery() as nursery:
        for _ in range(CALLS):
            nursery.start_soon(client.tied_call, "work", rng.expovariate(1 / 0.01))
            await trio.sleep(rng.expovariate(320))
    assert journal.doubled < 0.01 * CALLS


@pytest.mark.parametrize("client_latency", [0.0, 0.001])
@pytest.mark.parametrize("mesh_latency", [0.001, 0.01])
async def test_without_stagger_both_start_and_one_yields(
    autojump_clock: MockClock, mesh_latency: float, client_latency: float
) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), mesh_latency=mesh_latency, client_latency=client_latency)
    async with cluster as client:
        replies = [await client.request("work", SERVICE, policy=Tied(backup=None, stagger=0.0)) for _ in range(CALLS)]
        assert journal.doubled > 0.95 * CALLS
        assert counted(cluster, "double_starts") == counted(cluster, "yielded") == journal.doubled
        assert counted(cluster, "done") == CALLS == client.stats()["answered"]
        # The lower rank goes on and wins; the higher one ran for about a notice latency.
        assert {run.rank for run in journal.runs if run.end == "cancelled"} == {1}
        assert {run.rank for run in journal.runs if run.end == "returned"} == {0}
        assert all(reply.kind == "first" for reply in replies)
        wasted = counted(cluster, "wasted_seconds") / CALLS
        assert 0.9 * mesh_latency <= wasted <= 2.1 * mesh_latency
        await assert_idle(cluster, client)


@pytest.mark.parametrize("copies", [3, 4])
async def test_more_copies_than_two(autojump_clock: MockClock, copies: int) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=4, mesh_latency=0.005)
    async with cluster as client:
        for _ in range(50):
            await client.tied_call("work", SERVICE, policy=Tied(backup=None, copies=copies, stagger=0.0))
        assert counted(cluster, "yielded") == 50 * (copies - 1)
        assert {run.rank for run in journal.runs if run.end == "returned"} == {0}
        await assert_idle(cluster, client)
        started = len(journal)
        for _ in range(50):
            await client.tied_call("work", SERVICE, policy=Tied(backup=None, copies=copies))
        assert len(journal) == started + 50
        await assert_idle(cluster, client)


async def test_queued_copies_are_dropped_by_the_one_that_starts(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1, mesh_latency=0.001)
    async with cluster as client:
        answers = await gather(*[lambda: client.tied_call("work", 0.05, timeout=60) for _ in range(100)])
        assert set(answers) == {"r0", "r1"}
        assert journal.doubled <= 5
        assert counted(cluster, "dropped_by_peer") > 50
        assert counted(cluster, "failed") == counted(cluster, "expired") == counted(cluster, "refused") == 0
        await assert_idle(cluster, client)


async def test_a_lost_mesh_costs_duplicates_and_no_call(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, mesh_latency=0.001)
    async with cluster as client:
        cluster.network.partition(["r0"], ["r1"])
        await trio.sleep(2)
        for _ in range(20):
            await client.tied_call("work", SERVICE, policy=Tied(backup=None, stagger=0.0))
        assert journal.doubled == 20
        cluster.network.heal()
        await trio.sleep(5)
        for _ in range(20):
            await client.tied_call("work", SERVICE)
        assert journal.doubled == 20
        await assert_idle(cluster, client)
