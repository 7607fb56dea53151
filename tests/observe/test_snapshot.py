"""The pictures of replicas and clients: they say what happened, and JSON can carry them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.options import Observe
from tiedreq.testing import LocalCluster


async def test_a_tied_call_is_seen_at_both_replicas_and_at_the_client(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1)
    async with cluster as client:
        reply = await client.request("nap", 0.030, policy=tiedreq.Tied(stagger=0.0, backup=None))
        await trio.sleep(0.1)
        assert client.observer is not None
        picture = json.loads(json.dumps(client.observer.snapshot()))
        winner = cluster.handles[reply.replica].snapshot()
        other = next(handle for name, handle in cluster.handles.items() if name != reply.replica).snapshot()

    (row,) = picture["methods"]
    assert (row["method"], row["policy"], row["calls"]) == ("nap", "Tied", 1)
    assert row["outcomes"] == {"answered": 1}
    assert row["useful_seconds"] == pytest.approx(0.030)
    (call,) = picture["recent"]
    assert call["call_id"] == reply.call_id and call["outcome"] == "answered" and call["replica"] == reply.replica
    assert call["latency"] == pytest.approx(reply.latency)
    copies = {copy["replica"]: copy for copy in call["copies"]}
    assert set(copies) == {"r0", "r1"}
    assert copies[reply.replica]["winner"] and copies[reply.replica]["service_time"] == pytest.approx(0.030)

    assert winner["methods"]["nap"]["answered"] == 1
    assert winner["methods"]["nap"]["service"]["count"] == 1
    assert winner["methods"]["nap"]["service"]["sum"] == pytest.approx(0.030)
    assert other["methods"]["nap"]["answered"] == 0
    assert winner["counters"]["submitted"] == other["counters"]["submitted"] == 1
    assert sum(other["endings"]["yielded" if other["methods"]["nap"]["wasted"] else "dropped"].values()) == 1
    assert row["duplicate_executions"] == other["methods"]["nap"]["wasted"] == other["counters"]["started"]


async def test_gauges_are_those_of_the_queue(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1, slots=1)
    async with cluster as client, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(client.call, "nap", 1.0)
        await trio.sleep(0.5)
        picture = json.loads(json.dumps(cluster.handles["r0"].snapshot()))
        assert (picture["queue"], picture["running"], picture["free"]) == (3, 1, 0)
        assert picture["methods"]["nap"]["running"] == 1
        assert picture["ready"] and picture["callers"] == 1
        assert client.observer is not None and client.observer.snapshot()["in_flight"] == 4
        nursery.cancel_scope.cancel()


async def test_failures_are_counted_by_outcome(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1)
    async with cluster as client:
        with pytest.raises(tiedreq.RemoteFailure):
            await client.call("fail")
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("nap", 5.0, timeout=0.1)
        await trio.sleep(0.1)
        assert client.observer is not None
        rows = {row["method"]: row for row in client.observer.snapshot()["methods"]}
        methods = cluster.handles["r0"].snapshot()["methods"]
    assert rows["fail"]["outcomes"] == {"failed": 1} and rows["nap"]["outcomes"] == {"deadline": 1}
    assert methods["fail"]["failed"] == 1 and methods["fail"]["service"]["count"] == 1
    assert methods["nap"]["wasted"] == 1 and methods["nap"]["wasted_seconds"] == pytest.approx(0.1, rel=0.1)


async def test_rings_have_a_limit_and_the_newest_stay(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1)
    async with cluster as client:
        assert client.observer is not None
        ids = [(await client.request("nap", 0.001)).call_id for _ in range(80)]
        assert [call["call_id"] for call in client.observer.snapshot(recent=5)["recent"]] == ids[-5:]
        assert client.observer.snapshot(recent=0)["recent"] == []
        assert len(client.observer.calls.copies) == 80


def test_limits_are_checked() -> None:
    with pytest.raises(tiedreq.BadOption, match="records"):
        Observe(records=0)
    with pytest.raises(tiedreq.BadOption, match="calls"):
        Observe(calls=10**9)
