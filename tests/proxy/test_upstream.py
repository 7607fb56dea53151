"""The HTTP client of one address: what is kept, what is repeated, what closing means."""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
import trio.testing

from tests.proxy._peer import Plug, ScriptedUpstream, answer, read_request
from tiedreq.proxy.upstream import Broke, HttpClient, Response, StreamedBody, Unreachable, dial_tcp

HOST = [(b"host", b"a")]


async def whole(response: Response) -> bytes:
    body = b""
    while part := await response.receive():
        body += part
    await response.aclose()
    return body


async def get(client: HttpClient, *, method: bytes = b"GET", body: bytes = b"", repeat: bool = True) -> bytes:
    return await whole(await client.send(method, b"/", HOST, body, repeat=repeat))


async def echo(number: int, plug: Plug) -> None:
    while True:
        line, headers, body = await read_request(plug)
        await plug.send(answer(f"{number} {line} {headers.get('content-length', '-')} {body.decode()}".encode()))


async def test_a_connection_is_kept_and_used_again(nursery, autojump_clock) -> None:
    upstream = ScriptedUpstream(echo, nursery)
    client = HttpClient(upstream.dial)
    assert await get(client) == b"1 GET / HTTP/1.1 - "
    assert client.open == 0 and client.idle == 1
    assert await get(client, method=b"POST") == b"1 POST / HTTP/1.1 0 "
    assert await get(client, body=b"why not") == b"1 GET / HTTP/1.1 7 why not"
    await trio.sleep(5)
    assert await get(client) == b"2 GET / HTTP/1.1 - ", "four seconds is as long as one is kept"
    await client.close_idle()
    assert client.idle == 0
    await trio.testing.wait_all_tasks_blocked()
    assert upstream.gone == 2


async def test_an_answer_in_two_pieces_is_the_same_wherever_it_is_cut(nursery, autojump_clock) -> None:
    text = answer(b"one answer")

    async def in_pieces(number: int, plug: Plug) -> None:
        for cut in range(1, len(text)):
            await read_request(plug)
            await plug.send(text[:cut])
            await trio.sleep(0.01)
            await plug.send(text[cut:])

    upstream = ScriptedUpstream(in_pieces, nursery)
    client = HttpClient(upstream.dial)
    for _ in range(1, len(text)):
        assert await get(client) == b"one answer"
    assert upstream.dialed == 1 and client.idle == 1


async def test_what_may_not_be_repeated_goes_only_on_a_fresh_connection(nursery, autojump_clock) -> None:
    upstream = ScriptedUpstream(echo, nursery)
    client = HttpClient(upstream.dial)
    await get(client)
    await trio.sleep(2)
    assert (await get(client, method=b"POST", repeat=False)).startswith(b"2 ")
    assert (await get(client, method=b"POST", repeat=False)).startswith(b"2 ")
    assert client.idle == 2


