"""Times at which calls want to be woken: a heap for any number of them. ``net.timers`` sleeps until the earliest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from tiedreq.net.opencall import OpenCall

SPARE = 64
"""So many times may be set besides four for each call that is open."""


class Times:
    """When which of ``calls`` is to be woken, by number. Those that have ended are forgotten at leisure.

    What a call wants may move. A time that has become too early is put off once it comes first: most calls end, or have
    news, before their time, and then nobody is woken for it. ``sooner`` is called when a time is set that is earlier
    than all others.
    """

    def __init__(self, calls: dict[int, OpenCall]) -> None:
        self.earliest = math.inf
        """The earliest time that is set, as far as ``sooner`` was called or ``next_due`` has looked."""
        self.sooner: Callable[[float], None] | None = None
        self._calls = calls
        self._times: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._times)

    def set(self, call: OpenCall, at: float) -> None:
        """Wake ``call`` at ``at``, on Trio's clock, which is earlier than what was set for it before."""
        call.waking_at = at
        times = self._times
        heapq.heappush(times, (at, call.core.request.id.number))
        if at < self.earliest:
            self.earliest = at
            if self.sooner is not None:
                self.sooner(at)
        if len(times) > SPARE + 4 * len(self._calls):
            waiting = self._calls.items()
            self._times = [(each.waking_at, number) for number, each in waiting if each.waking_at != math.inf]
            heapq.heapify(self._times)

    def next_due(self, now: float) -> OpenCall | None:
        """Take out a call whose time has come by ``now``; None when there is no such call (any more)."""
        times = self._times
        while times:
            at, number = times[0]
            call = self._calls.get(number)
            if call is None or at > call.waking_at:
                heapq.heappop(times)
                continue
            wanted = call.core.wake_at
            if wanted <= at:
                if at > now:
                    self.earliest = at
                    return None
                heapq.heappop(times)
                call.waking_at = math.inf
                return call
            call.waking_at = wanted
            if wanted == math.inf:
                heapq.heappop(times)
            else:
                heapq.heapreplace(times, (wanted, number))
        self.earliest = math.inf
        return None
