"""Each trap of the WebSocket layer and of Trio, with a test named after it; then TLS, addresses and limits.

Real sockets on loopback and the real clock, so no assertion about how long anything takes but for generous bounds that
a hang would break.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial

import pytest
import trio
import trustme

from tests.net_layer.ends import LIMITS, OverWebsockets, Recorder, acceptor, cancel, connected, dialer, reply
from tiedreq.core.errors import BadOption
from tiedreq.core.link_options import LinkTiming
from tiedreq.errors import ConnectError
from tiedreq.net.addresses import Address
from tiedreq.net.link import LinkOptions
from tiedreq.net.listeners import bound_address, open_listeners
from tiedreq.net.transport import CLOSE_SECONDS, Transport, TransportClosed
from tiedreq.net.websocket import WebsocketTransport, dial_websocket, serve_websockets

HANG = 4.0
"""Nothing here takes this long unless it hangs."""


async def echo(transport: Transport) -> None:
    while (frame := await transport.receive_frame()) is not None:
        await transport.send_frame(frame)


async def idle(transport: Transport) -> None:
    await trio.sleep_forever()


def dial(url: str, **options):
    return dial_websocket(url, limits=options.pop("limits", LIMITS), **options)


async def tcp_server(nursery: trio.Nursery, handler) -> str:
    """Something that listens and is no WebSocket server."""
    listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
    return f"ws://127.0.0.1:{bound_address(listeners[0]).port}"


async def never_read(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


class Serving:
    """A WebSocket server whose handler may be chosen, with a proof of life: ``alive`` makes an echo."""

    def __init__(self) -> None:
        self.world = OverWebsockets()

    async def start(self, nursery: trio.Nursery, handler=echo, **options) -> Serving:
        await self.world.serve(nursery, handler, **options)
        return self

    async def alive(self) -> None:
        with trio.fail_after(HANG):
            async with self.world.dial() as transport:
                await transport.send_frame(b"are you there")
                assert await transport.receive_frame() == b"are you there"

    async def raw(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.world.port)


class TestSending:
    async def test_partial_frame_after_a_cancelled_send_is_never_followed_by_another(self) -> None:
        """B24: half a frame is on the wire; the connection is torn down instead of used again."""
        received: list[bytes | None] = []
        go = trio.Event()

        async def slow(transport: Transport) -> None:
            await go.wait()
            received.append(await transport.receive_frame())

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, slow)
            async with server.world.dial() as transport:
                with trio.move_on_after(0.2) as scope:
                    for _ in range(1000):
                        await transport.send_frame(bytes(200_000))
                assert scope.cancelled_caught
                with pytest.raises(TransportClosed, match="torn down"):
                    await transport.send_frame(b"what would never arrive")
                assert await transport.receive_frame() is None
            go.set()
            nursery.cancel_scope.deadline = trio.current_time() + 0.2

    async def test_a_link_whose_send_was_interrupted_is_replaced(self) -> None:
        """The other side stops reading; tear-down interrupts the send, and the dialer makes a new connection."""
        stuck = trio.Event()

        def respond(link, message) -> None:
            stuck.set()

        async with connected(OverWebsockets(), respond=respond) as pair:
            first = pair.link.id
            pair.link.send(reply(1, 8_000_000))
            pair.link.drop("test", "interrupted while it sends")
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)
            assert pair.link.id > first
            pair.link.send(cancel(5))
            await pair.theirs.until(lambda: cancel(5) in pair.theirs.messages)

    async def test_two_tasks_may_not_send_at_once(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, idle)
            async with server.world.dial() as transport, trio.open_nursery() as senders:
                senders.start_soon(self.send_until_closed, transport)
                await trio.sleep(0.2)
                with pytest.raises(trio.BusyResourceError):
                    await transport.send_frame(b"x")
                transport.abort()
            nursery.cancel_scope.cancel()

    @staticmethod
    async def send_until_closed(transport: Transport) -> None:
        with pytest.raises(TransportClosed):
            while True:
                await transport.send_frame(bytes(100_000))

    async def test_sent_is_not_delivered_so_only_heartbeats_tell(self) -> None:
        """A peer that stands still: sends go on succeeding for a while, the link finds out all the same."""
        ours, theirs = Recorder(), Recorder()
        timing = LinkTiming(heartbeat_interval=0.05)
        handle, _ = acceptor(theirs)

        async def stands_still(transport: Transport) -> None:
            await handle(Freezable(transport, lambda: bool(theirs.ups)))

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, stands_still)
            link = dialer(ours, options=LinkOptions(timing=timing))
            nursery.start_soon(link.run_dialer, server.world.dial)
            await ours.until(lambda: ours.ups)
            sent = 0
            while link.up:
                sent += link.send(cancel(sent))
                await trio.sleep(0.001)
            assert sent > 20 and not theirs.messages
            assert ours.downs[0].code == "silent"
            nursery.cancel_scope.cancel()


class Freezable:
    """A transport through which nothing passes any more once ``frozen()``."""

    def __init__(self, inner: Transport, frozen: Callable[[], bool]) -> None:
        self._inner = inner
        self._frozen = frozen

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def send_frame(self, frame: bytes) -> None:
        await self._inner.send_frame(frame)
        if self._frozen():
            await trio.sleep_forever()

    async def receive_frame(self) -> bytes | None:
        if self._frozen():
            await trio.sleep_forever()
        return await self._inner.receive_frame()


class TestReceiving:
    async def test_nobody_reads_and_then_closes(self) -> None:
        """B22: the receive queue is full at both ends; closing is bounded from each side."""
        async with trio.open_nursery() as nursery:
            accepted: list[Transport] = []

            async def flood(transport: Transport) -> None:
                accepted.append(transport)
                with trio.move_on_after(0.3):
                    for _ in range(10_000):
                        await transport.send_frame(bytes(1000))
                await transport.aclose()

            server = await Serving().start(nursery, flood)
            async with server.world.dial() as transport:
                with trio.move_on_after(0.3):
                    for _ in range(10_000):
                        await transport.send_frame(bytes(1000))
                with trio.fail_after(HANG):
                    await transport.aclose()
            nursery.cancel_scope.deadline = trio.current_time() + HANG / 2

    async def test_both_ends_send_without_reading_is_bounded_at_close(self) -> None:
        """Raw transports do block each other; that is why a link's reader never waits. A close still ends it."""
        async with trio.open_nursery() as nursery:

            async def send_only(transport: Transport) -> None:
                await TestSending.send_until_closed(transport)

            server = await Serving().start(nursery, send_only)
            async with server.world.dial() as transport:
                with trio.move_on_after(0.5):
                    await TestSending.send_until_closed(transport)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < HANG

    async def test_text_frames_are_refused(self) -> None:
        ended: list[str] = []
        over = trio.Event()

        async def handler(transport: Transport) -> None:
            assert await transport.receive_frame() is None
            ended.append(transport.closed_because)
            over.set()

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handler)
            async with server.world.dial() as transport:
                assert isinstance(transport, WebsocketTransport)
                await transport._connection.send_message("text")
                assert await transport.receive_frame() is None
                assert "1003" in transport.closed_because
            await over.wait()
            assert ended == ["a text frame arrived"]
            nursery.cancel_scope.cancel()

    @pytest.mark.parametrize("by", ["dialer", "acceptor"])
    async def test_oversize_closes_that_connection_only(self, by: str) -> None:
        size = LIMITS.frame_bytes_max + 1
        outcome: list[bytes | None] = []

        async def handler(transport: Transport) -> None:
            if by == "acceptor":
                await transport.send_frame(bytes(size))
            outcome.append(await transport.receive_frame())

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handler)
            with trio.fail_after(HANG):
                async with server.world.dial() as transport:
                    if by == "dialer":
                        await transport.send_frame(bytes(size))
                    assert await transport.receive_frame() is None
            assert outcome == [None]
            nursery.cancel_scope.cancel()

    async def test_the_largest_frame_passes(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery)
            async with server.world.dial() as transport:
                frame = bytes(LIMITS.frame_bytes_max)
                await transport.send_frame(frame)
                assert await transport.receive_frame() == frame
            nursery.cancel_scope.cancel()


