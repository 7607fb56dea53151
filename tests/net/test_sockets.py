"""The same drivers over real loopback sockets, in real time: what only sockets can show."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trustme

import tiedreq
from tests.net.bench import Journal, bench_service, gather, left_at, left_in, no_task_left, until
from tests.net.raw import raw_link
from tiedreq import Backup, Hedged, Plain, Policy, Tied
from tiedreq.core.messages import Result
from tiedreq.net.network import WebsocketNetwork
from tiedreq.wire.limits import wire_limits

AT_ONCE = Tied(backup=None, stagger=0.0)
HEDGED = Hedged(Backup(after=0.02, since="send"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="it counts descriptors there")


class Replicas:
    """Replicas in a mesh over sockets, that can be stopped and started at the same address."""

    def __init__(self, nursery: trio.Nursery, options: dict[str, Any]) -> None:
        self.handles: dict[str, tiedreq.ReplicaHandle] = {}
        self._nursery = nursery
        self._options = options
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}

    @property
    def urls(self) -> dict[str, str]:
        return {name: handle.url for name, handle in self.handles.items()}

    async def start(self, name: str) -> None:
        listen = self.handles[name].url.partition("://")[2] if name in self.handles else "127.0.0.1:0"
        scope, ended = self._scopes[name], self._ended[name] = trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            with scope:
                await tiedreq.serve(name=name, listen=listen, task_status=task_status, **self._options)
            ended.set()

        self.handles[name] = await self._nursery.start(run)
        for handle in self.handles.values():
            handle.set_peers(self.urls)

    async def stop(self, name: str) -> None:
        self._scopes[name].cancel()
        await self._ended[name].wait()

    def meshed(self) -> bool:
        statuses = [handle.status() for handle in self.handles.values()]
        return all(
            link["up"] and link["notice_latency_ms"] is not None
            for status in statuses
            for link in status["links"].values()
        ) and all(len(status["links"]) == len(self.handles) - 1 for status in statuses)


@asynccontextmanager
async def replicas(count: int = 3, journal: Journal | None = None, **options: Any) -> AsyncIterator[Replicas]:
    """So many replicas; when the block has ended no task and no file descriptor is left."""
    before = open_files()
    async with no_task_left(), trio.open_nursery() as nursery:
        options = {"service": bench_service(journal), "slots": 4, **options}
        found = Replicas(nursery, options)
        for index in range(count):
            await found.start(f"r{index}")
        await until(found.meshed)
        yield found
        nursery.cancel_scope.cancel()
    await until(lambda: open_files() <= before)


async def idle(found: Replicas, *clients: tiedreq.Client) -> None:
    def left() -> dict[str, int]:
        rest = left_at(found.handles)
        for client in clients:
            rest.update(left_in(client))
        return rest

    await until(lambda: not left())


@pytest.mark.parametrize(
    "policy", [Plain(), Tied(backup=None), AT_ONCE, HEDGED, Tied(backup=None, exclusive=True)], ids=repr
)
async def test_calls_at_once(policy: Policy) -> None:
    async with replicas() as found, tiedreq.connect(list(found.urls.values()), policy=policy) as client:
        answers = await gather(*[partial(client.call, "work", 0.001, timeout=20)] * 300)
        assert set(answers) <= set(found.urls)
        await idle(found, client)


async def test_large_values_both_ways_delay_nobody() -> None:
    """10 MB up and down beside small tied calls: all arrive whole, and no notice is missed."""
    journal = Journal()
    async with replicas(2, journal) as found, tiedreq.connect(list(found.urls.values())) as client:
        calls: list[Callable[[], Any]] = [partial(client.tied_call, "blob", 10_000_000, timeout=30)] * 2
        calls += [partial(client.tied_call, "size", bytes(10_000_000), timeout=30)]
        calls += [partial(client.tied_call, "work", 0.001, timeout=30)] * 50
        answers = await gather(*calls)
        assert [len(each) for each in answers[:2]] == [10_000_000] * 2
        assert answers[2] == 10_000_000 and set(answers[3:]) <= {"r0", "r1"}
        assert client.stats()["failovers"] == 0
        await idle(found, client)


@pytest.mark.parametrize("policy", [Plain(), AT_ONCE, HEDGED], ids=repr)
async def test_a_cancel_storm(policy: Policy) -> None:
    """B03, B07, B24 with sockets: cancels at random moments, of small and of large calls."""
    rng = random.Random(3)
    journal = Journal()
    async with replicas(2, journal) as found, tiedreq.connect(list(found.urls.values())) as client:

        async def one() -> None:
            method, args = rng.choice([("work", 0.002), ("size", bytes(2_000_000)), ("blob", 2_000_000)])
            with trio.move_on_after(rng.random() * 0.02):
                await client.call(method, args, policy=policy, timeout=20)

        async with no_task_left():
            for _ in range(10):
                await gather(*[one] * 15)
            await idle(found, client)
        await idle(found, client)
        assert not journal.running
        assert {link.statistics.times_up for link in client._links.values()} == {1}, "no link was torn"
        assert set(await gather(*[partial(client.tied_call, "work", 0.001)] * 50)) <= {"r0", "r1"}


async def test_clients_come_and_go() -> None:
    async with replicas(2) as found:
        before = open_files()
        for index in range(15):
            async with tiedreq.connect(list(found.urls.values())) as client:
                await client.tied_call("work")
                if index % 3 == 0:
                    with trio.move_on_after(0.01):
                        await client.tied_call("work", 10)
                if index % 3 == 1:
                    for link in list(client._links.values()):
                        link.drop("protocol", "a test")
        await until(lambda: open_files() <= before)
        assert all(handle.sizes()["callers"] == 0 for handle in found.handles.values())
        for _ in range(10):
            with trio.move_on_after(random.random() * 0.02):
                async with tiedreq.connect(list(found.urls.values())) as client:
                    await client.tied_call("work")
        await until(lambda: open_files() <= before)


async def test_a_replica_is_stopped_and_started_at_its_address() -> None:
    async with replicas(3) as found, tiedreq.connect(list(found.urls.values())) as client:
        answers: list[Any] = []

        async def load() -> None:
            for _ in range(60):
                answers.extend(await gather(*[partial(client.tied_call, "work", 0.01, timeout=10)] * 3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            for name in found.urls:
                await trio.sleep(0.1)
                await found.stop(name)
                await found.start(name)
        assert not [each for each in answers if isinstance(each, Exception)] and len(answers) == 180
        await until(found.meshed)
        await until(lambda: len(client.stats()["replicas"]) == 3)
        await idle(found, client)


async def test_a_black_hole_among_the_addresses() -> None:
    """B07: an address that accepts and never speaks, and one whose queue of connections is full."""
    holes = []
    try:
        for backlog in (16, 0):
            hole = socket.socket()
            hole.bind(("127.0.0.1", 0))
            hole.listen(backlog)
            holes.append(hole)
        urls = [f"ws://127.0.0.1:{hole.getsockname()[1]}" for hole in holes]
        fillers = [socket.create_connection(holes[1].getsockname()) for _ in range(1)]
        async with replicas(2) as found:
            before = open_files()
            async with tiedreq.connect([*urls, *found.urls.values()], policy=HEDGED) as client:
                assert sorted(client.stats()["replicas"]) == ["r0", "r1"]
                answers = await gather(*[partial(client.call, "work", 0.05, timeout=10)] * 30)
                assert set(answers) <= {"r0", "r1"}
                await idle(found, client)
            await until(lambda: open_files() <= before)
        for filler in fillers:
            filler.close()
    finally:
        for hole in holes:
            hole.close()


async def test_who_speaks_no_websocket_is_no_trouble() -> None:
    async with replicas(2) as found, tiedreq.connect(list(found.urls.values())) as client:
        before = open_files()
        host, _, port = found.urls["r0"].partition("://")[2].rpartition(":")
        garbage = (b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"x" * 100_000, b"GET /")
        for data in garbage * 3:
            stream = await trio.open_tcp_stream(host, int(port))
            with suppress(trio.BrokenResourceError):
                await stream.send_all(data)
            await stream.aclose()
        assert await client.tied_call("work", timeout=5) in found.urls
        await until(lambda: open_files() <= before)
        await idle(found, client)


async def test_a_caller_that_reads_nothing() -> None:
    """B23 with a real socket: the slots of others, their calls and the notices are not held up."""
    limits = tiedreq.ReplicaLimits(outbox_bytes_max=200_000, heartbeat_misses_max=400)
    async with replicas(2, limits=limits, slots=6) as found, tiedreq.connect(list(found.urls.values())) as client:
        async with raw_link(WebsocketNetwork(wire_limits(32 << 20)), found.urls["r0"]) as raw:
            blocked = trio.Event()
            assert raw.transport is not None
            real = raw.transport.receive_frame

            async def receive() -> bytes | None:
                await blocked.wait()
                return await real()

            raw.transport.receive_frame = receive  # type: ignore[method-assign]
            raw.send(*[raw.submit(number, "blob", 20_000_000) for number in range(4)])
            await until(lambda: found.handles["r0"].status()["started"] >= 4)
            answers = await gather(*[partial(client.tied_call, "work", 0.005, timeout=5)] * 60)
            assert set(answers) <= {"r0", "r1"}
            blocked.set()
            await until(lambda: len(raw.of(Result)) == 4)
        await idle(found, client)


async def test_tls_between_all_of_them() -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    tls: dict[str, Any] = {"ssl_context": server, "peer_ssl_context": trusting, "token": "a token of the test"}
    async with replicas(2, **tls) as found:
        urls = list(found.urls.values())
        assert all(url.startswith("wss://") for url in urls)
        async with tiedreq.connect(urls, ssl_context=trusting, token="a token of the test") as client:
            answers = await gather(*[partial(client.tied_call, "work", 0.001, timeout=10)] * 50)
            assert set(answers) <= {"r0", "r1"}
            await idle(found, client)
        wrong_ones: tuple[dict[str, Any], ...] = (
            {"token": "a token of the test"},
            {"ssl_context": trusting, "token": "another token"},
        )
        for wrong in wrong_ones:
            with pytest.raises(tiedreq.ConnectError):
                async with tiedreq.connect(urls, timeout=1.0, **wrong):
                    raise AssertionError("it must not come in")


async def test_mesh_latency_changes_while_it_runs() -> None:
    from tiedreq.units import LatencyLaw, LatencySpec

    journal = Journal()
    near, far = LatencySpec(LatencyLaw(0.0)), LatencySpec(LatencyLaw(0.4))
    async with (
        replicas(2, journal, mesh_latency=near) as found,
        tiedreq.connect(list(found.urls.values())) as client,
    ):
        for handle in found.handles.values():
            handle.set_mesh_latency(far)
        for _ in range(3):
            await client.tied_call("work", 0.1, policy=AT_ONCE)
        assert journal.doubled == 3
        await idle(found, client)
    async with replicas(2) as found:
        with pytest.raises(tiedreq.BadOption, match="mesh_latency"):
            found.handles["r0"].set_mesh_latency(near)


async def test_peers_that_are_named_wrongly() -> None:
    """The name at an address is checked: no link to somebody else, and the status says why."""
    async with replicas(2) as found:
        handle = found.handles["r0"]
        handle.set_peers({"r9": found.urls["r1"], "r0": "ws://127.0.0.1:1"})
        await until(lambda: "another replica" in handle.status()["links"]["r9"]["reason"])
        assert not handle.status()["links"]["r9"]["up"]
        handle.set_peers(found.urls)
        await until(found.meshed)
        with pytest.raises(tiedreq.BadOption, match="peers"):
            handle.set_peers({"r1": "nonsense"})
