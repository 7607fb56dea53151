"""The shortcut past the WebSocket library: what it takes out, what it leaves, and that nothing is lost in between.

The reference is wsproto, which the library itself uses.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from types import ModuleType

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong
from wsproto.frame_protocol import FrameProtocol, Opcode

from tests.net_layer.servers import HANG, SHAKE, Serving
from tiedreq.net.framing import binary_frame, masked
from tiedreq.net.shortcut import ShortcutStream

LIMIT = 100_000
OPENING = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
SIZES = st.one_of(st.integers(0, 130), st.sampled_from([125, 126, 127, 511, 512, 65_535, 65_536]))


@given(data=st.binary(max_size=1500), key=st.binary(min_size=4, max_size=4))
def test_masking_twice_changes_nothing_and_each_byte_meets_its_key(data: bytes, key: bytes) -> None:
    once = bytes(masked(data, key))
    assert once == bytes(byte ^ key[index % 4] for index, byte in enumerate(data))
    assert bytes(masked(once, key)) == data


@pytest.mark.parametrize("size", [1023, 1024, 1025, 1026, 1027, 70_001])
def test_masking_is_the_same_where_numpy_is_there(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    numpy = pytest.importorskip("numpy")
    data, key = Random(size).randbytes(size), b"\x01\x80\xff\x37"
    monkeypatch.delitem(sys.modules, "numpy")
    without = bytes(masked(data, key))
    used = []

    class Told:
        """NumPy, and a note of its use."""

        uint32 = numpy.uint32

        @staticmethod
        def frombuffer(*arguments: object) -> object:
            used.append(arguments)
            return numpy.frombuffer(*arguments)

    monkeypatch.setitem(sys.modules, "numpy", Told)  # type: ignore[arg-type]
    assert bytes(masked(data, key)) == bytes(masked(memoryview(data), key)) == without
    assert without == bytes(byte ^ key[index % 4] for index, byte in enumerate(data))
    assert bool(used) is (size >= 1024)


def test_masking_does_without_a_numpy_that_is_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread imports it: its names appear one after another, and any may be missing still."""
    numpy = pytest.importorskip("numpy")
    data, key = Random(1).randbytes(2000), b"\x01\x80\xff\x37"
    whole = bytes(byte ^ key[index % 4] for index, byte in enumerate(data))
    for names in ([], ["frombuffer"], ["uint32"]):
        half = ModuleType("numpy")
        for name in names:
            setattr(half, name, getattr(numpy, name))
        monkeypatch.setitem(sys.modules, "numpy", half)
        assert bytes(masked(data, key)) == whole


@given(size=SIZES, client=st.booleans())
def test_wsproto_reads_what_is_written(size: int, client: bool) -> None:
    data = bytes(index % 251 for index in range(size))
    reader = Connection(ConnectionType.SERVER if client else ConnectionType.CLIENT)
    reader.receive_data(binary_frame(data, mask=client))
    events = list(reader.events())
    assert all(isinstance(event, BytesMessage) for event in events)
    assert b"".join(event.data for event in events) == data and events[-1].message_finished


class Fed:
    """A shortcut behind an opening handshake, and the other end of its stream."""

    def __init__(self, *, client: bool = False) -> None:
        self.stream, inner = memory_stream_pair()
        self.opening = SWITCHED if client else OPENING
        self.shortcut = ShortcutStream(inner, client=client, frame_bytes_max=LIMIT)  # type: ignore[arg-type]
        self.seen = bytearray()

    async def library(self) -> None:
        """What the library's reader does."""
        while data := await self.shortcut.receive_some(50):
            self.seen += data


@asynccontextmanager
async def fed(data: bytes, cuts: list[int], *, client: bool = False):
    """A shortcut that gets ``data`` after the opening handshake, cut at these places, and then the end."""
    made = Fed(client=client)
    whole = made.opening + data
    bounds = [0, *sorted({cut % (len(whole) + 1) for cut in cuts}), len(whole)]

    async def feed() -> None:
        for start, end in pairwise(bounds):
            if start < end:
                await made.stream.send_all(whole[start:end])
        await made.stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.library)
        nursery.start_soon(feed)
        await trio.testing.wait_all_tasks_blocked()
        yield made


async def frames_of(made: Fed) -> list[bytes]:
    frames = []
    while (frame := await made.shortcut.next_frame()) is not None:
        frames.append(frame)
    return frames


CUTS = st.lists(st.integers(0, 10**6), max_size=12)
PIECES = st.lists(st.one_of(SIZES, st.sampled_from(["ping", "pong"])), max_size=8)


