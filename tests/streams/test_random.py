"""Many random streams at once, with random windows, users and troubles: none hangs, none mixes, nothing is left."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle
from tests.streams._play import AT_ONCE, HEDGED, KEEPS_BOTH, Plays, stream_service
from tiedreq import Auto, Backup, ClientLimits, Plain, Tied
from tiedreq.testing import LocalCluster

STREAMS = 12
BACKED = Tied(backup=Backup(after=0.01, budget=None), stagger=0.0)
POLICIES = (Plain(), Auto(), Tied(), AT_ONCE, KEEPS_BOTH, HEDGED, BACKED)
USES = ("all", "all", "all", "leave", "slow", "rest", "cancel")


def script(draw: Random) -> list[Any]:
    """What one copy does; less than four seconds in all."""
    steps: list[Any] = []
    for _ in range(draw.randrange(8)):
        steps += draw.choice(
            [
                [draw.choice([0.0, 0.001, 0.02, 0.3])],
                [["item", draw.choice([None, "", [], b""])]],
                [["items", draw.randrange(1, 150), draw.choice([0.0, 0.0, 0.001])]],
                [["bytes", draw.choice([10, 5_000, 40_000, 70_000, 300_000])]],
                [["item", None]] * draw.randrange(1, 60),
                [["fail", draw.random() < 0.5]] if draw.random() < 0.3 else [],
            ]
        )
    return steps


class User:
    """One stream, and how somebody uses it."""

    def __init__(self, client: tiedreq.Client, draw: Random) -> None:
        self.client = client
        self.draw = draw
        self.use = draw.choice(USES)
        self.script = {name: script(draw) for name in ("rank 0", "rank 1", "first", "else")}
        self.policy = draw.choice(POLICIES)
        self.got: list[Any] = []
        self.replica: str | None = None

    async def run(self) -> None:
        draw = self.draw
        await trio.sleep(draw.random() * 0.3)
        with trio.CancelScope() as scope:
            if self.use == "cancel":
                scope.deadline = trio.current_time() + draw.random() * 0.2
            try:
                async with self.client.stream("play", self.script, policy=self.policy, timeout=300.0) as stream:
                    await self._iterate(stream)
            except tiedreq.DeadlineExceeded as late:
                raise AssertionError("it stood still") from late
            except tiedreq.CallError as error:
                assert error.items == len(self.got)
        names = {item[0] for item in self.got if isinstance(item, list) and item}
        assert names <= {self.replica}, "items of one replica only"

    async def _iterate(self, stream: tiedreq.Stream) -> None:
        self.replica = stream.replica
        async for item in stream:
            self.got.append(item)
            if self.use == "leave" and self.draw.random() < 0.05:
                return
            if self.use == "slow":
                await trio.sleep(0.003)
            elif self.use == "rest" and self.draw.random() < 0.1:
                await trio.sleep(0.2)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
async def test_random_streams(autojump_clock: MockClock, seed: int) -> None:
    draw, plays = Random(seed), Plays()
    window = ClientLimits(
        stream_items_max=draw.choice([1, 2, 5, 64]), stream_bytes_max=draw.choice([1, 1000, 100_000, 1 << 20])
    )
    cluster = LocalCluster(
        stream_service(plays),
        replicas=3,
        slots=draw.choice([1, 2, 8]),
        client_limits=window,
        client_latency=draw.choice([0.0, 0.001, 0.01]),
    )
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for number in range(STREAMS):
                nursery.start_soon(User(client, Random(f"{seed}/{number}")).run)
            await trio.sleep(draw.random() * 0.3)
            name, trouble = draw.choice(cluster.names), draw.choice(["none", "stop", "drain", "cut"])
            if trouble == "stop":
                cluster.stop(name)
            elif trouble == "drain":
                cluster.handles[name].drain()
            elif trouble == "cut":
                cluster.network.cut("client", name)
        await assert_idle(cluster, client)
        stats = client.stats()
        assert stats["calls"] == stats["answered"] + stats["failed"] + stats["cancelled"]
        running = {name for name in cluster.names if cluster.running(name)}
        assert all(run.ended is not None for run in plays.runs if run.replica in running)
