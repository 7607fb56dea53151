"""Mutual TLS between all of them, with certificates made here: who has none of ours does not get as far as a Hello."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trustme

import tiedreq
from tests.net.bench import bench_service, until
from tiedreq import Tied


class Certificates:
    """An authority, and TLS contexts that trust it alone."""

    def __init__(self) -> None:
        self.authority = trustme.CA()

    def listening(self) -> ssl.SSLContext:
        """For a replica's own port: who dials must show a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        self.authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def dialing(self, shown: trustme.CA | None) -> ssl.SSLContext:
        """For who dials, with a certificate of the authority ``shown``."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if shown is not None:
            shown.issue_cert("someone@example.test").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def ours() -> Certificates:
    return Certificates()


@asynccontextmanager
async def mesh(
    ours: Certificates, peer: Callable[[], ssl.SSLContext]
) -> AsyncIterator[dict[str, tiedreq.ReplicaHandle]]:
    """Two replicas; ``peer`` makes what they dial each other with."""
    handles: dict[str, tiedreq.ReplicaHandle] = {}
    async with trio.open_nursery() as nursery:
        for name in ("a", "b"):
            options = {"token": "t", "ssl_context": ours.listening(), "peer_ssl_context": peer()}
            serve = partial(tiedreq.serve, bench_service(), name=name, **options)  # type: ignore[arg-type]
            handles[name] = await nursery.start(lambda task_status, serve=serve: serve(task_status=task_status))
        for handle in handles.values():
            handle.set_peers({name: other.url for name, other in handles.items()})
        yield handles
        nursery.cancel_scope.cancel()


async def test_clients_and_replicas_that_show_a_certificate(ours: Certificates) -> None:
    async with mesh(ours, lambda: ours.dialing(ours.authority)) as handles:
        await until(lambda: handles["a"].status()["links"]["b"]["up"] and handles["b"].status()["links"]["a"]["up"])
        urls = [handle.url for handle in handles.values()]
        assert all(url.startswith("wss://") for url in urls)
        async with tiedreq.connect(urls, token="t", ssl_context=ours.dialing(ours.authority)) as client:
            at_once = Tied(backup=None, stagger=0.0)
            assert {await client.tied_call("work", 0.01, policy=at_once) for _ in range(5)} <= {"a", "b"}


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
REFUSALS = {
    "none": "asks for a client's certificate",
    "a stranger's": "does not trust the certificate that it was shown",
}


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("shown", REFUSALS)
async def test_a_client_without_a_certificate_of_ours(ours: Certificates, shown: str, version: ssl.TLSVersion) -> None:
    """It has the right token and trusts the right authority, and that is not enough: it is told so at once.

    With TLS 1.3 it hears of it when its own half of the handshake is done.
    """
    async with mesh(ours, lambda: ours.dialing(ours.authority)) as handles:
        urls, context = [handle.url for handle in handles.values()], ours.dialing(None)
        context.maximum_version = version
        if shown != "none":
            trustme.CA().issue_cert("someone@example.test").configure_cert(context)
        for _ in range(5):
            with trio.fail_after(30), pytest.raises(tiedreq.AuthRefused, match=REFUSALS[shown]) as refused:
                async with tiedreq.connect(urls, token="t", ssl_context=context, timeout=3600):
                    raise AssertionError("it must not come in")
            assert "\n" not in str(refused.value)
        assert {handle.status()["callers"] for handle in handles.values()} == {0}


async def test_who_is_refused_may_say_what_it_likes(ours: Certificates) -> None:
    """What it sends after its half of the handshake is thrown away for a moment, then the connection ends."""
    async with mesh(ours, lambda: ours.dialing(ours.authority)) as handles:
        host, _, port = handles["a"].url.removeprefix("wss://").rpartition(":")
        with trio.fail_after(30):
            tcp = await trio.open_tcp_stream(host, int(port))
            stream = trio.SSLStream(tcp, ours.dialing(None), server_hostname=host)
            await stream.do_handshake()
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await stream.send_all(bytes(1_000_000))
            await tcp.aclose()


async def test_a_replica_without_a_certificate_is_linked_to_nobody(ours: Certificates) -> None:
    async with mesh(ours, lambda: ours.dialing(None)) as handles:
        await until(lambda: handles["a"].status()["links"]["b"]["reason"])
        assert not handles["a"].status()["links"]["b"]["up"] and not handles["b"].status()["links"]["a"]["up"]


async def test_a_certificate_that_is_not_trusted_ends_connect_at_once(ours: Certificates) -> None:
    """Trying again would not help: it is told as soon as every replica has shown one, whatever time there is."""
    async with mesh(ours, lambda: ours.dialing(ours.authority)) as handles:
        urls = [handle.url for handle in handles.values()]
        context = Certificates().dialing(None)
        with trio.fail_after(30), pytest.raises(tiedreq.AuthRefused, match="its certificate is not trusted"):
            async with tiedreq.connect(urls, token="t", ssl_context=context, timeout=3600):
                raise AssertionError("it must not come in")


async def test_one_certificate_that_is_not_trusted_is_tried_again(ours: Certificates) -> None:
    """A client that has other replicas goes on with them, and takes this one in once its certificate is mended."""
    strange, listening = trustme.CA(), ours.listening()
    wrong = strange.issue_cert("127.0.0.1")
    wrong.configure_cert(listening)
    async with trio.open_nursery() as nursery:
        handles = []
        for name, context in (("a", ours.listening()), ("b", listening)):
            serve = partial(tiedreq.serve, bench_service(), name=name, token="t", ssl_context=context)
            handles.append(await nursery.start(lambda task_status, serve=serve: serve(task_status=task_status)))
        urls = [handle.url for handle in handles]
        async with tiedreq.connect(urls, token="t", ssl_context=ours.dialing(ours.authority)) as client:
            assert set(client.stats()["replicas"]) == {"a"}
            ours.authority.issue_cert("127.0.0.1").configure_cert(listening)
            await until(lambda: set(client.stats()["replicas"]) == {"a", "b"})
        nursery.cancel_scope.cancel()
