"""A replica that is lost costs a failover, not a call, also where it takes hundreds of calls along."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

import tiedreq
from tiedreq import Plain
from tiedreq.testing import LocalCluster


async def test_calls_that_take_long_outlive_their_replica(autojump_clock: MockClock) -> None:
    service = tiedreq.Service("slow")

    @service.method(idempotent=True)
    async def work(ctx: tiedreq.Context, args: Any) -> str:
        await trio.sleep(20.0)
        return ctx.replica

    cluster = LocalCluster(service, replicas=2, slots=2000)
    answers: list[str] = []
    async with cluster as client:

        async def one() -> None:
            answers.append(await client.call("work", policy=Plain(), timeout=120.0))

        async with trio.open_nursery() as nursery:
            for number in range(4000):
                nursery.start_soon(one)
                await trio.sleep(0.04)  # 500 at a time, of which each replica has half
                if number == 3000:
                    cluster.stop(cluster.names[0])
        assert len(answers) == 4000
        assert set(answers[-100:]) == {cluster.names[1]}
