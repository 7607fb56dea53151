"""Whole sidecars and a front over real sockets on loopback, in this process."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.proxy._peer import Over, Plug, answer, read_request
from tests.proxy.test_listener import exchange, split
from tiedreq.core.errors import BadOption
from tiedreq.net.serving import ReplicaHandle
from tiedreq.proxy.crossing import Crossing
from tiedreq.proxy.front import Front, FrontOptions
from tiedreq.proxy.health import HealthOptions
from tiedreq.proxy.keeper import Sidecars, keep_client
from tiedreq.proxy.listener import HttpListener
from tiedreq.proxy.sidecar import Sidecar, SidecarOptions, Upstream

PATIENCE = 30.0
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
SMALL = FrontOptions(body_bytes_max=1000)


class App:
    """An upstream on a socket, which can be closed and opened again."""

    def __init__(self, name: str, nursery: trio.Nursery) -> None:
        self.name = name
        self.requests: list[str] = []
        self.closed = 0
        self.healthy = True
        self.port = 0
        self.scope = trio.CancelScope()
        self._nursery = nursery

    async def open(self) -> None:
        self.scope = trio.CancelScope()
        self.port = await self._nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[int]) -> None:
        with self.scope:
            listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        plug = Plug(stream)
        try:
            while True:
                await self._answer(plug)
        except (Over, trio.BrokenResourceError, AssertionError):
            self.closed += 1
        finally:
            await stream.aclose()

    async def _answer(self, plug: Plug) -> None:
        head = await plug.until(b"\r\n\r\n")
        if b"expect: 100-continue" in head:
            if b"/refuse" in head:
                await plug.send(answer(b"no", "413 Too Large", "Connection: close"))
                raise Over
            await plug.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        plug.received = head + plug.received
        line, headers, body = await read_request(plug)
        if "/health" in line:
            await plug.send(answer(b"", "200 OK" if self.healthy else "500 Oh"))
            return
        self.requests.append(line)
        if "/half" in line:
            await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + b"half" * ("/half/first" not in line))
            await plug.exactly(1)
        if "/hang" in line:
            await plug.exactly(1)
        if "/still" in line:
            await trio.sleep_forever()
        told = f"{self.name} {line.split()[0]} {len(body)} {headers.get('content-length')}"
        await plug.send(answer(told.encode()))


async def until(true: Any) -> None:
    with trio.fail_after(PATIENCE):
        for _ in iter(true, True):
            await trio.sleep(0.01)


async def until_answered(plug: Plug, begin: bytes) -> None:
    for _ in range(1000):
        if (await exchange(plug, GET))[2].startswith(begin):
            return
        await trio.sleep(0.02)
    pytest.fail(f"no answer began with {begin!r}")


@asynccontextmanager
async def running(
    count: int, *, chosen: FrontOptions = SMALL, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[tuple[list[App], list[Sidecar], Plug]]:
    """So many sidecars with their apps, and a connection to a front, ``chosen``, that takes passages with ``tls``."""
    async with trio.open_nursery() as nursery:
        apps = [App(f"app{number}", nursery) for number in range(count)]
        sidecars: list[Sidecar] = []
        for app in apps:
            await app.open()
            peers = {each.options.name: each.handle.url for each in sidecars if each.handle is not None}
            upstream, name = Upstream("127.0.0.1", app.port), f"r{len(sidecars)}"
            sidecars.append(Sidecar(SidecarOptions(upstream=upstream, name=name, peers=peers, **options)))
            await nursery.start(sidecars[-1].run)
            with trio.fail_after(PATIENCE):
                await sidecars[-1].ready.wait()
        front = Front(chosen, Crossing(tls))
        urls = [sidecar.handle.url for sidecar in sidecars if sidecar.handle is not None]
        nursery.start_soon(front.run)
        nursery.start_soon(keep_client, front, Sidecars(replicas=urls, token=options.get("token")))
        listener = HttpListener(front.handle, chosen.limits)
        bound = await nursery.start(listener.run, "127.0.0.1:0")
        await until(lambda: front.client is not None and len(front.client.stats()["replicas"]) == count)
        async with await trio.open_tcp_stream(bound.host, bound.port) as stream:
            yield apps, sidecars, Plug(stream)
        nursery.cancel_scope.cancel()


async def test_requests_are_tied_and_what_has_a_long_body_passes_once() -> None:
    async with running(2, token="secret") as (apps, sidecars, plug):
        for _ in range(3):
            assert (await exchange(plug, GET))[0] == 200
        assert sum(len(app.requests) for app in apps) in range(3, 7), "two may start at once"
        for app in apps:
            app.requests.clear()
        body = b"x" * 200_000
        status, headers, told = await exchange(
            plug, b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + body
        )
        assert status == 200 and told.endswith(b" PUT 200000 200000") and headers["tiedreq-replica"] in ("r0", "r1")
        chunked = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n%b\r\n0\r\n\r\n" % body
        status, _, told = await exchange(plug, chunked)
        assert status == 200 and told.endswith(b" POST 200000 None")
        once = [line for app in apps for line in app.requests if not line.startswith("GET ")]
        assert len(once) == 2, "a second copy of a GET may come late"
        await until(lambda: not any(len(sidecar.desk) for sidecar in sidecars))
        await until(lambda: not any(sidecar.upstream.open for sidecar in sidecars))


async def test_a_long_body_is_sent_only_once_the_upstream_asks_for_it() -> None:
    async with running(1) as (apps, _, plug):
        waits = b"PUT /%b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n"
        await plug.send(waits % b"a")
        assert split(await plug.until(b"\r\n\r\n"))[0] == 100
        assert (await exchange(plug, b"x" * 2000))[2] == b"app0 PUT 2000 2000"
        await plug.send(waits % b"refuse")
        status, headers, body = split(await plug.rest())
        assert status == 413 and body == b"no" and headers["connection"] == "close"
        assert len(apps[0].requests) == 1


async def test_a_client_that_leaves_closes_the_upload_and_frees_the_slot() -> None:
    async with running(1, slots=1) as (apps, sidecars, plug):
        await plug.send(b"PUT /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)
        await until(lambda: bool(apps[0].requests))
        assert len(sidecars[0].desk) == 0 and sidecars[0].upstream.open == 1, "the ticket is used up"
        await plug.close()
        await until(lambda: apps[0].closed > 0)
        handle = sidecars[0].handle
        assert handle is not None
        await until(lambda: handle.status()["free"] == 1)


async def test_a_slot_that_was_lent_is_free_when_the_upstream_has_let_go() -> None:
    async with running(1, slots=1) as (apps, sidecars, plug):
        await plug.send(LONG.replace(b"/a", b"/still"))
        await until(lambda: bool(apps[0].requests))
        handle = sidecars[0].handle
        assert handle is not None and handle.status()["free"] == 0
        await plug.close()
        await until(lambda: handle.status()["free"] == 1)
        assert sidecars[0].upstream.open == 0, "the upstream is asked no more than one thing at a time"


async def test_a_ticket_is_needed() -> None:
    async with running(1) as (apps, sidecars, _):
        async with await trio.open_tcp_stream("127.0.0.1", sidecars[0].desk.port) as stream:
            for request in (GET, GET.replace(b"\r\n\r\n", b"\r\nTiedreq-Ticket: 0000\r\n\r\n")):
                assert (await exchange(Plug(stream), request))[0] == 403
        assert not apps[0].requests


LONG = b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000


async def test_a_passage_that_leads_nowhere() -> None:
    async with running(1) as (_, sidecars, plug):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            sidecars[0].desk.port = taken.getsockname()[1]
        status, headers, _ = await exchange(plug, LONG)
        assert status == 503 and headers["tiedreq-error"] == "unavailable"


async def test_a_passage_that_does_not_speak_tls() -> None:
    async with running(1, tls=ssl.create_default_context()) as (apps, sidecars, plug):
        status, headers, told = await exchange(plug, LONG)
        assert status == 503 and headers["tiedreq-error"] == "unavailable" and b"no TLS with" in told
        await until(lambda: sidecars[0].desk.listener.connections == 0)
        assert not apps[0].requests


async def test_a_passage_takes_as_many_fields_as_the_front() -> None:
    async with running(1) as (_, _, plug):
        many = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(254))
        assert (await exchange(plug, LONG.replace(b"\r\n\r\n", b"\r\n" + many + b"\r\n", 1)))[0] == 200


@pytest.mark.parametrize("path", [b"/half", b"/half/first"])
async def test_an_answer_to_a_long_body_that_stands_still_is_broken_off(path: bytes) -> None:
    async with running(1, chosen=replace(SMALL, stall=0.3)) as (_, sidecars, plug):
        await plug.send(LONG.replace(b"/a", path))
        with trio.fail_after(PATIENCE):
            head, _, body = (await plug.rest()).partition(b"\r\n\r\n")
        assert b" 200 " in head and body == b"half" * (path == b"/half")
        await until(lambda: sidecars[0].upstream.open == 0)


async def test_a_passage_to_an_upstream_that_is_gone() -> None:
    async with running(1) as (apps, _, plug):
        apps[0].scope.cancel()
        status, headers, _ = await exchange(plug, LONG)
        assert status == 502 and headers["tiedreq-error"] == "upstream-unreachable"


async def test_an_upstream_that_is_gone_takes_its_sidecar_out_until_it_is_back() -> None:
    async with running(2) as (apps, sidecars, plug):
        first = sidecars[0].handle
        assert first is not None
        apps[0].scope.cancel()
        for _ in range(20):
            assert (await exchange(plug, GET))[2].startswith(b"app1 ")
        await until(lambda: not sidecars[0].health.up or len(apps[1].requests) > 40)
        with trio.fail_after(PATIENCE):
            while sidecars[0].health.up:  # nobody has asked it yet
                await exchange(plug, GET)
        await apps[0].open()
        await until(lambda: sidecars[0].handle is not first)
        assert sidecars[0].handle is not None and sidecars[0].handle.url == first.url
        apps[1].scope.cancel()
        await until_answered(plug, b"app0 GET")


async def test_a_failing_health_check_takes_it_out() -> None:
    health = HealthOptions(path="/health", interval=0.02)
    async with running(1, health=health) as (apps, sidecars, plug):
        first = sidecars[0].handle
        assert first is not None
        apps[0].healthy = False
        await until(lambda: first.draining)
        assert sidecars[0].health.reason == "/health is answered with 500"
        apps[0].healthy = True
        await until(lambda: sidecars[0].handle is not first)
        await until_answered(plug, b"app0 GET")


async def test_a_sidecar_is_a_front_too_and_drains(nursery) -> None:
    app = App("app", nursery)
    await app.open()
    options = SidecarOptions(upstream=Upstream("127.0.0.1", app.port), name="a", http="127.0.0.1:0")
    sidecar, over = Sidecar(options), trio.Event()

    async def run(task_status: trio.TaskStatus[None]) -> None:
        await sidecar.run(task_status=task_status)
        over.set()

    await nursery.start(run)
    with trio.fail_after(PATIENCE):
        await sidecar.front.connected.wait()
    assert sidecar.http_url is not None
    async with await trio.open_tcp_stream("127.0.0.1", int(sidecar.http_url.rpartition(":")[2])) as stream:
        assert (await exchange(Plug(stream), GET))[2].startswith(b"app GET")
        sidecar.drain()
        assert await Plug(stream).rest() == b""
    with trio.fail_after(PATIENCE):
        await over.wait()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "https://a:1", "http://", "http://a:x", "http://a/b", "http://u@a", "http://a?b", "ws://a"],
)
def test_what_is_no_upstream(url: str) -> None:
    with pytest.raises(BadOption, match=r"^upstream: .* is not http://HOST:PORT"):
        Upstream.read(url)


def test_options() -> None:
    assert str(Upstream.read("http://[::1]:81/")) == "http://[::1]:81" and Upstream.read("http://a").port == 80
    for change in ({"path": "health"}, {"path": "/a b"}, {"interval": 0}, {"failures_max": 0}):
        with pytest.raises(BadOption):
            replace(HealthOptions(), **change)
    for change in ({"timeout": 0}, {"stall": -1}, {"body_bytes_max": 0}):
        with pytest.raises(BadOption):
            replace(FrontOptions(), **change)


async def test_sidecars_find_each_other_in_a_list_that_grows(tmp_path: Path) -> None:
    """Each is told where the list is, and nothing else; the first is a front, too."""
    members = tmp_path / "members"
    members.write_text("# nobody yet\n")
    async with trio.open_nursery() as nursery:
        sidecars: list[Sidecar] = []
        for number in range(2):
            app = App(f"app{number}", nursery)
            await app.open()
            options = SidecarOptions(
                upstream=Upstream("127.0.0.1", app.port),
                name=f"r{number}",
                discover=str(members),
                http=None if number else "127.0.0.1:0",
            )
            sidecars.append(Sidecar(options))
            await nursery.start(sidecars[-1].run)
            with trio.fail_after(PATIENCE):
                await sidecars[-1].ready.wait()
            members.write_text("".join(f"{each.handle.url}\n" for each in sidecars if each.handle is not None))
        front = sidecars[0].front
        await until(lambda: front.client is not None and len(front.client.stats()["replicas"]) == 2)
        handles = [sidecar.handle for sidecar in sidecars]
        await until(lambda: all(handle is not None and linked(handle) == 1 for handle in handles))
        assert sidecars[0].http_url is not None
        port = int(sidecars[0].http_url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            assert (await exchange(Plug(stream), GET))[0] == 200
        nursery.cancel_scope.cancel()


def linked(handle: ReplicaHandle) -> int:
    return sum(view["up"] for view in handle.status()["links"].values())


async def test_a_client_that_leaves_in_mid_upload_while_it_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Who reads from it and who writes to it both find that out; nothing of it is an error of ours."""
    async with running(1) as (apps, _, plug):

        async def echo(upstream: Plug) -> None:
            await upstream.until(b"\r\n\r\n")
            await upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while data := await upstream.stream.receive_some(65536):
                await upstream.send(b"%x\r\n%b\r\n" % (len(data), data))

        apps[0]._answer = echo  # type: ignore[method-assign]
        head = b"PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await plug.send(head + b"400000\r\n" + b"x" * 2_000_000)
        await trio.sleep(0.3)  # until its answer, which it does not read, fills the way back
        await plug.close()
        await trio.sleep(0.5)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
