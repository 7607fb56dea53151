"""Heartbeats of one connection: round trip, silence, and forgiveness for our own stalls. Seconds throughout."""

from __future__ import annotations

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


class Pulse:
    """When to ask the other side for an echo, and when it has been silent for too long.

    ``probing``: ask only when nothing was heard for one and a half intervals. The acceptor of a client's link probes:
    the client's own heartbeats tell it enough, and a server with many clients sends next to nothing.
    """

    def __init__(self, timing: LinkTiming, now: float, *, probing: bool) -> None:
        self.round_trip = RoundTrip()
        self._timing = timing
        self._probing = probing
        self._last_heard = now
        self._due_at = now
        self._number = 0
        self._asked: dict[int, float] = {}

    @property
    def wake_at(self) -> float:
        """When ``silence`` or ``due`` may have something to say."""
        return min(self._due_at, self._last_heard + self._timing.silence_max)

    def heard(self, now: float) -> None:
        """Anything arrived."""
        self._last_heard = now

    def silence(self, now: float) -> float | None:
        """How long nothing was heard, once that is too long; else None."""
        return now - self._last_heard if now >= self._last_heard + self._timing.silence_max else None

    def due(self, now: float) -> int | None:
        """The number of the heartbeat to send now, or None."""
        if now < self._due_at:
            return None
        interval = self._timing.heartbeat_interval
        self._due_at = now + interval
        if self._probing and now < self._last_heard + 1.5 * interval:
            self._due_at = self._last_heard + 1.5 * interval
            return None
        self._number += 1
        self._asked[self._number] = now
        if len(self._asked) > 2 * self._timing.heartbeat_misses:
            del self._asked[next(iter(self._asked))]
        return self._number

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
        self._asked.clear()
