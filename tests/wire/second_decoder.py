"""A second decoder, written from docs/protocol.md alone: slow, plain, and independent of tiedreq.wire.

``decode(frame)`` gives a list of (name, {field: value}), with the name "unknown" for an unknown type, or raises
``Breach``. Nested arrays are tuples, enums their numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], Any]


class Breach(Exception):
    """The frame breaks the protocol."""


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Breach(what)


# ---- section 1: msgpack, as far as the protocol uses it


class Bytes:
    """Reads a frame from its start to its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        need(self.at + length <= len(self.data), "cut short")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, length: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(length), "big", signed=signed)

    def text(self, length: int) -> str:
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise Breach("not UTF-8") from None

    def array(self, length: int, depth: int) -> tuple[Any, ...]:
        need(length <= 1024, "array too long")
        need(depth <= 32, "nested too deep")
        return tuple([self.value(depth + 1) for _ in range(length)])

    def value(self, depth: int) -> Any:
        """The next value; an array at ``depth`` is inside that many others, the frame's own not counted."""
        first = self.number(1)
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if 0x90 <= first < 0xA0:
            return self.array(first - 0x90, depth)
        if 0xA0 <= first < 0xC0:
            return self.text(first - 0xA0)
        if first == 0x80 or (first == 0xDE and self.number(2) == 0) or (first == 0xDF and self.number(4) == 0):
            need(depth <= 32, "nested too deep")
            return {}
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in (0xC4, 0xC5, 0xC6):
            return self.take(self.number(1 << first - 0xC4))
        if first in (0xCA, 0xCB):
            return struct.unpack(">f" if first == 0xCA else ">d", self.take(4 if first == 0xCA else 8))[0]
        if 0xCC <= first <= 0xD3:
            return self.number(1 << (first & 3), signed=first >= 0xD0)
        if first in (0xD9, 0xDA, 0xDB):
            return self.text(self.number(1 << first - 0xD9))
        if first in (0xDC, 0xDD):
            return self.array(self.number(2 if first == 0xDC else 4), depth)
        raise Breach("a map, an extension or nothing known")


# ---- section 2 and the types of section 3


