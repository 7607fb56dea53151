"""Each trap of the WebSocket layer and of Trio, with a test named after it: sending, receiving, dialing, closing.

Real sockets on loopback and the real clock, so no assertion about how long anything takes but for generous bounds that
a hang would break.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

import pytest
import trio

from tests.net_layer.ends import LIMITS, OverWebsockets, Recorder, acceptor, cancel, connected, dialer, reply
from tests.net_layer.servers import HANG, Serving, dial, echo, idle, never_read, tcp_server
from tiedreq.core.errors import BadOption
from tiedreq.core.link_options import LinkTiming
from tiedreq.errors import ConnectError
from tiedreq.net.link import LinkOptions
from tiedreq.net.transport import CLOSE_SECONDS, Transport, TransportClosed
from tiedreq.net.websocket import QUEUED_FRAMES_MAX, WebsocketTransport


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
    @pytest.mark.parametrize("first", ["dialer", "acceptor"])
    async def test_nobody_reads_and_then_closes(self, first: str) -> None:
        """B22: the receive queues are full at both ends; closing is bounded from each side."""
        times: list[float] = []
        close = {"dialer": trio.Event(), "acceptor": trio.Event()}

        async def flood(transport: Transport, role: str) -> None:
            for _ in range(QUEUED_FRAMES_MAX + 10):  # fills the other side's queue, not the sockets
                await transport.send_frame(bytes(1000))
            await close[role].wait()
            began = trio.current_time()
            await transport.aclose()
            times.append(trio.current_time() - began)
            close["dialer"].set()
            close["acceptor"].set()

        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, partial(flood, role="acceptor"))
            close[first].set()
            async with server.world.dial() as transport:
                await flood(transport, "dialer")
            with trio.fail_after(HANG):
                while len(times) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert max(times) < CLOSE_SECONDS + HANG / 2
            nursery.cancel_scope.cancel()

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
