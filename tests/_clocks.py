"""Finds tests that use sockets in virtual time: a clock that jumps over waiting jumps over what the kernel takes, too.

An audit hook notes connects and binds of internet sockets while a test with a virtual clock runs. Pairs of sockets,
which Trio wakes itself up with, do neither.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CLOCKS = frozenset({"autojump_clock", "mock_clock"})
EVENTS = frozenset({"socket.connect", "socket.bind"})
INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})


class SocketWatch:
    """What was connected or bound while somebody watched."""

    def __init__(self) -> None:
        self._noted: list[str] | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._noted is not None and event in EVENTS and args[0].family in INTERNET:
            self._noted.append(f"{event} {args[1]}")

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """Note what is used while the block runs."""
        noted = self._noted = []
        try:
            yield noted
        finally:
            self._noted = None
