"""Serving WebSockets: handlers that fail, limits, descriptors, what one may bind."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import trio

from tests.net_layer.ends import LIMITS
from tests.net_layer.servers import HANG, SHAKE, Serving, dial, echo, idle
from tiedreq.errors import ConnectError
from tiedreq.net.addresses import Address
from tiedreq.net.listeners import bound_address, open_listeners
from tiedreq.net.transport import CLOSE_SECONDS, Transport
from tiedreq.net.websocket import serve_websockets


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
            import logging, os, resource, sys, trio
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
                    sockets = [trio.socket.socket() for _ in range(5)]  # which will be there, and nothing else
                    used = len(os.listdir("/dev/fd"))
                    resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, used - 1))
                    streams = [trio.SocketStream(one) for one in sockets]
                    for one in sockets:
                        await one.connect(("127.0.0.1", address.port))
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
        assert lines.count("recovered") == 1
        assert sum("cannot accept connections" in line for line in lines) == 1


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
        with pytest.raises(OSError) as caught:
            await open_listeners(Address("192.0.2.1", 0))
        assert caught.value.errno == errno.EADDRNOTAVAIL
