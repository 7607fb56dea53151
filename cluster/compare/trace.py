"""Somebody's own calls, from a CSV file: when they came and how long each took. What would a policy have bought?

The file has a header ``arrival,duration`` or ``arrival,duration,replica``; arrivals and durations are seconds, or carry
a unit (``12ms``); the replica is any name. Calls arrive again at the recorded times; the time of each execution is
drawn anew from the recorded durations. Where a replica is named, its durations are divided by how much slower it is
than all (a ratio of medians), and the simulated replica is slower by that factor.

A recording can't tell whether a slow call was slow because of its replica or by itself. Drawing anew supposes the
former; ``--intrinsic`` supposes the latter, and is the other bound.

Not for traces of single calls (``tiedreq.sim.trace``).
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import math
import statistics
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tiedreq.core.errors import BadOption
from tiedreq.laws import ServiceLaw
from tiedreq.slowness import SlowSpec
from tiedreq.units import DURATION_MAX, format_duration, parse_duration

__all__ = ["RecordedDurations", "Recording", "Trace", "read_trace"]

CALLS_MIN = 100
CALLS_MAX = 2_000_000
REPLICAS_MAX = 1_000
SLOWER_MIN = 1.1
"""A replica whose median is nearer than this factor to that of all is not called slower or faster."""


class Recording:
    """Arrival times in seconds from the first, in order. Equal when they are the same times; its hash is kept."""

    __slots__ = ("_hash", "arrivals")

    def __init__(self, arrivals: Iterable[float]) -> None:
        self.arrivals = array("d", arrivals)
        self._hash = int.from_bytes(hashlib.sha256(self.arrivals.tobytes()).digest()[:8], "big", signed=True)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recording) and self._hash == other._hash and self.arrivals == other.arrivals

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.arrivals[-1]

    def __str__(self) -> str:
        return f"{len(self.arrivals)} recorded arrivals in {format_duration(round(self.span, 6))}"


class RecordedDurations(ServiceLaw):
    """Each service time is one of the recorded durations, all equally likely."""

    __slots__ = ("_recorded",)

    def __init__(self, durations: Iterable[float]) -> None:
        self._recorded = Recording(sorted(durations))

    def sample(self, rng: Random) -> float:
        durations = self._recorded.arrivals
        return durations[int(rng.random() * len(durations))]

    def mean(self) -> float:
        durations = self._recorded.arrivals
        return math.fsum(durations) / len(durations)

    def percentile(self, percent: float) -> float:
        """The smallest duration that ``percent`` % of all do not exceed, in seconds."""
        durations = self._recorded.arrivals
        return durations[max(0, math.ceil(round(len(durations) * percent / 100, 6)) - 1)]

    def __hash__(self) -> int:
        return hash(self._recorded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedDurations) and self._recorded == other._recorded

    def __str__(self) -> str:
        middle, high = (format_duration(round(self.percentile(percent), 6)) for percent in (50.0, 99.0))
        return f"recorded({len(self._recorded.arrivals)} durations, p50 {middle}, p99 {high})"


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording as a comparison needs it. ``replicas`` is None where the file names none.

    ``together_max`` calls were open at once at most, at all replicas together.
    """

    recording: Recording
    service: RecordedDurations
    slow: tuple[SlowSpec, ...]
    replicas: int | None
    together_max: int

    @property
    def rate(self) -> float:
        """Calls per second, on average."""
        return (len(self.recording.arrivals) - 1) / self.recording.span


def read_trace(path: Path) -> Trace:
    """Read a CSV file. Raises ``BadOption`` that names the file, the line and what is wrong."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            calls = sorted(_rows(csv.reader(file)))
    except OSError as error:
        raise BadOption(f"trace: {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadOption(f"trace: {path}: not a CSV file in UTF-8 ({error})") from None
    except BadOption as error:
        raise BadOption(f"trace: {path}: {error}") from None
    if len(calls) < CALLS_MIN:
        raise BadOption(f"trace: {path}: {len(calls)} calls are not enough to draw from; at least {CALLS_MIN}")
    if calls[-1][0] <= calls[0][0]:
        raise BadOption(f"trace: {path}: all calls arrive at the same time")
    return _trace(calls)


Call = tuple[float, float, str]
"""When it came, how long it took, and where (empty: not told)."""


def _rows(reader: Iterator[Sequence[str]]) -> Iterator[Call]:
    header = [name.strip().lower() for name in next(reader, ())]
    if header not in (["arrival", "duration"], ["arrival", "duration", "replica"]):
        raise BadOption(f"line 1: the header is {','.join(header)[:60]!r}, not arrival,duration[,replica]")
    for number, row in enumerate(reader, 2):
        if not row:
            continue
        if len(row) != len(header):
            raise BadOption(f"line {number}: {len(row)} values, not {len(header)}")
        if number > CALLS_MAX + 1:
            raise BadOption(f"more than {CALLS_MAX} calls")
        yield (
            _seconds(row[0], f"line {number}: arrival", math.inf),
            _seconds(row[1], f"line {number}: duration", DURATION_MAX),
            row[2].strip() if len(row) > 2 else "",
        )


def _seconds(text: str, field: str, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return parse_duration(text, field=field)
    if not math.isfinite(value) or not 0 <= value <= high:
        raise BadOption(f"{field}: {text[:60]!r} is not a number of seconds from 0 on")
    return value


def _trace(calls: list[Call]) -> Trace:
    names = sorted({name for _, _, name in calls if name})
    if len(names) > REPLICAS_MAX:
        raise BadOption(f"trace: {len(names)} replicas are more than {REPLICAS_MAX}")
    factors = _factors(calls, names) if len(names) > 1 else {}
    begin = calls[0][0]
    return Trace(
        Recording(arrival - begin for arrival, _, _ in calls),
        RecordedDurations(duration / factors.get(name, 1.0) for _, duration, name in calls),
        tuple(SlowSpec(names.index(name), round(factor, 3)) for name, factor in factors.items()),
        len(names) if len(names) > 1 else None,
        _together(calls),
    )


def _factors(calls: list[Call], names: list[str]) -> dict[str, float]:
    """How much slower each replica is than all, where that stands out."""
    middle = statistics.median(duration for _, duration, _ in calls)
    by_name: dict[str, list[float]] = {name: [] for name in names}
    for _, duration, name in calls:
        if name:
            by_name[name].append(duration)
    factors = {name: statistics.median(durations) / middle for name, durations in by_name.items() if middle > 0}
    return {name: factor for name, factor in factors.items() if not 1 / SLOWER_MIN < factor < SLOWER_MIN and factor > 0}


def _together(calls: list[Call]) -> int:
    """How many calls were open at once, at most."""
    ends: list[float] = []
    most = 0
    for arrival, duration, _ in calls:
        while ends and ends[0] <= arrival:
            heapq.heappop(ends)
        heapq.heappush(ends, arrival + duration)
        most = max(most, len(ends))
    return most


def warmup_of(recording: Recording, share: float = 0.1) -> float:
    """Seconds to pass over at the begin: ``share`` of the recording, at most 10 s."""
    return min(10.0, recording.span * share)
