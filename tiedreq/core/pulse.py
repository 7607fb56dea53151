"""Heartbeats of one connection: round trip, silence, and forgiveness for our own stalls. Seconds throughout."""

from __future__ import annotations

from tiedreq.core.link_options import LinkTiming


class RoundTrip:
    """An estimate of a round trip: smoothed mean, mean deviation and minimum, as TCP does it (RFC 6298, section 2).

    ``deviation += (|sample - mean| - deviation) / 4``, then ``mean += (sample - mean) / 8``; the first sample sets the
    mean, and half of it the deviation. Unknown is None, never 0.
    """

    __slots__ = ("deviation", "mean", "minimum", "samples")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.deviation: float | None = None
        self.minimum: float | None = None
        self.samples = 0

    def add(self, sample: float) -> None:
        """Take a measured round trip in."""
        self.samples += 1
        if self.mean is None or self.deviation is None or self.minimum is None:
            self.mean, self.deviation, self.minimum = sample, sample / 2, sample
            return
        self.deviation += (abs(sample - self.mean) - self.deviation) / 4
        self.mean += (sample - self.mean) / 8
        self.minimum = min(self.minimum, sample)


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
