"""docs/protocol.md is true: a decoder written from it alone gives the same answer as ours, and its tables are ours."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgpack
import pytest
from hypothesis import strategies as st

from tests.wire import second_decoder
from tests.wire.strategies import messages, times
from tests.wire.test_codec import ODD, ODD_ARRAYS, ODD_SCALARS, ODD_TEXTS, _changed
from tests.wire.test_fields import (
    ENDED,
    FAILED,
    HELLO,
    ITEM,
    LOAD,
    RESULT,
    STARTED,
    SUBMIT,
    TIED,
    WINDOW,
    metadata,
    methods,
    peers,
    tie,
)
from tests.wire.test_hostile import HOSTILE_VALUES, REFUSED_IN_A_FRAME_ONLY, mutated
from tiedreq.core import messages as m
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.types import Cause, CopyKind
from tiedreq.wire import limits as lim
from tiedreq.wire.codec import UnknownMessage, decode_frame, encode_message, join_frame
from tiedreq.wire.fields import END_STATES, WIRE_CAUSES
from tiedreq.wire.layout import LAYOUTS
from tiedreq.wire.limits import DEFAULT_LIMITS

TIE = tie(3, 1)._replace(key="k", metadata=metadata(2).metadata, window=WINDOW)
LINK = (
    HELLO,
    m.Proof(b""),
    methods(2),
    m.Goodbye("c", "r"),
    m.Chunk(1, False, b"d"),
    m.Heartbeat(1),
    m.HeartbeatEcho(1),
)
CALLER = (SUBMIT, TIE, m.Cancel(TIED), RESULT, FAILED, ENDED, peers(2), ITEM, m.Credit(TIED, 1, 1))
FULL = (*LINK, m.Unsupported(1), m.Draining(), *CALLER, STARTED, STARTED._replace(load=LOAD), m.Next(TIED, 1.0))
"""A message of every type, with something in every field."""

PAGE = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (.*?) ?\|$", re.MULTILINE)


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return int(value) if isinstance(value, enum.IntEnum) else value


def ours(frame: bytes) -> Any:
    try:
        found = decode_frame(frame, DEFAULT_LIMITS)
    except RemoteViolation:
        return "refused"
    return [
        (
            "unknown" if isinstance(message, UnknownMessage) else type(message).__name__,
            {field.rstrip("_"): plain(value) for field, value in message._asdict().items()},
        )
        for message in found
    ]


def theirs(frame: bytes) -> Any:
    try:
        return second_decoder.decode(frame)
    except second_decoder.Breach:
        return "refused"


@hypothesis.given(st.lists(messages, min_size=1, max_size=8))
def test_same_messages(sent: list[Any]) -> None:
    frame = join_frame([encode_message(message) for message in sent])
    assert theirs(frame) == ours(frame) != "refused"


@hypothesis.given(mutated())
@times(5)
def test_same_verdict_on_mutated_bytes(frame: bytes) -> None:
    assert theirs(frame) == ours(frame)


@hypothesis.given(messages, st.data())
@times(6)
def test_same_verdict_on_changed_fields(message: Any, data: st.DataObject) -> None:
    raw = _changed(msgpack.unpackb(encode_message(message), use_list=False), data)
    frame = msgpack.packb([raw])
    assert theirs(frame) == ours(frame)


def places(raw: Any) -> Iterator[tuple[int, ...]]:
    """The path to every value inside ``raw``."""
    for index, inner in enumerate(raw):
        yield (index,)
        if isinstance(inner, tuple):
            yield from ((index, *path) for path in places(inner))


def with_at(raw: tuple[Any, ...], path: tuple[int, ...], value: Any) -> tuple[Any, ...]:
    """``raw`` with ``value`` in the place that ``path`` leads to."""
    index, *further = path
    inner = with_at(raw[index], tuple(further), value) if further else value
    return (*raw[:index], inner, *raw[index + 1 :])


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_same_verdict_whatever_stands_in_any_one_place(message: Any) -> None:
    raw = msgpack.unpackb(encode_message(message), use_list=False)
    assert ours(msgpack.packb([raw])) != "refused"
    for path in places(raw):
        for value in (*ODD_SCALARS, *ODD_TEXTS, *ODD_ARRAYS, ("k", "v"), (("k", "v"), ("l", "w"))):
            frame = msgpack.packb([with_at(raw, path, value)])
            assert theirs(frame) == ours(frame), (path, value)


@hypothesis.given(st.lists(st.one_of(st.integers(0, 70_000), ODD), max_size=4), st.integers(1, 34))
def test_same_verdict_on_what_is_unknown(raw: list[Any], depth: int) -> None:
    inner: Any = 1
    for _ in range(depth):
        inner = [inner]
    frame = msgpack.packb([[*raw, inner], [5, 1, inner]])
    assert theirs(frame) == ours(frame)


@pytest.mark.parametrize("case", [*HOSTILE_VALUES, *REFUSED_IN_A_FRAME_ONLY])
def test_same_verdict_on_hostile_values(case: str) -> None:
    value = {**HOSTILE_VALUES, **REFUSED_IN_A_FRAME_ONLY}[case]
    for frame in (value, b"\x91" + value, b"\x91\x92\x05" + value, b"\x91\x93\x05\x01" + value):
        assert theirs(frame) == "refused"


def test_the_second_decoder_is_independent() -> None:
    source = Path(second_decoder.__file__).read_text(encoding="utf-8")
    imported = re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE)
    assert set(imported) == {"__future__", "struct", "collections.abc", "typing"}


def test_tables_of_messages() -> None:
    told = {}
    for code, name, fields in ROW.findall(PAGE):
        told[int(code)] = (name, [re.split(r"[:, ]", field)[0] for field in fields.split(" · ") if field])
    assert told == {
        layout.code: (layout.name, [field.rstrip("_") for field in layout.field_names]) for layout in LAYOUTS
    }


def test_tables_of_the_second_decoder() -> None:
    found = {code: (name, list(fields)) for code, (name, fields) in second_decoder.MESSAGES.items()}
    assert found == {
        layout.code: (layout.name, [field.rstrip("_") for field in layout.field_names]) for layout in LAYOUTS
    }


def test_enums() -> None:
    for kind in CopyKind:
        assert f"{kind.value} {kind.label}" in PAGE
    for state in END_STATES:
        assert f"{state.value} {state.label}" in PAGE
    told = PAGE.split("*cause*: ")[1].split("\n\n")[0]
    assert [int(number) for number in re.findall(r"\b(\d+) [a-z]", told)] == [cause.value for cause in WIRE_CAUSES]
    assert set(Cause) - set(WIRE_CAUSES) == {Cause.LINK_LOST, Cause.UNSENT}


@pytest.mark.parametrize(
    "number",
    [
        lim.FRAME_MESSAGES_MAX,
        lim.FRAME_BYTES_SENT_MAX,
        lim.FRAME_SPLIT_BYTES,
        lim.MESSAGE_BYTES_BESIDE_PAYLOAD,
        lim.MESSAGE_DEPTH_MAX,
        lim.MESSAGE_ITEMS_MAX,
        lim.CHUNK_STREAMS_SENT_MAX,
        lim.NAME_CHARS_MAX,
        lim.METHOD_CHARS_MAX,
        lim.CODE_CHARS_MAX,
        lim.REASON_CHARS_MAX,
        lim.FAILURE_CHARS_MAX,
        lim.KEY_CHARS_MAX,
        lim.METADATA_ENTRIES_MAX,
        lim.METADATA_VALUE_CHARS_MAX,
        lim.METHODS_MAX,
        lim.PEERS_MAX,
        int(lim.SECONDS_MAX),
        DEFAULT_LIMITS.frame_bytes_max,
        DEFAULT_LIMITS.chunk_bytes,
        DEFAULT_LIMITS.depth_max,
        DEFAULT_LIMITS.items_max,
    ],
)
def test_numbers(number: int) -> None:
    assert re.search(rf"\b({number}|{number:,})\b", PAGE)
