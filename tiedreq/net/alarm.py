"""An alarm for one task: calls back when a time comes that may move meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tiedreq.net.bell import Bell


class Alarm:
    """Calls ``ring`` when ``trio.current_time()`` reaches what ``wake_at`` says; None is never.

    It may call too early, when the time has moved on since ``check``; never too late, when ``check`` is called after
    each change.
    """

    def __init__(self, wake_at: Callable[[], float | None], ring: Callable[[], None]) -> None:
        self._wake_at = wake_at
        self._ring = ring
        self._set_to = float("inf")
        self._changed = Bell()

    def check(self) -> None:
        """The time may have moved."""
        wake_at = self._wake_at()
        if wake_at is not None and wake_at < self._set_to:
            self._changed.ring()

    async def run(self) -> None:
        """Call back until cancelled."""
        while True:
            wake_at = self._wake_at()
            self._set_to = float("inf") if wake_at is None else wake_at
            with trio.CancelScope(deadline=self._set_to) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._ring()
