"""A front before a cluster in memory, whose replicas have scripted upstreams; in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.proxy._peer import Plug, ScriptedUpstream, answer, read_request
from tests.proxy.test_listener import exchange, plug_into, split, tended
from tiedreq.core.policy import Backup, Plain, Tied
from tiedreq.errors import RemoteFailure
from tiedreq.net.client import Client
from tiedreq.proxy.front import Front, FrontOptions
from tiedreq.proxy.listener import HttpListener
from tiedreq.proxy.messages import ONCE, TIED
from tiedreq.proxy.rules import Rules
from tiedreq.proxy.upstream import HttpClient, Unreachable
from tiedreq.proxy.worker import Worker
from tiedreq.service import Context, Service
from tiedreq.testing import LocalCluster

GET = b"GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\n\r\n"
ONE_COPY = FrontOptions(policy=Plain())


class Site:
    """Everything behind a front. ``script(replica, number, plug)`` serves one connection to a replica's upstream."""

    def __init__(
        self, script: Callable[[str, int, Plug], Awaitable[None]], nursery: trio.Nursery, busy: frozenset[int]
    ) -> None:
        self.upstreams: dict[str, ScriptedUpstream] = {}
        self.workers: dict[str, Worker] = {}
        self.refused: list[str] = []
        self.seen: list[str] = []
        for name in ("r0", "r1", "r2"):
            self._add(name, script, nursery, busy)
        self.service = Service("http")
        for method, repeat in ((TIED, True), (ONCE, False)):
            self.service.stream(method, idempotent=repeat)(self._handler(repeat))
        self.front: Front
        self.listener: HttpListener
        self.client: Client
        self.cluster: LocalCluster
        self.plug: Plug

    def _add(self, name: str, script: Any, nursery: trio.Nursery, busy: frozenset[int]) -> None:
        async def serve(number: int, plug: Plug) -> None:
            await script(name, number, plug)

        def refused(error: Unreachable) -> None:
            """What a sidecar does; but the last replica stays."""
            self.refused.append(name)
            if not all(upstream.refuses for upstream in self.upstreams.values()):
                self.cluster.handles[name].drain()

        upstream = self.upstreams[name] = ScriptedUpstream(serve, nursery)
        self.workers[name] = Worker(HttpClient(upstream.dial, let_go_seconds=1.0), refused, busy)

    def _handler(self, repeat: bool) -> Any:
        async def handle(ctx: Context, args: Any) -> AsyncIterator[Any]:
            self.seen.append(f"{ctx.kind} at {ctx.replica}")
            async with aclosing(self.workers[ctx.replica].run(repeat, ctx, args)) as items:
                async for item in items:
                    yield item

        return handle

    @property
    def open(self) -> int:
        """Connections to upstreams that have not been closed."""
        return sum(upstream.dialed - upstream.gone for upstream in self.upstreams.values())


@asynccontextmanager
async def site(script: Any, options: FrontOptions = ONE_COPY, *, busy: frozenset[int] = frozenset(), replicas: int = 3):
    async with trio.open_nursery() as nursery:
        made = Site(script, nursery, busy)
        made.cluster = LocalCluster(made.service, replicas=replicas)
        async with made.cluster as made.client:
            made.front = Front(options)
            made.front.client = made.client
            nursery.start_soon(made.front.run)
            made.listener = tended(HttpListener(made.front.handle, options.limits), nursery)
            made.plug = plug_into(made.listener, nursery)
            yield made
        nursery.cancel_scope.cancel()


async def simple(replica: str, number: int, plug: Plug) -> None:
    while True:
        line, headers, body = await read_request(plug)
        told = f"{replica} {line} {body.decode()} via {headers['via'][:12]} for {headers['x-forwarded-for']}"
        whole = answer(told.encode(), "200 OK", "X-App: yes", "Keep-Alive: timeout=5")
        await plug.send(whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if line.startswith("HEAD") else whole)


