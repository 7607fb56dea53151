"""The asyncio client over sockets: results, errors, cancellation, many tasks, several event loops, closing."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import socket
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import tiedreq
import tiedreq.aio
from tests.bridges.bench import PATIENCE_SECONDS, Journal, until
from tiedreq import Plain, Tied
from tiedreq.aio import connect


async def soon(condition: Callable[[], object]) -> None:
    """Wait in asyncio until ``condition()`` holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def on_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a coroutine test with the fixtures ``urls`` and ``journal`` in an event loop of its own."""

    def run(urls: list[str], journal: Journal) -> None:
        asyncio.run(test(urls, journal))  # type: ignore[arg-type]

    return run


@on_asyncio
async def test_every_kind_of_call(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        assert await client.call("echo", {"a": [1, 2.5, None]}) == {"a": [1, 2.5, None]}
        assert await client.tied_call("echo", "tied") == "tied"
        assert await client.hedged_call("echo", "hedged") == "hedged"
        reply = await client.request("about", key="k", metadata={"m": "1"}, timeout=3.0, policy=Plain())
        assert isinstance(reply, tiedreq.Reply) and reply.attempts[0].replica == reply.replica
        assert reply.value["key"] == "k" and reply.value["metadata"] == {"m": "1"} and reply.value["kind"] == "first"
        assert 2.0 < reply.value["remaining"] <= 3.0
        assert client.stats()["in_flight"] == 0 and len(client.stats()["replicas"]) == len(urls)
        assert sorted(await client.replica_status()) == ["r0", "r1", "r2"]

        def echo(ctx: object, args: object) -> object:
            """Says it again."""

        bound = client.bind(echo)
        assert await bound([1], timeout=5.0) == [1] and bound.__doc__ == "Says it again."


@on_asyncio
async def test_errors_keep_their_type_and_show_the_caller(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        with pytest.raises(tiedreq.RemoteFailure, match="no_stock: none is left") as failed:
            await client.call("fail")
        assert failed.value.details == {"left": 0} and failed.value.attempts[0].end == "failed"
        files = {Path(frame.filename).name for frame in traceback.extract_tb(failed.value.__traceback__)}
        assert {"test_aio.py", "aio.py", "opencall.py"} <= files, "from the caller to where it was raised"
        with pytest.raises(tiedreq.UnsafeToDuplicate, match="Nothing was sent"):
            await client.tied_call("charge")
        with pytest.raises(tiedreq.UnknownMethod, match="Methods: about, charge"):
            await client.call("nothing")
        with pytest.raises(tiedreq.DeadlineExceeded) as late:
            await client.call("hang", timeout=0.02)
        assert isinstance(late.value, TimeoutError) and late.value.call_id
        with pytest.raises(TypeError, match="tiemout"):
            await client.call("echo", tiemout=1)


@on_asyncio
async def test_a_cancelled_task_cancels_its_call_and_all_copies(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        at_once = Tied(backup=None, stagger=0.0)
        tasks = [asyncio.create_task(client.tied_call("hang", policy=at_once)) for _ in range(3)]
        await soon(lambda: journal.running >= 3)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}
        await soon(lambda: journal.running == 0)
        await soon(lambda: client.stats()["in_flight"] == 0)
        assert await client.call("echo", "again") == "again"


@on_asyncio
async def test_a_timeout_around_a_call_cancels_it(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        with pytest.raises(TimeoutError) as late:
            async with asyncio.timeout(None) as limit:

                async def over_once_it_runs() -> None:
                    await soon(lambda: journal.running)
                    limit.reschedule(asyncio.get_running_loop().time())

                watch = asyncio.create_task(over_once_it_runs())
                await client.call("hang")
        await watch
        assert not isinstance(late.value, tiedreq.DeadlineExceeded)
        await soon(lambda: journal.running == 0)


@on_asyncio
async def test_cancelled_before_it_was_handed_over_nothing_is_sent(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        sent = sum(replica["sent"] for replica in client.stats()["replicas"].values())
        for _ in range(20):
            task = asyncio.create_task(client.call("hang"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await soon(lambda: journal.running == 0)
        assert client.stats()["in_flight"] == 0
        now = sum(replica["sent"] for replica in client.stats()["replicas"].values())
        assert now - sent <= 20


@on_asyncio
async def test_cancelled_at_any_moment_nothing_is_left(urls: list[str], journal: Journal) -> None:
    moments = Random(7)

    async def one(client: tiedreq.aio.Client, number: int) -> None:
        task = asyncio.create_task(client.tied_call("nap", 0.001 * moments.randrange(3)))
        await asyncio.sleep(moments.uniform(0.0, 0.004) if number % 3 else 0)
        task.cancel()
        await asyncio.wait([task])

    async with connect(urls) as client:
        for _ in range(10):
            await asyncio.gather(*(one(client, number) for number in range(20)))
        await soon(lambda: client.stats()["in_flight"] == 0)
        assert client._session is not None and not client._session.errands
        assert await client.call("echo", "again") == "again"


@on_asyncio
async def test_the_first_failure_of_a_group_cancels_the_others(urls: list[str], journal: Journal) -> None:
    async with connect(urls) as client:
        with pytest.raises(BaseExceptionGroup) as group:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(client.call("hang"))
                await soon(lambda: journal.running >= 1)
                tasks.create_task(client.call("fail"))
        assert [type(error) for error in group.value.exceptions] == [tiedreq.RemoteFailure]
        await soon(lambda: journal.running == 0)


@on_asyncio
async def test_many_tasks_at_once(urls: list[str], journal: Journal) -> None:
    async with connect(urls, timeout=60.0) as client:
        count = 1000
        assert await asyncio.gather(*(client.call("echo", number) for number in range(count))) == list(range(count))
        assert client.stats()["in_flight"] == 0


@on_asyncio
async def test_calls_in_flight_are_limited(urls: list[str], journal: Journal) -> None:
    async with connect(urls, limits=tiedreq.ClientLimits(calls_in_flight_max=3)) as client:
        tasks = [asyncio.create_task(client.call("hang")) for _ in range(3)]
        await soon(lambda: client.stats()["in_flight"] == 3)
        with pytest.raises(tiedreq.Overloaded, match="3 calls are in flight"):
            await client.call("echo")
        await client.aclose()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {tiedreq.Unavailable}
        await soon(lambda: journal.running == 0)


@on_asyncio
async def test_closed_and_not_yet_connected(urls: list[str], journal: Journal) -> None:
    client = connect(urls)
    with pytest.raises(tiedreq.BadOption, match="not connected yet"):
        client.stats()
    assert await client is client
    await client.aclose()
    await client.aclose()
    for use in (client.call("echo"), client.__aenter__()):
        with pytest.raises(tiedreq.BadOption, match="client: it is closed"):
            await use
    with pytest.raises(tiedreq.BadOption, match="client: it is closed"):
        client.stats()


def test_nobody_there() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            client = connect(f"ws://127.0.0.1:{taken.getsockname()[1]}", timeout=0.05)
            for _ in range(2):
                with pytest.raises(tiedreq.ConnectError, match="no replica could be reached"):
                    await client.call("echo")
            with pytest.raises(tiedreq.ConnectError):
                await client

    asyncio.run(main())


def test_cancelled_while_it_connects() -> None:
    async def main() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            client = connect(f"ws://127.0.0.1:{silent.getsockname()[1]}", timeout=PATIENCE_SECONDS)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client:
                    raise AssertionError("it is not connected")
            with pytest.raises(tiedreq.BadOption, match="closed"):
                await client.call("echo")

    asyncio.run(main())


def test_one_client_in_several_event_loops(urls: list[str], journal: Journal) -> None:
    client = connect(urls)

    async def some(start: int) -> list[int]:
        return await asyncio.gather(*(client.call("echo", start + number) for number in range(20)))

    def run(start: int) -> list[int]:
        return asyncio.run(some(start))

    starts = range(0, 400, 100)
    expected = [list(range(start, start + 20)) for start in starts]
    assert [run(start) for start in starts] == expected, "one after the other"
    with ThreadPoolExecutor(len(starts)) as pool:
        assert list(pool.map(run, starts)) == expected, "at once"
    asyncio.run(client.aclose())


def test_an_event_loop_that_ends_leaves_nothing(urls: list[str], journal: Journal) -> None:
    client = connect(urls)
    left: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def give_up() -> None:
        left.append(weakref.ref(asyncio.get_running_loop()))
        task = asyncio.create_task(client.call("hang"))
        await soon(lambda: journal.running >= 1)
        assert not task.done()

    asyncio.run(give_up())
    until(lambda: journal.running == 0)
    until(lambda: gc.collect() >= 0 and left[0]() is None)
    asyncio.run(client.aclose())


def test_an_event_loop_that_is_closed_in_the_middle_of_a_call(
    urls: list[str], journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(urls)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(client.call("hang"))
    loop.run_until_complete(soon(lambda: journal.running >= 1))
    loop.close()
    session = client._session

    async def go_on() -> None:
        assert await client.call("echo", "still there") == "still there", "in another event loop"
        await client.aclose()  # which ends a call that nobody can be told of
        with pytest.raises(tiedreq.BadOption, match="closed"):
            await client.call("echo")

    caplog.set_level(logging.WARNING)
    asyncio.run(go_on())
    until(lambda: journal.running == 0)
    assert not waiting.done() and not caplog.records and session is not None and session.over.done
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_client_that_is_forgotten_is_closed(urls: list[str], journal: Journal) -> None:
    client = connect(urls)
    asyncio.run(client.call("echo"))
    session = client._session
    assert session is not None
    with pytest.warns(ResourceWarning, match="never closed"):
        del client
        until(lambda: gc.collect() >= 0 and session.over.done)


def test_without_an_event_loop_it_says_what_to_use(urls: list[str], journal: Journal) -> None:
    import trio

    async def main() -> None:
        with pytest.raises(tiedreq.BadOption, match=r"tiedreq\.connect on Trio"):
            await connect(urls).call("echo")

    trio.run(main)


colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@on_asyncio
async def test_accept_sees_the_callers_context(urls: list[str], journal: Journal) -> None:
    seen: dict[object, tuple[str, str]] = {}

    def accept(value: object) -> bool:
        seen[value] = (colour.get(), threading.current_thread().name)
        return True

    async def call(client: tiedreq.aio.Client, mine: str) -> None:
        colour.set(mine)
        await client.call("echo", mine, accept=accept)

    async with connect(urls) as client:
        await asyncio.gather(call(client, "red"), call(client, "blue"))
        assert seen == {"red": ("red", "tiedreq"), "blue": ("blue", "tiedreq")}

        async def slow(value: object) -> bool:
            return True

        with pytest.raises(tiedreq.BadOption, match="accept"):
            await client.call("echo", accept=slow)

        def stop(value: object) -> bool:
            raise StopIteration

        with pytest.raises(RuntimeError, match="StopIteration"):
            await client.call("echo", accept=stop)
