"""The one task that sleeps until a time that may move meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Timer:
    """Calls ``due(now)`` when the time has come that it named last, or that ``sooner`` named since."""

    def __init__(self, due: Callable[[float], float]) -> None:
        self._due = due
        self._sleep = trio.CancelScope()

    def sooner(self, at: float) -> None:
        """Nothing is woken for this: the sleep gets shorter."""
        if at < self._sleep.deadline:
            self._sleep.deadline = at

    async def run(self) -> None:
        """Call back until cancelled."""
        while True:
            self._sleep = trio.CancelScope(deadline=self._due(trio.current_time()))
            with self._sleep:
                await trio.sleep_forever()
