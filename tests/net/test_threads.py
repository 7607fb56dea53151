"""Handlers in worker threads: stopped as far as they can be, their slot theirs until they return."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.from_thread
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, bench_service, gather, until
from tiedreq import Plain, Tied
from tiedreq.testing import LocalCluster

WAIT_SECONDS = 20.0
"""Longer than any test here takes: a handler that waits so long was not stopped."""


class Threads:
    """Handlers that wait for an event: of their own execution, or the one that all share."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began: list[tiedreq.Context] = []
        self.hooks: list[str] = []
        self.ended: list[str] = []

    def deaf(self, ctx: tiedreq.Context, args: Any) -> str:
        """Can't be stopped."""
        self.began.append(ctx)
        self.open.wait(WAIT_SECONDS)
        self.ended.append(ctx.replica)
        return ctx.replica

    def stoppable(self, ctx: tiedreq.Context, args: Any) -> str:
        """Stops when told, with an error as a database's interrupt makes one."""
        stop = threading.Event()
        self.began.append(ctx)

        def interrupt() -> None:
            self.hooks.append(ctx.replica)
            stop.set()

        ctx.on_cancel(interrupt)
        if args == "open":
            return ctx.replica
        stopped = stop.wait(WAIT_SECONDS)
        self.ended.append(ctx.replica)
        if stopped:
            raise RuntimeError("interrupted")
        return ctx.replica

    def service(self) -> tiedreq.Service:
        service = bench_service()
        service.method(idempotent=True)(self.deaf)
        service.method(idempotent=True)(self.stoppable)
        return service


@asynccontextmanager
async def serving(
    threads: Threads, *, replicas: int = 1, slots: int = 2, mesh_latency: float = 0.0
) -> AsyncIterator[tuple[tiedreq.Client, LocalCluster]]:
    cluster = LocalCluster(threads.service(), replicas=replicas, slots=slots, mesh_latency=mesh_latency)
    async with cluster as client:
        try:
            yield client, cluster
            await assert_idle(cluster, client)
            assert await client.call("work") in cluster.names
        finally:
            threads.open.set()


def total(cluster: LocalCluster, name: str) -> int:
    return int(sum(handle.status()[name] for handle in cluster.handles.values()))


async def test_cancelling_the_caller_stops_a_thread_that_said_how() -> None:
    threads = Threads()
    async with serving(threads) as (client, cluster):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "stoppable")
            await until(lambda: threads.began)
            nursery.cancel_scope.cancel()
        await until(lambda: not total(cluster, "running"))
        assert (threads.hooks, threads.ended, total(cluster, "cancelled")) == (["r0"], ["r0"], 1)


async def test_expiry_stops_a_thread_that_said_how() -> None:
    threads = Threads()
    async with serving(threads) as (client, cluster):
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("stoppable", timeout=0.05)
        await until(lambda: not total(cluster, "running"))
        assert (threads.hooks, threads.ended) == (["r0"], ["r0"])


async def test_on_cancel_after_the_cancel_is_called_at_once() -> None:
    told: list[bool] = []
    began, go_on = threading.Event(), threading.Event()

    def late(ctx: tiedreq.Context, args: Any) -> None:
        began.set()
        go_on.wait(WAIT_SECONDS)
        assert ctx.cancelled
        before = threading.get_ident()
        ctx.on_cancel(lambda: told.append(threading.get_ident() == before))
        ctx.on_cancel(lambda: told.append(threading.get_ident() == before))

    service = bench_service()
    service.method(idempotent=True)(late)
    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "late")
            await until(began.is_set)
            nursery.cancel_scope.cancel()
        await until(lambda: total(cluster, "cancelled"))
        go_on.set()
        await assert_idle(cluster, client)
        assert told == [True, True]


async def test_hooks_are_each_called_once_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    began, stop = threading.Event(), threading.Event()

    def handler(ctx: tiedreq.Context, args: Any) -> None:
        def bad() -> None:
            called.append(0)
            raise SystemExit("a bad hook")

        for hook in (bad, lambda: called.append(1), bad, stop.set):
            ctx.on_cancel(hook)
        began.set()
        stop.wait(WAIT_SECONDS)

    service = bench_service()
    service.method(idempotent=True)(handler)
    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "handler")
            await until(began.is_set)
            nursery.cancel_scope.cancel()
        await assert_idle(cluster, client)
        assert called == [0, 1, 0]
        assert "on_cancel" in caplog.text
        assert await client.call("work") == "r0"


async def test_on_cancel_of_a_task_is_called_on_cancel_and_on_expiry(autojump_clock: MockClock) -> None:
    called: list[str] = []

    async def handler(ctx: tiedreq.Context, args: Any) -> None:
        ctx.on_cancel(lambda: called.append(args))
        await trio.sleep_forever()

    service = bench_service()
    service.method(idempotent=True)(handler)
    for _ in range(10):
        called.clear()
        cluster = LocalCluster(service, replicas=1)
        async with cluster as client:
            with pytest.raises(tiedreq.DeadlineExceeded):
                await client.call("handler", "expired", timeout=0.01)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call, "handler", "cancelled")
                await until(lambda: total(cluster, "running"))  # noqa: B023
                nursery.cancel_scope.cancel()
            await assert_idle(cluster, client)
            assert called == ["expired", "cancelled"]


