"""For how long the event loop looks at nothing new: from one look at the sockets to the next.

A pause is whatever happens in between: handlers and everything else that has its turn, garbage collections, and other
programs that take the processor. Nothing is read and nothing is sent meanwhile, so no notice is heard. Unlike the lag
(``observe.lag``), which is sampled, no pause is missed. They are pauses of the process: real time, also where the
program runs in virtual time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

import trio

from tiedreq.observe.histogram import Histogram, quantile

WINDOW_SECONDS = 10.0


class PausesView(TypedDict):
    """The pauses of the last 10 to 20 seconds: how many there were, and seconds; None before the first."""

    count: int
    p99: float | None
    p999: float | None
    max: float | None


BATCH = 256


class LoopPauses(trio.abc.Instrument):
    """Measures while ``run`` runs, in however many tasks. Pauses are counted ``BATCH`` at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._time = clock
        self._began = self._since = self._time()
        self._now, self._before = Histogram(), Histogram()
        self._longest = self._longest_before = 0.0
        self._fresh: list[float] = []
        self._users = 0

    @classmethod
    def of_this_loop(cls) -> LoopPauses:
        """The one that all replicas of this Trio program share: what they measure is the same."""
        pauses = _of_this_loop.get()
        if pauses is None:
            pauses = cls()
            _of_this_loop.set(pauses)
        return pauses

    async def run(self) -> None:
        """Measure until cancelled."""
        self._users += 1
        if self._users == 1:
            self._began = self._time()
            trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            self._users -= 1
            if not self._users:
                trio.lowlevel.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """See ``trio.abc.Instrument``: the loop goes on with what it found."""
        self._began = self._time()

    def before_io_wait(self, timeout: float) -> None:
        """See ``trio.abc.Instrument``: the loop looks at the sockets, and may wait."""
        now = self._time()
        self._fresh.append(now - self._began)
        if len(self._fresh) >= BATCH or now - self._since >= WINDOW_SECONDS:
            self._count(now)

    def _count(self, now: float) -> None:
        fresh, histogram = self._fresh, self._now
        if fresh:
            self._longest = max(self._longest, *fresh)
            for took in fresh:
                histogram.add(took)
            fresh.clear()
        if now - self._since >= WINDOW_SECONDS:
            self._before, self._now = self._now, Histogram()
            self._longest_before, self._longest = self._longest, 0.0
            self._since = now

    def view(self) -> PausesView:
        """What was measured."""
        self._count(self._time())
        counts = [new + old for new, old in zip(self._now.counts, self._before.counts, strict=True)]
        count, longest = sum(counts), max(self._longest, self._longest_before)
        if not count:
            return PausesView(count=0, p99=None, p999=None, max=None)

        def share(wanted: float) -> float:
            return min(quantile(counts, wanted) or 0.0, longest)

        return PausesView(count=count, p99=share(0.99), p999=share(0.999), max=longest)


_of_this_loop: trio.lowlevel.RunVar[LoopPauses | None] = trio.lowlevel.RunVar("loop_pauses", default=None)
