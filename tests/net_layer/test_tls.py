"""WebSockets and links over TLS, with certificates made for the test."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio
import trustme

from tests.net_layer.ends import LIMITS, OverWebsockets, connected, reply
from tests.net_layer.servers import HANG, Serving, dial
from tiedreq.core.errors import BadOption
from tiedreq.errors import AuthRefused, ConnectError


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
            assert pair.theirs.messages == [reply(1, 3_000_000)]
            pair.link.drop("test", "and again")
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)

    async def test_an_unknown_authority(self, authority: trustme.CA) -> None:
        server_tls, _ = self.contexts(authority)
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            with trio.fail_after(HANG), pytest.raises(AuthRefused, match="its certificate is not trusted"):
                async with dial(f"wss://127.0.0.1:{server.world.port}"):
                    pass
            nursery.cancel_scope.cancel()

    async def test_another_name(self, authority: trustme.CA) -> None:
        server_tls, client_tls = self.contexts(authority, "other.example")
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            with trio.fail_after(HANG), pytest.raises(AuthRefused, match="its certificate is not trusted"):
                async with dial(f"wss://127.0.0.1:{server.world.port}", ssl_context=client_tls):
                    pass
            nursery.cancel_scope.cancel()

    async def test_an_address_with_the_certificate_of_a_name(self, authority: trustme.CA) -> None:
        """As every address of a name in DNS has it; the name counts, and no other does."""
        server_tls, client_tls = self.contexts(authority, "replicas.example")
        async with trio.open_nursery() as nursery:
            server = await Serving().start(nursery, ssl_context=server_tls)
            url = f"wss://127.0.0.1:{server.world.port}"
            async with dial(f"{url}#replicas.example", ssl_context=client_tls) as transport:
                await transport.send_frame(b"hello")
                assert await transport.receive_frame() == b"hello"
            with trio.fail_after(HANG), pytest.raises(AuthRefused, match="its certificate is not trusted"):
                async with dial(f"{url}#others.example", ssl_context=client_tls):
                    pass
            nursery.cancel_scope.cancel()

    async def test_a_server_that_does_not_trust_us_says_so(self, authority: trustme.CA) -> None:
        """With TLS 1.3 it says so only after our part of the handshake."""
        server_tls, client_tls = self.contexts(authority)
        server_tls.verify_mode = ssl.CERT_REQUIRED

        def serve(listener: socket.socket) -> None:
            accepted = listener.accept()[0]
            with server_tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as secure:
                with pytest.raises(ssl.SSLError):
                    secure.do_handshake()
                socket.socket.shutdown(secure, socket.SHUT_WR)
                while socket.socket.recv(secure, 4096):
                    pass

        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"wss://127.0.0.1:{listener.getsockname()[1]}"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, serve, listener)
                with trio.fail_after(HANG), pytest.raises(AuthRefused, match="asks for a client's certificate"):
                    async with dial(url, ssl_context=client_tls):
                        pass

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
