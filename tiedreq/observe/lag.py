"""How late the event loop is: a task that sleeps and measures by how much too long.

What delays it delays everything else in the process too: a handler that blocks the loop, a garbage collection, a
processor that others use. An idle loop is up to a millisecond late, since its timers round up to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import trio

INTERVAL_SECONDS = 0.25
WINDOW_SECONDS = 10.0


class LagView(TypedDict):
    """Seconds: the last measurement, the mean and the largest of the last 10 to 20 seconds; None before the first."""

    last: float | None
    mean: float | None
    max: float | None


class LoopLag:
    """Measures while ``run`` runs, and calls ``then`` after each measurement."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self._then = then
        self._last: float | None = None
        self._since = trio.current_time()
        self._now: tuple[int, float, float] = (0, 0.0, 0.0)
        self._before = self._now

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = trio.current_time() + INTERVAL_SECONDS
            await trio.sleep_until(due)
            self.add(trio.current_time() - due)
            if self._then is not None:
                self._then()

    def add(self, seconds: float) -> None:
        """Take one measurement."""
        now = trio.current_time()
        if now - self._since >= WINDOW_SECONDS:
            self._before, self._now, self._since = self._now, (0, 0.0, 0.0), now
        count, total, largest = self._now
        self._now = (count + 1, total + seconds, max(largest, seconds))
        self._last = seconds

    def view(self) -> LagView:
        """What was measured."""
        count, total = self._now[0] + self._before[0], self._now[1] + self._before[1]
        if not count:
            return LagView(last=None, mean=None, max=None)
        return LagView(last=self._last, mean=total / count, max=max(self._now[2], self._before[2]))
