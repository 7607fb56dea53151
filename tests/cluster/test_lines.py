"""Control messages: whole lines whatever the pipe cuts, long ones too, and an end that is noticed."""

from __future__ import annotations

import os

import pytest
import trio
from trio.testing import memory_stream_pair, memory_stream_pump

from cluster.lines import (
    LOG_LINE_BYTES_MAX,
    BadLine,
    LineSender,
    LogReader,
    MessageReader,
    encode,
    parse,
    read_first_line,
)


async def test_messages_arrive_whole_and_in_order() -> None:
    here, there = memory_stream_pair()
    sender = LineSender(here)
    messages = [{"do": "serve", "text": "é\n" * count} for count in range(50)]
    found = []

    async def read() -> None:
        async for message in MessageReader(there, rest=b'{"do":"fi'):
            found.append(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await here.send_all(b'rst"}\n')
        async with trio.open_nursery() as senders:
            for message in messages:
                senders.start_soon(sender.send, message)
        await sender.aclose()
    assert found[0] == {"do": "first"}
    assert sorted(len(str(message)) for message in found[1:]) == sorted(len(str(message)) for message in messages)


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_any_cut(size: int) -> None:
    here, there = memory_stream_pair()
    there.receive_stream.receive_some_hook = None
    data = encode({"a": 1}) + encode({"b": "x\ny"})
    for start in range(0, len(data), size):
        await here.send_all(data[start : start + size])
    await here.send_eof()
    memory_stream_pump(here.send_stream, there.receive_stream)
    assert [message async for message in MessageReader(there)] == [{"a": 1}, {"b": "x\ny"}]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"1", b"\xff"])
def test_nonsense(line: bytes) -> None:
    with pytest.raises(BadLine):
        parse(line)


async def test_a_log_is_read_whatever_it_holds() -> None:
    here, there = memory_stream_pair()
    await here.send_all(b"one\r\n\n\xff\n" + b"x" * (LOG_LINE_BYTES_MAX + 1) + b"\nlast")
    await here.send_eof()
    lines = [line async for line in LogReader(there)]
    assert lines[:3] == ["one", "", "\ufffd"] and lines[-1] == "last"
    assert "".join(lines[3:-1]) == "x" * (LOG_LINE_BYTES_MAX + 1)


async def test_a_reader_that_is_gone() -> None:
    here, there = memory_stream_pair()
    await there.aclose()
    sender = LineSender(here)
    await trio.testing.wait_all_tasks_blocked()
    assert not await sender.send({"a": 1})


def test_the_first_line_without_trio() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"do":"serve"}\n{"do":"dr')
    assert read_first_line(reading) == ({"do": "serve"}, b'{"do":"dr')
    os.close(writing)
    assert read_first_line(reading) == (None, b"")
    os.close(reading)
