"""A bell: one task waits, anybody rings, rings between two waits count as one. Cheaper than a new Event each time."""

from __future__ import annotations

import trio


class Bell:
    """Wakes the one task that waits for it.

    The waiter runs in the scheduler's next pass: everything that was ready in the pass of the ring is done by then.
    """

    __slots__ = ("_rung", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._rung = False

    def ring(self) -> None:
        """Wake the waiter, now or as soon as it waits. Synchronous; from Trio's own thread only."""
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        else:
            self._rung = True

    async def wait_anew(self) -> None:
        """Wait for a ring from now on: for a waiter that has just seen that there is nothing to do."""
        self._rung = False
        await self.wait()

    async def wait(self) -> None:
        """Wait for a ring. A checkpoint in any case."""
        if self._rung:
            self._rung = False
            await trio.lowlevel.checkpoint()
            return
        if self._task is not None:
            raise RuntimeError("two tasks wait for one bell")
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
