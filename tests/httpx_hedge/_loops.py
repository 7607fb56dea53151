"""Trio and asyncio in virtual time: nothing is waited for, the clock jumps to what is due next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

Main = Callable[[], Awaitable[Any]]


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: the time that was to be waited is added to the loop's clock."""

    now = 100.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everybody waits for somebody else"
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time. Not for sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def on_trio(main: Main) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def on_asyncio(main: Main) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(_awaited(main))


async def _awaited(main: Main) -> Any:
    result = await main()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"left behind: {others}"
    return result
