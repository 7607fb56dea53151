"""What is known of the time that one execution of a method takes, learned from copies that may be stopped early.

A copy that is stopped when another one answers first says only "at least this long". Leaving such copies out would
make every hedge shorten the times that it learns from, and so hedge ever earlier. They are *right-censored* samples,
and the law is the product-limit estimate of Kaplan and Meier, "Nonparametric estimation from incomplete observations"
(J. Amer. Statist. Assoc. 53, 1958):

    P(S > t) = product over times s <= t of (1 - d(s) / n(s))

with ``d(s)`` executions that ended at ``s`` and ``n(s)`` that were seen to last at least that long. Failures are no
samples: a quick error would teach a quick service.

Times are kept in buckets of 1 % relative error, from 1 microsecond to 1 hour, as in Masson, Rim and Lee, "DDSketch"
(PVLDB 12(12), 2019): bucket i holds (g^(i-1), g^i] microseconds, g = 1.01 / 0.99, and the mean of what it holds.

Two windows of 30 s count in full, the one being filled and the one before. A window rotates only when it also holds
``samples_min`` executions that ended: with few calls it stretches. Windows before that fade into a memory worth at
most ``MEMORY_SAMPLES``, which speaks up only where fewer than ``POOLED`` recent copies lasted that long, and then only
to make up that number. Without it a client with few calls would forget how long stragglers last (its own backups stop
nearly all of them), send no backups, see stragglers again, and so on.

Invariants: memory is bounded (three times 1,090 buckets, whatever comes in); a time is never 0; what is not known is
None, never 0, NaN or infinity. Not for deciding anything: that is ``core.delay``. All times are seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from tiedreq.core.checks import check_count, check_number
from tiedreq.core.errors import BadOption

RELATIVE_ERROR = 0.01
TIME_MIN = 1e-6
TIME_MAX = 3_600.0
WINDOW = 30.0
SAMPLES_MIN = 200
MEMORY_SAMPLES = 10_000.0
POOLED = 50.0

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GROWTH)


class Cell(NamedTuple):
    """A bucket of a law: ``mass`` is the chance of a time in it, ``value`` their mean, ``edge`` its upper end.

    ``seen`` is the number of copies that were seen to last longer than ``edge``, as far as they count.
    """

    edge: float
    value: float
    mass: float
    seen: float


class Law:
    """A law of service times: ordered cells, and the share ``unknown`` of copies that outlast all that is known.

    Immutable. ``samples`` is the number of recent executions that it stands on, those stopped early included.
    """

    __slots__ = ("_survivals", "_values", "cells", "horizon", "mean", "samples", "unknown")

    def __init__(self, cells: Sequence[Cell], unknown: float, samples: int, horizon: float = 0.0) -> None:
        self.cells = tuple(cells)
        self.unknown = unknown
        self.horizon = max(horizon, self.cells[-1].edge)
        """The longest time of which anything is known: a share ``unknown`` of copies lasts longer."""
        self.samples = samples
        self._values = [cell.value for cell in self.cells]
        self._survivals = [1.0 - dead for dead in accumulate((cell.mass for cell in self.cells), initial=0.0)]
        known = math.fsum(cell.value * cell.mass for cell in self.cells)
        self.mean = known + (unknown * self.horizon if unknown else 0.0)
        """The mean in seconds; a lower bound when ``unknown`` is not 0 (times beyond the horizon count as it)."""

    def survival(self, time: float) -> float | None:
        """P(S > ``time``); None beyond the horizon when some copies are known to have lasted longer."""
        if self.unknown and time >= self.horizon:
            return None
        return max(0.0, self._survivals[bisect_right(self._values, time)])

    def quantile(self, q: float) -> float | None:
        """The shortest time that a share ``q`` of executions does not exceed; None when too little is known.

        A quantile needs at least one sample beyond it, 1 / (1 - q) in all. ``BadOption`` unless 0 < q < 1.
        """
        check_quantile(q)
        if self.samples * (1 - q) < 1 - 1e-9 or q > 1 - self.unknown:
            return None
        dead = 0.0
        for cell in self.cells:
            dead += cell.mass
            if dead >= q - 1e-12:
                return cell.value
        return self.cells[-1].value


def check_quantile(q: object) -> float:
    """``q`` when it is a fraction between 0 and 1, both excluded; ``BadOption`` otherwise."""
    fraction = check_number("quantile", q, 0.0, 1.0)
    if not 0 < fraction < 1:
        raise BadOption(f"quantile: {fraction!r} is not between 0 and 1, both excluded")
    return fraction


def law_of(weights: Iterable[tuple[float, float]], samples: int) -> Law:
    """The law of exactly known times: pairs of a time in seconds and its weight. For tests and for theory."""
    buckets: dict[int, list[float]] = {}
    for time, weight in weights:
        _count(buckets, max(time, TIME_MIN), weight)
    total = math.fsum(bucket[0] for bucket in buckets.values())
    cells, left = [], total
    for index in sorted(buckets):
        events, _, seconds = buckets[index]
        left = max(0.0, left - events)
        cells.append(Cell(bucket_edge(index), seconds / events, events / total, samples * left / total))
    return Law(cells, 0.0, samples)


def bucket_of(time: float) -> int:
    """The bucket of a time in seconds."""
    return math.ceil(math.log(time / TIME_MIN) * _PER_LOG - 1e-9) if time > TIME_MIN else 0


def bucket_edge(index: int) -> float:
    """The upper end of a bucket, in seconds."""
    return float(TIME_MIN * _GROWTH**index)


def _count(buckets: dict[int, list[float]], time: float, weight: float) -> None:
    """Count executions that ended. A bucket is [how many ended, how many were stopped, seconds of those that ended]."""
    index = bucket_of(time)
    bucket = buckets.get(index)
    if bucket is None:
        buckets[index] = [weight, 0.0, weight * time]
    else:
        bucket[0] += weight
        bucket[2] += weight * time


class _Window:
    __slots__ = ("buckets", "ended", "opened_at", "samples")

    def __init__(self, now: float) -> None:
        self.buckets: dict[int, list[float]] = {}
        self.opened_at = now
        self.ended = 0
        self.samples = 0


class LatencyEstimator:
    """Learns the law of one method's service times. ``add`` and ``add_stopped`` take constant time.

    ``resolution`` is that of the clock that measures: times below it are known only to be at most that long, and count
    as it. Times beyond an hour count as an hour; a time that is not finite is left out and counted in ``refused``.
    """

    def __init__(self, *, window: float = WINDOW, samples_min: int = SAMPLES_MIN, resolution: float = TIME_MIN) -> None:
        self._length = check_number("window", window, 0.001, 86_400.0, "seconds")
        self.samples_min = check_count("samples_min", samples_min, 1, 1_000_000)
        self._shortest = check_number("resolution", resolution, TIME_MIN, 1.0, "seconds")
        self._current: _Window | None = None
        self._previous: _Window | None = None
        self._memory: dict[int, list[float]] = {}
        self._law: Law | None = None
        self._fresh = True
        self.refused = 0

    @property
    def resolution(self) -> float:
        """The shortest time that is told apart, in seconds."""
        return self._shortest

    @property
    def samples(self) -> int:
        """Samples in the two windows, those stopped early included."""
        return sum(window.samples for window in (self._current, self._previous) if window is not None)

    def add(self, service_time: float, now: float) -> None:
        """An execution ended after ``service_time``."""
        if not math.isfinite(service_time):
            self.refused += 1
            return
        window = self._window(now)
        window.ended += 1
        window.samples += 1
        if service_time < self._shortest:
            service_time = self._shortest
        _count(window.buckets, service_time if service_time < TIME_MAX else TIME_MAX, 1.0)
        self._fresh = False

    def add_stopped(self, elapsed: float, now: float) -> None:
        """An execution was stopped ``elapsed`` after its start: it would have taken longer."""
        if not math.isfinite(elapsed):
            self.refused += 1
            return
        window = self._window(now)
        window.samples += 1
        bucket = window.buckets.setdefault(bucket_of(min(max(elapsed, self._shortest), TIME_MAX)), [0.0, 0.0, 0.0])
        bucket[1] += 1.0
        self._fresh = False

    def law(self) -> Law | None:
        """What is known now; None when no execution has ended yet. Computed when something was added since."""
        if not self._fresh:
            self._law = self._estimate()
            self._fresh = True
        return self._law

    def _window(self, now: float) -> _Window:
        current = self._current
        if current is None:
            current = self._current = _Window(now)
        elif now >= current.opened_at + self._length and current.ended >= self.samples_min:
            if self._previous is not None:
                self._remember(self._previous)
            self._previous, self._current = current, _Window(now)
            current = self._current
        return current

    def _remember(self, window: _Window) -> None:
        """Add a window to the memory of older ones, and fade that to the number of samples that it is worth."""
        for index, bucket in window.buckets.items():
            known = self._memory.setdefault(index, [0.0, 0.0, 0.0])
            for field, amount in enumerate(bucket):
                known[field] += amount
        total = sum(bucket[0] + bucket[1] for bucket in self._memory.values())
        if total <= MEMORY_SAMPLES:
            return
        keep = MEMORY_SAMPLES / total
        faded = ((index, [keep * amount for amount in bucket]) for index, bucket in self._memory.items())
        self._memory = {index: bucket for index, bucket in faded if bucket[0] + bucket[1] > 1e-3}

    def _recent(self) -> dict[int, list[float]]:
        windows = [window for window in (self._current, self._previous) if window is not None]
        merged: dict[int, list[float]] = {}
        for window in windows:
            for index, bucket in window.buckets.items():
                known = merged.get(index)
                merged[index] = list(bucket) if known is None else [a + b for a, b in zip(known, bucket, strict=True)]
        return merged

    def _estimate(self) -> Law | None:
        recent, memory = self._recent(), self._memory
        order = sorted(recent.keys() | memory.keys())
        at_risk = list(zip(_at_risk(recent, order), _at_risk(memory, order), strict=True))
        cells: list[Cell] = []
        alive, horizon = 1.0, 0.0
        for index, (now_at_risk, old_at_risk) in zip(order, at_risk, strict=True):
            weight = 0.0
            if now_at_risk < POOLED and old_at_risk > 0:
                weight = min(1.0, (POOLED - now_at_risk) / old_at_risk)
            ended, stopped, seconds = recent.get(index, _NOTHING)
            old_ended, old_stopped, old_seconds = memory.get(index, _NOTHING)
            everyone = now_at_risk + weight * old_at_risk
            dead = ended + weight * old_ended
            if everyone <= 0:
                break
            horizon = bucket_edge(index - 1)
            if dead <= 0:
                continue
            left = max(0.0, everyone - dead)
            seen = max(0.0, left - stopped - weight * old_stopped)
            mass = alive * dead / everyone
            cells.append(Cell(bucket_edge(index), (seconds + weight * old_seconds) / dead, mass, seen))
            alive = alive * left / everyone
            if alive < 1e-12:
                alive = 0.0
                break
        return Law(cells, alive, self.samples, horizon) if cells else None


_NOTHING = (0.0, 0.0, 0.0)


def _at_risk(buckets: dict[int, list[float]], order: list[int]) -> list[float]:
    """For each bucket in ``order`` how many lasted at least until it; summed from the far end, so never below 0."""
    backwards = accumulate(sum(buckets.get(index, _NOTHING)[:2]) for index in reversed(order))
    return list(backwards)[::-1]
