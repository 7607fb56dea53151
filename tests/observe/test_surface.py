"""What replicas and clients show over HTTP, over real sockets on loopback."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio

import tiedreq
from tests.observe.http_client import get
from tests.observe.services import make_service
from tiedreq.observe.options import Observe
from tiedreq.observe.surface import Surface

TOKEN = "a token of the test"
SHOWN = Observe(listen="127.0.0.1:0")


class Running(NamedTuple):
    handle: tiedreq.ReplicaHandle
    client: tiedreq.Client

    @property
    def replica_url(self) -> str:
        assert self.handle.observe_url is not None
        return self.handle.observe_url

    @property
    def client_url(self) -> str:
        assert self.client.observer is not None and self.client.observer.url is not None
        return self.client.observer.url


@asynccontextmanager
async def running(token: str | None = TOKEN) -> AsyncIterator[Running]:
    """A replica and a client that both show themselves."""
    async with trio.open_nursery() as nursery:

        async def replica(task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            await tiedreq.serve(make_service(), name="a", token=token, observe=SHOWN, task_status=task_status)

        handle = await nursery.start(replica)
        async with tiedreq.connect([handle.url], token=token, observe=SHOWN) as client:
            yield Running(handle, client)
        nursery.cancel_scope.cancel()


def samples(page: str) -> dict[str, float]:
    """The samples of a page of metrics, by name and labels."""
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    }


async def test_health_and_metrics_are_open_and_the_rest_needs_the_token() -> None:
    async with running() as at:
        for url in (at.replica_url, at.client_url):
            assert (await get(f"{url}/healthz"))[::2] == (200, "ok\n")
            assert (await get(f"{url}/readyz"))[::2] == (200, "ready\n")
            assert (await get(f"{url}/metrics")).status == 200
            assert (await get(f"{url}/nothing")).status == 404
            for path in ("snapshot", "snapshot?recent=3"):
                assert (await get(f"{url}/{path}")).status == 401
                assert (await get(f"{url}/{path}", token="another")).status == 401
                got = await get(f"{url}/{path}", token=TOKEN)
                assert got.status == 200 and got.headers["content-type"] == "application/json"
                assert json.loads(got.body)["version"] == 1
                assert TOKEN not in got.body
        assert (await get(f"{at.client_url}/snapshot?recent=x", token=TOKEN)).status == 400


async def test_without_a_token_loopback_sees_it_all() -> None:
    async with running(token=None) as at:
        assert json.loads((await get(f"{at.replica_url}/snapshot")).body)["name"] == "a"


async def test_metrics_say_what_happened() -> None:
    async with running() as at:
        await at.client.call("nap", 0.002)
        with pytest.raises(tiedreq.RemoteFailure):
            await at.client.call("fail")
        replica = samples((await get(f"{at.replica_url}/metrics")).body)
        client = samples((await get(f"{at.client_url}/metrics")).body)
    assert replica['tiedreq_replica_executions_total{end="answered",method="nap",replica="a"}'] == 1
    assert replica['tiedreq_replica_executions_total{end="failed",method="fail",replica="a"}'] == 1
    assert replica['tiedreq_replica_service_seconds_count{method="nap",replica="a"}'] == 1
    assert 0.002 <= replica['tiedreq_replica_service_seconds_sum{method="nap",replica="a"}'] < 2
    assert replica['tiedreq_replica_service_seconds_bucket{le="0.0016",method="nap",replica="a"}'] == 0
    assert replica['tiedreq_replica_service_seconds_bucket{le="+Inf",method="nap",replica="a"}'] == 1
    assert replica['tiedreq_replica_queue{replica="a"}'] == 0 and replica['tiedreq_replica_slots{replica="a"}'] == 8
    assert replica["process_resident_memory_bytes"] > 1e6
    assert client['tiedreq_client_calls_total{method="nap",outcome="answered",policy="Auto"}'] == 1
    assert client['tiedreq_client_calls_total{method="fail",outcome="failed",policy="Auto"}'] == 1
    assert client['tiedreq_client_latency_seconds_count{method="nap",policy="Auto"}'] == 1
    brakes = {name: value for name, value in client.items() if name.startswith("tiedreq_client_brake")}
    assert sum(value for name, value in brakes.items() if 'method="nap"' in name) == 1


async def test_a_draining_replica_is_not_ready() -> None:
    async with running() as at, trio.open_nursery() as nursery:
        nursery.start_soon(at.client.call, "nap", 20.0)
        with trio.fail_after(10):
            for _ in iter(lambda: at.handle.status()["running"], 1):
                await trio.sleep(0.01)
            at.handle.drain()
            for _ in iter(lambda: at.handle.snapshot()["draining"], True):
                await trio.sleep(0.01)
        got = await get(f"{at.replica_url}/readyz")
        assert (got.status, got.body) == (503, "draining\n")
        assert (await get(f"{at.replica_url}/healthz")).status == 200
        page = samples((await get(f"{at.replica_url}/metrics")).body)
        assert page['tiedreq_replica_draining{replica="a"}'] == 1
        nursery.cancel_scope.cancel()


async def test_beyond_loopback_only_health_and_metrics_are_shown() -> None:
    async with running() as at:
        assert at.client.observer is not None
        surface = Surface(at.client.observer, token=TOKEN, ready=str, private=False)
        headers = {"authorization": f"Bearer {TOKEN}"}
        from tiedreq.observe.http import Request

        assert surface.answer(Request("GET", "/snapshot", {}, headers)).status == 403
        assert surface.answer(Request("GET", "/metrics", {}, headers)).status == 200


async def test_without_the_extra_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "tiedreq.observe.metrics", raising=False)
    with pytest.raises(tiedreq.BadOption, match=re.escape("pip install 'tiedreq[metrics]'")):
        await tiedreq.serve(make_service(), name="a", observe=SHOWN)


async def test_a_bad_address_is_refused_before_anything_runs() -> None:
    with pytest.raises(tiedreq.BadOption, match=r"observe\.listen"):
        Observe(listen="9100")
