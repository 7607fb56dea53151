"""The dashboard over real sockets: its page and data, the controls, and clients that take more than their share."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from cluster.config import UpConfig
from cluster.control import Operator
from cluster.dashboard import missing
from cluster.dashboard import serving as limits
from cluster.dashboard.feed import Feed
from cluster.dashboard.guard import Rules
from cluster.demo_state import DemoState
from cluster.engines import LocalEngine
from cluster.output import Output
from cluster.state import StateDirectory
from cluster.supervisor import Cluster
from tiedreq.units import LatencySpec

pytestmark = pytest.mark.skipif(bool(missing()), reason="the extra dashboard is not installed")

TOKEN = "open-sesame"
STATIC = Path(limits.__file__).parent / "static"


class Served:
    """A dashboard of a cluster whose replicas have not been started."""

    def __init__(self, port: int, cluster: Cluster) -> None:
        self.port = port
        self.cluster = cluster

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    def head(self, method: str, path: str, **headers: str) -> bytes:
        headers = {"host": f"127.0.0.1:{self.port}", **headers}
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def get(self, path: str, **headers: str) -> tuple[int, str, bytes]:
        return await self._ask(self.head("GET", path, connection="close", **headers))

    async def control(self, request: Any, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
        body = json.dumps(request).encode()
        headers = {"content_type": "application/json", "content_length": str(len(body))}
        head = self.head("POST", "/api/control", connection="close", authorization=f"Bearer {token}", **headers)
        status, _, answer = await self._ask(head + body)
        return status, json.loads(answer)

    async def _ask(self, request: bytes) -> tuple[int, str, bytes]:
        async with await self.connect() as stream:
            await stream.send_all(request)
            answer = b""
            with trio.fail_after(20):
                async for chunk in stream:
                    answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode().lower(), body


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    from cluster.dashboard.app import make_app

    config = UpConfig(replicas=2, mesh_latency=LatencySpec())
    cluster = Cluster(config, StateDirectory(folder), Output(), LocalEngine(), lambda name: {})
    operator = Operator(cluster, DemoState(config, folder), None)
    feed, rules = Feed(cluster, operator, None, title="a test", slots=8), Rules(TOKEN, "127.0.0.1")
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(limits.serve_dashboard, make_app(feed, operator, rules, nursery), listeners)
        yield Served(port, cluster)
        nursery.cancel_scope.cancel()


async def test_the_page_and_all_that_it_loads(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        status, head, body = await page.get("/")
        assert status == 200 and "text/html" in head and "content-security-policy: default-src 'self'" in head
        wanted = set(re.findall(r'(?:src|href)="(/[^"]+)"', body.decode()))
        for script in STATIC.glob("*.js"):
            wanted |= {f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text())}
        assert len(wanted) >= 9
        for path in sorted(wanted):
            assert (await page.get(path))[0] == 200, path
        tag = re.search(r'etag: (".*?")', head)
        assert tag is not None
        assert (await page.get("/", if_none_match=tag[1]))[0] == 304
        for path in (
            "/static/nothing.js",
            "/static/../guard.py",
            "/static/%2e%2e/guard.py",
            "/static/vendor/uPlot.LICENSE",
        ):
            assert (await page.get(path))[0] == 404
        assert (await page.get("/healthz"))[2] == b"ok\n"


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address but the name space of SVG, and where uPlot says it comes from."""
    for path in STATIC.rglob("*"):
        if path.suffix in (".html", ".css", ".js", ".svg"):
            found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"')]*", path.read_text()))
            assert found <= {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}, path
    assert "MIT" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()


