"""An action at the k-th scheduling point after a moment, under scheduling that depends on a seed alone."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
import trio._core._run as trio_run
from trio.testing import MockClock


class Trigger(trio.abc.Instrument):
    """Counts the steps of all tasks from ``arm`` on and runs an action at one of them."""

    def __init__(self) -> None:
        self.steps = 0
        self.fired = False
        self._at = 0
        self._action: Callable[[], object] | None = None

    def arm(self, at: int, action: Callable[[], object]) -> None:
        """Run ``action`` right before the ``at``-th task step from now on."""
        self.steps, self.fired, self._at, self._action = 0, False, at, action

    def disarm(self) -> None:
        self._action = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._action is None:
            return
        self.steps += 1
        if self.steps == self._at:
            action, self._action = self._action, None
            self.fired = True
            action()


@contextmanager
def scheduling_by(seed: int) -> Iterator[None]:
    """Let Trio's order within a batch depend on ``seed`` alone, and restore what was."""
    allowed, state = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.setstate(random.Random(seed).getstate())
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        trio_run._r.setstate(state)


def run(main: Callable[[Trigger], Awaitable[None]], seed: int) -> None:
    """Run ``main`` in virtual time, with an instrument that can act at any scheduling point."""
    trigger = Trigger()

    async def entry() -> None:
        await main(trigger)

    with scheduling_by(seed):
        trio.run(entry, clock=MockClock(autojump_threshold=0), instruments=[trigger])
