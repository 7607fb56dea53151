"""A handler that stands still where all that was seen says that no backup is worth it: it is rescued all the same."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tiedreq import Backup, Hedged, Policy, Tied
from tiedreq.testing import LocalCluster

USUAL, STANDSTILL = 0.005, 1000.0


class Pace:
    """How long a handler takes at each replica, and how many have begun."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun = 0

    def service(self) -> tiedreq.Service:
        service = tiedreq.Service("pace")

        @service.method(idempotent=True)
        async def work(ctx: tiedreq.Context, args: Any) -> None:
            self.begun += 1
            await trio.sleep(self.seconds.get(ctx.replica, USUAL))

        return service


@pytest.mark.parametrize("policy", [Tied(), Hedged(), Hedged(Backup(since="send"))], ids=repr)
@pytest.mark.parametrize(("seen", "within"), [(1, 1.1), (40, 0.3), (1000, 0.3)])
async def test_a_call_is_rescued(autojump_clock: MockClock, policy: Policy, seen: int, within: float) -> None:
    pace = Pace()
    cluster = LocalCluster(pace.service(), replicas=4)
    async with cluster as client:
        for _ in range(seen):
            await client.request("work", policy=policy)
        pace.seconds[cluster.names[0]] = STANDSTILL
        rescued = 0
        for _ in range(40):
            reply = await client.request("work", policy=policy, timeout=20.0)
            assert reply.latency < within
            rescued += reply.kind == "backup"
        assert rescued >= 1


async def test_without_a_budget_it_waits(autojump_clock: MockClock) -> None:
    pace = Pace()
    cluster = LocalCluster(pace.service(), replicas=1 + 1)
    async with cluster as client:
        policy = Hedged(Backup(since="send", budget=0.0))
        for _ in range(40):
            await client.request("work", policy=policy)
        pace.seconds = dict.fromkeys(cluster.names, STANDSTILL)
        begun = pace.begun
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.request("work", policy=policy, timeout=20.0)
        assert pace.begun == begun + 1


async def test_a_service_that_grows_slow_is_not_doubled(autojump_clock: MockClock) -> None:
    """What has ended says what is long from then on."""
    pace = Pace()
    cluster = LocalCluster(pace.service(), replicas=4)
    async with cluster as client:
        for _ in range(200):
            await client.request("work", policy=Tied())
        pace.seconds = dict.fromkeys(cluster.names, 200 * USUAL)
        begun = pace.begun
        for _ in range(30):
            await client.request("work", policy=Tied())
        assert pace.begun - begun <= 30 + 4