async def test_a_request_and_its_answer(autojump_clock) -> None:
    async with site(simple) as made:
        status, headers, body = await exchange(made.plug, GET)
        replica = headers["tiedreq-replica"]
        assert status == 200 and headers["x-app"] == "yes" and "keep-alive" not in headers
        assert body.decode() == f"{replica} GET /a?b=c HTTP/1.1  via 1.1 tiedreq- for 192.0.2.1"
        assert headers["server-timing"].startswith(f'tiedreq;desc="{replica}";dur=')
        assert "queue;dur=" in headers["server-timing"] and "upstream;dur=" in headers["server-timing"]
        assert headers["via"].startswith("1.1 tiedreq-") and headers["date"].endswith(" gmt")
        post = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        status, headers, body = await exchange(made.plug, post)
        assert status == 200 and b" POST /a HTTP/1.1 abc via " in body
        assert made.client.stats()["ties"] == 0
        await exchange(made.plug, GET)
    assert len(made.seen) == 3 and made.open == 0


async def test_requests_of_old_clients_and_with_many_headers(autojump_clock) -> None:
    async with site(simple) as made:
        many = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(255))
        assert (await exchange(made.plug, GET.replace(b"\r\n\r\n", b"\r\n" + many + b"\r\n")))[0] == 200
        await made.plug.send(b"GET /a HTTP/1.0\r\n\r\n")
        status, headers, body = split(await made.plug.rest())
        assert status == 200 and b" GET /a HTTP/1.1 " in body and headers["connection"] == "close"


