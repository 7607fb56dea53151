"""Many waits of one length, with one task: cancels something unless it is told in time that the wait is over.

It costs far less than a scope for each wait. And unlike the deadline of a scope it does not travel: a call that is made
meanwhile is not told that its time ends there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import trio

from tiedreq.net.bell import Bell


class Cancellable(Protocol):
    """Such as a ``trio.CancelScope``: compared by identity."""

    def cancel(self) -> None:
        """The time is over."""
        ...


class Patience:
    """Cancels what has waited for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: OrderedDict[Cancellable, float] = OrderedDict()
        self._bell = Bell()
        self._idle = False

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, waits: Cancellable, now: float | None = None) -> None:
        """From ``now`` on ``waits`` has so many seconds; again: anew."""
        self._waits.pop(waits, None)
        self._waits[waits] = (trio.current_time() if now is None else now) + self.seconds
        if self._idle:
            self._idle = False
            self._bell.ring()

    def end(self, waits: Cancellable) -> None:
        """The wait is over."""
        self._waits.pop(waits, None)

    async def run(self) -> None:
        """Watch the time, until cancelled."""
        while True:
            if not self._waits:
                self._idle = True
                await self._bell.wait_anew()
                continue
            waits, at = next(iter(self._waits.items()))
            if at <= trio.current_time():
                del self._waits[waits]
                waits.cancel()
            else:
                await trio.sleep_until(at)
