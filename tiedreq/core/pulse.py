"""Heartbeats of one connection: round trip, silence, and forgiveness for our own stalls. Seconds throughout."""

from __future__ import annotations

from typing import NamedTuple

from tiedreq.core.link_options import LinkTiming

RECENT_MAX = 9
"""A pause shorter than five heartbeats is outvoted in the mean,"""
STRAYS = 2
"""and one of so many heartbeats in the deviation."""


class RoundTrip:
    """An estimate of a round trip: the median of the last ``RECENT_MAX`` samples, their deviation, and the minimum.

    ``deviation`` is the largest distance from the median but for ``STRAYS``, which for normal noise is about 1.1
    standard deviations; half of the first sample while that is the only one. A smoothed mean as of TCP (RFC 6298) would
    take a replica's pause for distance for seconds, and hold copies back as long. Unknown is None, never 0.
    """

    __slots__ = ("_recent", "deviation", "mean", "minimum", "samples")

    def __init__(self) -> None:
        self._recent: list[float] = []
        self.mean: float | None = None
        self.deviation: float | None = None
        self.minimum: float | None = None
        self.samples = 0

    def add(self, sample: float) -> None:
        """Take a measured round trip in."""
        self.samples += 1
        self._recent.append(sample)
        del self._recent[:-RECENT_MAX]
        self.mean = mean = _median(self._recent)
        if self.minimum is None:
            self.deviation, self.minimum = sample / 2, sample
            return
        distances = sorted(abs(other - mean) for other in self._recent)
        self.deviation = distances[max(0, min(len(distances), RECENT_MAX - STRAYS) - 1)]
        self.minimum = min(self.minimum, sample)


def _median(values: list[float]) -> float:
    """The middle one; the mean of the two in the middle of an even number."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Rhythm(NamedTuple):
    """When one side asks. Counted in intervals.

    At rest it asks once nothing was heard for ``quiet``, again after as long without an answer, and at least once in
    ``measured`` if that is given; it is at rest from the start if it ``rests`` at all and is not ``measuring``. Else it
    asks once an interval.
    """

    rests: bool = True
    quiet: float = 1.5
    measured: float | None = None
    measuring: bool = False


STEADY = Rhythm(rests=False)
"""A client asks a replica: it has few links, and places copies by what it measures."""
SERVING = Rhythm()
"""A replica asks a client: the client's own heartbeats tell it enough."""
DIALED = Rhythm(quiet=2.0, measured=4.0, measuring=True)
ACCEPTED = Rhythm(quiet=2.5, measured=4.0, measuring=True)
"""Two replicas ask each other: one exchange tells both of the other, so the acceptor lets the dialer begin."""
USED_INTERVALS = 4.0
PATIENT_MISSES = 3
"""With less patience two replicas never rest: what is due after two intervals would come too late."""
SOON = 0.5
"""At rest a heartbeat that would be due within so many intervals leaves now, for the sake of one timer less."""


class Pulse:
    """When to ask the other side for an echo, and when it has been silent for too long.

    With a rhythm that is ``measuring`` a link is not at rest before ``RECENT_MAX`` heartbeats, answered or not (a
    machine that is too busy to measure must not be kept busy with that), nor for ``USED_INTERVALS`` after the owner's
    messages arrived over it (``used``): there heartbeats share frames with them. And the other side has one interval
    less than ``silence_max`` to answer the first heartbeat of a silence, however late that was sent.
    """

    def __init__(self, timing: LinkTiming, now: float, *, rhythm: Rhythm) -> None:
        self.round_trip = RoundTrip()
        self._timing = timing
        self._rhythm = rhythm
        self._last_heard = now
        self._used_at = float("-inf")
        self._asked_at = float("-inf")
        self._unanswered_at: float | None = None  # the first heartbeat since anything was heard
        self._due_at = now
        self._number = 0
        self._asked: dict[int, float] = {}

    @property
    def wake_at(self) -> float:
        """When ``silence`` or ``due`` may have something to say."""
        return min(self._due_at, self._silent_at)

    @property
    def _silent_at(self) -> float:
        timing = self._timing
        at = self._last_heard + timing.silence_max
        if self._unanswered_at is None or not self._rhythm.measuring:
            return at
        return max(at, self._unanswered_at + timing.silence_max - timing.heartbeat_interval)

    def heard(self, now: float) -> None:
        """Anything arrived."""
        self._last_heard = now
        self._unanswered_at = None

    def used(self, now: float) -> None:
        """What arrived is the owner's."""
        self._used_at = now

    def silence(self, now: float) -> float | None:
        """How long nothing was heard, once that is too long; else None."""
        return now - self._last_heard if now >= self._silent_at else None

    def due(self, now: float) -> int | None:
        """The number of the heartbeat to send now, or None."""
        if now < self._due_at:
            return None
        self._due_at = self._ask_at(now)
        if now < self._due_at - SOON * self._timing.heartbeat_interval * self._at_rest(now):
            return None
        self._asked_at = now
        if self._unanswered_at is None:
            self._unanswered_at = now
        self._due_at = self._ask_at(now)
        self._number += 1
        self._asked[self._number] = now
        if len(self._asked) > 2 * self._timing.heartbeat_misses:
            del self._asked[next(iter(self._asked))]
        return self._number

    def _ask_at(self, now: float) -> float:
        """When the next heartbeat is due, if nothing happens meanwhile."""
        rhythm, interval = self._rhythm, self._timing.heartbeat_interval
        if not self._at_rest(now):
            return self._asked_at + interval
        quiet = max(self._last_heard, self._asked_at) + rhythm.quiet * interval
        return quiet if rhythm.measured is None else min(quiet, self._asked_at + rhythm.measured * interval)

    def _at_rest(self, now: float) -> bool:
        rhythm = self._rhythm
        if not rhythm.rests or not rhythm.measuring:
            return rhythm.rests
        used_until = self._used_at + USED_INTERVALS * self._timing.heartbeat_interval
        patient = self._timing.heartbeat_misses >= PATIENT_MISSES
        return patient and self._number >= RECENT_MAX and now >= used_until

    def echoed(self, number: int, now: float) -> None:
        """The echo of heartbeat ``number`` arrived; one that is not awaited says nothing."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            self.round_trip.add(now - asked)

    def forgive(self, seconds: float, now: float) -> None:
        """Our own loop stood still for ``seconds``: no silence of the other side, and no measurement.

        What arrived meanwhile is still to be read, so one interval is left in any case.
        """
        timing = self._timing
        least = now - timing.silence_max + timing.heartbeat_interval
        self._last_heard = min(now, max(self._last_heard + seconds, least))
        if self._unanswered_at is not None:
            self._unanswered_at = min(now, max(self._unanswered_at + seconds, least + timing.heartbeat_interval))
        self._asked.clear()