class TestDialing:
    async def test_peer_closes_during_the_handshake(self) -> None:
        async def close_at_once(stream: trio.SocketStream) -> None:
            await stream.receive_some(10)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, close_at_once)
            with trio.fail_after(HANG), pytest.raises(ConnectError, match="closed during the WebSocket handshake"):
                async with dial(url, timeout=60):
                    pass
            nursery.cancel_scope.cancel()

    async def test_handshake_hangs(self) -> None:
        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, never_read)
            with trio.fail_after(HANG), pytest.raises(ConnectError, match=r"no connection within 0\.2 s"):
                async with dial(url, timeout=0.2):
                    pass
            nursery.cancel_scope.cancel()

    async def test_handshake_is_rejected(self) -> None:
        async def not_found(stream: trio.SocketStream) -> None:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, not_found)
            with trio.fail_after(HANG), pytest.raises(ConnectError, match="status 404"):
                async with dial(url):
                    pass
            nursery.cancel_scope.cancel()

    async def test_something_else_answers(self) -> None:
        async def smtp(stream: trio.SocketStream) -> None:
            await stream.send_all(b"220 mail.example ESMTP\r\n" * 3)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, smtp)
            with trio.fail_after(HANG), pytest.raises(ConnectError):
                async with dial(url, timeout=0.5):
                    pass
            nursery.cancel_scope.cancel()

    async def test_nobody_listens(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            with trio.fail_after(HANG), pytest.raises(ConnectError, match=f":{port}: .*refused") as caught:
                async with dial(f"ws://127.0.0.1:{port}"):
                    pass
        assert isinstance(caught.value, OSError) and "Group" not in repr(caught.value)

    async def test_a_name_that_is_nobody(self) -> None:
        with trio.fail_after(30), pytest.raises(ConnectError):
            async with dial("ws://nobody.invalid:7000", timeout=20):
                pass

    @pytest.mark.parametrize("url", ["http://a:1", "ws://", "ws://a:port", "ws://a:99999", "a:7000", "ws://u:p@a:1"])
    async def test_no_url_of_ours(self, url: str) -> None:
        with pytest.raises(BadOption):
            async with dial(url):
                pass

    async def test_what_the_block_raises_comes_out_as_it_is(self) -> None:
        """B57: never a group for one cause."""
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery)
            for error in (ValueError("mine"), KeyboardInterrupt(), OSError("mine too")):
                with pytest.raises(type(error)) as caught:
                    async with server.world.dial():
                        raise error
                assert caught.value is error
            nursery.cancel_scope.cancel()

    async def test_cancelled_while_dialing(self) -> None:
        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, never_read)
            with trio.fail_after(HANG), trio.move_on_after(0.1) as scope:
                async with dial(url, timeout=60):
                    pass
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()

    async def test_small_messages_are_not_delayed_by_the_kernel(self) -> None:
        seen: list[int] = []

        async def handler(transport: Transport) -> None:
            assert isinstance(transport, WebsocketTransport)
            seen.append(transport._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            await echo(transport)

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handler)
            async with server.world.dial() as transport:
                assert isinstance(transport, WebsocketTransport)
                assert transport._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                await trio.sleep(0.01)
            assert seen and all(seen)
            nursery.cancel_scope.cancel()


