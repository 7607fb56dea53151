"""A call is an ordinary Trio citizen: scopes, deadlines, one exception for one cause. In virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.driver.test_every_point import at_baseline, make_service
from tiedreq.testing import LocalCluster

TIED = tiedreq.Tied(stagger=0.0, yield_=False)


async def test_cancelling_the_caller_stops_both_handlers_within_a_message(autojump_clock: MockClock) -> None:
    stopped: dict[str, float] = {}
    service = tiedreq.Service("citizen")

    @service.method(idempotent=True)
    async def wait(ctx: tiedreq.Context, args: object) -> None:
        try:
            await trio.sleep(60)
        finally:
            stopped[ctx.replica] = trio.current_time()

    cluster = LocalCluster(service, replicas=2, client_latency=0.004, mesh_latency=0.001)
    async with cluster as client:
        with trio.move_on_after(1.0) as scope:
            await client.call("wait", policy=TIED, timeout=30)
        cancelled_at = trio.current_time()
        await trio.sleep(1)
        assert scope.cancelled_caught
        assert set(stopped) == {"r0", "r1"}
        assert all(at == pytest.approx(cancelled_at + 0.004, abs=1e-6) for at in stopped.values())
        await at_baseline(cluster, client, Counter())


@pytest.mark.parametrize("surrounding", [0.2, 5.0])
async def test_the_deadline_reaches_the_handler(autojump_clock: MockClock, surrounding: float) -> None:
    """The least of ``timeout`` and the surrounding deadline; a nested call inherits it."""
    seen: dict[str, float] = {}
    service = tiedreq.Service("citizen")

    @service.method(idempotent=True)
    async def outer(ctx: tiedreq.Context, args: object) -> None:
        seen["outer"] = trio.current_effective_deadline()
        seen["remaining"] = trio.current_time() + ctx.remaining()
        await inner_client.call("inner")

    @service.method(idempotent=True)
    async def inner(ctx: tiedreq.Context, args: object) -> None:
        seen["inner"] = trio.current_effective_deadline()
        seen["kind"] = ctx.kind == "first" and ctx.rank is None
        seen["layered"] = ctx.layered

    cluster = LocalCluster(service, replicas=2, policy=TIED)
    async with cluster as inner_client:
        with trio.fail_after(surrounding):
            expected = trio.current_time() + min(surrounding, 1.0)
            await inner_client.call("outer", timeout=1.0)
    for name in ("outer", "remaining", "inner"):
        assert seen[name] == pytest.approx(expected, abs=0.01), name
    assert seen["kind"] and seen["layered"]


async def test_time_outs_of_both_kinds(autojump_clock: MockClock) -> None:
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=2)
    async with cluster as client:
        with pytest.raises(tiedreq.DeadlineExceeded) as late:
            await client.tied_call("work", 60, timeout=0.2)
        assert isinstance(late.value, TimeoutError)
        assert late.value.call_id and late.value.attempts
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
            await client.tied_call("work", 60, timeout=30)
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
            await client.tied_call("work", 60, timeout=0.2)
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.tied_call("work", 60, timeout=0)
        for bad in (-1, float("nan"), float("inf"), "1"):
            with pytest.raises(tiedreq.BadOption, match="timeout"):
                await client.tied_call("work", 0, timeout=bad)
        sent = client.stats()["copies_sent"]
        with pytest.raises(trio.TooSlowError), trio.fail_after(0):
            await client.tied_call("work", 0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.tied_call("work", 0)
        assert scope.cancelled_caught
        assert client.stats()["copies_sent"] == sent
        await at_baseline(cluster, client, running)


class UserError(Exception):
    """What a user's own code raises."""


async def refused_connection() -> None:
    async with tiedreq.connect(["ws://127.0.0.1:9"], timeout=0.3):
        raise AssertionError("nobody listens there")


async def fails_in_cluster(error: BaseException) -> None:
    async with LocalCluster(make_service(Counter()), replicas=2) as client:
        await client.call("work", 0.0)
        raise error


async def fails_in_lifespan() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise UserError("no index")
        yield

    await tiedreq.serve(tiedreq.Service("citizen", lifespan=lifespan), name="a")


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (refused_connection, tiedreq.ConnectError),
        (lambda: fails_in_cluster(UserError()), UserError),
        (lambda: fails_in_cluster(KeyboardInterrupt()), KeyboardInterrupt),
        (lambda: fails_in_cluster(SystemExit(3)), SystemExit),
        (fails_in_lifespan, UserError),
    ],
    ids=["refused", "user error", "keyboard interrupt", "exit", "lifespan"],
)
def test_one_exception_for_one_cause(main: Callable[[], object], expected: type[BaseException]) -> None:
    """B57: not a group, from wherever it comes."""
    with pytest.raises(expected):
        trio.run(main)


async def test_failures_of_calls_are_single_exceptions(autojump_clock: MockClock) -> None:
    """B09, B57: both copies fail, the replica goes away, accept raises."""
    service = tiedreq.Service("citizen")
    slow = trio.Event()

    @service.method(idempotent=True)
    async def fail(ctx: tiedreq.Context, args: bool) -> None:
        raise tiedreq.Failure("sorry", f"at {ctx.replica}", {"n": 1}, retryable=args)

    @service.method()
    async def once(ctx: tiedreq.Context, args: object) -> None:
        slow.set()
        await trio.sleep(60)

    @service.method(idempotent=True)
    async def lookup(ctx: tiedreq.Context, args: object) -> str:
        return ctx.replica

    def broken(value: object) -> bool:
        raise UserError(value)

    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        for retryable, attempts in ((False, 1), (True, 5)):
            with pytest.raises(tiedreq.RemoteFailure, match="sorry: at r") as failed:
                await client.tied_call("fail", retryable, policy=tiedreq.Tied())
            assert failed.value.code == "sorry" and failed.value.details == {"n": 1}
            assert sum(attempt.end == "failed" for attempt in failed.value.attempts) == attempts
        with pytest.raises(UserError):
            await client.tied_call("lookup", accept=broken)
        with pytest.raises(tiedreq.RemoteFailure, match="unacceptable"):
            await client.tied_call("lookup", accept=lambda value: False)
        assert await client.tied_call("lookup", accept=lambda value: True) in cluster.names
        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                await slow.wait()
                for name in cluster.names:
                    cluster.stop(name)

            nursery.start_soon(lose)
            with pytest.raises(tiedreq.OutcomeUnknown):
                await client.call("once")
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("lookup", timeout=0.5)


async def test_a_closed_client_says_so_and_its_open_calls_end(autojump_clock: MockClock) -> None:
    running: Counter[str] = Counter()
    cluster = LocalCluster(make_service(running), replicas=2)
    async with cluster as client:
        async with trio.open_nursery() as nursery, cluster.client(name="guest") as guest:

            async def wait() -> None:
                with pytest.raises(tiedreq.Unavailable, match="the client was closed"):
                    await guest.tied_call("work", 60, timeout=30)

            nursery.start_soon(wait)
            await trio.sleep(0.1)
        with pytest.raises(tiedreq.BadOption, match="closed"):
            await guest.call("work", 0)
        await at_baseline(cluster, client, running)
