"""What one run of one cell with one seed measured: counters, exact sums and distributions in bounded memory.

Tallies are mergeable (``merge``), can be pickled, and don't grow with the number of calls. A simulated and a live run
fill the same one; ``rows`` turns the tallies of a cell's seeds into a row. All durations are seconds.

The definitions are those of docs/compare.md. What belongs to a *measured* call (one whose intended time is after the
warm-up) is counted whenever it happens; what belongs to other calls is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

__all__ = ["ERROR", "Distribution", "Tally"]

ERROR = 0.005
"""A percentile is at most this share away from the true one."""

SHORTEST = 1e-7
LONGEST = 1e6
SAMPLES_MAX = 512
"""The most samples of the queue length that a tally keeps."""

_LOG_RATIO = math.log((1 + ERROR) / (1 - ERROR))
_LOG_SHORTEST = math.log(SHORTEST)


class Distribution:
    """Durations in seconds: exact count, sum and extremes, and log-spaced buckets for percentiles (``ERROR``).

    Durations up to ``SHORTEST`` count as 0. At most some 3,000 buckets exist, and only those that hold something.
    """

    __slots__ = ("buckets", "count", "longest", "total", "zeros")

    def __init__(self) -> None:
        self.count = 0
        self.zeros = 0
        self.total = 0.0
        self.longest = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Take one duration."""
        self.count += 1
        if seconds <= SHORTEST:
            self.zeros += 1
            return
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds
        bucket = math.ceil((math.log(min(seconds, LONGEST)) - _LOG_SHORTEST) / _LOG_RATIO)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float | None:
        """The exact mean in seconds; None when there is nothing."""
        return self.total / self.count if self.count else None

    @property
    def positive_share(self) -> float | None:
        """The share of durations above 0; None when there is nothing."""
        return 1 - self.zeros / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest duration that ``percent`` % of all do not exceed, within ``ERROR``; None when there is none."""
        if not 0 <= percent <= 100:
            raise ValueError(f"percent: {percent!r} is outside 0 to 100")
        if self.count == 0:
            return None
        # As a fraction of whole percents, 99.9 % of 1,000 would be 999.0000000000001 and ask for the 1,000th.
        rank = max(1, math.ceil(round(self.count * percent / 100, 6)))
        seen = self.zeros
        if seen >= rank:
            return 0.0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(self.longest, math.exp(_LOG_SHORTEST + bucket * _LOG_RATIO) * (1 - ERROR))
        raise AssertionError("the buckets hold less than was counted")

    def share_above(self, seconds: float) -> float | None:
        """The share of durations above ``seconds``, to the bucket; None when there is nothing."""
        if self.count == 0:
            return None
        if seconds < 0:
            return 1.0
        limit = math.ceil((math.log(max(seconds, SHORTEST)) - _LOG_SHORTEST) / _LOG_RATIO)
        return sum(count for bucket, count in self.buckets.items() if bucket > limit) / self.count

    def points(self) -> list[tuple[float, float]]:
        """The curve of the tail: (seconds, share of durations above), in order, one point per bucket."""
        above, curve = self.count - self.zeros, [(0.0, (self.count - self.zeros) / max(1, self.count))]
        for bucket in sorted(self.buckets):
            above -= self.buckets[bucket]
            curve.append((math.exp(_LOG_SHORTEST + bucket * _LOG_RATIO) * (1 - ERROR), above / self.count))
        return curve

    def merge(self, other: Distribution) -> None:
        """Take all durations of another one."""
        self.count += other.count
        self.zeros += other.zeros
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count


@dataclass(slots=True)
class Tally:
    """Counters of measured calls and of their executions; every duration is in seconds.

    * ``latency``: from a call's intended time to its answer (with fan-out: of the root call; ``sub_latency`` then has
      the sub-calls). ``wait``: before the *winning* execution started, the network excluded: from the intended time to
      the sending of that copy, plus its time in the replica's queue. ``queue_wait``: in the queue of a replica, every
      execution that started. ``first_item``: to the first item of a stream.
    * ``calls`` were made, ``answered`` of them were; ``errors`` ended otherwise; ``unfinished`` had no outcome at the
      end. ``roots`` counts root calls where there is fan-out.
    * ``executions``: handlers started. ``duplicates``: calls with two or more of them. ``completed_twice``: calls whose
      handler ran to the end twice or more. ``ties``: tied rounds sent, ``double_starts`` those with two or more copies
      started.
    * ``busy_seconds`` of slots, pauses included; ``wasted_seconds`` of executions whose result was not used.
    * ``notices`` (Started, and Next) that replicas took from peers, ``late_notices`` of them met a copy that ran or had
      ended. ``notice_seconds`` is the sum of ``notice_samples`` measured notice latencies.
    * ``backups_sent``, ``backups_won``, ``backups_denied`` (wanted, but no budget). ``messages`` on all links.
    * ``span``: seconds of the measured window; ``offered`` calls were intended in it, ``achieved`` answers came in it,
      and slots were occupied for ``window_busy_seconds`` of it; ``slot_seconds`` is what it could have had (the span
      times all slots).
    * ``queue``: (seconds since the window began, copies in all queues), evenly spaced, at most ``SAMPLES_MAX``; empty
      where queues can't grow.
    * ``wall_seconds`` and ``cpu_seconds`` of the run (live: of client and replicas together). ``notes`` are sentences
      for people, such as that a live generator did not keep up; they make the row doubtful.
    """

    latency: Distribution = field(default_factory=Distribution)
    sub_latency: Distribution = field(default_factory=Distribution)
    wait: Distribution = field(default_factory=Distribution)
    queue_wait: Distribution = field(default_factory=Distribution)
    first_item: Distribution = field(default_factory=Distribution)
    calls: int = 0
    roots: int = 0
    answered: int = 0
    errors: int = 0
    unfinished: int = 0
    executions: int = 0
    duplicates: int = 0
    completed_twice: int = 0
    ties: int = 0
    double_starts: int = 0
    busy_seconds: float = 0.0
    wasted_seconds: float = 0.0
    notices: int = 0
    late_notices: int = 0
    notice_seconds: float = 0.0
    notice_samples: int = 0
    backups_sent: int = 0
    backups_won: int = 0
    backups_denied: int = 0
    messages: int = 0
    span: float = 0.0
    offered: int = 0
    achieved: int = 0
    window_busy_seconds: float = 0.0
    slot_seconds: float = 0.0
    queue: list[tuple[float, float]] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def merge(self, other: Tally) -> None:
        """Take all that another run measured. Trends of the queue don't add up: those of ``self`` stay."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(mine, Distribution):
                mine.merge(theirs)
            elif item.name == "notes":
                mine.extend(note for note in theirs if note not in mine)
            elif item.name != "queue":
                setattr(self, item.name, mine + theirs)
