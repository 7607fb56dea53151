"""Calls made inside handlers: one layer hedges, and the time that is left travels down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, bench_service
from tests.net.raw import raw_link, seat
from tiedreq import Backup, DeadlineExceeded, Hedged, Plain, RemoteFailure, Tied
from tiedreq.testing import LocalCluster

AT_ONCE = Tied(backup=None, stagger=0.0)
ABOVE = {"plain": Plain(), "tied": Tied(backup=None), "hedged": Hedged(Backup(after=5, since="send"))}


class Layers:
    """``outer`` calls ``inner`` through the client that the test gives it, with the options in its args."""

    def __init__(self) -> None:
        self.client: tiedreq.Client | None = None
        self.outer_seen: list[tiedreq.Context] = []
        self.inner_seen: list[tiedreq.Context] = []
        self.inner_left: list[float] = []
        self.service = bench_service()
        self.service.method("outer", idempotent=True)(self.outer)
        self.service.method("inner", idempotent=True)(self.inner)

    async def outer(self, ctx: tiedreq.Context, args: Any) -> Any:
        self.outer_seen.append(ctx)
        assert self.client is not None
        options = dict(args or {})
        policy = {"tied": AT_ONCE, "plain": Plain(), None: None}[options.pop("policy", None)]
        return await self.client.call("inner", options.pop("seconds", 0.0), policy=policy, **options)

    async def inner(self, ctx: tiedreq.Context, args: Any) -> str:
        self.inner_seen.append(ctx)
        self.inner_left.append(ctx.remaining())
        await trio.sleep(args)
        return ctx.kind


@asynccontextmanager
async def layered(policy: tiedreq.Policy | None = None) -> AsyncIterator[tuple[Layers, tiedreq.Client, LocalCluster]]:
    layers = Layers()
    cluster = LocalCluster(layers.service, replicas=2, policy=policy)
    async with cluster as client:
        layers.client = client
        yield layers, client, cluster
        await assert_idle(cluster, client)


@pytest.mark.parametrize("above", ABOVE)
async def test_a_nested_call_is_plain_whatever_the_clients_policy(autojump_clock: MockClock, above: str) -> None:
    async with layered(policy=AT_ONCE) as (layers, client, _):
        assert await client.call("outer", policy=ABOVE[above]) == "first"
        assert [ctx.rank for ctx in layers.inner_seen] == [None]
        assert [ctx.layered for ctx in layers.inner_seen] == [above != "plain"], "the wire says what is above"
        # Outside of handlers the client's policy holds.
        await client.call("inner", 0.1)
        assert {ctx.rank for ctx in layers.inner_seen[1:]} == {0, 1}


async def test_a_nested_call_may_tie_when_it_says_so(autojump_clock: MockClock) -> None:
    async with layered() as (layers, client, _):
        await client.call("outer", {"policy": "tied", "seconds": 0.1})
        assert {ctx.rank for ctx in layers.inner_seen} == {0, 1}
        assert all(ctx.layered for ctx in layers.inner_seen)


async def test_the_time_left_travels_down(autojump_clock: MockClock) -> None:
    async with layered() as (layers, client, _):
        before = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await client.call("outer", {"seconds": 60.0}, timeout=1.5)
        assert trio.current_time() - before == pytest.approx(1.5)
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(1.25):
                await client.call("outer", {"seconds": 60.0, "timeout": 30})
        assert layers.inner_left == pytest.approx([1.5, 1.25], abs=1e-6)


async def test_a_shorter_time_of_its_own(autojump_clock: MockClock) -> None:
    async with layered() as (layers, client, _):
        with pytest.raises(RemoteFailure) as caught:
            await client.call("outer", {"seconds": 60.0, "timeout": 0.5}, timeout=5)
        assert caught.value.code == "internal"
        assert layers.inner_left == pytest.approx([0.5], abs=1e-6)


async def test_cancelling_the_outermost_cancels_all(autojump_clock: MockClock) -> None:
    async with layered() as (_, client, cluster):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.tied_call, "outer", {"seconds": 30.0}, timeout=60))
                await trio.sleep(1)
                assert sum(handle.status()["running"] for handle in cluster.handles.values()) == 2
                scope.cancel()
        await trio.sleep(0.01)
        assert sum(handle.status()["running"] for handle in cluster.handles.values()) == 0


async def test_the_losers_nested_calls_end_with_it(autojump_clock: MockClock) -> None:
    async with layered() as (_, client, cluster):
        for _ in range(10):
            await client.call("outer", {"seconds": 0.1}, policy=AT_ONCE)
        await assert_idle(cluster, client)
        assert client.stats()["cancelled"] >= 10, "the one that yielded took its own call with it"
        assert client.stats()["failed"] == 0


async def test_after_a_handler_nothing_of_it_is_left_in_the_context(autojump_clock: MockClock) -> None:
    """Tasks that a handler starts elsewhere, and other calls of the same client, are not inside it."""
    async with layered(policy=AT_ONCE) as (layers, client, _):
        await client.call("outer")
        await client.call("inner", 0.1)
        assert {ctx.rank for ctx in layers.inner_seen[-2:]} == {0, 1}


async def test_what_a_context_knows(autojump_clock: MockClock) -> None:
    service = bench_service()
    seen: list[dict[str, Any]] = []

    @service.method(idempotent=True)
    async def look(ctx: tiedreq.Context, args: Any) -> None:
        seen.append(
            {
                "kind": ctx.kind,
                "rank": ctx.rank,
                "replica": ctx.replica,
                "key": ctx.key,
                "metadata": ctx.metadata,
                "layered": ctx.layered,
                "cancelled": ctx.cancelled,
                "left": ctx.remaining(),
                "repr": repr(ctx),
            }
        )

    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        reply = await client.request("look", key="k", metadata={"a": "b"}, timeout=3, policy=tiedreq.Plain())
        assert seen == [
            {
                "kind": "first",
                "rank": None,
                "replica": "r0",
                "key": "k",
                "metadata": {"a": "b"},
                "layered": False,
                "cancelled": False,
                "left": pytest.approx(3),
                "repr": f"<Context first copy of {reply.call_id} at r0>",
            }
        ]
        async with raw_link(seat(cluster), cluster.urls["r0"]) as raw:
            raw.send(raw.submit(1, "look", layered=True))
            await trio.sleep(0.1)
        assert seen[1]["layered"] and seen[1]["metadata"] == {} and seen[1]["key"] is None
