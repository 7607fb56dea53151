"""Whatever a handler does, its caller gets one clear error and the replica serves the next call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, left_at
from tiedreq import Failure, RemoteFailure
from tiedreq.testing import LocalCluster

Handler = Callable[[tiedreq.Context, Any], Any]


@asynccontextmanager
async def serving(
    handler: Handler, *, replicas: int = 1, debug: bool = False, slots: int = 2, **options: Any
) -> AsyncIterator[tuple[tiedreq.Client, LocalCluster]]:
    """A cluster whose method ``odd`` is ``handler``; at the end it must still work, with nothing left."""
    service = bench_service()
    service.method("odd", idempotent=True, **options)(handler)
    cluster = LocalCluster(service, replicas=replicas, debug=debug, slots=slots)
    async with cluster as client:
        yield client, cluster
        for _ in range(slots + 1):
            assert await client.call("work", 0.01) in cluster.names
        await assert_idle(cluster, client)


async def failure_of(client: tiedreq.Client, args: Any = None, **options: Any) -> RemoteFailure:
    with pytest.raises(RemoteFailure) as caught:
        await client.call("odd", args, timeout=5, **options)
    assert type(caught.value) is RemoteFailure and caught.value.call_id and caught.value.attempts
    return caught.value


class Hideous(Exception):
    """An exception that can't even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words for it")

    __repr__ = __str__


class OddInt(int):
    def __repr__(self) -> str:
        raise ValueError("odd")

    __str__ = __repr__


class OddDict(dict[str, Any]):
    """A dict that fails while it is looked into."""

    def values(self) -> Any:
        raise ValueError("not today")

    __iter__ = keys = items = values


async def in_a_group() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise ValueError("secret")


RAISED: dict[str, Callable[[], BaseException]] = {
    "an exception": lambda: ValueError("secret"),
    "one without words": Hideous,
    "a group": lambda: ExceptionGroup("several", [ValueError("secret"), KeyError("secret")]),
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "asyncio's cancellation": asyncio.CancelledError,
    "a base exception": lambda: BaseException("secret"),
    "a base exception in a group": lambda: BaseExceptionGroup("several", [GeneratorExit(), ValueError("secret")]),
    "SystemExit": lambda: SystemExit(3),
    "an assertion": lambda: AssertionError("secret"),
    "recursion": RecursionError,
    "trio.TooSlowError": trio.TooSlowError,
    "a lone surrogate": lambda: ValueError("\ud800"),
    "an error of our own": lambda: tiedreq.BadOption("secret"),
    "an error of a nested call": lambda: tiedreq.DeadlineExceeded("secret"),
}


def raise_named(ctx: tiedreq.Context, args: Any) -> None:
    raise RAISED[args]()


async def raise_named_in_a_task(ctx: tiedreq.Context, args: Any) -> None:
    raise_named(ctx, args)


@pytest.mark.parametrize("debug", [False, True], ids=["quiet", "debug"])
@pytest.mark.parametrize("raised", RAISED)
async def test_what_a_handler_raises_is_a_failure(autojump_clock: MockClock, raised: str, debug: bool) -> None:
    async with serving(raise_named_in_a_task, debug=debug) as (client, _):
        error = await failure_of(client, raised)
        assert error.code == "internal"
        assert debug or ("secret" not in str(error) and "log" in str(error))


@pytest.mark.parametrize("debug", [False, True], ids=["quiet", "debug"])
async def test_what_a_handler_raises_in_a_thread_is_a_failure(debug: bool) -> None:
    async with serving(raise_named, debug=debug) as (client, _):
        for raised in RAISED:
            assert (await failure_of(client, raised)).code == "internal"


