"""Many waits of one length, with one task: cancels a scope unless it is told in time that the wait is over.

Unlike a deadline of the scope itself this does not travel: a call that is made within the scope is not told that its
time ends there.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from tiedreq.net.bell import Bell


class Patience:
    """Cancels scopes after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: OrderedDict[int, tuple[float, trio.CancelScope]] = OrderedDict()
        self._bell = Bell()

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, scope: trio.CancelScope) -> None:
        """From now on ``scope`` has so many seconds; again: anew."""
        key = id(scope)
        self._waits.pop(key, None)
        self._waits[key] = (trio.current_time() + self.seconds, scope)
        if len(self._waits) == 1:
            self._bell.ring()

    def end(self, scope: trio.CancelScope) -> None:
        """The wait is over."""
        self._waits.pop(id(scope), None)

    async def run(self) -> None:
        """Watch the time, until cancelled."""
        while True:
            if not self._waits:
                await self._bell.wait_anew()
                continue
            key, (at, scope) = next(iter(self._waits.items()))
            if at <= trio.current_time():
                del self._waits[key]
                scope.cancel()
            else:
                await trio.sleep_until(at)
