"""A launcher makes streams slow as it does methods: each item takes longer, and nothing else changes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from cluster.slowing import Slowness
from tests.streams._play import taken
from tiedreq import Plain
from tiedreq.testing import LocalCluster


async def test_each_item_takes_the_factor_longer(autojump_clock: MockClock) -> None:
    service = tiedreq.Service("s")

    @service.stream()
    async def count(ctx: tiedreq.Context, args: Any) -> AsyncIterator[int]:
        for number in range(args):
            await trio.sleep(0.01)
            yield number

    slowness = Slowness(3.0)
    slowness.apply(service)
    async with LocalCluster(service, replicas=1, mesh_latency=0.0) as client:
        for factor in (3.0, 1.0):
            slowness.factor = factor
            async with client.stream("count", 10, policy=Plain()) as stream:
                began = trio.current_time() - (stream.first_item or 0.0)
                assert await taken(stream) == list(range(10))
            assert trio.current_time() - began == pytest.approx(0.1 * factor, abs=0.02)


async def test_in_threads_too() -> None:
    service = tiedreq.Service("s")

    @service.stream()
    def count(ctx: tiedreq.Context, args: Any) -> Iterator[int]:
        for number in range(args):
            time.sleep(0.01)
            yield number

    Slowness(4.0).apply(service)
    async with LocalCluster(service, replicas=1) as client, client.stream("count", 3, policy=Plain()) as stream:
        began = trio.current_time() - (stream.first_item or 0.0)
        assert await taken(stream) == [0, 1, 2]
        assert trio.current_time() - began > 0.1
