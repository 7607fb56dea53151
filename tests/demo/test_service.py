import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from cluster.demo.index import IndexUnavailable
from cluster.demo.library import QueryStopped
from cluster.demo.service import lifespan, service
from cluster.demo.settings import VARIABLE
from tiedreq.errors import BadOption
from tiedreq.service import Context, Failure

MakeContext = Callable[..., Context]


@pytest.fixture
def configure(stdlib_index: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def configure(**values: Any) -> None:
        settings = {"index": str(stdlib_index), "replica": "r0", "service": "const(10ms)", **values}
        monkeypatch.setenv(VARIABLE, json.dumps(settings))

    configure()
    return configure


@asynccontextmanager
async def running(make: MakeContext) -> AsyncIterator[Callable[..., Any]]:
    """Call a method's handler as a replica does; yields ``call(method, args)``."""
    async with lifespan() as demo:

        async def call(name: str, args: Any, context: Context | None = None) -> Any:
            context = context or make(demo)
            context.state = demo
            method = service.methods[name]
            if method.run == "async":
                return await method.handler(context, args)
            return await trio.to_thread.run_sync(method.handler, context, args)

        yield call


async def failure(call: Callable[..., Any], name: str, args: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        await call(name, args)
    return caught.value


def test_only_charge_may_not_run_twice() -> None:
    assert {name: (method.idempotent, method.run) for name, method in service.methods.items()} == {
        "search": (True, "thread"),
        "lookup": (True, "async"),
        "charge": (False, "async"),
        "work": (True, "async"),
    }


@pytest.mark.usefixtures("configure")
async def test_search_returns_hits(context: MakeContext) -> None:
    async with running(context) as call:
        hits = await call("search", {"query": "json", "limit": 3})
        assert [set(hit) for hit in hits] == [{"name", "kind", "summary", "score"}] * 3
        assert hits[0]["name"] == "json"
        assert len(await call("search", {"query": "file"})) == 10
        assert await call("search", {"query": "json AND decod*", "syntax": "fts5"})
        assert await call("search", {"query": "join("})
        assert await call("search", {"query": "xyzzy plugh"}) == []


@pytest.mark.usefixtures("configure")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"query": "json", "limit": 0}, "bad_argument"),
        ({"query": "json", "limit": 101}, "bad_argument"),
        ({"query": "x" * 501}, "bad_argument"),
        ({"limit": 5}, "bad_argument"),
        ({"query": "json", "syntax": "regex"}, "bad_argument"),
        ({"query": "( * )"}, "bad_query"),
        ({"query": "foo(", "syntax": "fts5"}, "bad_query"),
        ({"query": "nosuch:x", "syntax": "fts5"}, "bad_query"),
    ],
)
async def test_a_bad_search_fails_on_purpose(context: MakeContext, args: Any, code: str) -> None:
    async with running(context) as call:
        assert (await failure(call, "search", args)).code == code


@pytest.mark.usefixtures("configure")
async def test_a_search_that_was_stopped_before_it_began_stops(
    context: MakeContext, stop: Callable[[Context], None]
) -> None:
    async with running(context) as call:
        stopped = context()
        stop(stopped)
        with pytest.raises(QueryStopped):
            await call("search", {"query": "json"}, stopped)


@pytest.mark.usefixtures("configure")
async def test_lookup_finds_a_name_or_near_misses(context: MakeContext) -> None:
    async with running(context) as call:
        found = await call("lookup", {"name": "json.dumps"})
        assert found["name"] == "json.dumps"
        assert found["kind"] == "function"
        assert found["signature"].startswith("def dumps(obj, *,")
        assert "Serialize" in found["doc"]
        missed = await failure(call, "lookup", {"name": "jsn.dumps"})
        assert (missed.code, missed.retryable) == ("not_found", False)
        assert "json.dumps" in missed.details
        assert "near misses: json.dumps" in str(missed)


@pytest.mark.usefixtures("configure")
async def test_charge_gives_a_receipt_for_every_execution(context: MakeContext) -> None:
    async with running(context) as call:
        first, second = await call("charge", {"amount": 12.5}), await call("charge", {"amount": 12.5})
        assert (first["amount"], first["replica"]) == (12.5, "r0")
        assert first["receipt"] != second["receipt"]
        for amount in (0, -1, 10_000.01, 1.001, float("nan"), "5", True, None):
            assert (await failure(call, "charge", {"amount": amount})).code == "bad_argument"


async def test_work_takes_its_time(
    configure: Callable[..., None], context: MakeContext, autojump_clock: trio.testing.MockClock
) -> None:
    configure(slow="0:3")
    async with running(context) as call:
        assert await call("work", None) == {"replica": "r0", "service_ms": 30.0, "paused_ms": 0.0}
        assert (await call("work", {"units": 4}))["service_ms"] == 120.0
        assert (await call("work", {"service": "const(2ms)"}))["service_ms"] == 6.0
        for bad in ({"service": "exp(2)"}, {"service": 5}, {"units": 0}, {"units": 1001}, {"service": "x" * 501}):
            assert (await failure(call, "work", bad)).code == "bad_argument"
        assert "'2' has no unit" in str(await failure(call, "work", {"service": "exp(2)"}))


async def test_work_that_pauses_says_so(
    configure: Callable[..., None], context: MakeContext, autojump_clock: trio.testing.MockClock
) -> None:
    configure(pause="1s@10ms")
    async with running(context) as call:
        done = [await call("work", None, context(remaining=1e6)) for _ in range(50)]
    assert any(work["paused_ms"] >= 1000 for work in done)
    assert all(work["service_ms"] == pytest.approx(work["paused_ms"] + 10) for work in done)


@pytest.mark.usefixtures("configure")
@pytest.mark.parametrize(
    ("name", "args"), [("lookup", {"name": "json"}), ("charge", {"amount": 1}), ("work", {"service": "const(1h)"})]
)
async def test_an_async_handler_can_be_cancelled(context: MakeContext, name: str, args: Any) -> None:
    async with running(context) as call:
        with trio.CancelScope() as scope:
            scope.cancel()
            await call(name, args)
        assert scope.cancelled_caught


async def test_bad_settings_and_a_missing_index_are_found_at_the_start(
    configure: Callable[..., None], tmp_path: Path
) -> None:
    configure(service="exp(5)")
    with pytest.raises(BadOption, match="'5' has no unit"):
        async with lifespan():
            raise AssertionError("started")
    configure(index=str(tmp_path / "nowhere.sqlite"))
    with pytest.raises(IndexUnavailable, match="scripts/up builds it"):
        async with lifespan():
            raise AssertionError("started")


@pytest.mark.usefixtures("configure")
async def test_the_index_is_closed_when_the_replica_ends() -> None:
    async with lifespan() as demo:
        (connection,) = demo.library._idle
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")
