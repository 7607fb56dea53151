"""Whatever arrives: one error class, memory in proportion to the frame, one verdict by both msgpack modules."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis
import msgpack
import msgpack.fallback
import pytest
from hypothesis import strategies as st

from tests.wire.strategies import messages, times
from tiedreq.core import messages as m
from tiedreq.core.errors import RemoteViolation
from tiedreq.wire import codec, packing, payload
from tiedreq.wire.codec import decode_frame, decode_message, encode_message, join_frame
from tiedreq.wire.limits import DEFAULT_LIMITS
from tiedreq.wire.payload import decode_payload

NEST = 100_000
FAR_FUTURE = struct.pack(">Iq", 0, 300_000_000_000)
MANY_NANOSECONDS = struct.pack(">Iq", 1_000_000_000, 0)

# Case B37: what a hostile sender puts where a value is expected.
HOSTILE_VALUES: dict[str, bytes] = {
    "nested arrays": b"\x91" * NEST + b"\x90",
    "nested maps": b"\x81\x01" * NEST + b"\x80",
    "nested arrays without an end": b"\x91" * NEST,
    "2**32-1 items in 5 bytes": b"\xdd\xff\xff\xff\xff",
    "2**32-1 pairs in 5 bytes": b"\xdf\xff\xff\xff\xff",
    "many headers that promise many items": b"\xdc\x04\x00" * 1000,
    "2**32-1 bytes in 5 bytes": b"\xc6\xff\xff\xff\xff",
    "2**32-1 characters in 5 bytes": b"\xdb\xff\xff\xff\xff",
    "list as map key": b"\x81\x91\x01\x01",
    "map as map key": b"\x81\x81\x01\x01\x01",
    "repeated keys": b"\x82\xa1a\x01\xa1a\x02",
    "keys that are equal here": b"\x82\x01\x01\xc3\x02",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "timestamp past year 9999": b"\xc7\x0c\xff" + FAR_FUTURE,
    "timestamp with 1e9 nanoseconds": b"\xc7\x0c\xff" + MANY_NANOSECONDS,
    "timestamp of no length": b"\xc7\x00\xff",
    "unknown extension": b"\xd4\x05\x00",
    "unknown extension of no length": b"\xc7\x00\x05",
    "long extension": b"\xc9\x00\x00\x10\x00\x05" + bytes(4096),
    "not UTF-8": b"\xa2\xc3\x28",
    "a surrogate as UTF-8": b"\xa3\xed\xa0\x80",
    "a byte that is no type": b"\xc1",
    "cut short": b"\xcb\x00",
    "nothing": b"",
}
REFUSED_IN_A_FRAME_ONLY = {"integer as map key": b"\x81\x01\x01", "map": b"\x81\xa1a\x01"}
UNPACKERS = {"compiled": msgpack.unpackb, "pure": msgpack.fallback.unpackb}


def verdicts(decode: Callable[[], Any], patched: Any) -> list[Any]:
    """What each msgpack module makes of it: the value, or that it is refused. Anything else fails the test."""
    found = []
    for unpackb in UNPACKERS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patched, "unpackb", unpackb)
            try:
                found.append(decode())
            except RemoteViolation:
                found.append("refused")
    return found


class TestHostileValue:
    @pytest.mark.parametrize("case", HOSTILE_VALUES)
    def test_payload(self, case: str, both_msgpacks: str) -> None:
        with pytest.raises(RemoteViolation):
            decode_payload(HOSTILE_VALUES[case])
        with pytest.raises(RemoteViolation):
            decode_payload(b"\x92\x01" + HOSTILE_VALUES[case])

    @pytest.mark.parametrize("case", [*HOSTILE_VALUES, *REFUSED_IN_A_FRAME_ONLY])
    def test_frame(self, case: str, both_msgpacks: str) -> None:
        value = {**HOSTILE_VALUES, **REFUSED_IN_A_FRAME_ONLY}[case]
        alone, as_message, as_field = value, b"\x91" + value, b"\x91\x92\x05" + value
        ignored, unknown = b"\x91\x93\x05\x01" + value, b"\x91\x92\x3c" + value
        for frame in (alone, as_message, as_field, ignored, unknown):
            with pytest.raises(RemoteViolation):
                decode_frame(frame, DEFAULT_LIMITS)
        with pytest.raises(RemoteViolation):
            decode_message(b"\x92\x1a" + value, DEFAULT_LIMITS)

    def test_bytes_after_the_end(self, both_msgpacks: str) -> None:
        frame = join_frame([encode_message(m.Heartbeat(1))])
        with pytest.raises(RemoteViolation):
            decode_frame(frame + b"\x00", DEFAULT_LIMITS)
        with pytest.raises(RemoteViolation):
            decode_frame(frame * 2, DEFAULT_LIMITS)
        with pytest.raises(RemoteViolation):
            decode_payload(b"\x01\x01")

    def test_next_frame_is_unharmed(self, both_msgpacks: str) -> None:
        good = join_frame([encode_message(m.Heartbeat(1))])
        for value in HOSTILE_VALUES.values():
            with pytest.raises(RemoteViolation):
                decode_frame(b"\x91\x92\x05" + value, DEFAULT_LIMITS)
            assert decode_frame(good, DEFAULT_LIMITS) == [m.Heartbeat(1)]


class TestArbitraryBytes:
    @hypothesis.given(st.binary(max_size=200))
    @times(5)
    def test_frame(self, data: bytes) -> None:
        one, other = verdicts(lambda: decode_frame(data, DEFAULT_LIMITS), codec)
        assert one == other

    @hypothesis.given(st.binary(max_size=200))
    def test_message(self, data: bytes) -> None:
        one, other = verdicts(lambda: decode_message(data, DEFAULT_LIMITS), codec)
        assert one == other

    @hypothesis.given(st.binary(max_size=200))
    @times(5)
    def test_payload(self, data: bytes) -> None:
        one, other = verdicts(lambda: repr(decode_payload(data)), payload)
        assert one == other


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid frame with a few bytes changed, put in, taken out, or its tail cut off."""
    sent = draw(st.lists(messages, min_size=1, max_size=4))
    frame = bytearray(join_frame([encode_message(message) for message in sent]))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frame) - 1))
        match draw(st.sampled_from(["change", "insert", "remove", "cut"])):
            case "change":
                frame[at] = draw(st.integers(0, 255))
            case "insert":
                frame[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "remove":
                del frame[at : at + draw(st.integers(1, 9))]
            case "cut":
                del frame[at:]
        if not frame:
            break
    return bytes(frame)


@hypothesis.given(mutated())
@times(5)
def test_mutated_frame(frame: bytes) -> None:
    one, other = verdicts(lambda: decode_frame(frame, DEFAULT_LIMITS), codec)
    assert one == other


def test_both_modules_pack_the_same(both_msgpacks: str) -> None:
    frame = join_frame([encode_message(m.Heartbeat(2**64 - 1)), encode_message(m.Goodbye("c", "é"))])
    assert frame == b"\x92\x92\x05\xcf" + b"\xff" * 8 + b"\x93\x04\xa1c\xa2\xc3\xa9"
    assert packing.packers.pack(-(2**63)) == b"\xd3\x80" + bytes(7)


def peak_of(decode: Callable[[], Any]) -> int:
    """Bytes allocated at the worst moment of a decoding that is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteViolation):
            decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MIB = 2**20


class TestMemory:
    def test_frame_of_nested_promises(self) -> None:
        """Each of these headers makes the unpacker reserve 1024 places before it sees that nothing follows."""
        frame = b"\x91" + b"\xdc\x04\x00" * 80_000
        assert peak_of(lambda: decode_frame(frame, DEFAULT_LIMITS)) < 16 * MIB

    def test_frame_of_empty_arrays(self) -> None:
        row = b"\xdc\x04\x00" + b"\x90" * 1024
        frame = b"\xdc\x00\xff\x05" + row * 254
        assert len(frame) < DEFAULT_LIMITS.frame_bytes_max
        assert peak_of(lambda: decode_frame(frame, DEFAULT_LIMITS)) < 32 * MIB

    def test_large_message_of_empty_arrays(self) -> None:
        row = b"\xdc\x04\x00" + b"\x90" * 1024
        message = b"\xdc\x03\xe8\x1a" + row * 999
        assert peak_of(lambda: decode_message(message, DEFAULT_LIMITS)) < MIB // 8

    def test_payload_of_nested_promises(self) -> None:
        data = b"\xdd\x00\x0f\x00\x00" * 31 + bytes(8 * MIB)
        assert peak_of(lambda: decode_payload(data)) < MIB // 8

    def test_payload_of_too_many_items(self) -> None:
        data = b"\x93" + (b"\xdd" + struct.pack(">I", 500_000) + b"\x90" * 500_000) * 3
        assert peak_of(lambda: decode_payload(data)) < MIB // 8
