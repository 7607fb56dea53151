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
    """Such as a ``trio.CancelScope``."""

    def cancel(self) -> None:
        """The time is over."""
        ...


class Patience:
    """Cancels what has waited for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: OrderedDict[int, tuple[float, Cancellable]] = OrderedDict()
        self._bell = Bell()

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, waits: Cancellable) -> None:
        """From now on ``waits`` has so many seconds; again: anew."""
        key = id(waits)
        self._waits.pop(key, None)
        self._waits[key] = (trio.current_time() + self.seconds, waits)
        if len(self._waits) == 1:
            self._bell.ring()

    def end(self, waits: Cancellable) -> None:
        """The wait is over."""
        self._waits.pop(id(waits), None)

    async def run(self) -> None:
        """Watch the time, until cancelled."""
        while True:
            if not self._waits:
                await self._bell.wait_anew()
                continue
            key, (at, waits) = next(iter(self._waits.items()))
            if at <= trio.current_time():
                del self._waits[key]
                waits.cancel()
            else:
                await trio.sleep_until(at)