@given(pieces=PIECES, cuts=CUTS, client=st.booleans())
def test_usual_frames_are_taken_out_and_the_library_sees_the_rest(pieces, cuts, client) -> None:
    """However the bytes are cut: frames in order, pings and pongs byte for byte, then the end."""
    other = Connection(ConnectionType.SERVER if client else ConnectionType.CLIENT)
    data, controls, frames = b"", b"", []
    for piece in pieces:
        if isinstance(piece, int):
            frames.append(bytes(piece % 256 for _ in range(piece)))
            data += other.send(BytesMessage(data=frames[-1]))
        else:
            control = other.send(Ping(payload=b"x" * 125) if piece == "ping" else Pong(payload=b""))
            data, controls = data + control, controls + control

    async def main() -> None:
        async with fed(data, cuts, client=client) as made:
            assert await frames_of(made) == frames
        assert made.seen == made.opening + controls

    trio.run(main)


def fragment(*, fin: bool = False) -> bytes:
    return bytes(FrameProtocol(True, []).send_data(b"a part", fin=fin))


UNUSUAL = {
    "a text": bytes(FrameProtocol(True, []).send_data("text")),
    "a fragment": fragment(),
    "a close": Connection(ConnectionType.CLIENT).send(CloseConnection(code=1000)),
    "an unmasked frame": binary_frame(b"data", mask=False),
    "a reserved bit": bytes([0xC2]) + binary_frame(b"data", mask=True)[1:],
    "a continuation of nothing": bytes(FrameProtocol(True, [])._serialize_frame(Opcode.CONTINUATION, b"x")),
    "a length with a byte too many": bytes([0x82, 0xFE, 0, 5]) + bytes(9),
    "a length with bytes too many": bytes([0x82, 0xFF]) + (300).to_bytes(8, "big") + bytes(304),
    "more than the limit": bytes([0x82, 0xFF]) + (LIMIT + 1).to_bytes(8, "big"),
    "a long ping": bytes([0x89, 0xFE, 0, 200]) + bytes(204),
    "an unfinished ping": bytes([0x09, 0x80]) + bytes(4),
}


@pytest.mark.parametrize("what", UNUSUAL)
@pytest.mark.parametrize("cuts", [[], list(range(200))], ids=["whole", "byte by byte"])
async def test_from_the_first_unusual_frame_on_the_library_sees_every_byte(what: str, cuts: list[int]) -> None:
    before, after = binary_frame(b"before", mask=True), binary_frame(b"after", mask=True)
    async with fed(before + UNUSUAL[what] + after, cuts) as made:
        assert await frames_of(made) == [b"before"]
    assert made.seen == made.opening + UNUSUAL[what] + after


async def test_the_body_of_a_refusal_is_the_librarys() -> None:
    made = Fed(client=True)
    made.opening = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\n"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.library)
        await made.stream.send_all(made.opening + b"go ")
        await made.stream.send_all(b"away!!")
        await made.stream.send_eof()
    assert made.seen == made.opening + b"go away!!"
    assert await made.shortcut.next_frame() is None


async def test_closing_from_this_side_hands_over_what_was_not_looked_at() -> None:
    half = binary_frame(bytes(300), mask=True)
    async with fed(half[:100], []) as made:
        with trio.move_on_after(0.01):
            await made.shortcut.next_frame()
        made.shortcut.give_to_library()
        assert await made.shortcut.next_frame() is None
    assert made.seen == made.opening + half[:100]


async def test_another_websocket_may_fragment_ping_and_go_on() -> None:
    """Against the whole transport, over a socket: each message arrives once, in order; the ping is answered."""
    async with trio.open_nursery() as nursery:
        server = await Serving().start(nursery)
        stream = await server.raw()
        await stream.send_all(SHAKE + b"\r\n")
        heard = b""
        while b"\r\n\r\n" not in heard:
            heard += await stream.receive_some(4096)
        peer = Connection(ConnectionType.CLIENT, trailing_data=heard.partition(b"\r\n\r\n")[2])
        messages = [b"one", b"two", b"three", b"four"]
        await stream.send_all(peer.send(BytesMessage(data=b"one")) + peer.send(Ping(payload=b"there?")))
        await stream.send_all(peer.send(BytesMessage(data=b"two")))
        await stream.send_all(peer.send(BytesMessage(data=b"th", message_finished=False)))
        await stream.send_all(peer.send(BytesMessage(data=b"ree")) + peer.send(BytesMessage(data=b"four")))
        echoed: list[bytes] = []
        ponged = []
        with trio.fail_after(HANG):
            while len(echoed) < len(messages) or not ponged:
                peer.receive_data(await stream.receive_some(4096))
                for event in peer.events():
                    if isinstance(event, Pong):
                        ponged.append(bytes(event.payload))
                    else:
                        assert isinstance(event, BytesMessage)
                        echoed.append(bytes(event.data))
        assert echoed == messages and ponged == [b"there?"]
        await stream.aclose()
        nursery.cancel_scope.cancel()
