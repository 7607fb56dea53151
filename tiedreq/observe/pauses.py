"""For how long the event loop looks at nothing new: from one look at the sockets to the next.

A pause is whatever happens in between: handlers and everything else that has its turn, garbage collections, and other
programs that take the processor. Nothing is read and nothing is sent meanwhile, so no notice is heard. Unlike the lag
(``observe.lag``), which is sampled, no pause is missed. They are pauses of the process: real time, also where the
program runs in virtual time.

To be told of every look at the sockets takes a call of few calls at once about two percent longer. So it is measured
while somebody looks: from the first ``view`` on, until ``WATCHED_SECONDS`` after the last one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Generator
from typing import TypedDict

import trio

from tiedreq.observe.histogram import BOUNDS, Histogram, quantile

WINDOW_SECONDS = 10.0
WATCHED_SECONDS = 120.0
"""Prometheus asks once in 15 to 60 seconds."""


class PausesView(TypedDict):
    """The pauses of the last 10 to 20 seconds: how many there were, and seconds; None before the first."""

    count: int
    p99: float | None
    p999: float | None
    max: float | None


BATCH = 256


class LoopPauses(trio.abc.Instrument):
    """Measures while ``run`` runs, in however many tasks, and somebody looks. Pauses are counted some at a time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._time = clock
        self._since = self._asked = self._time()
        self._now, self._before = Histogram(), Histogram()
        self._longest = self._longest_before = 0.0
        self._fresh: list[float] = []
        self._users = 0
        self._measuring = False

    @classmethod
    def of_this_loop(cls) -> LoopPauses:
        """The one that all replicas of this Trio program share: what they measure is the same."""
        pauses = _of_this_loop.get()
        if pauses is None:
            pauses = cls()
            _of_this_loop.set(pauses)
        return pauses

    async def run(self) -> None:
        """Measure when somebody looks, until cancelled."""
        self._users += 1
        try:
            await trio.sleep_forever()
        finally:
            self._users -= 1
            if not self._users and self._measuring:
                self._stop()

    def _start(self) -> None:
        """Let Trio tell of each look at the sockets and of its end, by turns; the next thing that it tells is a look.

        It tells a generator, which goes on in a third less time than it takes to call two functions.
        """
        self._now, self._before = Histogram(), Histogram()
        self._longest = self._longest_before = 0.0
        self._fresh.clear()
        self._since = self._time()
        heard = self._passes()
        next(heard)
        self.before_io_wait = self.after_io_wait = heard.send  # type: ignore[assignment, method-assign]
        trio.lowlevel.add_instrument(self)
        self._measuring = True

    def _stop(self) -> None:
        trio.lowlevel.remove_instrument(self)
        self._measuring = False

    def _passes(self) -> Generator[None, float, None]:
        clock, fresh = self._time, self._fresh
        began = clock()
        while True:
            yield  # until the loop looks at the sockets, and may wait
            now = clock()
            fresh.append(now - began)
            if len(fresh) >= BATCH or now - self._since >= WINDOW_SECONDS:
                self._count(now)
                if now - self._asked >= WATCHED_SECONDS:
                    self._stop()
            yield  # until it goes on with what it found
            began = clock()

    def _count(self, now: float) -> None:
        fresh, histogram = self._fresh, self._now
        if fresh:
            self._longest = max(self._longest, *fresh)
            histogram.sum += sum(fresh)
            counts = histogram.counts
            for took in fresh:
                counts[bisect_left(BOUNDS, took)] += 1
            fresh.clear()
        if now - self._since >= WINDOW_SECONDS:
            self._before, self._now = self._now, Histogram()
            self._longest_before, self._longest = self._longest, 0.0
            self._since = now

    def view(self) -> PausesView:
        """What was measured, and measure on from here. The first one has nothing yet."""
        self._asked = self._time()
        if self._users and not self._measuring:
            self._start()
        self._count(self._asked)
        counts = [new + old for new, old in zip(self._now.counts, self._before.counts, strict=True)]
        count, longest = sum(counts), max(self._longest, self._longest_before)
        if not count:
            return PausesView(count=0, p99=None, p999=None, max=None)

        def share(wanted: float) -> float:
            return min(quantile(counts, wanted) or 0.0, longest)

        return PausesView(count=count, p99=share(0.99), p999=share(0.999), max=longest)


_of_this_loop: trio.lowlevel.RunVar[LoopPauses | None] = trio.lowlevel.RunVar("loop_pauses", default=None)
