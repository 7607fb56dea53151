"""A replica that is lost costs a failover, not a call, also where it takes hundreds of calls along."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tiedreq import Plain, Policy, Tied
from tiedreq.testing import LocalCluster


def slow_service(seconds: float) -> tiedreq.Service:
    """``work`` takes so long and names its replica."""
    service = tiedreq.Service("slow")

    @service.method(idempotent=True)
    async def work(ctx: tiedreq.Context, args: Any) -> str:
        await trio.sleep(seconds)
        return ctx.replica

    return service


async def test_calls_that_take_long_outlive_their_replica(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(slow_service(20.0), replicas=2, slots=2000)
    answers: list[str] = []
    async with cluster as client:

        async def one() -> None:
            answers.append(await client.call("work", policy=Plain(), timeout=120.0))

        async with trio.open_nursery() as nursery:
            for number in range(1500):
                nursery.start_soon(one)
                await trio.sleep(0.04)  # 500 at a time, of which each replica has half
                if number == 1000:
                    cluster.stop(cluster.names[0])
        assert len(answers) == 1500
        assert set(answers[-100:]) == {cluster.names[1]}


@pytest.mark.parametrize("policy", [Plain(), Tied()], ids=repr)
@pytest.mark.parametrize("drained", [False, True], ids=["lost", "drained"])
async def test_so_do_the_first_calls_of_a_client(autojump_clock: MockClock, policy: Policy, drained: bool) -> None:
    """A thousand at once, as a batch makes them: two of four replicas leave, one soon after the other."""
    cluster = LocalCluster(slow_service(1.0), replicas=4, slots=100 if drained else 1000)
    ends: Counter[str] = Counter()
    async with cluster as client:

        async def one() -> None:
            try:
                ends[await client.call("work", policy=policy, timeout=60.0)] += 1
            except tiedreq.CallError as error:
                ends[type(error).__name__] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(one)
            for name in cluster.names[:2]:
                await trio.sleep(0.4)
                if drained:
                    cluster.handles[name].drain()
                else:
                    cluster.stop(name)
        assert sum(ends.values()) == 1000 and set(ends) <= set(cluster.names), ends


async def test_a_large_loss_leaves_the_few_calls_after_it_their_failovers(autojump_clock: MockClock) -> None:
    """Two thousand calls lose a replica; a second later twenty lose another one, and twenty seconds later a third."""
    cluster = LocalCluster(slow_service(0.5), replicas=4, slots=2000)
    async with cluster as client:

        async def calls(number: int, lost: str) -> list[str]:
            answers: list[str] = []

            async def one() -> None:
                answers.append(await client.call("work", policy=Plain(), timeout=60.0))

            async with trio.open_nursery() as nursery:
                for _ in range(number):
                    nursery.start_soon(one)
                await trio.sleep(0.2)
                cluster.stop(lost)
            return answers

        assert len(await calls(2000, "r0")) == 2000
        await trio.sleep(1.0)
        assert len(await calls(20, "r1")) == 20
        await trio.sleep(20.0)
        assert set(await calls(20, "r2")) == {"r3"}
