"""Sleep for many at a time: what ``trio.sleep`` does, at a third of its cost where many sleep and little else happens.

``trio.sleep`` makes a cancel scope, enters its deadline and delivers a cancellation. Here those that sleep stand in one
heap, and are woken as soon as Trio has looked at its sockets, in the very pass in which ``trio.sleep`` would end. One
task sleeps for all of them, so that Trio does not wait for longer.

For the laboratory's own artificial work, so that this is not what is measured. Trio's own thread only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import trio

__all__ = ["Sleepers", "sleepers"]


class _Sleeper:
    __slots__ = ("task",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task: trio.lowlevel.Task | None = task

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """Its scope was cancelled: nobody is to be woken."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Sleepers(trio.abc.Instrument):
    """Those who sleep in one Trio program, while ``run`` runs."""

    def __init__(self) -> None:
        self._sleeping: list[tuple[float, int, _Sleeper]] = []
        self._numbers = count()
        self._scope = trio.CancelScope()
        self._runs = False

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``."""
        if not self._runs:
            await trio.sleep(seconds)
            return
        at = trio.current_time() + seconds
        sleeper = _Sleeper(trio.lowlevel.current_task())
        heapq.heappush(self._sleeping, (at, next(self._numbers), sleeper))
        if at < self._scope.deadline:
            self._scope.deadline = at
        await trio.lowlevel.wait_task_rescheduled(sleeper.abort)

    def after_io_wait(self, timeout: float) -> None:
        """Wake those whose time has come."""
        if self._sleeping:
            self._wake(trio.current_time())

    def _wake(self, now: float) -> None:
        sleeping = self._sleeping
        while sleeping and sleeping[0][0] <= now:
            task = heapq.heappop(sleeping)[2].task
            if task is not None:
                trio.lowlevel.reschedule(task)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See to it that Trio wakes in time, until cancelled: then all wake."""
        trio.lowlevel.add_instrument(self)
        self._runs = True
        task_status.started()
        try:
            while True:
                with trio.CancelScope(deadline=self._sleeping[0][0] if self._sleeping else math.inf) as self._scope:
                    await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)
            self._runs = False
            self._wake(math.inf)


_sleepers: trio.lowlevel.RunVar[Sleepers | None] = trio.lowlevel.RunVar("sleepers", default=None)


@asynccontextmanager
async def sleepers() -> AsyncIterator[Sleepers]:
    """The one ``Sleepers`` of this Trio program, usable inside the block; the outermost block is to last longest."""
    shared = _sleepers.get()
    if shared is not None:
        yield shared
        return
    shared = Sleepers()
    async with trio.open_nursery() as nursery:
        await nursery.start(shared.run)
        _sleepers.set(shared)
        try:
            yield shared
        finally:
            _sleepers.set(None)
            nursery.cancel_scope.cancel()
