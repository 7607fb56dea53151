"""Anything may come from an accepted connection: it ends that connection and nothing else (B38)."""

from __future__ import annotations

import logging
import socket

import pytest
import trio

from tests.net_layer.servers import HANG, SHAKE, Serving
from tiedreq.errors import ConnectError

HOSTILE = {
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP post": b"POST / HTTP/1.0\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000,
    "TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(190)),
    "half a handshake": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: webso",
    "one byte": b"\x16",
    "nothing": b"",
    "endless header": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "bad version": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 99\r\n\r\n",
    "binary": bytes(range(256)) * 20,
    "not even ascii": "GÉT / HTTP/1.1\r\n\r\n".encode(),
}
HOSTILE_FRAMES = {
    "unmasked": b"\x82\x01x",
    "reserved bits": b"\xf2\x81aaaax",
    "unknown opcode": b"\x83\x81aaaax",
    "text that is no UTF-8": b"\x81\x82\0\0\0\0\xff\xfe",
    "close reason that is no UTF-8": b"\x88\x84\0\0\0\0\x03\xe8\xff\xfe",
    "close code of one byte": b"\x88\x81\0\0\0\0\x03",
    "ping of 200 bytes": b"\x89\xfe\x00\xc8\0\0\0\0" + bytes(200),
    "continuation of nothing": b"\x80\x81\0\0\0\0x",
    "length of 2**63": b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",
    "length of 1 GB, then silence": b"\x82\xff\x00\x00\x00\x00\x40\x00\x00\x00\0\0\0\0xxxx",
    "half a frame": b"\x82\xfe",
    "a ping after a close": b"\x88\x80\0\0\0\0\x89\x80\0\0\0\0\x89\x80\0\0\0\0",
    "a thousand pings": b"\x89\x80\0\0\0\0" * 1000,
}


class TestHostileBytes:
    """B38: that connection is closed, the server goes on, its slot is free again."""

    @pytest.mark.parametrize("ending", ["closes", "resets", "is silent"])
    @pytest.mark.parametrize("kind", HOSTILE)
    async def test_before_the_handshake(self, kind: str, ending: str, caplog: pytest.LogCaptureFixture) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handshake_timeout=0.3, connections_max=3)
            for _ in range(3):
                await self.send(await server.raw(), HOSTILE[kind], ending)
            await server.alive()
            nursery.cancel_scope.cancel()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    @pytest.mark.parametrize("ending", ["closes", "resets"])
    @pytest.mark.parametrize("kind", HOSTILE_FRAMES)
    async def test_after_the_handshake(self, kind: str, ending: str, caplog: pytest.LogCaptureFixture) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery)
            for _ in range(3):
                stream = await server.raw()
                await stream.send_all(SHAKE + b"\r\n")
                assert b" 101 " in await stream.receive_some(4096)
                await self.send(stream, HOSTILE_FRAMES[kind], ending)
            await server.alive()
            nursery.cancel_scope.cancel()
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    @staticmethod
    async def send(stream: trio.SocketStream, data: bytes, ending: str) -> None:
        with trio.move_on_after(0.2):
            try:
                await stream.send_all(data)
                if ending == "is silent":
                    with trio.fail_after(HANG):  # until the server has enough of it
                        while await stream.receive_some(4096):
                            pass
                await trio.sleep(0.02)
            except trio.BrokenResourceError:
                pass
        if ending == "resets":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stream.socket.close()

    async def test_a_browser_is_refused(self) -> None:
        """No web page drives a replica on this machine."""
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery)
            stream = await server.raw()
            await stream.send_all(SHAKE + b"Origin: https://example.test\r\n\r\n")
            assert b" 403 " in await stream.receive_some(4096)
            await stream.aclose()
            await server.alive()
            nursery.cancel_scope.cancel()

    async def test_a_silent_connection_frees_its_slot(self) -> None:
        """It is closed by the server: the other side keeps it open."""
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handshake_timeout=0.1, connections_max=2)
            streams = [await server.raw() for _ in range(2)]
            with trio.fail_after(HANG):
                assert [await stream.receive_some(1) for stream in streams] == [b"", b""]
            await server.alive()
            for stream in streams:
                await stream.aclose()
            nursery.cancel_scope.cancel()

    @pytest.mark.hostile
    async def test_a_thousand_of_them(self, caplog: pytest.LogCaptureFixture) -> None:
        """There is room for a tenth of them, so that each must give back its slot; and the log has a few lines."""
        caplog.set_level(logging.INFO)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handshake_timeout=0.5, connections_max=100)
            kinds = list(HOSTILE.values())
            limit = trio.CapacityLimiter(50)

            async def one(number: int) -> None:
                async with limit:
                    ending = ("closes", "resets")[number % 2]
                    await self.send(await server.raw(), kinds[number % len(kinds)], ending)

            async with trio.open_nursery() as attack:
                for number in range(1000):
                    attack.start_soon(one, number)
            with trio.fail_after(HANG):
                while True:
                    try:
                        await server.alive()
                        break
                    except ConnectError:  # the last ones have not been seen to go
                        await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        windows = (trio.current_time() - began) // 10 + 1
        lines = [record for record in caplog.records if "is no WebSocket of ours" in record.message]
        assert 0 < len(lines) <= 5 * windows
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
