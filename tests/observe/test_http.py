"""The small HTTP server: what it answers, and that nothing that comes in can hurt it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from tiedreq.net.addresses import is_loopback
from tiedreq.observe.http import HEAD_BYTES_MAX, Guard, Request, Response, _Server, serve_http

GET = b"GET /here?a=1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n"


def echo(request: Request) -> Response:
    if request.path == "/broken":
        raise RuntimeError("a bug")
    return Response.text(200, f"{request.method} {request.path} {request.query}")


async def ask(sent: bytes, *, answer: Any = echo, check_host: bool = True, end: bool = True) -> bytes:
    """Send bytes to one connection; all that comes back."""
    ours, theirs = memory_stream_pair()
    server = _Server(answer, check_host=check_host)
    got = bytearray()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await server.connection(theirs, "here")
            await theirs.aclose()

        nursery.start_soon(serve)
        await ours.send_all(sent)
        if end:
            await ours.send_eof()
        async for part in ours:
            got += part
        await ours.aclose()
    return bytes(got)


async def test_a_request_is_answered_and_the_connection_closed(autojump_clock: Any) -> None:
    head, _, body = (await ask(GET)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in head and b"Cache-Control: no-store" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == b"GET /here {'a': '1'}\n"


async def test_head_has_no_body(autojump_clock: Any) -> None:
    head, _, body = (await ask(GET.replace(b"GET", b"HEAD"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and body == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET.replace(b"GET", b"POST"), 405),
        (GET.replace(b"localhost:1", b"evil.example"), 403),
        (GET.replace(b"localhost:1", b"[2001:db8::1]:80"), 403),
        (GET.replace(b"\r\n\r\n", b"\r\nOrigin: http://localhost\r\n\r\n"), 403),
        (GET.replace(b"\r\n\r\n", b"\r\nSec-Fetch-Site: cross-site\r\n\r\n"), 403),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 2 * HEAD_BYTES_MAX, 431),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /?" + b"a=1&" * 100 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
async def test_what_is_refused(autojump_clock: Any, sent: bytes, status: int) -> None:
    assert (await ask(sent)).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:80", b"[::1]:80", b"127.9.9.9", b"LOCALHOST:1"])
async def test_hosts_of_this_machine_are_taken(autojump_clock: Any, host: bytes) -> None:
    assert (await ask(GET.replace(b"localhost:1", host))).startswith(b"HTTP/1.1 200 ")


async def test_beyond_loopback_any_host_is_taken(autojump_clock: Any) -> None:
    assert (await ask(GET.replace(b"localhost:1", b"replica-a:9100"), check_host=False)).startswith(b"HTTP/1.1 200 ")


async def test_a_request_that_does_not_come_is_not_waited_for(autojump_clock: Any) -> None:
    began = trio.current_time()
    assert (await ask(GET[:20], end=False)).startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() - began < 10


async def test_drops_do_not_stretch_the_time(autojump_clock: Any) -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in GET[:-2] * 3:
                await ours.send_all(bytes([byte]))
                await trio.sleep(1.0)

        nursery.start_soon(drip)
        with trio.fail_after(10):
            await _Server(echo, check_host=True).connection(theirs, "here")
        nursery.cancel_scope.cancel()


async def test_who_leaves_early_gets_nothing(autojump_clock: Any) -> None:
    assert await ask(b"") == b""
    assert (await ask(GET[:10])).startswith(b"HTTP/1.1 400 ")


async def test_a_bug_in_a_route_ends_one_connection(autojump_clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(GET.replace(b"/here", b"/broken")) == b""
    assert "a bug" in caplog.text


def test_the_token_opens_and_nothing_else_does() -> None:
    def refused(guard: Guard, **headers: str) -> bool:
        return guard.refusal(Request("GET", "/", {}, headers)) is not None

    guard = Guard("secret")
    assert not refused(guard, authorization="Bearer secret")
    assert not refused(guard, authorization="bearer secret")
    for wrong in ("", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret", "Bearer \xff"):
        assert refused(guard, authorization=wrong)
    assert refused(guard)
    assert not refused(Guard(None))
    refusal = guard.refusal(Request("GET", "/", {}, {}))
    assert refusal is not None and refusal.status == 401 and b"secret" not in refusal.body


def test_what_loopback_is() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.8.8.8")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "example")))


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(serve_http, "127.0.0.1:0", echo)
        yield url
        nursery.cancel_scope.cancel()


async def test_over_a_real_socket() -> None:
    async with listening() as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(3):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(GET)
                got = bytearray()
                async for part in stream:
                    got += part
            assert got.endswith(b"GET /here {'a': '1'}\n")


async def test_a_taken_port_is_named() -> None:
    async with listening() as url:
        address = url.removeprefix("http://")
        with pytest.raises(OSError) as caught:
            await serve_http(address, echo)
    assert caught.value.filename == address