async def test_what_is_safe_is_tied_and_what_the_operator_names(autojump_clock) -> None:
    async with site(simple, FrontOptions(rules=Rules.read(["POST:/search*"], ["GET:/next"]))) as made:
        ties = []
        for line in (b"GET /a", b"HEAD /a", b"OPTIONS *", b"POST /search?q=1", b"POST /a", b"DELETE /a", b"GET /next"):
            before = made.client.stats()["ties"]
            await made.plug.send(line + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            head = split(await made.plug.until(b"\r\n\r\n"))
            assert head[0] == 200
            if not line.startswith(b"HEAD"):
                await made.plug.exactly(int(head[1]["content-length"]))
            ties.append(made.client.stats()["ties"] - before)
        assert ties == [1, 1, 1, 1, 0, 0, 0]


async def test_the_other_copy_wins_where_an_upstream_is_stopped(autojump_clock) -> None:
    """A backup is sent, its answer wins, and the stopped upstream's connection is closed."""

    async def first_hangs(replica: str, number: int, plug: Plug) -> None:
        if replica not in stopped:
            await simple(replica, number, plug)
        await read_request(plug)
        assert not await plug.stream.receive_some(1)

    stopped: set[str] = set()
    async with site(first_hangs, FrontOptions(policy=Tied(backup=Backup(after=0.05, budget=1.0)))) as made:
        stopped.update(["r0", "r1"])
        began = trio.current_time()
        status, headers, _ = await exchange(made.plug, GET)
        assert status == 200 and headers["tiedreq-replica"] == "r2"
        assert trio.current_time() - began < 0.3
        await trio.testing.wait_all_tasks_blocked()
        assert made.open == 1, "what lost is closed, what won is kept"


async def test_a_client_that_leaves_closes_the_connections_to_the_upstreams(autojump_clock) -> None:
    async def hangs(replica: str, number: int, plug: Plug) -> None:
        await read_request(plug)
        begun.set()
        assert not await plug.stream.receive_some(1)

    begun = trio.Event()
    async with site(hangs) as made:
        await made.plug.send(GET)
        await begun.wait()
        assert made.open == 1
        await made.plug.close()
        await trio.sleep(0.05)
        assert made.open == 0 and made.client.stats()["in_flight"] == 0


@pytest.mark.parametrize("method", [b"GET", b"DELETE"])
async def test_nothing_is_left_of_a_client_that_leaves_at_any_stage(autojump_clock, method: bytes) -> None:
    stages = [
        b"",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 503 Full\r\nRetry-After: 1\r\nContent-Length: 9\r\n\r\nabc",
    ]

    async def hangs(replica: str, number: int, plug: Plug) -> None:
        line, _, _ = await read_request(plug)
        await plug.send(stages[int(line.split("/")[1].split()[0])])
        assert not await plug.stream.receive_some(1)

    async with site(hangs, FrontOptions(policy=Tied())) as made, trio.open_nursery() as nursery:
        for stage in range(len(stages)):
            plug = plug_into(made.listener, nursery)
            await plug.send(b"%b /%d HTTP/1.1\r\nHost: a\r\n\r\n" % (method, stage))
            await trio.sleep(0.3)
            assert made.open > 0
            await plug.close()
            await trio.sleep(2)
            assert made.open == made.client.stats()["in_flight"] == 0
            assert {handle.status()["free"] for handle in made.cluster.handles.values()} == {8}
            assert not any(worker._upstream.open for worker in made.workers.values())
        assert made.listener.connections == 1


async def test_a_streamed_answer_comes_as_it_is_made(autojump_clock) -> None:
    async def events(replica: str, number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for count in range(3):
            await trio.sleep(0.5)
            await plug.send(b"3\r\n%d\r\n\r\n" % count)
        await plug.send(b"0\r\nX-Sum: 3\r\nContent-Length: 9\r\n\r\n")

    async with site(events) as made:
        began = trio.current_time()
        await made.plug.send(GET)
        assert b"Transfer-Encoding: chunked" in await made.plug.until(b"\r\n\r\n")
        assert trio.current_time() - began < 0.2, "the head does not wait for the body for long"
        for count in range(3):
            assert await made.plug.until(b"\r\n\r\n") == b"3\r\n%d\r\n\r\n" % count
            assert abs(trio.current_time() - began - 0.5 * (count + 1)) < 0.2
        assert await made.plug.until(b"\r\n\r\n") == b"0\r\nx-sum: 3\r\n\r\n"
        assert (await exchange(made.plug, b"OPTIONS * HTTP/1.1\r\nMax-Forwards: 0\r\nHost: a\r\n\r\n"))[0] == 200


async def test_a_large_answer_is_not_held(autojump_clock) -> None:
    """The client does not read: no more than the windows between it and the upstream is on its way."""
    part, parts, sent = b"x" * 65536, 40, 0

    async def large(replica: str, number: int, plug: Plug) -> None:
        nonlocal sent
        await read_request(plug)
        await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (parts * len(part)))
        for _ in range(parts):
            await plug.send(part)
            sent += len(part)

    ours, theirs = trio.testing.lockstep_stream_pair()
    async with site(large, FrontOptions(policy=Plain(), stall=1000.0)) as made, trio.open_nursery() as nursery:
        for upstream in made.upstreams.values():
            upstream.lockstep = True
        nursery.start_soon(made.listener.serve, theirs, "192.0.2.2")
        await ours.send_all(GET)
        await trio.sleep(1)
        held = sent
        await trio.sleep(1)
        assert sent == held < 1.5 * made.client.limits.stream_bytes_max < parts * len(part)
        plug = Plug(ours)
        assert split(await plug.until(b"\r\n\r\n"))[0] == 200
        await plug.exactly(parts * len(part))
        nursery.cancel_scope.cancel()


# ---- what goes wrong ----------------------------------------------------------------------------------------------


async def test_an_upstream_that_is_gone_lets_another_answer(autojump_clock) -> None:
    async with site(simple) as made:
        made.upstreams["r0"].refuses = True
        for request in (GET, GET.replace(b"GET", b"PUT")) * 3:
            status, headers, _ = await exchange(made.plug, request)
            assert status == 200 and headers["tiedreq-replica"] != "r0"
        assert made.refused in ([], ["r0"]), "it has drained at once"


async def test_no_upstream_is_there(autojump_clock) -> None:
    for method in (b"GET", b"PUT"):
        async with site(simple) as made:
            for upstream in made.upstreams.values():
                upstream.refuses = True
            status, headers, _ = await exchange(made.plug, GET.replace(b"GET", method))
            assert status == 502 and headers["tiedreq-error"] == "upstream-unreachable"


@pytest.mark.parametrize("size", [3, 200_000])
async def test_a_503_in_chunks_lets_another_answer_while_it_is_short(autojump_clock, size: int) -> None:
    async def busy(replica: str, number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(b"HTTP/1.1 503 Full\r\nRetry-After: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        await plug.send(b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size))

    async with site(busy, replicas=2) as made:
        await made.plug.send(GET)
        status, headers, _ = split(await made.plug.until(b"\r\n\r\n"))
        assert headers["transfer-encoding"] == "chunked"
        body = await made.plug.until(b"0\r\n\r\n")
        assert status == 503 and body.count(b"x") == size
        assert (len(made.seen) > 1) is (size == 3), "one that is long is an answer"


async def test_an_upstream_that_stands_still_though_nothing_was_slow_before(autojump_clock) -> None:
    frozen: set[str] = set()

    async def stops(replica: str, number: int, plug: Plug) -> None:
        while True:
            await read_request(plug)
            if replica in frozen:
                await trio.sleep_forever()
            await trio.sleep(0.005)
            await plug.send(answer(replica.encode()))

    async with site(stops, FrontOptions()) as made:
        for _ in range(5):
            await exchange(made.plug, GET)
        frozen.add("r0")
        for _ in range(40):
            began = trio.current_time()
            assert (await exchange(made.plug, GET))[0] == 200, made.seen
            assert trio.current_time() - began < 1.5
        assert any(each.endswith("r0") for each in made.seen[5:])


async def test_503_with_retry_after_lets_another_answer(autojump_clock) -> None:
    async def busy(replica: str, number: int, plug: Plug) -> None:
        while True:
            await read_request(plug)
            if replica in full:
                await plug.send(answer(b"busy", "503 Service Unavailable", "Retry-After: 2", "X-App: yes"))
            else:
                await plug.send(answer(b"fine"))

    full = {"r0", "r1"}
    async with site(busy) as made:
        for _ in range(3):
            assert (await exchange(made.plug, GET))[2] == b"fine"
        full.add("r2")
        status, headers, body = await exchange(made.plug, GET)
        assert (status, body, headers["x-app"], headers["retry-after"]) == (503, b"busy", "yes", "2")
        assert headers["tiedreq-replica"] in full and "tiedreq-error" not in headers
        status, _, body = await exchange(made.plug, GET.replace(b"GET", b"DELETE"))
        assert (status, body) == (503, b"busy"), "what passes once gets the answer that it got"


async def test_an_error_of_the_upstream_is_an_answer_unless_the_operator_says_otherwise(autojump_clock) -> None:
    async def fails(replica: str, number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(answer(replica.encode(), "500 Internal Server Error" if replica != "r2" else "200 OK"))

    async with site(fails, replicas=2) as made:
        status, headers, body = await exchange(made.plug, GET)
        assert status == 500 and body.decode() == headers["tiedreq-replica"] and len(made.seen) == 1
    async with site(fails, busy=frozenset({500})) as made:
        for _ in range(3):
            assert (await exchange(made.plug, GET))[0] == 200


async def test_an_upstream_that_breaks(autojump_clock) -> None:
    async def breaks(replica: str, number: int, plug: Plug) -> None:
        line, _, _ = await read_request(plug)
        if " /late" in line:
            await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            await trio.sleep(1)

    async with site(breaks) as made:
        status, headers, _ = await exchange(made.plug, GET)
        assert status == 502 and headers["tiedreq-error"] == "upstream-broke"
        assert len(made.seen) > 1, "another was asked"
        made.seen.clear()
        status, _, body = await exchange(made.plug, GET.replace(b"GET", b"DELETE"))
        assert status == 502 and b"it may have been carried out" in body
        assert len(made.seen) == 1
        await made.plug.send(GET.replace(b"/a", b"/late"))
        assert (await made.plug.rest()).endswith(b"half"), "an answer that has begun is broken off"


async def test_no_answer_in_time(autojump_clock) -> None:
    async def slow(replica: str, number: int, plug: Plug) -> None:
        line, _, _ = await read_request(plug)
        if " /late" in line:
            await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        assert not await plug.stream.receive_some(1)

    async with site(slow, FrontOptions(policy=Plain(), timeout=2.0, stall=3.0)) as made:
        began = trio.current_time()
        status, headers, _ = await exchange(made.plug, GET)
        assert status == 504 and headers["tiedreq-error"] == "timeout" and trio.current_time() - began < 2.1
        await trio.sleep(0.01)
        assert made.open == 0
        began = trio.current_time()
        await made.plug.send(GET.replace(b"/a", b"/late"))
        assert (await made.plug.rest()).endswith(b"half")
        assert 3 <= trio.current_time() - began < 3.2
        await trio.sleep(0.01)
        assert made.open == 0


@pytest.mark.parametrize("parts", [0, 40])
async def test_a_client_that_does_not_read_its_answer(autojump_clock, parts: int) -> None:
    async def plenty(replica: str, number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(answer(b"x" * 65536 * parts))

    ours, theirs = trio.testing.lockstep_stream_pair()
    async with site(plenty, FrontOptions(policy=Plain(), timeout=1.0, stall=3.0)) as made:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.listener.serve, theirs, "192.0.2.2")
            await ours.send_all(GET)
            await trio.sleep(2.5)
            assert made.listener.connections == 2
            await trio.sleep(0.7)
            assert made.listener.connections == 1, "the connection ends, and with it all that waits"
            assert not parts or made.open == 0
        assert (await exchange(made.plug, b"OPTIONS * HTTP/1.1\r\nMax-Forwards: 0\r\nHost: a\r\n\r\n"))[0] == 200


async def test_no_replica_is_ready(autojump_clock) -> None:
    async with site(simple) as made:
        made.front.client = None
        status, headers, _ = await exchange(made.plug, GET)
        assert status == 503 and headers["tiedreq-error"] == "unready" and headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 501),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: cheese\r\n\r\n", 417),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n", 405),
    ],
)
async def test_what_is_refused_reaches_no_upstream(autojump_clock, request_: bytes, status: int) -> None:
    async with site(simple) as made:
        told, _, body = await exchange(made.plug, request_)
        assert told == status and body.startswith(b"tiedreq: ") and body.count(b"\n") == 1 and not made.seen


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (b"/ HTTP/1.1\r\nX: y", (b"x", b"y")),
        (b"/", (b"x", b"y\r\nX-Admin: yes")),
        (b"/", (b"x", b"y\r\nX-Admin\nyes")),
        (b"/", (b"Content-Length", b"5")),
        (b"/", (b"transfer-encoding", b"chunked")),
    ],
)
async def test_what_is_no_request_of_a_front_reaches_no_upstream(
    autojump_clock, caplog, target: bytes, field: tuple[bytes, bytes]
) -> None:
    """Who knows the secret of the cluster may be a front of somebody else's making."""
    ask = [b"POST", target, b"\n".join((b"host", b"a", *field)), b"0\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n"]
    async with site(simple) as made:
        for method in (TIED, ONCE):
            with pytest.raises(RemoteFailure) as caught:
                async with made.client.stream(method, ask, policy=Plain(), timeout=10.0):
                    pass
            assert caught.value.code == "bad_request"
        assert not any(upstream.dialed for upstream in made.upstreams.values())
    assert not caplog.records


async def test_a_front_that_leads_back_to_itself(autojump_clock) -> None:
    async def loop(replica: str, number: int, plug: Plug) -> None:
        _, headers, _ = await read_request(plug)
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.listener.serve, theirs, "192.0.2.3")
            await ours.send_all(b"GET /a HTTP/1.1\r\nHost: a\r\nVia: %b\r\n\r\n" % headers["via"].encode())
            status = split(await Plug(ours).until(b"\r\n\r\n"))[0]
            await plug.send(answer(b"", f"{status} Loop"))
            nursery.cancel_scope.cancel()

    async with site(loop) as made:
        assert (await exchange(made.plug, GET))[0] == 508
