"""What a replica of a live run remembers of each execution, and how that travels to the client at the end.

An execution is a row of plain numbers in arrays: some 27 bytes. ``EXECUTIONS_MAX`` bounds a replica's memory; what
would come beyond is counted in ``left_out``, and a run that has any is no measurement.

Times are seconds of the monotonic clock, which all processes of a host share (tests bring another). Not for what the
replica's core counts (its status), and not for what the client sees.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tiedreq.service import Context

__all__ = ["EXECUTIONS_MAX", "FAILED", "KINDS", "RETURNED", "RUNNING", "STOPPED", "Execution", "Journal", "read_page"]

EXECUTIONS_MAX = 1_000_000
PAGE_ROWS = 50_000
KINDS = ("first", "tie", "backup", "failover")
"""``Context.kind`` by the number that stands for it."""

RUNNING, RETURNED, FAILED, STOPPED = range(4)
"""How an execution ended."""

UNTIED = -1
NOBODYS = -1
"""The number of a call that is none of the run's: its key is the laboratory's number."""

_COLUMNS = (("call", "q"), ("kind", "B"), ("rank", "b"), ("begun", "d"), ("ended", "d"), ("how", "B"))


class Execution(NamedTuple):
    """One execution. ``call`` is the call's number in the run; ``rank`` is -1 for an untied copy."""

    call: int
    kind: int
    rank: int
    begun: float
    ended: float
    how: int

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.ended - self.begun


class Journal:
    """The executions of one replica, from any thread."""

    def __init__(self, *, executions_max: int = EXECUTIONS_MAX, clock: Callable[[], float] = time.monotonic) -> None:
        self.left_out = 0
        self._now = clock
        self._max = executions_max
        self._lock = threading.Lock()
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["how"])

    def begin(self, context: Context) -> int:
        """An execution begins now: its row, or -1 where there is no room for one."""
        values = (
            int(context.key) if context.key is not None and context.key.isdecimal() else NOBODYS,
            KINDS.index(context.kind),
            UNTIED if context.rank is None else context.rank,
            self._now(),
            0.0,
            RUNNING,
        )
        with self._lock:
            row = len(self)
            if row >= self._max:
                self.left_out += 1
                return -1
            for column, value in zip(self._columns.values(), values, strict=True):
                column.append(value)
        return row

    def end(self, row: int, how: int) -> None:
        """The execution of this row has ended now."""
        if row >= 0:
            self._columns["ended"][row] = self._now()
            self._columns["how"][row] = how

    def page(self, begin: int) -> dict[str, Any]:
        """The rows from ``begin`` on, at most ``PAGE_ROWS``, as plain values; ``rows`` counts all there are."""
        end = begin + PAGE_ROWS
        with self._lock:
            columns = {name: column[begin:end].tobytes() for name, column in self._columns.items()}
        return {"rows": len(self), "left_out": self.left_out, "now": self._now(), "columns": columns}


def read_page(page: Mapping[str, Any]) -> Iterator[Execution]:
    """The executions of one ``Journal.page``. One that still ran then has run until then, as far as anybody knows."""
    columns = {name: array(code, page["columns"][name]) for name, code in _COLUMNS}
    for row, how in enumerate(columns["how"]):
        if how == RUNNING:
            columns["ended"][row] = page["now"]
    return map(Execution._make, zip(*columns.values(), strict=True))
