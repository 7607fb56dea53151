"""What each field of a message may hold: one check per kind of field.

A check takes a value as it came out of msgpack (arrays as tuples) and returns the value that the message holds, or
raises ``BadField`` with what was expected. A hostile value is never quoted: only its kind is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tiedreq.core.types import Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, Window
from tiedreq.wire import limits as lim
from tiedreq.wire.limits import WireLimits

Check = Callable[[Any, WireLimits], Any]

CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
"""What a line may not hold: control characters, ends of lines and paragraphs, changes of writing direction.

(``str.isprintable`` is stricter, but depends on the version of Unicode, and the two sides may differ in that.)
"""
RANK_MAX = lim.PARTNERS_MAX - 1
END_STATES = (
    CopyState.DROPPED,
    CopyState.YIELDED,
    CopyState.CANCELLED,
    CopyState.EXPIRED,
    CopyState.REFUSED,
)
"""How a copy may end without an answer."""
WIRE_CAUSES = tuple(cause for cause in Cause if cause not in (Cause.LINK_LOST, Cause.UNSENT))
"""What a replica may give as the cause; the other causes arise at the caller."""


class BadField(Exception):
    """A field holds what it may not; the text completes "expected ..."."""


def whole(low: int, high: int) -> Check:
    """A whole number from ``low`` to ``high``; True and False are not numbers."""
    expected = f"a whole number from {low} to {high}"

    def check(value: Any, _limits: WireLimits) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadField(expected)
        return value

    return check


def one_of(members: tuple[Any, ...]) -> Check:
    """A small number that stands for one of ``members`` of an IntEnum."""
    by_number = {int(member): member for member in members}
    expected = f"one of {sorted(by_number)}"

    def check(value: Any, _limits: WireLimits) -> Any:
        if type(value) is not int or value not in by_number:
            raise BadField(expected)
        return by_number[value]

    return check


def text(shortest: int, longest: int, *, one_line: bool) -> Check:
    """A string of ``shortest`` to ``longest`` characters; ``one_line``: none of them moves what is shown around it."""
    expected = f"{'one line' if one_line else 'text'} of {shortest} to {longest} characters"

    def check(value: Any, _limits: WireLimits) -> str:
        if type(value) is not str or not shortest <= len(value) <= longest:
            raise BadField(expected)
        if one_line and CONTROL.search(value):
            raise BadField(expected)
        return value

    return check


def binary(*lengths: int) -> Check:
    """Bytes of one of these lengths."""
    expected = " or ".join(str(length) for length in lengths) + " bytes"

    def check(value: Any, _limits: WireLimits) -> bytes:
        if type(value) is not bytes or len(value) not in lengths:
            raise BadField(expected)
        return value

    return check


def optional(check: Check) -> Check:
    """What ``check`` takes, or nil."""

    def check_unless_none(value: Any, limits: WireLimits) -> Any:
        return None if value is None else check(value, limits)

    return check_unless_none


def rows(check: Check, most: int, what: str, *, distinct_by_first: bool = True) -> Check:
    """An array of up to ``most`` arrays that ``check`` takes; no two begin with the same value."""

    def check_rows(value: Any, limits: WireLimits) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) > most:
            raise BadField(f"an array of up to {most} {what}")
        checked = tuple(check(row, limits) for row in value)
        if distinct_by_first and len({row[0] for row in checked}) != len(checked):
            raise BadField(f"{what} that differ")
        return checked

    return check_rows


def flag(value: Any, _limits: WireLimits) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise BadField("true or false")
    return value


def seconds(value: Any, _limits: WireLimits) -> float:
    """A duration; whole numbers are taken too."""
    if type(value) not in (float, int) or not 0 <= value <= lim.SECONDS_MAX:
        raise BadField(f"a number of seconds from 0 to {lim.SECONDS_MAX:.0f}")
    return float(value)


def payload(value: Any, limits: WireLimits) -> bytes:
    """An opaque encoded value."""
    if type(value) is not bytes or len(value) > limits.payload_bytes_max:
        raise BadField(f"up to {limits.payload_bytes_max} bytes")
    return value


def chunk_data(value: Any, _limits: WireLimits) -> bytes:
    """A part of a message; its size is bounded by the frame."""
    if type(value) is not bytes:
        raise BadField("bytes")
    return value


def _parts(value: Any, count: int, what: str) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != count:
        raise BadField(f"{what}: an array of {count}")
    return value


identifier: Check = whole(0, lim.ID_MAX)
count: Check = whole(0, lim.COUNT_MAX)
granted: Check = whole(1, lim.ID_MAX)
version: Check = whole(0, lim.VERSION_MAX)
type_code: Check = whole(0, lim.TYPE_CODE_MAX)
rank: Check = whole(-1, RANK_MAX)
name: Check = text(1, lim.NAME_CHARS_MAX, one_line=True)
name_or_none: Check = text(0, lim.NAME_CHARS_MAX, one_line=True)
method: Check = text(1, lim.METHOD_CHARS_MAX, one_line=True)
code: Check = text(1, lim.CODE_CHARS_MAX, one_line=True)
reason: Check = text(0, lim.REASON_CHARS_MAX, one_line=True)
failure_text: Check = text(0, lim.FAILURE_CHARS_MAX, one_line=False)
key: Check = optional(text(1, lim.KEY_CHARS_MAX, one_line=False))
kind: Check = one_of(tuple(CopyKind))
end_state: Check = one_of(END_STATES)
cause: Check = one_of(WIRE_CAUSES)
challenge: Check = binary(lim.CHALLENGE_BYTES)
proof: Check = binary(lim.PROOF_BYTES)
proof_or_none: Check = binary(0, lim.PROOF_BYTES)
_metadata_key: Check = text(1, lim.METADATA_KEY_CHARS_MAX, one_line=True)
_metadata_value: Check = text(0, lim.METADATA_VALUE_CHARS_MAX, one_line=False)


def role(value: Any, _limits: WireLimits) -> str:
    """What the other side is."""
    if value not in ("client", "replica"):
        raise BadField('"client" or "replica"')
    return str(value)


def copy(value: Any, limits: WireLimits) -> CopyId:
    """The identity of a copy."""
    client, number, round_, rank_ = _parts(value, 4, "client, number, round, rank")
    return CopyId(
        identifier(client, limits), identifier(number, limits), identifier(round_, limits), rank(rank_, limits)
    )


def load(value: Any, limits: WireLimits) -> Load:
    """What a replica says of itself."""
    queued, free, received, pushback = _parts(value, 4, "queued, free, received, pushback")
    return Load(count(queued, limits), count(free, limits), identifier(received, limits), seconds(pushback, limits))


def identity(value: Any, limits: WireLimits) -> Identity:
    """A replica's name and incarnation."""
    name_, incarnation = _parts(value, 2, "name, incarnation")
    return Identity(name(name_, limits), identifier(incarnation, limits))


