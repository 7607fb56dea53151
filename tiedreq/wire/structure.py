"""A look at the structure of packed bytes before anything is built from them.

A few bytes can announce billions of items, and nested announcements multiply. So the structure is walked first, in
memory that depends on the depth alone: depth, number of items, completeness. Types and text are the unpacker's to
check.
"""

from __future__ import annotations

from typing import Any

from tiedreq.core.errors import RemoteViolation


def _sizes() -> list[int]:
    """Bytes of a value by its first byte, when that alone tells; 0 when it does not."""
    sizes = [0] * 256
    for first in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        sizes[first] = 1
    for first in range(0xA0, 0xC0):
        sizes[first] = 1 + (first & 0x1F)
    for first, size in ((0xCA, 5), (0xCB, 9), (0xCC, 2), (0xCD, 3), (0xCE, 5), (0xCF, 9)):
        sizes[first] = size
    for first, size in ((0xD0, 2), (0xD1, 3), (0xD2, 5), (0xD3, 9)):
        sizes[first] = size
    return sizes


_SIZES = _sizes()
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_ITEMS_BYTES = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _number(data: bytes | bytearray, start: int, length: int, what: str) -> int:
    end = start + length
    if end > len(data):
        raise RemoteViolation(f"{what} is cut short")
    return int.from_bytes(data[start:end], "big")


def check_structure(data: bytes | bytearray, *, depth_max: int, items_max: int, what: str) -> None:
    """Raise ``RemoteViolation`` unless ``data`` is one complete value within the limits. ``what`` names it."""
    position = 0
    items = 0
    left = 1
    outer: list[int] = []
    end = len(data)
    sizes = _SIZES
    while True:
        while left == 0:
            if not outer:
                if position != end:
                    raise RemoteViolation(f"{what} is cut short or has bytes after its end")
                return
            left = outer.pop()
        if position >= end:
            raise RemoteViolation(f"{what} is cut short")
        left -= 1
        first = data[position]
        size = sizes[first]
        if size:
            position += size
            continue
        position += 1
        if first in _LENGTH_BYTES:
            length = _LENGTH_BYTES[first]
            position += length + _number(data, position, length, what)
            continue
        if first < 0x90:
            inner = 2 * (first & 0x0F)
        elif first < 0xA0:
            inner = first & 0x0F
        elif first in _ITEMS_BYTES:
            length, per_item = _ITEMS_BYTES[first]
            inner = per_item * _number(data, position, length, what)
            position += length
        else:
            raise RemoteViolation(f"{what} holds an extension or timestamp")
        items += inner
        if items > items_max:
            raise RemoteViolation(f"{what} holds more than {items_max} values")
        outer.append(left)
        if len(outer) > depth_max:
            raise RemoteViolation(f"{what} is nested more than {depth_max} deep")
        left = inner


def depth_within(value: Any, depth_max: int) -> bool:
    """True when an unpacked array (tuples; maps are empty) is nested at most ``depth_max`` deep, itself included."""
    level = [value]
    for _ in range(depth_max):
        level = [
            inner
            for container in level
            if isinstance(container, tuple)
            for inner in container
            if isinstance(inner, (tuple, dict))
        ]
        if not level:
            return True
    return False
