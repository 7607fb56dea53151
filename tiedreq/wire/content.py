"""What of a stream's items is content: the usual rule, by the bytes of an encoded value.

An item without content says nothing yet: None, or an empty text, bytes, list, tuple or dict. It decides no race.
Numbers and truth values are content, 0 and False too.
"""

from __future__ import annotations

_EMPTY = frozenset(
    {
        b"\xc0",  # None
        b"\xa0",
        b"\xd9\x00",
        b"\xda\x00\x00",
        b"\xdb\x00\x00\x00\x00",  # text
        b"\xc4\x00",
        b"\xc5\x00\x00",
        b"\xc6\x00\x00\x00\x00",  # bytes
        b"\x90",
        b"\xdc\x00\x00",
        b"\xdd\x00\x00\x00\x00",  # lists
        b"\x80",
        b"\xde\x00\x00",
        b"\xdf\x00\x00\x00\x00",  # maps
    }
)


def is_content(payload: bytes) -> bool:
    """True unless the encoded value is None or empty."""
    return len(payload) > 5 or payload not in _EMPTY