def method_row(value: Any, limits: WireLimits) -> MethodInfo:
    """A row of a method table."""
    if type(value) is tuple and len(value) == 4:
        value = (*value, False)  # of a replica that knows no streams
    name_, idempotent, stoppable, timeout_max, stream = _parts(
        value, 5, "name, idempotent, stoppable, timeout_max, stream"
    )
    return MethodInfo(
        method(name_, limits),
        flag(idempotent, limits),
        flag(stoppable, limits),
        seconds(timeout_max, limits),
        flag(stream, limits),
    )


def window(value: Any, limits: WireLimits) -> Window:
    """How much of a stream may be sent."""
    items, bytes_, judged = _parts(value, 3, "items, bytes, judged")
    return Window(granted(items, limits), granted(bytes_, limits), flag(judged, limits))


def metadata_entry(value: Any, limits: WireLimits) -> tuple[str, str]:
    """One key and value."""
    key_, value_ = _parts(value, 2, "key, value")
    return _metadata_key(key_, limits), _metadata_value(value_, limits)


def notice_latency(value: Any, limits: WireLimits) -> tuple[str, float]:
    """A peer's name and the latency to it."""
    name_, latency = _parts(value, 2, "name, seconds")
    return name(name_, limits), seconds(latency, limits)


optional_load: Check = optional(load)
optional_window: Check = optional(window)
partners: Check = rows(identity, lim.PARTNERS_MAX, "partners")
metadata: Check = rows(metadata_entry, lim.METADATA_ENTRIES_MAX, "entries")
methods: Check = rows(method_row, lim.METHODS_MAX, "methods")
notice_latencies: Check = rows(notice_latency, lim.PEERS_MAX, "peers")
