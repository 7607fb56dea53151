"""Large messages in parts: whole again whatever travels between, and never more kept than the limits allow."""

from __future__ import annotations

import random
import tracemalloc

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.messages import Chunk, Message, Result
from tiedreq.core.types import CopyId, Load
from tiedreq.wire.chunks import Assembler, abandoned, split
from tiedreq.wire.codec import decode_frame, decode_message, encode_message, join_frame
from tiedreq.wire.limits import CHUNK_STREAMS_SENT_MAX, DEFAULT_LIMITS, WireLimits

MIB = 2**20
SMALL = WireLimits(payload_bytes_max=1024, message_bytes_max=MIB, chunk_total_bytes_max=2 * MIB)


class TestSplit:
    @hypothesis.given(st.binary(min_size=1, max_size=200), st.integers(1, 250))
    def test_parts(self, data: bytes, chunk_bytes: int) -> None:
        parts = list(split(data, 7, chunk_bytes))
        assert b"".join(part.data for part in parts) == data
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        assert all(len(part.data) == chunk_bytes for part in parts[:-1]) and parts[-1].data
        assert {part.stream for part in parts} == {7}

    @pytest.mark.parametrize(("data", "chunk_bytes"), [(b"", 10), (b"x", 0), (b"x", -1)])
    def test_refused(self, data: bytes, chunk_bytes: int) -> None:
        with pytest.raises(BadOption):
            list(split(data, 1, chunk_bytes))


@hypothesis.given(st.lists(messages, min_size=1, max_size=6), st.integers(1, 100), st.randoms(use_true_random=False))
def test_interleaved_streams(sent: list[Message], chunk_bytes: int, rng: random.Random) -> None:
    encoded = [encode_message(message) for message in sent]
    streams = {number: split(one, number, chunk_bytes) for number, one in enumerate(encoded)}
    assembler = Assembler(DEFAULT_LIMITS)
    arrived: dict[int, bytes] = {}
    while streams:
        number = rng.choice(sorted(streams))
        chunk = next(streams[number], None)
        if chunk is None:
            del streams[number]
            continue
        [received] = decode_frame(join_frame([encode_message(chunk)]), DEFAULT_LIMITS)
        assert isinstance(received, Chunk)
        whole = assembler.add(received)
        if whole is not None:
            arrived[number] = whole
    assert [arrived[number] for number in range(len(sent))] == encoded
    assert assembler.streams == assembler.total_bytes == 0


def test_ten_megabyte_reply() -> None:
    result = Result(CopyId(1, 2, 0, -1), random.Random(1).randbytes(10_000_000), 0.1, 0.1, Load(0, 1, 1, 0.0))
    assembler = Assembler(DEFAULT_LIMITS)
    wholes = [assembler.add(chunk) for chunk in split(encode_message(result), 1, DEFAULT_LIMITS.chunk_bytes)]
    assert wholes[:-1] == [None] * 152
    assert wholes[-1] is not None and decode_message(wholes[-1], DEFAULT_LIMITS) == result


def test_a_chunk_inside_chunks_is_refused() -> None:
    [chunk] = split(encode_message(Chunk(2, True, b"x")), 1, 100)
    whole = Assembler(DEFAULT_LIMITS).add(chunk)
    assert whole is not None
    with pytest.raises(RemoteViolation, match="Chunk may not arrive in chunks"):
        decode_message(whole, DEFAULT_LIMITS)


class TestLimits:
    def test_streams(self) -> None:
        assembler = Assembler(SMALL)
        for stream in range(CHUNK_STREAMS_SENT_MAX):
            assert assembler.add(Chunk(stream, False, b"x")) is None
        with pytest.raises(RemoteViolation, match="more than 64 messages in chunks at once"):
            assembler.add(Chunk(64, False, b"x"))
        assert assembler.add(Chunk(0, True, b"y")) == b"xy"
        assert assembler.add(Chunk(64, False, b"x")) is None

    def test_message_bytes(self) -> None:
        assembler = Assembler(SMALL)
        assert assembler.add(Chunk(1, False, bytes(MIB))) is None
        with pytest.raises(RemoteViolation, match="a message of more than 1048576 bytes"):
            assembler.add(Chunk(1, True, b"x"))

    def test_bytes_of_all(self) -> None:
        assembler = Assembler(SMALL)
        for stream in (1, 2):
            assert assembler.add(Chunk(stream, False, bytes(MIB))) is None
        with pytest.raises(RemoteViolation, match="more than 2097152 bytes in unfinished messages"):
            assembler.add(Chunk(3, True, b"x"))
        assert assembler.add(abandoned(1)) is None
        assert assembler.total_bytes == MIB
        assert assembler.add(Chunk(3, True, b"x")) == b"x"

    def test_empty_chunks_are_refused(self) -> None:
        with pytest.raises(RemoteViolation, match="expected data"):
            Assembler(SMALL).add(Chunk(1, False, b""))

    def test_one_byte_at_a_time_costs_no_more_memory(self) -> None:
        assembler = Assembler(SMALL)
        tracemalloc.start()
        try:
            for _ in range(200_000):
                assembler.add(Chunk(1, False, b"x"))
            assert tracemalloc.get_traced_memory()[0] < 400_000
        finally:
            tracemalloc.stop()


class TestGivingUp:
    def test_sender_abandons(self) -> None:
        assembler = Assembler(SMALL)
        assert assembler.add(Chunk(1, False, b"half")) is None
        assert assembler.add(abandoned(1)) is None
        assert assembler.streams == assembler.total_bytes == 0
        assert assembler.add(Chunk(1, True, b"new")) == b"new"

    def test_abandoned_before_it_began(self) -> None:
        assembler = Assembler(SMALL)
        assert assembler.add(abandoned(1)) is None
        assert assembler.streams == 0

    def test_receiver_discards(self) -> None:
        assembler = Assembler(SMALL)
        assembler.add(Chunk(1, False, b"half"))
        assembler.discard(1)
        assert (assembler.streams, assembler.total_bytes) == (1, 0)
        assert assembler.add(Chunk(1, False, b"more")) is None
        assert assembler.add(Chunk(1, True, b"end")) is None
        assert (assembler.streams, assembler.total_bytes) == (0, 0)
        assert assembler.add(Chunk(1, True, b"new")) == b"new"

    def test_discarding_what_is_unknown_changes_nothing(self) -> None:
        assembler = Assembler(SMALL)
        assembler.discard(1)
        assert assembler.streams == 0


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard"]), st.integers(0, 3), st.booleans(), st.binary(max_size=5)),
        max_size=40,
    )
)
def test_books_balance(steps: list[tuple[str, int, bool, bytes]]) -> None:
    """Against a plain model: kept is what arrived of streams that are neither ended nor discarded."""
    assembler = Assembler(SMALL)
    model: dict[int, bytes | None] = {}
    for action, stream, last, data in steps:
        if action == "discard":
            assembler.discard(stream)
            if stream in model:
                model[stream] = None
        elif data or last:
            kept = model.setdefault(stream, b"")
            whole = assembler.add(Chunk(stream, last, data))
            model[stream] = None if kept is None else kept + data
            if last:
                assert whole == (model[stream] if data and kept is not None else None)
                del model[stream]
            else:
                assert whole is None
        assert assembler.streams == len(model)
        assert assembler.total_bytes == sum(len(kept) for kept in model.values() if kept is not None)