def whole(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        need(type(value) is int and low <= value <= high, f"an integer from {low} to {high}")
        return value

    return check


def text(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        need(type(value) is str and low <= len(value) <= high, f"text of {low} to {high}")
        return value

    return check


def line(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        for char in text(low, high)(value):
            code = ord(char)
            moves = code < 0x20 or 0x7F <= code <= 0x9F or 0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069
            need(not moves, "a line")
        return value

    return check


def binary(*lengths: int) -> Check:
    def check(value: Any) -> Any:
        need(type(value) is bytes and (not lengths or len(value) in lengths), "bytes")
        return value

    return check


def boolean(value: Any) -> Any:
    need(type(value) is bool, "a bool")
    return value


def duration(value: Any) -> Any:
    need(type(value) in (int, float) and 0 <= value <= 1_000_000, "a duration")
    return float(value)


def row(*checks: Check) -> Check:
    def check(value: Any) -> Any:
        need(type(value) is tuple and len(value) == len(checks), f"an array of {len(checks)}")
        return tuple([one(item) for one, item in zip(checks, value, strict=True)])

    return check


def distinct(most: int, one: Check) -> Check:
    def check(value: Any) -> Any:
        need(type(value) is tuple and len(value) <= most, f"an array of up to {most}")
        rows = tuple([one(item) for item in value])
        need(len({item[0] for item in rows}) == len(rows), "distinct rows")
        return rows

    return check


def or_nil(one: Check) -> Check:
    return lambda value: None if value is None else one(value)


u16, u32, u64 = whole(0, 2**16 - 1), whole(0, 2**32 - 1), whole(0, 2**64 - 1)
name = line(1, 128)
copy = row(u64, u64, u64, whole(-1, 7))
load = row(u32, u32, u64, duration)
payload = binary()
some = whole(1, 2**64 - 1)
window = row(some, some, boolean)


def method(value: Any) -> Any:
    """A row that may lack its last field."""
    short = type(value) is tuple and len(value) == 4
    return row(name, boolean, boolean, duration, boolean)((*value, False) if short else value)


MESSAGES: dict[int, tuple[str, dict[str, Check]]] = {
    1: (
        "Hello",
        {
            "protocol_min": u16,
            "protocol_max": u16,
            "cluster": line(0, 128),
            "role": text(6, 7),
            "name": line(0, 128),
            "incarnation": u64,
            "challenge": binary(32),
            "proof": binary(0, 32),
        },
    ),
    2: ("Proof", {"proof": binary(0, 32)}),
    3: (
        "Welcome",
        {
            "slots": u32,
            "draining": boolean,
            "payload_bytes_max": u32,
            "methods": distinct(1024, method),
            "zone": line(0, 128),
        },
    ),
    4: ("Goodbye", {"code": line(1, 64), "reason": line(0, 512)}),
    5: ("Heartbeat", {"number": u64}),
    6: ("HeartbeatEcho", {"number": u64}),
    7: ("Chunk", {"stream": u64, "last": boolean, "data": binary()}),
    8: ("Unsupported", {"type_code": u16}),
    9: ("Draining", {}),
    20: (
        "Submit",
        {
            "copy": copy,
            "kind": whole(0, 3),
            "method": name,
            "payload": payload,
            "remaining": duration,
            "partners": distinct(8, row(name, u64)),
            "yield": boolean,
            "exclusive": boolean,
            "layered": boolean,
            "key": or_nil(text(1, 256)),
            "metadata": distinct(16, row(line(1, 64), text(0, 1024))),
            "window": or_nil(window),
        },
    ),
    21: ("Cancel", {"copy": copy}),
    22: (
        "Result",
        {"copy": copy, "payload": payload, "service_time": duration, "queue_wait": duration, "load": load},
    ),
    23: (
        "Failed",
        {
            "copy": copy,
            "code": line(1, 64),
            "message": text(0, 4096),
            "details": payload,
            "retryable": boolean,
            "service_time": duration,
            "queue_wait": duration,
            "load": load,
        },
    ),
    24: (
        "Ended",
        {
            "copy": copy,
            "state": whole(4, 8),
            "cause": whole(0, 13),
            "retry_after": duration,
            "service_time": duration,
            "load": load,
        },
    ),
    25: ("Report", {"notice_latencies": distinct(256, row(name, duration))}),
    26: ("Inquiry", {"number": u64, "about": line(0, 128)}),
    27: ("Status", {"number": u64, "payload": payload}),
    28: (
        "Item",
        {
            "copy": copy,
            "number": u64,
            "payload": payload,
            "service_time": duration,
            "queue_wait": duration,
            "load": or_nil(load),
        },
    ),
    29: ("Credit", {"copy": copy, "items": some, "bytes": some}),
    40: ("Started", {"copy": copy, "remaining": duration, "load": or_nil(load)}),
    41: ("Next", {"copy": copy, "remaining": duration}),
    42: ("Claim", {"copy": copy, "arbiter": u64, "claimant": u64}),
    43: ("Granted", {"copy": copy}),
    44: ("Denied", {"copy": copy, "started": boolean}),
}


MAY_BE_MISSING: dict[str, dict[str, Any]] = {
    "Welcome": {"zone": ""},
    "Submit": {"window": None},
    "Inquiry": {"about": ""},
}
"""Fields at the end that came later, and what they are where they are missing."""


def together(kind: str, fields: dict[str, Any]) -> None:
    """What the page says of several fields at once."""
    if kind == "Hello":
        need(fields["protocol_min"] <= fields["protocol_max"], "a range")
        need(fields["role"] in ("client", "replica"), "a role")
        need(fields["role"] == "client" or fields["name"] != "", "a replica's name")
    if kind == "Chunk":
        need(fields["last"] or fields["data"] != b"", "data")
    if kind == "Submit":
        rank, partners = fields["copy"][3], fields["partners"]
        need((rank == -1) == (partners == ()), "partners of a tie only")
        need(rank == -1 or len(partners) >= max(2, rank + 1), "a rank among the partners")


# ---- frames and messages


def message(raw: Any) -> tuple[str, dict[str, Any]]:
    need(type(raw) is tuple and len(raw) > 0, "a message")
    code = whole(0, 65_535)(raw[0])
    if code not in MESSAGES:
        return "unknown", {"type_code": code}
    kind, checks = MESSAGES[code]
    later = MAY_BE_MISSING.get(kind, {})
    need(len(raw) > len(checks) - len(later), "all fields")
    fields = {field: check(value) for (field, check), value in zip(checks.items(), raw[1:], strict=False)}
    fields = later | fields
    together(kind, fields)
    return kind, fields


def decode(frame: bytes) -> list[tuple[str, dict[str, Any]]]:
    need(len(frame) <= 262_144, "frame too large")
    reader = Bytes(frame)
    raw = reader.value(0)
    need(reader.at == len(frame), "bytes after the frame")
    need(type(raw) is tuple and 1 <= len(raw) <= 1024, "a frame")
    return [message(one) for one in raw]
