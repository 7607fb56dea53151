"""What slows the replicas of an experiment down: a factor at one replica, and pauses.

``0:3`` makes the replica with index 0 three times as slow. ``200ms@5s`` stops a replica entirely for 200 ms at
exponential intervals with a mean of 5 s, as a garbage collection or a compaction does. All times are seconds, on any
clock that goes forward; randomness comes in as an argument.

Invariants: ``str()`` of a spec reads back to an equal one; a schedule's pauses don't overlap, and the same seed gives
the same pauses. Not for waiting: ``PauseSchedule`` only says when work ends, a driver waits until then.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tiedreq.core.errors import BadOption
from tiedreq.laws import FACTOR_MAX
from tiedreq.units import (
    check_duration,
    check_number,
    format_duration,
    format_number,
    parse_duration,
    parse_number,
)

__all__ = ["PauseSchedule", "PauseSpec", "SlowSpec", "parse_pause", "parse_slow"]

REPLICA_MAX = 9_999
"""The highest index of a replica."""

INTERVAL_MIN = 0.010
"""The shortest mean interval between pauses, in seconds."""


@dataclass(frozen=True, slots=True)
class SlowSpec:
    """``0:3``: at the replica with index 0 every execution takes 3 times as long."""

    replica: int
    factor: float

    def __post_init__(self) -> None:
        _check_index(self.replica, "slow replica")
        check_number(self.factor, "slow factor", low=0, high=FACTOR_MAX)

    def __str__(self) -> str:
        return f"{self.replica}:{format_number(self.factor)}"


@dataclass(frozen=True, slots=True)
class PauseSpec:
    """``200ms@5s`` or ``0:200ms@5s``: a replica stops entirely for ``duration`` seconds, again and again.

    From the end of one pause to the beginning of the next is exponential with a mean of ``every`` seconds.
    ``replica`` is an index, or None for every replica.
    """

    duration: float
    every: float
    replica: int | None = None

    def __post_init__(self) -> None:
        check_duration(self.duration, "pause duration")
        check_duration(self.every, "pause interval", low=INTERVAL_MIN)
        if self.replica is not None:
            _check_index(self.replica, "pause replica")

    def __str__(self) -> str:
        where = "" if self.replica is None else f"{self.replica}:"
        return f"{where}{format_duration(self.duration)}@{format_duration(self.every)}"


class _Pause(NamedTuple):
    begin: float
    end: float


class PauseSchedule:
    """The pauses of one replica, drawn as far ahead as is asked for.

    ``begin`` is the time from which the first interval counts. Times that are asked for may go forward only: pauses
    that ended before an asked time are forgotten, so that an endless run needs bounded memory.
    """

    def __init__(self, spec: PauseSpec, rng: Random, *, begin: float) -> None:
        self._spec = spec
        self._rng = rng
        self._pauses: deque[_Pause] = deque()
        self._drawn_until = begin

    def end_of(self, work: float, *, begin: float) -> float:
        """The time at which ``work`` seconds are done that begin at ``begin``, extended by every pause met.

        Work that begins in a pause waits for its end. Work that would end just as a pause begins has ended.
        """
        while self._drawn_until <= begin:
            self._draw()
        while self._pauses[0].end <= begin:
            self._pauses.popleft()
        end = begin + work
        position = 0
        while self._pauses[position].begin < end or self._pauses[position].begin <= begin:
            pause = self._pauses[position]
            end += pause.end - max(pause.begin, begin)
            position += 1
            if position == len(self._pauses):
                self._draw()
        return end

    def _draw(self) -> None:
        begin = self._drawn_until + self._rng.expovariate(1 / self._spec.every)
        self._drawn_until = begin + self._spec.duration
        self._pauses.append(_Pause(begin, self._drawn_until))


def parse_slow(text: str, *, field: str = "slow replica") -> SlowSpec:
    """Read ``INDEX:FACTOR``, such as ``0:3``. Raises ``BadOption`` that names ``field`` and what is wrong."""
    try:
        index, colon, factor = text.partition(":")
        if not colon:
            raise BadOption(f"{text[:60]!r} is not INDEX:FACTOR, such as 0:3")
        return SlowSpec(_index(index), parse_number(factor, field="factor", low=0, high=FACTOR_MAX))
    except BadOption as error:
        raise BadOption(f"{field}: {error}") from None


def parse_pause(text: str, *, field: str = "pause") -> PauseSpec:
    """Read ``DURATION@INTERVAL`` or ``INDEX:DURATION@INTERVAL``, such as ``200ms@5s`` or ``0:200ms@5s``.

    Raises ``BadOption`` that names ``field`` and what is wrong.
    """
    try:
        index, colon, times = text.rpartition(":")
        duration, at, every = times.partition("@")
        if not at:
            raise BadOption(f"{text[:60]!r} is not DURATION@INTERVAL, such as 200ms@5s")
        return PauseSpec(
            parse_duration(duration, field="duration"),
            parse_duration(every, field="interval"),
            _index(index) if colon else None,
        )
    except BadOption as error:
        raise BadOption(f"{field}: {error}") from None


def _check_index(index: int, field: str) -> None:
    if type(index) is not int or not 0 <= index <= REPLICA_MAX:  # a bool is no index
        raise BadOption(f"{field}: {index!r} is not the index of a replica, 0 to {REPLICA_MAX}")


def _index(text: str) -> int:
    if re.fullmatch("[0-9]{1,4}", text.strip()) is None:
        raise BadOption(f"{text[:60]!r} is not the index of a replica, 0 to {REPLICA_MAX}")
    return int(text)
