"""One timer task for any number of calls: a heap of times, and a sleep until the earliest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Sized
from typing import Protocol

import trio


class Numbers(Container[int], Sized, Protocol):
    """The numbers that still count."""


class Timers:
    """Calls ``due(number, at, now)`` when the time ``at`` has come that was set for ``number``.

    A number may have several times set. Those of numbers that are not ``alive`` any more are forgotten at leisure.
    """

    def __init__(self, alive: Numbers, due: Callable[[int, float, float], None]) -> None:
        self._alive = alive
        self._due = due
        self._times: list[tuple[float, int]] = []
        self._sleep = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._times)

    def set(self, number: int, at: float) -> None:
        """Wake ``number`` at ``at``, on Trio's clock. Nothing is woken for this: the sleep gets shorter."""
        heapq.heappush(self._times, (at, number))
        if at < self._sleep.deadline:
            self._sleep.deadline = at
        if len(self._times) > 64 + 4 * len(self._alive):
            self._times = [entry for entry in self._times if entry[1] in self._alive]
            heapq.heapify(self._times)

    async def run(self) -> None:
        """Call back until cancelled."""
        while True:
            now = trio.current_time()
            while self._times and self._times[0][0] <= now:
                at, number = heapq.heappop(self._times)
                self._due(number, at, now)
            self._sleep = trio.CancelScope(deadline=self._times[0][0] if self._times else math.inf)
            with self._sleep:
                await trio.sleep_forever()
