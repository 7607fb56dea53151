"""Races as plain values, from calls of a real client and replicas in virtual time."""

from __future__ import annotations

import json
from typing import Any

import trio
from trio.testing import MockClock

from cluster.racing import RACES, choose, find_races
from tests.net.bench import bench_service
from tiedreq import Tied
from tiedreq.testing import LocalCluster

AT_ONCE = Tied(backup=None, stagger=0.0)
FIELDS = {"copy", "replica", "kind", "sent_ms", "arrived_ms", "started_ms", "ended_ms", "end", "winner"}


async def race_at_busy_replicas() -> tuple[list[dict[str, Any]], list[Any]]:
    """Two replicas with a slot each, busy for 50 and 80 ms, and a tied call that waits at both."""
    cluster = LocalCluster(bench_service(), replicas=2, slots=1, mesh_latency=0.003)
    async with cluster as client, trio.open_nursery() as nursery:
        for seconds in (0.05, 0.08):
            nursery.start_soon(client.call, "work", seconds)
            await trio.sleep(0.001)
        await client.request("work", 0.02, policy=AT_ONCE)
        await trio.sleep(0.2)
        assert client.observer is not None
        return await find_races(client), client.observer.snapshot(recent=10)["recent"]


async def test_the_start_the_notice_and_the_drop(autojump_clock: MockClock) -> None:
    (race,), _ = await race_at_busy_replicas()
    assert json.loads(json.dumps(race)) == race
    assert race["outcome"] == "answered" and race["policy"] == "Tied" and race["method"] == "work"
    won = next(bar for bar in race["bars"] if bar["winner"])
    lost = next(bar for bar in race["bars"] if not bar["winner"])
    assert set(won) == FIELDS and won["replica"] == race["winner"] != lost["replica"]
    assert lost["started_ms"] is None and lost["end"] == "dropped: started"
    (notice,) = [notice for notice in race["notices"] if notice["kind"] == "started"]
    assert (notice["copy"], notice["from"], notice["to"]) == (won["copy"], won["replica"], lost["replica"])
    assert abs(notice["sent_ms"] - won["started_ms"]) < 0.5
    assert abs(notice["heard_ms"] - notice["sent_ms"] - 3) < 0.5, "the latency between the replicas"
    assert abs(notice["heard_ms"] - lost["ended_ms"]) < 0.5, "dropped as soon as it was heard"


async def test_which_calls_are_chosen(autojump_clock: MockClock) -> None:
    _, recent = await race_at_busy_replicas()
    (raced,) = [call for call in recent if len(call["copies"]) > 1]
    single = next(call for call in recent if len(call["copies"]) == 1)

    def variant(number: int, **changes: Any) -> Any:
        copies = [{**copy, "end": "lost the race", "started": None, **changes} for copy in raced["copies"]]
        return {**raced, "call_id": str(number), "began": float(number), "copies": copies}

    assert choose([]) == [] and choose([single]) == []
    plain = [variant(number) for number in range(10)]
    assert [call["call_id"] for call in choose(plain)] == ["7", "8", "9"]
    dropped, doubled = variant(20, end="dropped: started"), variant(21, started=0.01)
    chosen = choose([dropped, doubled, *plain, single])
    assert len(chosen) == RACES
    assert [call["call_id"] for call in chosen] == ["9", "20", "21"]
