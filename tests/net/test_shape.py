"""The mesh under shaping while it runs: latencies changed, replicas cut off from each other, one way and both."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from tests.net.bench import Journal, bench_service, until
from tiedreq import BadOption, Tied
from tiedreq.net.serving import serve
from tiedreq.testing import LocalCluster
from tiedreq.units import parse_latency

SILENT = 5.0
"""Long enough for a silent peer to be lost and for several attempts to reach it again."""


def linked(cluster: LocalCluster, one: str, other: str) -> bool:
    return bool(cluster.handles[one].status()["links"][other]["up"])


async def test_cut_off_both_ways_and_back(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(Journal()), replicas=3, mesh_latency=0.0)
    async with cluster as client:
        cluster.handles["r0"].set_blocked_peers(["r1"])
        cluster.handles["r1"].set_blocked_peers(["r0"])
        await trio.sleep(SILENT)
        assert not linked(cluster, "r0", "r1") and not linked(cluster, "r1", "r0")
        assert linked(cluster, "r0", "r2") and linked(cluster, "r1", "r2")
        for _ in range(20):
            await client.request("work", {"seconds": 0.01}, policy=Tied(backup=None))
        for handle in cluster.handles.values():
            handle.set_blocked_peers([])
        with trio.fail_after(SILENT):
            await until(lambda: linked(cluster, "r0", "r1") and linked(cluster, "r1", "r0"))


@pytest.mark.parametrize(("source", "target"), [("r0", "r1"), ("r1", "r0")])
async def test_cut_off_one_way_is_as_good_as_both(autojump_clock: MockClock, source: str, target: str) -> None:
    """Whoever dials: the other side hears nothing, no Welcome either, and the link stays down."""
    cluster = LocalCluster(bench_service(Journal()), replicas=2, mesh_latency=0.0)
    async with cluster:
        cluster.handles[source].set_blocked_peers([target])
        await trio.sleep(SILENT)
        for _ in range(100):
            assert not linked(cluster, "r0", "r1") and not linked(cluster, "r1", "r0")
            await trio.sleep(0.1)
        cluster.handles[source].set_blocked_peers([])
        with trio.fail_after(SILENT):
            await until(lambda: linked(cluster, "r0", "r1") and linked(cluster, "r1", "r0"))


async def test_latency_from_none_and_back(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(Journal()), replicas=2, mesh_latency=0.0)
    async with cluster:

        async def measured(expected: str, low: float, high: float) -> None:
            for handle in cluster.handles.values():
                handle.set_mesh_latency(parse_latency(expected))
            with trio.fail_after(30):
                await until(
                    lambda: all(
                        low <= link["notice_latency_ms"] <= high
                        for handle in cluster.handles.values()
                        for link in handle.status()["links"].values()
                    )
                )

        await measured("20ms", 19, 21)
        await measured("0", 0, 0.5)


async def test_links_that_were_not_made_for_it_are_not_shaped() -> None:
    async with trio.open_nursery() as nursery:
        handle = await nursery.start(partial(serve, bench_service(), name="r0"))
        with pytest.raises(BadOption, match="mesh_latency: this replica was started without one"):
            handle.set_blocked_peers(["r1"])
        nursery.cancel_scope.cancel()