async def test_a_kept_connection_that_closes_as_a_request_leaves(nursery, autojump_clock) -> None:
    async def once(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(answer(b"%d" % number))
        await read_request(plug)  # and closes

    upstream = ScriptedUpstream(once, nursery)
    client = HttpClient(upstream.dial)
    assert await get(client) == b"1"
    assert await get(client) == b"2", "a request that may be repeated goes again"
    with pytest.raises(Broke, match="it closed the connection without an answer"):
        await get(client, repeat=False)
    assert upstream.dialed == 2 and client.open == 0


async def test_what_broke_after_an_answer_had_begun_is_not_repeated(nursery, autojump_clock) -> None:
    async def half(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(answer())
        await read_request(plug)
        await plug.send(b"HTTP/1.1 2")

    upstream = ScriptedUpstream(half, nursery)
    client = HttpClient(upstream.dial)
    await get(client)
    with pytest.raises(Broke):
        await get(client)
    assert upstream.dialed == 1


async def test_closing_a_response_closes_its_connection(nursery, autojump_clock) -> None:
    async def slow(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbeginning")
        assert not await plug.stream.receive_some(1)

    upstream = ScriptedUpstream(slow, nursery)
    client = HttpClient(upstream.dial)
    response = await client.send(b"GET", b"/", HOST, b"", repeat=True)
    assert response.length == 100 and await response.receive() == b"beginning" and client.open == 1
    await response.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert upstream.gone == 1 and client.open == client.idle == 0


async def test_a_request_that_is_given_up_is_let_go_of_by_the_other_side(nursery, autojump_clock) -> None:
    async def stands_still(number: int, plug: Plug) -> None:
        await read_request(plug)
        await trio.sleep(0.7 if number == 1 else 5.0)

    upstream = ScriptedUpstream(stands_still, nursery)
    client = HttpClient(upstream.dial, let_go_seconds=1.0)
    for ended in (0.7, 1.5):
        began = trio.current_time()
        with trio.move_on_after(0.5):
            await client.send(b"GET", b"/", HOST, b"", repeat=True)
        assert trio.current_time() - began == pytest.approx(ended) and client.open == client.idle == 0


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_more_than_an_answer_is_no_answer_to_the_next_request(nursery, autojump_clock, method: bytes) -> None:
    async def too_much(number: int, plug: Plug) -> None:
        await read_request(plug)
        head, _, body = answer(b"%d" % number).partition(b"\r\n\r\n")
        await plug.send(head + b"\r\n\r\n" + (body if method == b"GET" else b"") + answer(b"of somebody else"))
        await read_request(plug)

    upstream = ScriptedUpstream(too_much, nursery)
    client = HttpClient(upstream.dial)
    assert await get(client, method=method) == (b"1" if method == b"GET" else b"")
    assert client.idle == client.open == 0
    assert await get(client) == b"2" if method == b"GET" else True


@pytest.mark.parametrize("reads_on", [False, True])
async def test_an_answer_that_begins_before_a_long_body_was_read(nursery, autojump_clock, reads_on: bool) -> None:
    size = 200_000

    async def early(number: int, plug: Plug) -> None:
        await plug.until(b"\r\n\r\n")
        await plug.send(b"HTTP/1.1 %d Early\r\nContent-Length: 2\r\n\r\n" % (200 if reads_on else 413))
        if reads_on:
            await trio.sleep(1.5)
            await plug.exactly(size)
        await plug.send(b"ok")
        assert not await plug.stream.receive_some(1) if reads_on else await plug.rest()

    upstream = ScriptedUpstream(early, nursery)
    upstream.lockstep = True
    client = HttpClient(upstream.dial)
    began = trio.current_time()
    assert await get(client, method=b"POST", body=b"x" * size, repeat=False) == b"ok"
    assert trio.current_time() == pytest.approx(began + (1.5 if reads_on else 1.0))
    assert client.open == 0 and client.idle == (1 if reads_on else 0), "one that was not sent whole is not kept"
    await client.close_idle()


async def test_a_coding_counts_and_not_the_length_beside_it(nursery, autojump_clock) -> None:
    async def both(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")
        await plug.send(b"6\r\nabcdef\r\n0\r\n\r\n")

    client = HttpClient(ScriptedUpstream(both, nursery).dial)
    response = await client.send(b"GET", b"/", HOST, b"", repeat=True)
    assert response.length is None and b"content-length" not in dict(response.headers)
    assert await whole(response) == b"abcdef"
    await client.close_idle()


async def test_cancelled_while_it_waits(nursery, autojump_clock) -> None:
    async def silent(number: int, plug: Plug) -> None:
        await read_request(plug)
        assert not await plug.stream.receive_some(1)

    upstream = ScriptedUpstream(silent, nursery)
    client = HttpClient(upstream.dial)
    with trio.move_on_after(1):
        await client.send(b"GET", b"/", HOST, b"", repeat=True)
    await trio.testing.wait_all_tasks_blocked()
    assert upstream.gone == 1 and client.open == 0


@pytest.mark.parametrize(
    "bytes_",
    [b"", b"not http\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000],
)
async def test_what_is_no_answer(nursery, autojump_clock, bytes_: bytes) -> None:
    async def odd(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(bytes_)

    client = HttpClient(ScriptedUpstream(odd, nursery).dial)
    with pytest.raises(Broke):
        await client.send(b"GET", b"/", HOST, b"", repeat=True)
    assert client.open == client.idle == 0


async def test_an_answer_that_breaks_off(nursery, autojump_clock) -> None:
    async def short(number: int, plug: Plug) -> None:
        await read_request(plug)
        await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    client = HttpClient(ScriptedUpstream(short, nursery).dial)
    with pytest.raises(Broke):
        await get(client)


async def test_framings(nursery, autojump_clock) -> None:
    answers = [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"first"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nsec\r\n3\r\nond\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nto the end",
    ]

    async def various(number: int, plug: Plug) -> None:
        for each in answers:
            await read_request(plug)
            await plug.send(each)

    upstream = ScriptedUpstream(various, nursery)
    client = HttpClient(upstream.dial)
    assert await get(client) == b"first"
    response = await client.send(b"GET", b"/", HOST, b"", repeat=True)
    assert await whole(response) == b"second" and response.trailers == [(b"x-sum", b"1")]
    assert [await get(client) for _ in range(3)] == [b"", b"", b"to the end"]
    assert upstream.dialed == 1 and client.idle == 0 and client.open == 0


async def test_a_head_has_no_body_whatever_its_length_says(nursery, autojump_clock) -> None:
    async def head(number: int, plug: Plug) -> None:
        for _ in range(2):
            await read_request(plug)
            await plug.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")

    client = HttpClient(ScriptedUpstream(head, nursery).dial)
    for _ in range(2):
        response = await client.send(b"HEAD", b"/", HOST, b"", repeat=True)
        assert response.length == 0 and await whole(response) == b""
    assert client.idle == 1


async def parts(*given: bytes):
    for part in given:
        yield part


async def test_a_streamed_body(nursery, autojump_clock) -> None:
    client = HttpClient(ScriptedUpstream(echo, nursery).dial)
    for length, told in ((None, b"-"), (6, b"6")):
        body = StreamedBody(parts(b"abc", b"def"), length)
        response = await client.stream(b"PUT", b"/", HOST, body, nursery)
        assert await whole(response) == b"1 PUT / HTTP/1.1 %b abcdef" % told
        await client.close_idle()
        client = HttpClient(ScriptedUpstream(echo, nursery).dial)


async def test_a_body_that_waits_to_be_asked_for(nursery, autojump_clock) -> None:
    asked: list[float] = []

    async def note() -> None:
        asked.append(trio.current_time())

    async def asks(number: int, plug: Plug) -> None:
        head = await plug.until(b"\r\n\r\n")
        assert b"expect: 100-continue" in head
        await trio.sleep(0.5)
        if number == 1:
            await plug.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await plug.exactly(3)
            await plug.send(answer(b"done"))
        else:
            await plug.send(answer(b"no", "413 Too Large"))
            assert not await plug.stream.receive_some(1), "nothing of the body is sent"

    upstream = ScriptedUpstream(asks, nursery)
    client = HttpClient(upstream.dial)
    began = trio.current_time()
    response = await client.stream(b"PUT", b"/", HOST, StreamedBody(parts(b"abc"), 3, True, note), nursery)
    assert await whole(response) == b"done" and asked == [began + 0.5]
    response = await client.stream(b"PUT", b"/", HOST, StreamedBody(parts(b"abc"), 3, True, note), nursery)
    assert response.status == 413 and await whole(response) == b"no"
    assert len(asked) == 1 and client.open == 0
    assert client.idle == 1, "the first is kept, the second is not: its body was never sent"


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = HttpClient(dial_tcp("127.0.0.1", port, 1.0))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        await client.send(b"GET", b"/", HOST, b"", repeat=True)
    assert client.open == 0


async def test_a_connection_that_was_closed_while_idle_is_not_used(nursery) -> None:
    async def once(stream: trio.SocketStream) -> None:
        await read_request(Plug(stream))
        await stream.send_all(answer())
        await stream.aclose()
        closed.release()

    closed = trio.Semaphore(0)
    listeners = await nursery.start(partial(trio.serve_tcp, once, 0, host="127.0.0.1"))
    client = HttpClient(dial_tcp("127.0.0.1", listeners[0].socket.getsockname()[1], 1.0))
    for _ in range(3):
        assert await get(client, repeat=False) == b"ok"
        await closed.acquire()
    await client.close_idle()
    nursery.cancel_scope.cancel()
