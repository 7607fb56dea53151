"""Times at which calls want to be woken: a heap for any number of them. ``net.timers`` sleeps until the earliest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

SPARE = 64
"""So many times may be set besides four for each number that is alive."""


class Times:
    """When which number is to be woken. Those that are not ``alive`` any more are forgotten at leisure.

    A number may have several times set. ``sooner`` is called when one is set that is earlier than all others.
    """

    def __init__(self, alive: dict[int, Any]) -> None:
        self.earliest = math.inf
        """The earliest time that is set, as far as ``sooner`` was called or ``next_due`` has looked."""
        self.came_at = 0.0
        """The time that was set for the number that ``next_due`` has named last."""
        self.sooner: Callable[[float], None] | None = None
        self._alive = alive
        self._times: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._times)

    def set(self, number: int, at: float) -> None:
        """Wake ``number`` at ``at``, on Trio's clock."""
        times = self._times
        heapq.heappush(times, (at, number))
        if at < self.earliest:
            self.earliest = at
            if self.sooner is not None:
                self.sooner(at)
        if len(times) > SPARE + 4 * len(self._alive):
            alive = self._alive
            self._times = [entry for entry in times if entry[1] in alive]
            heapq.heapify(self._times)

    def next_due(self, now: float) -> int | None:
        """Take out a number whose time has come by ``now``; None when there is no such number (any more)."""
        times = self._times
        if times and times[0][0] <= now:
            self.came_at, number = heapq.heappop(times)
            return number
        self.earliest = times[0][0] if times else math.inf
        return None
