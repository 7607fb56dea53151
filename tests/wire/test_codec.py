"""Messages survive the journey, frames are exactly their messages, and the unknown is met with calm."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import msgpack
import pytest
from hypothesis import strategies as st

from tests.wire.strategies import BY_TYPE, messages, times
from tiedreq.core import messages as m
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity, Load
from tiedreq.wire import hot
from tiedreq.wire.codec import (
    UnknownMessage,
    decode_frame,
    decode_message,
    encode_message,
    join_frame,
    read_by_layout,
)
from tiedreq.wire.hot import READERS, TESTERS
from tiedreq.wire.layout import CALLER_CODES, LAYOUTS, LINK_CODES, PEER_CODES
from tiedreq.wire.limits import DEFAULT_LIMITS, FRAME_BYTES_SENT_MAX, FRAME_MESSAGES_MAX, WireLimits

COPY = CopyId(2**64 - 1, 7, 0, 1)
PARTNERS = (Identity("r0", 1), Identity("r1", 2))


def submit(**changes: Any) -> m.Submit:
    return m.Submit(COPY, CopyKind.TIE, "lookup", b"\x01", 0.5, PARTNERS, True, False, False, None, ())._replace(
        **changes
    )


def decode_one(encoded: bytes) -> m.Message | UnknownMessage:
    [message] = decode_frame(join_frame([encoded]), DEFAULT_LIMITS)
    return message


def raw_frame(*raw: Any) -> bytes:
    return msgpack.packb(raw)


def layout_of(message: m.Message) -> Any:
    return next(layout for layout in LAYOUTS if layout.message is type(message))


def exactly(message: Any) -> tuple[Any, ...]:
    """With the types of everything inside, which ``==`` on tuples and enums does not look at."""
    return type(message), [exactly(part) if isinstance(part, tuple) else (type(part), part) for part in message]


class TestLayout:
    def test_every_message_has_one(self) -> None:
        assert {layout.message for layout in LAYOUTS} == set(m.Message.__args__) == set(BY_TYPE)
        assert len({layout.code for layout in LAYOUTS}) == len(LAYOUTS)

    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
    def test_one_check_per_field(self, layout: Any) -> None:
        assert len(layout.checks) == len(layout.field_names)

    def test_codes_are_grouped(self) -> None:
        groups = [LINK_CODES, CALLER_CODES, PEER_CODES]
        by_name = {layout.name: next(i for i, group in enumerate(groups) if layout.code in group) for layout in LAYOUTS}
        assert [name for name, group in by_name.items() if group == 2] == [
            "Started",
            "Next",
            "Claim",
            "Granted",
            "Denied",
        ]
        assert by_name["Draining"] == 0 and by_name["Report"] == 1

    def test_shortcuts_are_for_the_messages_of_every_call(self) -> None:
        assert {m.Submit, m.Started, m.Result, m.Ended, m.Cancel} <= set(READERS)
        assert set(READERS) <= set(TESTERS)


@pytest.mark.parametrize("kind", list(BY_TYPE), ids=lambda kind: kind.__name__)
@hypothesis.given(data=st.data())
@times(0.7)
def test_round_trip(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(BY_TYPE[kind])
    assert exactly(decode_one(encode_message(message))) == exactly(message)


@hypothesis.given(st.lists(messages, min_size=1, max_size=20))
def test_frame_is_its_messages_in_order(sent: list[m.Message]) -> None:
    frame = join_frame([encode_message(message) for message in sent])
    assert decode_frame(frame, DEFAULT_LIMITS) == sent
    assert frame == msgpack.packb([msgpack.unpackb(encode_message(message)) for message in sent])


@hypothesis.given(messages)
def test_shortcut_agrees_with_layout(message: m.Message) -> None:
    encoded = encode_message(message)
    raw = msgpack.unpackb(encoded, use_list=False)
    assert exactly(read_by_layout(layout_of(message), raw, DEFAULT_LIMITS)) == exactly(message)
    reader = READERS.get(type(message))
    if reader is not None:
        read = reader(raw, DEFAULT_LIMITS)
        assert read is None or exactly(read) == exactly(message)


def test_shortcuts_are_taken() -> None:
    load = Load(1, 2, 3, 0.0)
    usual = [
        submit(),
        submit(copy=COPY._replace(rank=UNTIED), partners=(), key="k", metadata=(("traceparent", "00-1"),)),
        m.Cancel(COPY),
        m.Started(COPY, 0.5, None),
        m.Started(COPY, 0.5, load),
        m.Next(COPY, 0.5),
        m.Result(COPY, b"\x01", 0.1, 0.2, load),
        m.Ended(COPY, m.CopyState.DROPPED, m.Cause.STARTED, 0.0, 0.0, load),
    ]
    for message in usual:
        raw = msgpack.unpackb(encode_message(message), use_list=False)
        assert exactly(READERS[type(message)](raw, DEFAULT_LIMITS)) == exactly(message)
        assert TESTERS[type(message)](message)


@pytest.mark.parametrize("kind", list(READERS), ids=lambda kind: kind.__name__)
@hypothesis.given(data=st.data())
@times(2)
def test_shortcut_takes_nothing_that_the_layout_refuses(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(BY_TYPE[kind])
    raw = _changed(msgpack.unpackb(encode_message(message), use_list=False), data)
    read = READERS[kind](raw, DEFAULT_LIMITS)
    if read is not None:
        assert exactly(read) == exactly(read_by_layout(layout_of(message), raw, DEFAULT_LIMITS))


ODD_SCALARS = [None, True, False, -1, -2, 0, 8, 11, 2**32, 2**64 - 1, 1.0, -0.5, 1e6 + 1, float("nan"), float("inf")]
ODD_TEXTS = ["", "a\nb", "x" * 2000, b"", b"x"]
ODD_ARRAYS = [(), ((),), (1, 2), ("r0", 1), (("r0", 1),), (("r0", 1), ("r0", 2))]
ODD = st.sampled_from([*ODD_SCALARS, *ODD_TEXTS, *ODD_ARRAYS])


def _changed(raw: tuple[Any, ...], data: st.DataObject) -> tuple[Any, ...]:
    """``raw`` with one value somewhere inside replaced, left out or added."""
    if not raw or data.draw(st.integers(0, 9)) == 0:
        return (*raw, data.draw(ODD))
    index = data.draw(st.integers(0, len(raw) - 1))
    inner = raw[index]
    if isinstance(inner, tuple) and data.draw(st.booleans()):
        changed: tuple[Any, ...] = (_changed(inner, data),)
    else:
        changed = () if data.draw(st.integers(0, 9)) == 0 else (data.draw(ODD),)
    return raw[:index] + changed + raw[index + 1 :]


class TestEncode:
    def test_not_a_message(self) -> None:
        with pytest.raises(BadOption, match="str is not a message"):
            encode_message("hello")  # type: ignore[arg-type]

    def test_names_message_and_field(self) -> None:
        with pytest.raises(BadOption, match=r"^Submit\.remaining: expected a number of seconds from 0 to 1000000$"):
            encode_message(submit(remaining=float("inf")))

    def test_what_msgpack_refuses(self) -> None:
        with pytest.raises(BadOption, match=r"^Submit can't be packed: .*surrogates"):
            encode_message(submit(method="\ud800"))
        with pytest.raises(BadOption, match=r"^Heartbeat can't be packed"):
            encode_message(m.Heartbeat(2**64))

    def test_goes_on_after_an_error(self) -> None:
        with pytest.raises(BadOption):
            encode_message(submit(method="\ud800"))
        assert decode_one(encode_message(submit())) == submit()

    def test_threads_do_not_disturb_each_other(self) -> None:
        sent = [submit(payload=bytes([i]) * 2000) for i in range(4)]
        with ThreadPoolExecutor(4) as pool:
            encoded = list(pool.map(encode_message, sent * 200))
        assert encoded == [encode_message(message) for message in sent] * 200

    def test_a_whole_number_is_a_duration(self) -> None:
        message = decode_one(encode_message(submit(remaining=3)))
        assert isinstance(message, m.Submit) and type(message.remaining) is float

    def test_text_for_people_is_cut(self) -> None:
        sent = m.Goodbye("protocol", "one\ntwo \ud800" + "x" * 1000)
        assert decode_one(encode_message(sent)) == m.Goodbye("protocol", "one two ?" + "x" * 503)
        failed = m.Failed(COPY, "internal", "a\nb\ud800" + "x" * 5000, b"", False, 0.1, 0.1, Load(0, 1, 1, 0.0))
        assert decode_one(encode_message(failed)) == failed._replace(message="a\nb?" + "x" * 4092)


class TestFrame:
    def test_empty(self) -> None:
        with pytest.raises(BadOption, match="1 to 1024 messages, not 0"):
            join_frame([])
        with pytest.raises(RemoteViolation, match="array of 1 to 1024"):
            decode_frame(b"\x90", DEFAULT_LIMITS)

    @pytest.mark.parametrize("number", [1, 15, 16, FRAME_MESSAGES_MAX])
    def test_number_of_messages(self, number: int) -> None:
        frame = join_frame([encode_message(m.Heartbeat(1))] * number)
        assert frame == msgpack.packb([[5, 1]] * number)
        assert decode_frame(frame, DEFAULT_LIMITS) == [m.Heartbeat(1)] * number

    def test_too_many_messages(self) -> None:
        with pytest.raises(BadOption, match="not 1025"):
            join_frame([encode_message(m.Heartbeat(1))] * (FRAME_MESSAGES_MAX + 1))
        with pytest.raises(RemoteViolation):
            decode_frame(raw_frame(*[[5, 1]] * (FRAME_MESSAGES_MAX + 1)), DEFAULT_LIMITS)

    def test_bytes(self) -> None:
        def of(frame_bytes: int) -> list[bytes]:
            rest = frame_bytes - len(join_frame([encode_message(submit(payload=b"x" * 70_000))]))
            return [encode_message(submit(payload=b"x" * (70_000 + rest)))]

        largest = join_frame(of(FRAME_BYTES_SENT_MAX))
        assert len(largest) == FRAME_BYTES_SENT_MAX
        assert len(decode_frame(largest, DEFAULT_LIMITS)) == 1
        with pytest.raises(BadOption, match="at most 131072 bytes, not 131073"):
            join_frame(of(FRAME_BYTES_SENT_MAX + 1))
        limit = DEFAULT_LIMITS.frame_bytes_max
        assert len(decode_frame(b"\x91" + of(limit)[0], DEFAULT_LIMITS)) == 1
        with pytest.raises(RemoteViolation, match="frame of 262145 bytes; the limit is 262144"):
            decode_frame(b"\x91" + of(limit + 1)[0], DEFAULT_LIMITS)

    @pytest.mark.parametrize(
        "frame",
        [b"", b"\xc0", b"\x01", b"\xa1a", b"\xc4\x01a", b"\x80", b"\x91\xc0", b"\x91\x90", b"\x91\x01", b"\x91\xa3abc"],
    )
    def test_not_messages(self, frame: bytes, both_msgpacks: str) -> None:
        with pytest.raises(RemoteViolation):
            decode_frame(frame, DEFAULT_LIMITS)

    @pytest.mark.parametrize("code", [None, True, 5.0, "5", b"\x05", -1, 65_536, [5]])
    def test_not_a_type_code(self, code: Any) -> None:
        with pytest.raises(RemoteViolation, match="type code"):
            decode_frame(raw_frame([code, 1]), DEFAULT_LIMITS)

    def test_one_bad_message_spoils_the_frame(self) -> None:
        with pytest.raises(RemoteViolation, match=r"^Heartbeat\.number"):
            decode_frame(raw_frame([5, 1], [5, -1]), DEFAULT_LIMITS)


class TestUnknown:
    @pytest.mark.parametrize("code", [0, 10, 19, 30, 45, 60, 65_535])
    def test_type(self, code: int) -> None:
        frame = raw_frame([5, 1], [code, "what", [1, [2]]], [5, 2])
        assert decode_frame(frame, DEFAULT_LIMITS) == [m.Heartbeat(1), UnknownMessage(code), m.Heartbeat(2)]

    @pytest.mark.parametrize("kind", list(BY_TYPE), ids=lambda kind: kind.__name__)
    @hypothesis.given(data=st.data())
    @times(0.2)
    def test_fields_at_the_end(self, kind: type[Any], data: st.DataObject) -> None:
        message = data.draw(BY_TYPE[kind])
        more = data.draw(st.lists(st.none() | st.integers(0, 9) | st.text() | st.just([1, [2]]), min_size=1))
        raw = msgpack.unpackb(encode_message(message))
        assert decode_frame(raw_frame([*raw, *more]), DEFAULT_LIMITS) == [message]

    @pytest.mark.parametrize("first", [[5, 1], [60]])
    def test_depth(self, first: list[Any], both_msgpacks: str) -> None:
        def nested(depth: int) -> Any:
            value: Any = []
            for _ in range(depth - 1):
                value = [value]
            return value

        decode_frame(raw_frame([*first, nested(31)]), DEFAULT_LIMITS)
        with pytest.raises(RemoteViolation, match="nested more than 32 deep"):
            decode_frame(raw_frame([*first, nested(32)]), DEFAULT_LIMITS)

    def test_fields_inside_are_not_expected(self) -> None:
        with pytest.raises(
            RemoteViolation, match=r"^Cancel\.copy: expected client, number, round, rank: an array of 4"
        ):
            decode_frame(raw_frame([21, [1, 1, 0, -1, 0]]), DEFAULT_LIMITS)


class TestChunkedMessage:
    @hypothesis.given(messages)
    def test_all_but_the_links_own(self, message: m.Message) -> None:
        encoded = encode_message(message)
        if layout_of(message).code in LINK_CODES and not isinstance(message, m.Welcome):
            with pytest.raises(RemoteViolation, match="may not arrive in chunks"):
                decode_message(encoded, DEFAULT_LIMITS)
        else:
            assert decode_message(encoded, DEFAULT_LIMITS) == message

    def test_unknown(self) -> None:
        assert decode_message(msgpack.packb([30, "?"]), DEFAULT_LIMITS) == UnknownMessage(30)
        with pytest.raises(RemoteViolation):
            decode_message(msgpack.packb([10, "?"]), DEFAULT_LIMITS)

    def test_largest_welcome(self) -> None:
        rows = tuple(m.MethodInfo(f"{i:04}" + "\U0001f600" * 124, True, True, 60.0) for i in range(1024))
        welcome = m.Welcome(8, False, 2**32 - 1, rows)
        assert decode_message(encode_message(welcome), DEFAULT_LIMITS) == welcome

    def test_items(self) -> None:
        full = [30, *[[0] * 1000 for _ in range(16)]]
        assert decode_message(msgpack.packb([*full, [0] * 366]), DEFAULT_LIMITS) == UnknownMessage(30)
        with pytest.raises(RemoteViolation, match="more than 16384 values"):
            decode_message(msgpack.packb([*full, [0] * 367]), DEFAULT_LIMITS)

    def test_size(self) -> None:
        limits = WireLimits(payload_bytes_max=1024, message_bytes_max=2**20)
        largest = msgpack.packb([39, bytes(2**20 - 7)])
        assert decode_message(largest, limits) == UnknownMessage(39) and len(largest) == 2**20
        with pytest.raises(RemoteViolation, match="message of 1048577 bytes; the limit is 1048576"):
            decode_message(msgpack.packb([39, bytes(2**20 - 6)]), limits)
        with pytest.raises(RemoteViolation, match="message of 67108865 bytes; the limit is 67108864"):
            decode_message(bytes(DEFAULT_LIMITS.message_bytes_max + 1), DEFAULT_LIMITS)


def test_wide_numbers_and_single_floats_are_taken() -> None:
    """Any encoding that holds the value is valid msgpack."""
    wide = b"\x93\x29" + b"\x94\xcf" + struct.pack(">Q", 1) + b"\xd3" + struct.pack(">q", 2) + b"\xcd\x00\x00\xd0\xff"
    frame = b"\xdd\x00\x00\x00\x01" + wide + b"\xca" + struct.pack(">f", 0.5)
    assert decode_frame(frame, DEFAULT_LIMITS) == [m.Next(CopyId(1, 2, 0, -1), 0.5)]


def _raw_submit(partners: object, method: object = "work") -> bytes:
    raw = [20, [7, 1, 0, 0], 0, method, b"", 1.0, partners, True, False, False, None, []]
    return join_frame([msgpack.packb(raw)])


def test_the_same_partners_and_method_are_the_same_objects() -> None:
    """A queue of many copies holds the names of its replicas once."""
    partners = [["r0", 1], ["r1", 2**64 - 1]]
    first, second = (decode_frame(_raw_submit(partners), DEFAULT_LIMITS)[0] for _ in range(2))
    assert isinstance(first, m.Submit) and isinstance(second, m.Submit) and first == second
    assert first.partners is second.partners and first.method is second.method


@pytest.mark.parametrize(
    "partners",
    [
        [["r0", True], ["r1", 2]],
        [["r0", 1.0], ["r1", 2]],
        [["r0", 1], ["r1", {}]],
        [["r0", 1], {}],
        [["r0", 1], ["r1", [2]]],
        [["r0", 1], ["r1", 2, 3]],
        [[b"r0", 1], ["r1", 2]],
    ],
    ids=str,
)
def test_what_only_looks_like_known_partners_is_refused(partners: list[object]) -> None:
    decode_frame(_raw_submit([["r0", 1], ["r1", 2]]), DEFAULT_LIMITS)
    with pytest.raises(RemoteViolation, match="partners"):
        decode_frame(_raw_submit(partners), DEFAULT_LIMITS)


def test_many_different_partners_and_methods_are_not_kept() -> None:
    for number in range(3000):
        decode_frame(_raw_submit([["r0", 1], ["r1", number]], f"method {number}"), DEFAULT_LIMITS)
    assert len(hot._known_partners) <= 256 and len(hot._known_methods) <= 256
