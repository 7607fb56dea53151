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
LANES_MAX = 2


def _nothing(_: Any, __: Any) -> None:
    """Happens never."""


LAST: Entry = (NEVER, 0, _nothing, None, None)
"""After all else."""


class SimulationError(Exception):
    """The world can't go on."""


class Clock:
    """The time in seconds, and everything that is due.

    ``entries``, ``soon`` and ``number`` are public for those who add one entry per message and can't afford a call for
    it: they push ``(time, number(), action, first, second)`` with ``heappush`` when its time is to come, and append it
    to ``soon`` when that is now. What always comes after the same time may have a ``lane``: it needs no heap to be in
    order, and is appended. ``ending`` is what waits for the end of the instant.
    """

    __slots__ = ("_delays", "_lanes", "_stopped", "ending", "entries", "now", "number", "soon")

    def __init__(self) -> None:
        self.now = 0.0
        self.entries: list[Entry] = []
        self.soon: deque[Entry] = deque()  # all of it asked for later than what is due now and in ``entries``
        self.number = count().__next__
        self.ending: deque[Callable[[], None]] = deque()
        self._lanes: list[deque[Entry]] = []
        self._delays: list[float] = []
        self._stopped = False

    def __len__(self) -> int:
        return len(self.due()) + len(self.ending)

    def lane(self, delay: float) -> deque[Entry] | None:
        """Where to append what is due in ``delay`` seconds from then on, unless that is at once; None: on the heap."""
        if delay not in self._delays:
            if len(self._delays) == LANES_MAX:
                return None
            self._delays.append(delay)
            self._lanes.append(deque())
        return self._lanes[self._delays.index(delay)]

    def due(self) -> list[Entry]:
        """All that is to happen, in no order."""
        return [*self.entries, *self.soon, *(entry for lane in self._lanes for entry in lane)]

    def at(self, when: float, action: Action, first: Any = None, second: Any = None) -> None:
        """Do ``action(first, second)`` at ``when``, or now if that is past."""
        if when > self.now:
            heappush(self.entries, (when, self.number(), action, first, second))
        else:
            self.soon.append((self.now, self.number(), action, first, second))

    @property
    def next_at(self) -> float:
        """When something is due next; infinity when nothing is."""
        if self.ending or self.soon:
            return self.now
        heads = [some[0][0] for some in (self.entries, *self._lanes) if some]
        return min(heads, default=NEVER)

    def stop(self) -> None:
        """End ``run`` after what is happening now."""
        self._stopped = True

    def run(self, until: float = NEVER) -> None:
        """Let everything happen that is due up to ``until`` (included). Time is ``until`` afterwards, if finite."""
        entries, lanes, soon, ending = self.entries, self._lanes, self.soon, self.ending
        if until < self.now:
            return
        self._stopped = False
        at_once = 0
        while not self._stopped:
            entry = entries[0] if entries else LAST
            chosen = None
            for lane in lanes:
                if lane and lane[0] < entry:
                    chosen, entry = lane, lane[0]
            when = entry[0]
            if when > self.now:
                if soon:
                    chosen, entry = soon, soon[0]
                elif ending:
                    ending.popleft()()
                    continue
                elif when <= until and entry is not LAST:
                    self.now = when
                    at_once = 0
                else:
                    break
            if chosen is None:
                heappop(entries)
            else:
                chosen.popleft()
            at_once += 1
            if at_once > INSTANT_MAX:
                raise SimulationError(f"time stands still at {self.now!r} s: {entry[2]} again and again")
            entry[2](entry[3], entry[4])
        if not self._stopped and until != NEVER and until > self.now:
            self.now = until

    def settle(self) -> None:
        """Let everything happen that is due now."""
        self.run(self.now)

    def forget(self, useless: Callable[[Entry], bool]) -> None:
        """Take out every entry that can't have an effect any more."""
        self.entries[:] = [entry for entry in self.entries if not useless(entry)]
        heapify(self.entries)
        for line in (self.soon, *self._lanes):
            for _ in range(len(line)):
                if not useless(entry := line.popleft()):
                    line.append(entry)
