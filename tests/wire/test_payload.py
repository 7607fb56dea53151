"""A user's values: what travels, what is refused with a path to it, and that both sides draw the line at one place."""

from __future__ import annotations

import collections
import datetime
import enum
import math
from typing import Any

import hypothesis
import msgpack
import pytest
from hypothesis import strategies as st

from tests.wire.strategies import values
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import Unpackable, decode_payload, encode_payload

LOW = WireLimits(depth_max=3, items_max=8, payload_bytes_max=1024)


class Colour(enum.IntEnum):
    RED = 3


class Word(enum.StrEnum):
    YES = "yes"


class Point(collections.namedtuple("Point", "x y")):
    pass


def nested(depth: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth - 1):
        value = {"a": value} if kind is dict else kind([value])
    return value


@hypothesis.given(values)
def test_round_trip(value: Any) -> None:
    assert decode_payload(encode_payload(value)) == value


def test_kinds_survive() -> None:
    value = {"a": [1, 1.0, True, None, "x", b"x"], 1: "int", 2.5: "float", b"k": "bytes", None: "nil", False: "bool"}
    found = decode_payload(encode_payload(value))
    assert found == value
    assert [type(item) for item in found["a"]] == [type(item) for item in value["a"]]
    assert [type(key) for key in found] == [type(key) for key in value]


def test_floats_out_of_the_ordinary() -> None:
    nan, inf, minus, zero = decode_payload(encode_payload([math.nan, math.inf, -math.inf, -0.0]))
    assert math.isnan(nan) and (inf, minus) == (math.inf, -math.inf) and math.copysign(1, zero) == -1


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, 3),
        (Word.YES, "yes"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, {Word.YES: [1]}), {"yes": [1]}),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_relatives_arrive_as_what_they_derive_from(value: Any, arrives: Any, both_msgpacks: str) -> None:
    found = decode_payload(encode_payload(value))
    assert found == arrives and type(found) is type(arrives)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

REFUSED: list[tuple[Any, str]] = [
    ({"a": [0, 1, 2, {1, 2}]}, 'args["a"][3]: a set can\'t be packed; None, bool, int, float, str, bytes, list, tuple'),
    (object(), "args: an object can't be packed"),
    ([datetime.datetime(2020, 1, 1)], "args[0]: a datetime can't be packed"),
    ([msgpack.Timestamp(1)], "args[0]: a Timestamp can't be packed"),
    ([msgpack.ExtType(5, b"x")], "args[0]: an ExtType can't be packed"),
    ([bytearray(b"x")], "args[0]: a bytearray can't be packed"),
    ([memoryview(b"x")], "args[0]: a memoryview can't be packed"),
    ({"a": {"b": 2**64}}, 'args["a"]["b"]: an int of 65 bits can\'t be packed; 64 is the limit'),
    ([-(2**63) - 1], "args[0]: an int of 64 bits can't be packed"),
    ([2**64 - 1, -(2**63), 2**64], "args[2]: an int of 65 bits can't be packed"),
    ({2**64: 1}, "a key of args: an int of 65 bits can't be packed"),
    ({"a": ["\ud800"]}, 'args["a"][0]: a str with a lone surrogate can\'t be packed'),
    ({"\ud800": 1}, "a key of args: a str with a lone surrogate can't be packed"),
    ({"a": {(1, 2): 3}}, 'args["a"]: a tuple can\'t be a key; None, bool, int, float, str and bytes can'),
    ({frozenset(): 3}, "args: a frozenset can't be a key"),
    ({1: {2.5: {None: {b"k": {'q"': set()}}}}}, "args[1][2.5][None][b'k'][\"q\\\"\"]: a set can't be packed"),
    ({"k" * 100: set()}, 'args["' + "k" * 35 + "...\"]: a set can't be packed"),
    (CYCLE, "args is nested more than 32 deep, or contains itself"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=lambda case: case if isinstance(case, str) else "-")
def test_refused_with_a_path(value: Any, message: str, both_msgpacks: str) -> None:
    with pytest.raises(Unpackable) as caught:
        encode_payload(value, what="args")
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, (BadOption, TypeError))
    assert encode_payload([1]) == b"\x91\x01"