async def test_a_deaf_thread_keeps_its_slot_until_it_returns() -> None:
    threads = Threads()
    async with serving(threads, slots=1) as (client, cluster):
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("deaf", timeout=0.05)
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("work", timeout=0.05)
        status = cluster.handles["r0"].status()
        assert (status["running"], status["free"], status["started"]) == (1, 0, 1)
        threads.open.set()
        assert await client.call("work") == "r0"
        assert total(cluster, "done") == 1, "what the thread returned too late is no result"


async def test_next_notices_drop_copies_that_wait_behind_deaf_threads() -> None:
    """Both replicas are busy; the tied copies wait. The announcement ends one of them before anything starts."""
    threads = Threads()
    async with serving(threads, replicas=2, slots=1, mesh_latency=0.001) as (client, cluster):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(client.call, "deaf")
            await until(lambda: total(cluster, "running") == 2)
            nursery.start_soon(lambda: client.tied_call("deaf", policy=Tied(backup=None, stagger=0.0)))
            await until(lambda: total(cluster, "dropped_by_peer") == 1)
            assert total(cluster, "queue") == 1 and total(cluster, "started") == 2
            threads.open.set()
        assert total(cluster, "started") == total(cluster, "done") == 3
        assert total(cluster, "double_starts") == 0


async def test_two_deaf_threads_of_a_tie_run_to_their_end_and_one_answer_counts() -> None:
    threads = Threads()
    async with serving(threads, replicas=2, slots=1, mesh_latency=0.02) as (client, cluster):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.tied_call("deaf", policy=Tied(backup=None, stagger=0.0)))
            await until(lambda: total(cluster, "double_starts") == 1)
            assert total(cluster, "running") == 2
            threads.open.set()
        assert client.stats()["answered"] == 1
        await until(lambda: len(threads.ended) == 2)
        assert total(cluster, "yielded") == 0


async def test_a_thread_that_says_late_how_it_stops_still_yields() -> None:
    """The notice of the other start comes before ``on_cancel``: the copy yields as soon as it can."""
    may_register = threading.Event()
    threads = Threads()

    def slow_to_say(ctx: tiedreq.Context, args: Any) -> str:
        threads.began.append(ctx)
        if ctx.rank == 1:
            may_register.wait(WAIT_SECONDS)
            return threads.stoppable(ctx, args)
        return threads.deaf(ctx, args)

    service = threads.service()
    service.method(idempotent=True)(slow_to_say)
    cluster = LocalCluster(service, replicas=2, mesh_latency=0.02)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.tied_call("slow_to_say", policy=Tied(backup=None, stagger=0.0)))
            await until(lambda: total(cluster, "double_starts") == 1)
            may_register.set()
            await until(lambda: total(cluster, "yielded") == 1)
            threads.open.set()
        assert len(threads.hooks) == 1
        await assert_idle(cluster, client)


@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_a_replica_that_ends_stops_its_threads(how: str) -> None:
    threads = Threads()
    cluster = LocalCluster(threads.service(), replicas=1)
    async with cluster as client, trio.open_nursery() as nursery:
        nursery.start_soon(gather, *[lambda: client.call("stoppable")] * 2)
        await until(lambda: len(threads.began) == 2)
        if how == "stop":
            cluster.stop("r0")
        else:
            nursery.cancel_scope.cancel()
            cluster.handles["r0"].drain()
        with trio.CancelScope(shield=True):
            await until(lambda: len(threads.ended) == 2)
        assert len(threads.hooks) == 2
        nursery.cancel_scope.cancel()


async def test_a_nested_call_from_a_thread_inherits_the_deadline() -> None:
    found: list[float] = []

    async def inner(ctx: tiedreq.Context, args: Any) -> None:
        found.append(ctx.remaining())
        await trio.sleep_forever()

    def outer(ctx: tiedreq.Context, args: Any) -> Any:
        return trio.from_thread.run(ctx.state.call, "inner")

    client_box: list[tiedreq.Client] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Any]:
        class State:
            async def call(self, *args: Any) -> Any:
                return await client_box[0].call(*args)

        yield State()

    service = tiedreq.Service("s", lifespan=lifespan)
    service.method(idempotent=True)(inner)
    service.method(idempotent=True)(outer)
    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        client_box.append(client)
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("outer", timeout=0.3)
        assert len(found) == 1 and found[0] <= 0.3
        await assert_idle(cluster, client)


async def test_threads_of_many_calls_at_once() -> None:
    """As many threads as slots, every copy ends, none is lost."""

    def quick(ctx: tiedreq.Context, args: Any) -> int:
        return int(args)

    service = bench_service()
    service.method(idempotent=True)(quick)
    cluster = LocalCluster(service, replicas=2, slots=3)
    async with cluster as client:

        async def call(number: int) -> int:
            policy = Tied(backup=None) if number % 2 else Plain()
            return int(await client.call("quick", number, policy=policy))

        found = await gather(*[lambda number=number: call(number) for number in range(200)])
        assert found == list(range(200))
        await assert_idle(cluster, client)
