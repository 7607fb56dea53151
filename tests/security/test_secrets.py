"""The token: who has it comes in, who hasn't does not, and nobody ever reads it in a log or an error."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

import tiedreq
from tests.net.bench import bench_service
from tiedreq.wire.proof import TokenAuthenticator

TOKEN = "vEry-secret_token-of-this-test"


@asynccontextmanager
async def replica(**options: object) -> AsyncIterator[tiedreq.ReplicaHandle]:
    async with trio.open_nursery() as nursery:
        serve = partial(tiedreq.serve, bench_service(), name="r0", **options)  # type: ignore[arg-type]
        yield await nursery.start(lambda task_status: serve(task_status=task_status))
        nursery.cancel_scope.cancel()


async def test_the_token_is_never_logged_shown_or_sent(caplog: pytest.LogCaptureFixture) -> None:
    """At the most talkative level, with the right token, another one, and none."""
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    async with replica(token=TOKEN) as handle:
        for token in (TOKEN, TOKEN + "x", None):
            try:
                async with tiedreq.connect([handle.url], token=token, timeout=3) as client:
                    assert token == TOKEN
                    assert await client.call("work") == "r0"
                    told += [repr(client), str(client.stats()), json.dumps(await client.inquire("snapshot"))]
            except tiedreq.AuthRefused as refused:
                assert token != TOKEN
                told += [str(refused), repr(refused)]
        told += [repr(handle), repr(handle._server), repr(handle._server._authenticator), str(handle.status())]
    assert len(told) == 3 + 2 * 2 + 4 and caplog.records
    for text in [*told, *[record.getMessage() for record in caplog.records], caplog.text]:
        assert TOKEN not in text


async def test_the_token_never_crosses_the_wire() -> None:
    """A tap between the two sees neither the token nor the same proof twice."""
    seen = bytearray()
    async with replica(token=TOKEN) as handle, trio.open_nursery() as nursery:

        async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
            try:
                async for data in source:
                    seen.extend(data)
                    await target.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        async def tap(near: trio.SocketStream) -> None:
            far = await trio.open_tcp_stream("127.0.0.1", int(handle.url.rpartition(":")[2]))
            async with far, trio.open_nursery() as both:
                both.start_soon(copy, near, far)
                await copy(far, near)
                both.cancel_scope.cancel()

        serve = partial(trio.serve_tcp, tap, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with tiedreq.connect([url], token=TOKEN) as client:
            assert await client.call("work") == "r0"
        nursery.cancel_scope.cancel()
    assert len(seen) > 200 and TOKEN.encode() not in seen


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one function that is made for it, whether the proof is right, wrong, short or missing."""
    compared: list[int] = []
    real = hmac.compare_digest

    def spying(one: bytes, other: bytes) -> bool:
        compared.append(len(other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spying)
    holder = TokenAuthenticator.of(TOKEN)
    proof = holder.make(b"transcript")
    found = [holder.check(b"transcript", tried) for tried in (proof, bytes(32), proof[:-1], b"")]
    assert found == [True, False, False, False] and compared == [32, 32, 31, 0]


ORIGINS = ["https://evil.example", "null", "http://127.0.0.1:{port}", "http://localhost", "file://", ""]


@pytest.mark.parametrize("origin", ORIGINS)
async def test_no_web_page_may_open_a_replicas_port(origin: str) -> None:
    """B42: a browser always says where the page came from; no page has any business here, not even one of this host."""
    async with replica(token=TOKEN) as handle:
        port = int(handle.url.rpartition(":")[2])
        lines = [
            "GET / HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version: 13",
            f"Origin: {origin.format(port=port)}",
        ]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all("\r\n".join([*lines, "", ""]).encode())
            assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 403 ")
        async with tiedreq.connect([handle.url], token=TOKEN) as client:
            assert await client.call("work") == "r0"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_nor_does_a_plain_request_of_a_page_do_anything(method: str) -> None:
    """What an image or a form can send, with a foreign Host (rebinding): it is no WebSocket, so it is closed."""
    async with replica() as handle:
        port = int(handle.url.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            request = f"{method} /?do=drain HTTP/1.1\r\nHost: evil.example\r\nOrigin: null\r\n\r\n"
            await stream.send_all(request.encode())
            found = b""
            with trio.fail_after(5):
                try:
                    while data := await stream.receive_some(4096):
                        found += data
                except trio.BrokenResourceError:
                    pass
            assert not found.startswith((b"HTTP/1.1 2", b"HTTP/1.1 101"))
        assert not handle.draining and handle.status()["calls"] == 0