async def test_an_exception_in_a_nursery_of_the_handler(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        await in_a_group()

    async with serving(task) as (client, _):
        assert (await failure_of(client)).code == "internal"


async def test_the_log_has_the_traceback(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        raise ValueError("secret")

    async with serving(task) as (client, _):
        error = await failure_of(client)
    assert "secret" in caplog.text and "Traceback" in caplog.text and error.call_id in caplog.text


class OddCode:
    def __str__(self) -> str:
        raise RuntimeError("no words for it")


FAILURES: dict[str, tuple[Any, ...]] = {
    "empty": ("", ""),
    "long": ("c" * 1000, "m" * 100_000),
    "lines": ("a\nb", "first\nsecond\x00\r"),
    "tabs": ("\t", "\t"),
    "surrogates": ("\ud800", "\udfff"),
    "not text": (404, None),
    "without words": (OddCode(), OddCode()),
    "bytes": (b"x", b"y"),
    "wide": ("\N{PILE OF POO}" * 64, "\N{PILE OF POO}" * 4096),
    "odd int": (OddInt(4), OddInt(5)),
    "details that can't be sent": ("code", "message", object()),
    "details with surrogates": ("code", "message", "\ud800"),
    "odd details": ("code", "message", OddDict(a=1)),
    "endless details": ("code", "message", [[[[]]]]),
    "odd retryable": ("code", "message", None, "yes"),
}


@pytest.mark.parametrize("arguments", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_failures_with_strange_parts(
    autojump_clock: MockClock, arguments: tuple[Any, ...], replicas: int
) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        raise Failure(*arguments)

    async with serving(task, replicas=replicas) as (client, _):
        error = await failure_of(client)
        assert error.code and error.code.isprintable() and len(error.code) <= 64
        assert len(error.message) < 5000


async def test_a_failure_arrives_as_it_was_raised(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        raise Failure("not_found", "no such thing", {"near": ["a", "b"]})

    async with serving(task) as (client, _):
        error = await failure_of(client)
        assert (error.code, error.details) == ("not_found", {"near": ["a", "b"]})
        assert error.message.startswith("no such thing") and "r0" in error.message


async def generator() -> AsyncIterator[int]:
    yield 1


class Weird:
    """An instance that lies about what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return dict


def endless() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


RETURNED: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a set": lambda: {1},
    "a generator": lambda: (n for n in range(3)),
    "an async generator": generator,
    "a function": lambda: generator,
    "a class": lambda: dict,
    "a big int": lambda: 2**64,
    "a lone surrogate": lambda: "\ud800",
    "itself": endless,
    "too deep": lambda: eval("[" * 60 + "]" * 60),
    "a map with a list as key": lambda: {(1, 2): 3},
    "an odd dict": lambda: OddDict(a=1),
    "an odd int in a list": lambda: [OddInt(2**70)],
    "an exception": lambda: ValueError("x"),
    "something that lies": Weird,
    "too many values": lambda: [None] * 1_000_001,
}


@pytest.mark.parametrize("returned", RETURNED)
async def test_what_cannot_be_sent_is_a_failure(autojump_clock: MockClock, returned: str) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> Any:
        return RETURNED[returned]()

    async with serving(task) as (client, _):
        assert (await failure_of(client)).code == "unpackable"


async def test_a_plain_def_that_returns_a_coroutine() -> None:
    async def forgotten() -> None:
        pass

    def plain(ctx: tiedreq.Context, args: Any) -> Any:
        return forgotten()

    async with serving(plain, debug=True) as (client, _):
        error = await failure_of(client)
        assert error.code == "internal" and "asynchronous" in error.message


async def test_a_failure_in_a_nursery_of_the_handler_is_that_failure(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise Failure("not_found", "no such thing")

    async with serving(task) as (client, _):
        assert (await failure_of(client)).code == "not_found"


async def test_cleaning_up_after_a_cancel_may_fail(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async with serving(task) as (client, cluster):
        with trio.move_on_after(1):
            await client.call("odd")
        await trio.sleep(1)
        assert not left_at(cluster.handles)


async def test_cleaning_up_may_fail_in_a_nursery(autojump_clock: MockClock) -> None:
    async def fails() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    async def task(ctx: tiedreq.Context, args: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(trio.sleep_forever)

    async with serving(task) as (client, cluster):
        for _ in range(3):
            with trio.move_on_after(1):
                await client.call("odd")
        await trio.sleep(1)
        assert not left_at(cluster.handles)


async def test_a_handler_that_swallows_its_cancel_keeps_its_slot(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "too late"

    async with serving(task, slots=1) as (client, cluster), trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "odd")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        assert cluster.handles["r0"].status()["running"] == 1
        assert cluster.handles["r0"].status()["cancelled"] == 1
        with trio.CancelScope(shield=True):
            await trio.sleep(4)
        status = cluster.handles["r0"].status()
        assert (status["running"], status["done"], status["wasted_seconds"]) == (0, 0, pytest.approx(5))


async def test_a_shielded_handler_past_its_deadline(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "too late"

    async with serving(task, slots=1) as (client, cluster):
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("odd", timeout=1)
        await trio.sleep(5)
        status = cluster.handles["r0"].status()
        assert (status["running"], status["done"]) == (0, 0)
        assert status["expired"] + status["cancelled"] == 1


async def test_a_handler_may_cancel_itself(autojump_clock: MockClock) -> None:
    """Cancelled of a scope of its own stays inside; a handler can't be ended by one it made up."""

    async def task(ctx: tiedreq.Context, args: Any) -> str:
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_forever()
        return "fine"

    async with serving(task) as (client, _):
        assert await client.call("odd") == "fine"


async def test_bad_push_back_is_the_handlers_failure(autojump_clock: MockClock) -> None:
    async def task(ctx: tiedreq.Context, args: Any) -> None:
        ctx.pushback(args)

    async with serving(task) as (client, _):
        for bad in (-1, float("nan"), float("inf"), "1", None, 1e9):
            assert (await failure_of(client, bad)).code == "internal"
        assert await client.call("odd", 0.5) is None


def test_a_generator_cannot_be_a_method() -> None:
    service = tiedreq.Service("s")

    def plain(ctx: tiedreq.Context, args: Any) -> Any:
        yield 1

    async def task(ctx: tiedreq.Context, args: Any) -> Any:
        yield 1

    for handler in (plain, task):
        with pytest.raises(tiedreq.BadOption, match="generator"):
            service.method()(handler)
    assert not service.methods


async def test_losing_is_no_error_in_the_log(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = LocalCluster(bench_service(Journal()), replicas=2, mesh_latency=0.01)
    async with cluster as client:
        for _ in range(20):
            await client.tied_call("work", 0.05, policy=tiedreq.Tied(stagger=0))
        with trio.move_on_after(0.1):
            await client.tied_call("work", 10)
        await assert_idle(cluster, client)
    assert not [record for record in caplog.records if record.name.startswith("tiedreq")]