class TestClosing:
    async def test_aclose_hangs_when_the_other_side_does_not_answer(self) -> None:
        """A server that shakes hands and then neither reads nor answers."""

        async def mute(stream: trio.SocketStream) -> None:
            import wsproto
            from wsproto.events import AcceptConnection, Request

            server = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
            while True:
                server.receive_data(await stream.receive_some(4096))
                if any(isinstance(event, Request) for event in server.events()):
                    break
            await stream.send_all(server.send(AcceptConnection()))
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            url = await tcp_server(nursery, mute)
            async with dial(url) as transport:
                began = trio.current_time()
                await transport.aclose()
                assert trio.current_time() - began < CLOSE_SECONDS + HANG / 2
            async with dial(url) as transport:
                with trio.CancelScope() as scope:  # cancelled from outside: the same bound
                    scope.cancel()
                    began = trio.current_time()
                    await transport.aclose()
                assert trio.current_time() - began < CLOSE_SECONDS + HANG / 2
            nursery.cancel_scope.cancel()

    async def test_is_idempotent_and_abort_wakes_everybody(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, idle)
            async with server.world.dial() as transport:
                woken: list[bytes | None] = []

                async def receive() -> None:
                    woken.append(await transport.receive_frame())

                async with trio.open_nursery() as inner:
                    inner.start_soon(receive)
                    inner.start_soon(TestSending.send_until_closed, transport)
                    await trio.sleep(0.1)
                    transport.abort()
                    transport.abort()
                assert woken == [None] and transport.closed_because
                await transport.aclose()
                await transport.aclose()
            nursery.cancel_scope.cancel()

    async def test_the_dialers_socket_is_closed_after_a_close_by_the_server(self) -> None:
        async def goodbye(transport: Transport) -> None:
            await transport.aclose(1000, "that is all")

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, goodbye)
            async with server.world.dial() as transport:
                assert await transport.receive_frame() is None
                assert transport.closed_because == "closed with code 1000: that is all"
                assert isinstance(transport, WebsocketTransport)
                tcp = transport._stream
            assert tcp.socket.fileno() == -1
            nursery.cancel_scope.cancel()


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
SHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)
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
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handshake_timeout=0.1, connections_max=2)
            streams = [await server.raw() for _ in range(2)]
            await trio.sleep(0.3)
            await server.alive()
            for stream in streams:
                await stream.aclose()
            nursery.cancel_scope.cancel()

    @pytest.mark.hostile
    async def test_a_thousand_of_them(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, handshake_timeout=0.5)
            kinds = list(HOSTILE.values())
            limit = trio.CapacityLimiter(50)

            async def one(number: int) -> None:
                async with limit:
                    ending = ("closes", "resets")[number % 2]
                    await self.send(await server.raw(), kinds[number % len(kinds)], ending)

            async with trio.open_nursery() as attack:
                for number in range(1000):
                    attack.start_soon(one, number)
            await server.alive()
            nursery.cancel_scope.cancel()


