"""The HTTP listener, in memory and in virtual time: framing, limits, and clients that misbehave or leave."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from tests.proxy._peer import Plug
from tiedreq.core.errors import BadOption
from tiedreq.net.edge import no_groups
from tiedreq.proxy.listener import HttpListener, ListenerLimits
from tiedreq.proxy.visit import Aborted, Visit

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LENGTH = b"content-length"


async def echo(visit: Visit) -> None:
    body = b""
    while part := await visit.receive():
        body += part
    text = b"%b %b %b" % (visit.method, visit.target, body)
    await visit.respond(200, [(LENGTH, b"%d" % len(text))], b"" if visit.method == b"HEAD" else text, whole=True)


def plug_into(listener: HttpListener, nursery: trio.Nursery) -> Plug:
    """A connection to a listener that is tended."""
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(listener.serve, theirs, "192.0.2.1")
    return Plug(ours)


def tended(listener: HttpListener, nursery: trio.Nursery) -> HttpListener:
    nursery.start_soon(listener.tend)
    return listener


@pytest.fixture
def connect(nursery):
    def make(handler=echo, **limits) -> Plug:
        return plug_into(tended(HttpListener(handler, ListenerLimits(**limits)), nursery), nursery)

    return make


def split(data: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def exchange(plug: Plug, request: bytes) -> tuple[int, dict[str, str], bytes]:
    await plug.send(request)
    status, headers, _ = split(await plug.until(b"\r\n\r\n"))
    if headers.get("transfer-encoding") == "chunked":
        return status, headers, await plug.until(b"0\r\n\r\n")
    return status, headers, await plug.exactly(int(headers.get("content-length", "0")))


async def test_one_request_after_another(connect, autojump_clock) -> None:
    plug = connect()
    for _ in range(3):
        assert (await exchange(plug, GET))[2] == b"GET / "
    body = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    assert (await exchange(plug, body))[2] == b"POST /a abc"
    chunks = (
        b"PUT /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nX-Sum: 1\r\n\r\n"
    )
    assert (await exchange(plug, chunks))[2] == b"PUT /b abc"


async def test_requests_sent_ahead(connect, autojump_clock) -> None:
    plug = connect()
    await plug.send(GET * 3)
    for _ in range(3):
        assert split(await plug.until(b"GET / "))[0] == 200


async def test_plain_requests_and_others_on_one_connection(connect, autojump_clock) -> None:
    async def in_turns(visit: Visit) -> None:
        if visit.target == b"/parts":
            await visit.respond(200, [], b"GE")
            await visit.send(b"T /parts")
            await visit.finish()
        else:
            await echo(visit)

    plug = connect(in_turns)
    for target in (b"/", b"/parts", b"/", b"/parts", b"/parts", b"/"):
        answer = (await exchange(plug, GET.replace(b"/ ", target + b" ")))[2]
        assert answer.replace(b"\r\n", b"").replace(b"2GE8T", b"GET") in (b"GET / ", b"GET /parts0"), answer
        assert (await exchange(plug, GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")))[2] == b"GET / "


async def test_a_request_sent_ahead_while_a_plain_one_is_worked_on(connect, autojump_clock) -> None:
    async def slow(visit: Visit) -> None:
        await trio.sleep(1)
        await echo(visit)

    plug = connect(slow)
    await plug.send(GET)
    await trio.sleep(0.5)
    await plug.send(GET.replace(b"/", b"/2", 1) + GET.replace(b"/", b"/3", 1))
    for end in (b"GET / ", b"GET /2 ", b"GET /3 "):
        assert split(await plug.until(end))[0] == 200
    assert (await exchange(plug, GET))[2] == b"GET / "


async def test_byte_by_byte(connect, autojump_clock) -> None:
    plug = connect()
    for byte in b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc":
        await plug.send(bytes([byte]))
    assert b"POST /a abc" in await plug.until(b"abc")


async def test_a_head_has_no_body(connect, autojump_clock) -> None:
    plug = connect()
    await plug.send(GET.replace(b"GET", b"HEAD") + GET)
    assert split(await plug.until(b"\r\n\r\n"))[1][LENGTH.decode()] == "7"
    assert split(await plug.until(b"GET / "))[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 300 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
    ],
)
async def test_what_is_no_request_is_answered(connect, autojump_clock, request_: bytes, status: int) -> None:
    plug = connect()
    await plug.send(request_)
    told, headers, body = split(await plug.rest())
    assert told == status and headers["connection"] == "close" and len(body) == int(headers["content-length"])


async def test_limits_of_time(connect, autojump_clock) -> None:
    began = trio.current_time()
    assert await connect().rest() == b"" and trio.current_time() == began + 75, "nothing was asked"
    plug = connect()
    await plug.send(GET[:10])
    assert split(await plug.rest())[0] == 408, "a head that does not end"
    plug = connect(body_seconds=5)
    await plug.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na")
    began = trio.current_time()
    assert await plug.rest() == b"" and trio.current_time() == began + 5, "a body that does not go on"


async def test_a_client_that_does_not_read(nursery, autojump_clock) -> None:
    ended = trio.Event()

    async def much(visit: Visit) -> None:
        try:
            await visit.respond(200, [])
            await visit.send(b"x" * 100_000)
        finally:
            ended.set()

    ours, theirs = trio.testing.lockstep_stream_pair()
    listener = tended(HttpListener(much, ListenerLimits(body_seconds=5)), nursery)
    nursery.start_soon(listener.serve, theirs, "192.0.2.1")
    await ours.send_all(GET)
    began = trio.current_time()
    await ended.wait()
    assert trio.current_time() == began + 5


async def test_a_client_that_leaves_cancels_the_handler(connect, autojump_clock) -> None:
    cancelled = trio.Event()

    async def slow(visit: Visit) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    plug = connect(slow)
    await plug.send(GET)
    await trio.testing.wait_all_tasks_blocked()
    assert not cancelled.is_set()
    await plug.close()
    await cancelled.wait()


async def test_an_answer_in_chunks_with_trailers(connect, autojump_clock) -> None:
    async def chunks(visit: Visit) -> None:
        await visit.respond(200, [(b"trailer", b"x-sum")], b"ab")
        await visit.send(b"c")
        await visit.finish([(b"x-sum", b"1")])

    plug = connect(chunks)
    await plug.send(GET)
    head = await plug.until(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert await plug.until(b"\r\n\r\n") == b"2\r\nab\r\n1\r\nc\r\n0\r\nx-sum: 1\r\n\r\n"
    await plug.send(b"GET / HTTP/1.0\r\n\r\n")
    status, headers, body = split(await plug.rest())
    assert status == 200 and body == b"abc" and "transfer-encoding" not in headers and headers["connection"] == "close"


async def test_an_answer_that_can_not_be_completed_breaks_the_connection(connect, autojump_clock, caplog) -> None:
    async def short(visit: Visit) -> None:
        await visit.respond(200, [(LENGTH, b"10")], b"half")
        if visit.target == b"/abort":
            raise Aborted("the upstream broke")
        await visit.finish()

    for target in (b"/", b"/abort"):
        plug = connect(short)
        await plug.send(GET.replace(b"/ ", target + b" "))
        assert (await plug.rest()).endswith(b"\r\n\r\nhalf")
    assert not caplog.records


async def test_a_handler_that_fails(connect, autojump_clock, caplog) -> None:
    async def fails(visit: Visit) -> None:
        if visit.target == b"/late":
            await visit.respond(200, [(LENGTH, b"10")], b"half")
        raise KeyError("a secret")

    plug = connect(fails)
    status, _, body = await exchange(plug, GET)
    assert status == 500 and b"secret" not in body
    await plug.send(GET.replace(b"/ ", b"/late "))
    assert (await plug.rest()).endswith(b"half")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_a_body_that_nobody_reads_ends_the_connection(connect, autojump_clock) -> None:
    async def refuses(visit: Visit) -> None:
        await visit.say(413, "too large")

    plug = connect(refuses)
    await plug.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100)
    status, headers, body = split(await plug.rest())
    assert (status, headers["connection"], body) == (413, "close", b"too large\n")


async def test_a_client_that_waits_to_send_its_body(connect, autojump_clock) -> None:
    async def picky(visit: Visit) -> None:
        if visit.length == 3:
            await echo(visit)
        else:
            await visit.say(413, "too large")

    waits = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    plug = connect(picky)
    await plug.send(waits % 3)
    assert split(await plug.until(b"\r\n\r\n"))[0] == 100
    assert (await exchange(plug, b"abc"))[2] == b"POST / abc"
    await plug.send(waits % 4)
    assert split(await plug.until(b"\r\n\r\n"))[0] == 413


async def test_an_answer_to_a_client_that_does_not_read_that_it_may_send(nursery, autojump_clock, caplog) -> None:
    async def answers_meanwhile(visit: Visit) -> None:
        with no_groups():
            async with trio.open_nursery() as asking:
                asking.start_soon(visit.go_on)
                await trio.sleep(1)
                await visit.say(413, "too large")

    ours, theirs = trio.testing.lockstep_stream_pair()
    listener = tended(HttpListener(answers_meanwhile, ListenerLimits()), nursery)
    nursery.start_soon(listener.serve, theirs, "192.0.2.1")
    await ours.send_all(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    await trio.sleep(2)
    assert listener.connections == 0 and not caplog.records


async def test_drain(nursery, autojump_clock) -> None:
    go = trio.Event()

    async def slow(visit: Visit) -> None:
        await go.wait()
        await echo(visit)

    listener = tended(HttpListener(slow, ListenerLimits()), nursery)
    idle, busy = plug_into(listener, nursery), plug_into(listener, nursery)
    await busy.send(GET)
    await trio.testing.wait_all_tasks_blocked()
    listener.drain()
    assert await idle.rest() == b""
    go.set()
    assert (await busy.rest()).endswith(b"GET / ")
    assert listener.connections == 0


def test_limits_name_the_field() -> None:
    with pytest.raises(BadOption, match="idle_seconds"):
        ListenerLimits(idle_seconds=0)
    with pytest.raises(BadOption, match="connections_max"):
        ListenerLimits(connections_max=0)
