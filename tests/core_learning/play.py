"""Calls without queues, played against one ``MethodLearning`` in virtual time: what a client would tell it.

A copy starts when it is sent and runs alone. When the first of two copies ends, the other is stopped and told as
stopped, as a real client does. Calls come in at equal distances.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import NamedTuple

from tiedreq.core.learning import BackupEnd, BackupTicket, MethodLearning

Sample = Callable[[Random], float]


class Draw(NamedTuple):
    """Service times: of a first copy that begins at a time, and of its backup, given the first one's."""

    first: Callable[[Random, float], float]
    second: Callable[[Random, float, float], float]


def alike(sample: Sample) -> Draw:
    """Two independent copies of one law."""
    return Draw(lambda rng, _: sample(rng), lambda rng, _, __: sample(rng))


def intrinsic(sample: Sample) -> Draw:
    """Slowness belongs to the call: both copies take the same time."""
    return Draw(lambda rng, _: sample(rng), lambda _, __, first: first)


class Play:
    """A run of calls. ``busy`` and ``useful`` are seconds of work, ``extra`` those of backups."""

    def __init__(self, learning: MethodLearning, draw: Draw, rate: float, seed: int) -> None:
        self.learning = learning
        self.draw = draw
        self.step = 1 / rate
        self.rng = Random(seed)
        self.now = 0.0
        self.calls = self.wanted = self.sent = self.won = 0
        self.useful = self.extra = 0.0
        self._later: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = count()

    def run(self, seconds: float) -> Play:
        """Go on for so many seconds."""
        until = self.now + seconds
        while self.now < until:
            while self._later and self._later[0][0] <= self.now:
                at, _, what = heapq.heappop(self._later)
                what(at)
            self._call(self.now)
            self.now += self.step
        return self

    def _at(self, time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._later, (time, next(self._serial), what))

    def _call(self, now: float) -> None:
        learning = self.learning
        self.calls += 1
        learning.call_begun(now)
        delay = learning.delay(now)
        first = self.draw.first(self.rng, now)
        if not isinstance(delay, float) or first <= delay:
            self._used(first, now)
        else:
            self._at(now + delay, lambda at: self._want(first, delay, at))

    def _used(self, service_time: float, now: float) -> None:
        self.useful += service_time
        self.learning.finished(service_time, now, used=True)

    def _want(self, first: float, delay: float, now: float) -> None:
        self.wanted += 1
        ticket = self.learning.try_backup(now)
        left = first - delay
        second = self.draw.second(self.rng, now, first)
        if ticket is None:
            self._at(now + left, lambda at: self._used(first, at))
        elif second < left:
            self.sent += 1
            self._at(now + second, lambda at: self._backup_won(second, delay, ticket, at))
        else:
            self.sent += 1
            self._at(now + left, lambda at: self._backup_lost(first, left, ticket, at))

    def _backup_won(self, service_time: float, delay: float, ticket: BackupTicket, now: float) -> None:
        self.won += 1
        self.extra += service_time
        self._used(service_time, now)
        self.learning.stopped(delay + service_time, now)
        self.learning.backup_ended(ticket, BackupEnd.WON, service_time, now)

    def _backup_lost(self, service_time: float, busy: float, ticket: BackupTicket, now: float) -> None:
        self.extra += busy
        self._used(service_time, now)
        self.learning.stopped(busy, now)
        self.learning.backup_ended(ticket, BackupEnd.LOST, busy, now)