class TestServing:
    async def test_an_exception_in_a_handler_ends_its_connection_only(self, caplog: pytest.LogCaptureFixture) -> None:
        async def faulty(transport: Transport) -> None:
            frame = await transport.receive_frame()
            if frame == b"now":
                raise RuntimeError("a bug in a handler")
            await transport.send_frame(frame or b"")

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, faulty)
            async with server.world.dial() as transport:
                await transport.send_frame(b"now")
                with trio.fail_after(HANG):
                    assert await transport.receive_frame() is None
            await server.alive()
            nursery.cancel_scope.cancel()
        assert caplog.text.count("RuntimeError: a bug in a handler") == 1 and "Group" not in caplog.text

    async def test_its_log_is_bounded(self, caplog: pytest.LogCaptureFixture) -> None:
        async def faulty(transport: Transport) -> None:
            raise RuntimeError("a bug in a handler")

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, faulty)
            for _ in range(30):
                async with server.world.dial() as transport:
                    await transport.receive_frame()
            nursery.cancel_scope.cancel()
        assert caplog.text.count("RuntimeError: a bug in a handler") == 5

    async def test_connections_beyond_the_limit_are_turned_away(self, caplog: pytest.LogCaptureFixture) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, connections_max=2)
            async with server.world.dial(), server.world.dial():
                with trio.fail_after(HANG), pytest.raises(ConnectError):
                    async with server.world.dial():
                        pass
            await trio.sleep(0.05)
            await server.alive()
            nursery.cancel_scope.cancel()
        assert "2 connections are open" in caplog.text

    async def test_connections_from_one_address_are_limited(self, caplog: pytest.LogCaptureFixture) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, connections_per_address_max=1)
            async with server.world.dial():
                with trio.fail_after(HANG), pytest.raises(ConnectError):
                    async with server.world.dial():
                        pass
                stream = await trio.open_tcp_stream("127.0.0.1", server.world.port, local_address="127.0.0.2")
                await stream.send_all(SHAKE + b"\r\n")
                assert b" 101 " in await stream.receive_some(4096), "another address has its own"
                await stream.aclose()
            nursery.cancel_scope.cancel()
        assert "1 connections from there are open" in caplog.text

    async def test_cancelling_it_is_bounded_and_closes_everything(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, idle)
            stream = await server.raw()
            await stream.send_all(SHAKE + b"\r\n")
            await stream.receive_some(4096)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < CLOSE_SECONDS + HANG / 2
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", server.world.port)
        await stream.aclose()

    async def test_a_taken_port_is_one_plain_error(self) -> None:
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery)
            with pytest.raises(OSError) as caught:
                await serve_websockets(f"127.0.0.1:{server.world.port}", echo, limits=LIMITS)
            assert caught.value.errno == errno.EADDRINUSE
            nursery.cancel_scope.cancel()

    async def test_the_library_does_not_log_every_frame(self) -> None:
        assert not logging.getLogger("trio-websocket").isEnabledFor(logging.DEBUG)

    async def test_out_of_descriptors_it_waits_with_one_warning_and_recovers(self) -> None:
        """B50, in a process of its own whose limit can be lowered."""
        program = textwrap.dedent(
            """
            import logging, resource, sys, trio
            from functools import partial
            from tiedreq.net.websocket import dial_websocket, serve_websockets
            from tiedreq.wire.limits import WireLimits

            logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
            LIMITS = WireLimits()

            async def echo(transport):
                while (frame := await transport.receive_frame()) is not None:
                    await transport.send_frame(frame)

            async def alive(url):
                with trio.fail_after(10):
                    async with dial_websocket(url, limits=LIMITS) as transport:
                        await transport.send_frame(b"x")
                        assert await transport.receive_frame() == b"x"

            async def main():
                async with trio.open_nursery() as nursery:
                    serve = partial(serve_websockets, "127.0.0.1:0", echo, limits=LIMITS)
                    (address,) = await nursery.start(serve)
                    await alive(f"ws://{address}")
                    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
                    streams = []
                    try:
                        while True:
                            streams.append(await trio.open_tcp_stream("127.0.0.1", address.port))
                    except OSError:
                        print("exhausted")
                    await trio.sleep(0.5)
                    for stream in streams:
                        await stream.aclose()
                    await alive(f"ws://{address}")
                    print("recovered")
                    nursery.cancel_scope.cancel()

            trio.run(main)
            """
        )
        run = partial(subprocess.run, capture_output=True, text=True, timeout=40)
        done = await trio.to_thread.run_sync(lambda: run([sys.executable, "-c", program]))
        lines = done.stdout.splitlines()
        assert done.returncode == 0, done.stdout + done.stderr
        assert lines.count("recovered") == 1 and "exhausted" in lines
        assert sum("cannot accept connections" in line for line in lines) <= 1


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class TestTls:
    def contexts(self, authority: trustme.CA, name: str = "127.0.0.1") -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(server)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        return server, client

    async def test_frames_pass_and_close_is_clean(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority)
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            url = f"wss://127.0.0.1:{server.world.port}"
            async with dial(url, ssl_context=client_tls) as transport:
                for size in (1, 100_000, LIMITS.frame_bytes_max):
                    await transport.send_frame(bytes(size))
                    assert await transport.receive_frame() == bytes(size)
            nursery.cancel_scope.cancel()

    async def test_a_link_over_tls(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority)

        class OverTls(OverWebsockets):
            async def serve(self, nursery, handler, **options) -> None:
                await super().serve(nursery, handler, ssl_context=server_tls, **options)

            def dial(self):
                return dial(f"wss://127.0.0.1:{self.port}", ssl_context=client_tls)

        async with connected(OverTls()) as pair:
            pair.link.send(reply(1, 3_000_000))
            await pair.theirs.until(lambda: pair.theirs.messages)
            pair.link.drop("test", "and again")
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)

    async def test_an_unknown_authority(self, authority: trustme.CA) -> None:
        server_tls, _ = self.contexts(authority)
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            with trio.fail_after(HANG), pytest.raises(ConnectError, match="certificate"):
                async with dial(f"wss://127.0.0.1:{server.world.port}"):
                    pass
            nursery.cancel_scope.cancel()

    async def test_another_name(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority, "other.example")
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            with trio.fail_after(HANG), pytest.raises(ConnectError, match="certificate"):
                async with dial(f"wss://127.0.0.1:{server.world.port}", ssl_context=client_tls):
                    pass
            nursery.cancel_scope.cancel()

    async def test_plain_meets_tls_and_the_other_way_round(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority)
        async with trio.open_nursery() as nursery:
            secure = await Serving().start(nursery, ssl_context=server_tls)
            plain = await Serving().start(nursery, handshake_timeout=0.3)
            with trio.fail_after(HANG), pytest.raises(ConnectError):
                async with dial(secure.world.url):
                    pass
            with trio.fail_after(HANG), pytest.raises(ConnectError):
                async with dial(f"wss://127.0.0.1:{plain.world.port}", ssl_context=client_tls):
                    pass
            await plain.alive()
            nursery.cancel_scope.cancel()

    async def test_a_tls_handshake_that_hangs_frees_its_slot(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority)
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls, handshake_timeout=0.2, connections_max=1)
            stream = await server.raw()
            await stream.send_all(b"\x16")
            await trio.sleep(0.4)
            async with dial(f"wss://127.0.0.1:{server.world.port}", ssl_context=client_tls) as transport:
                await transport.send_frame(b"x")
                assert await transport.receive_frame() == b"x"
            await stream.aclose()
            nursery.cancel_scope.cancel()

    async def test_a_context_for_a_plain_url_is_a_mistake(self, authority: trustme.CA) -> None:
        with pytest.raises(BadOption, match="wss"):
            async with dial("ws://127.0.0.1:1", ssl_context=self.contexts(authority)[1]):
                pass


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class TestAddresses:
    """B50: what one may bind."""

    @pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0", "[::1]:0", "[::]:0"])
    async def test_listen_and_dial(self, listen: str) -> None:
        if "::" in listen and not has_ipv6():
            pytest.skip("no IPv6 here")
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(partial(serve_websockets, listen, echo, limits=LIMITS))
            assert len({address.port for address in addresses}) == 1, "one port to announce"
            for address in addresses:
                loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
                async with dial(f"ws://{Address(loopback, address.port)}") as transport:
                    await transport.send_frame(b"x")
                    assert await transport.receive_frame() == b"x"
                    assert transport.peer.endswith(f":{address.port}")
            nursery.cancel_scope.cancel()

    async def test_a_name_with_two_addresses_gets_one_port(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the resolver says here: two addresses of loopback that are bound one after the other."""
        real = trio.open_tcp_listeners

        async def two(port: int, *, host: str | None = None, **options):
            hosts = ["127.0.0.1", "127.0.0.2"] if host == "both" else [host]
            return [each for one in hosts for each in await real(port, host=one, **options)]

        monkeypatch.setattr(trio, "open_tcp_listeners", two)
        listeners = await open_listeners(Address("both", 0))
        addresses = [bound_address(listener) for listener in listeners]
        assert [address.host for address in addresses] == ["127.0.0.1", "127.0.0.2"]
        assert addresses[0].port == addresses[1].port != 0
        for listener in listeners:
            await listener.aclose()

    async def test_a_host_that_is_not_here(self) -> None:
        with pytest.raises(OSError):
            await open_listeners(Address("192.0.2.1", 0))