async def test_data_and_controls(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        status, head, body = await page.get("/api/live?since=0")
        assert status == 200 and "cache-control: no-store" in head and "x-may-control: yes" in head
        assert json.loads(body)["now"]["title"] == "a test"
        assert "x-may-control: no" in (await page.get("/api/live", x_forwarded_for="192.0.2.7"))[1]
        for query in ("?since=-1", "?since=x", "?since=" + "9" * 40, ""):
            assert len(json.loads((await page.get(f"/api/live{query}"))[2])["points"]) == 1
        status, answer = await page.control({"do": "latency", "spec": "4ms"})
        assert (status, answer["said"]) == (200, "the latency between replicas is 4ms")
        assert str(page.cluster.faults.latency) == "4ms"
        status, answer = await page.control({"do": "latency", "spec": "4"})
        assert status == 422 and "no unit" in answer["error"]
        assert (await page.control({"do": "drain", "replica": "r0"}))[0] == 409
        assert (await page.control([1]))[0] == 400
        status, answer = await page.control({"do": "latency", "spec": "9ms"}, token="wrong")
        assert status == 401 and str(page.cluster.faults.latency) == "4ms"
        assert (await page.get("/", host="evil.example"))[0] == 421


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the other side has ended the connection, read to its end."""
    try:
        while await stream.receive_some(1 << 20):
            pass
    except trio.BrokenResourceError:
        pass
    return True


async def test_a_client_that_stops_reading_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.2)
    async with served(tmp_path) as page:
        async with await page.connect() as stream:
            request = page.head("GET", "/static/vendor/uPlot.iife.min.js")
            with trio.move_on_after(10) as waiting:
                try:
                    while True:
                        await stream.send_all(request * 50)
                except trio.BrokenResourceError:
                    pass
            assert not waiting.cancelled_caught, "it was cut off while it did not read"
        assert (await page.get("/healthz"))[0] == 200


async def test_the_end_does_not_wait_for_one_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_SECONDS", 1000.0)
    with trio.fail_after(30):
        async with served(tmp_path) as page:
            stream = await page.connect()
            with trio.move_on_after(0.5) as waiting:
                while True:
                    await stream.send_all(page.head("GET", "/static/vendor/uPlot.iife.min.js") * 50)
            assert waiting.cancelled_caught, "the server waits for one that does not read"
        assert await ended(stream), "and cut it off at its end"
    await stream.aclose()


async def test_connections_beyond_the_cap_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_PER_ADDRESS_MAX", 4)
    async with served(tmp_path) as page:
        streams = [await page.connect() for _ in range(5)]
        with trio.fail_after(10):
            assert await ended(streams[4])
        await streams[0].send_all(page.head("GET", "/healthz"))
        assert (await streams[0].receive_some(4096)).startswith(b"HTTP/1.1 200")
        for stream in streams:
            await stream.aclose()
        with trio.fail_after(10):
            while (await _try(page)) != 200:  # noqa: ASYNC110 -- the server counts when it has seen the end
                await trio.sleep(0.05)


async def test_who_goes_away_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the server would keep an idle connection: one that the other side has closed counts no more."""
    monkeypatch.setattr(limits, "CONNECTIONS_PER_ADDRESS_MAX", 3)
    monkeypatch.setattr(limits, "IDLE_SECONDS", 1000.0)
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.02)

    def ask(port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().read() == b"ok\n"
        except (OSError, http.client.HTTPException):  # there is no room as yet
            return False
        finally:
            connection.close()

    async with served(tmp_path) as page:
        answered = 0
        with trio.fail_after(30):
            while answered < 60:
                answered += await trio.to_thread.run_sync(ask, page.port)
        assert answered == 60


async def _try(page: Served) -> int:
    try:
        return (await page.get("/healthz"))[0]
    except (trio.BrokenResourceError, IndexError):
        return 0


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nx: ", b"\x00\xff" * 100, b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000]
)
async def test_who_sends_no_request_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 0.2)
    async with served(tmp_path) as page, await page.connect() as stream:
        with trio.fail_after(10):
            await stream.send_all(said)
            assert await ended(stream)
        assert (await page.get("/healthz"))[0] == 200
