"""The one importer of the msgpack library, with types and one way to call it.

A packer may be used by one thread at a time, so each thread has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack  # type: ignore[import-untyped]

from tiedreq.core.errors import BadOption

ExtType: type[Any] = msgpack.ExtType
unpackb: Callable[..., Any] = msgpack.unpackb

UNPACK_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)
"""What the library raises on bytes that it cannot unpack."""

PACK_ERRORS = (ValueError, TypeError, OverflowError)
"""What the library raises on values that it cannot pack."""


class Unpackable(BadOption, TypeError):
    """A value that can't be sent. The message says where in the value, and why."""


class _Packers(threading.local):
    """``pack`` of the calling thread's own packer."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer().pack


packers = _Packers()


def refuse_extension(_code: int, _data: bytes) -> NoReturn:
    """The extension hook: there are none in this protocol. (Limits refuse all but the empty ones before.)"""
    raise ValueError("extension")
