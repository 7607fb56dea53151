"""An asyncio loop in virtual time, for what is written for asyncio and reads `time.monotonic`."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait: the time that was to be waited is added to the clock."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready, if the loop's own wake-up is."""
        events = super().select(0)
        if not events:
            if timeout is None:
                raise SystemExit("everybody waits for somebody else")
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time."""

    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """The virtual clock, in seconds."""
        return self.jumping.now


@contextmanager
def virtual_time() -> Iterator[asyncio.Runner]:
    """A runner in virtual time, while everybody's clock is its loop's."""
    real = time.monotonic
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        time.monotonic = runner.get_loop().time
        try:
            yield runner
        finally:
            time.monotonic = real
