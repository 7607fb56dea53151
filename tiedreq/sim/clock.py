"""Virtual time: what is to happen, in the order of its time, and among equals in the order in which it was asked for.

Invariants: time never goes back; of two things due at one instant the one asked for first happens first; what waits
for the end of an instant happens when nothing else is due at it, and what that causes at the same instant happens
before the next one that waits. Not for durations of the real world: nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

Action = Callable[..., None]
Entry = tuple[float, int, Action, Any, Any]

NEVER = float("inf")
INSTANT_MAX = 1_000_000
"""So many things at one instant are a loop that never ends."""


class SimulationError(Exception):
    """The world can't go on."""


class Clock:
    """The time in seconds, and everything that is due.

    ``entries`` and ``number`` are public for those who add one entry per message and can't afford a call for it: they
    push ``(time, number(), action, first, second)`` with ``heappush``. ``ending`` is what waits for the end of the
    instant.
    """

    __slots__ = ("_stopped", "ending", "entries", "now", "number")

    def __init__(self) -> None:
        self.now = 0.0
        self.entries: list[Entry] = []
        self.number = count().__next__
        self.ending: deque[Callable[[], None]] = deque()
        self._stopped = False

    def __len__(self) -> int:
        return len(self.entries) + len(self.ending)

    def at(self, when: float, action: Action, first: Any = None, second: Any = None) -> None:
        """Do ``action(first, second)`` at ``when``, or now if that is past."""
        heappush(self.entries, (max(when, self.now), self.number(), action, first, second))

    @property
    def next_at(self) -> float:
        """When something is due next; infinity when nothing is."""
        if self.ending:
            return self.now
        return self.entries[0][0] if self.entries else NEVER

    def stop(self) -> None:
        """End ``run`` after what is happening now."""
        self._stopped = True

    def run(self, until: float = NEVER) -> None:
        """Let everything happen that is due up to ``until`` (included). Time is ``until`` afterwards, if finite."""
        entries, ending = self.entries, self.ending
        self._stopped = False
        at_once = 0
        while not self._stopped:
            if ending:
                if not entries or entries[0][0] > self.now:
                    ending.popleft()()
                    continue
            elif not entries:
                break
            if entries[0][0] > until:
                break
            when, _, action, first, second = heappop(entries)
            if when != self.now:
                self.now = when
                at_once = 0
            else:
                at_once += 1
                if at_once > INSTANT_MAX:
                    raise SimulationError(f"time stands still at {when!r} s: {action} again and again")
            action(first, second)
        if not self._stopped and until != NEVER and until > self.now:
            self.now = until

    def settle(self) -> None:
        """Let everything happen that is due now."""
        self.run(self.now)

    def forget(self, useless: Callable[[Entry], bool]) -> None:
        """Take out every entry that can't have an effect any more."""
        self.entries[:] = [entry for entry in self.entries if not useless(entry)]
        heapify(self.entries)