def test_long_paths_are_shortened() -> None:
    value: Any = set()
    for _ in range(30):
        value = {"k" * 30: value}
    with pytest.raises(Unpackable) as caught:
        encode_payload(value)
    assert len(str(caught.value)) < 320


class TestDepth:
    @pytest.mark.parametrize("kind", [list, tuple, dict])
    def test_same_line_on_both_sides(self, kind: type, both_msgpacks: str) -> None:
        inside, beyond = encode_payload(nested(3, kind), LOW), msgpack.packb(nested(4, kind))
        assert decode_payload(inside, LOW) == nested(3, dict if kind is dict else list)
        with pytest.raises(Unpackable, match="value is nested more than 3 deep"):
            encode_payload(nested(4, kind), LOW)
        with pytest.raises(RemoteViolation, match="payload is nested more than 3 deep"):
            decode_payload(beyond, LOW)

    @hypothesis.given(st.integers(1, 40), values)
    def test_default(self, depth: int, value: Any) -> None:
        for _ in range(depth):
            value = [value]
        packed = msgpack.packb(value)
        try:
            encoded = encode_payload(value)
        except Unpackable:
            with pytest.raises(RemoteViolation):
                decode_payload(packed)
        else:
            assert encoded == packed and decode_payload(packed) == value

    def test_far_too_deep(self) -> None:
        value: Any = []
        for _ in range(100_000):
            value = [value]
        with pytest.raises(Unpackable):
            encode_payload(value)
        while value:  # taken apart level by level
            value = value[0]


class TestItems:
    @pytest.mark.parametrize(
        ("inside", "beyond"),
        [
            ([0] * 8, [0] * 9),
            ([[0] * 3, [0] * 3], [[0] * 3, [0] * 4]),
            ({"a": 1, "b": 2, "c": 3, "d": 4}, {"a": 1, "b": 2, "c": 3, "d": [5]}),
        ],
    )
    def test_same_line_on_both_sides(self, inside: Any, beyond: Any) -> None:
        assert decode_payload(encode_payload(inside, LOW), LOW) == inside
        with pytest.raises(Unpackable, match="value holds more than 8 values"):
            encode_payload(beyond, LOW)
        with pytest.raises(RemoteViolation, match="payload holds more than 8 values"):
            decode_payload(msgpack.packb(beyond), LOW)

    def test_shared_parts_count_each_time(self) -> None:
        value: Any = [0] * 10
        for _ in range(25):
            value = [value] * 10
        with pytest.raises(Unpackable, match="more than 1000000 values"):
            encode_payload(value)

    def test_as_many_as_allowed(self) -> None:
        value = [None] * 1_000_000
        assert decode_payload(encode_payload(value)) == value


class TestBytes:
    def test_edge(self) -> None:
        assert decode_payload(encode_payload(bytes(1021), LOW), LOW) == bytes(1021)
        with pytest.raises(RemoteViolation, match="result of 1025 bytes; the limit is 1024"):
            decode_payload(encode_payload(bytes(1022), LOW), LOW, what="result")

    def test_ten_megabytes(self) -> None:
        value = {"rows": [{"id": i, "text": "x" * 1000} for i in range(10_000)]}
        assert decode_payload(encode_payload(value)) == value


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
def test_bytes_alone_come_back_as_bytes(size: int) -> None:
    value = bytes(index % 256 for index in range(size))
    back = decode_payload(encode_payload(value))
    assert back == value and type(back) is bytes
    assert decode_payload(b"\xc6" + size.to_bytes(4, "big") + value) == value, "however its length is written"


@pytest.mark.parametrize(
    "data", [b"\xc4", b"\xc4\x02a", b"\xc4\x01ab", b"\xc5\x00", b"\xc5\x00\x02a", b"\xc6\0\0\0", b"\xc6\0\0\0\x01"]
)
def test_bytes_cut_short_or_with_more_after_them(data: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_payload(data)
