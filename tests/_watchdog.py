"""Ends a Trio test that hangs by cancelling it, and tells where each of its tasks stood.

The time is the wall's, whatever clock the test runs on. pytest-timeout stands behind it, for fixtures, for tests that
shield themselves and for those without Trio: its signal breaks Trio's loop, so it is the second choice.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

# Of the time after which pytest-timeout would act, unless that is longer before it than it takes to tell.
SHARE = 0.9
AHEAD_SECONDS = 60.0


def with_deadline(test: Callable[..., Awaitable[None]], timeout: float) -> Callable[..., Awaitable[None]]:
    seconds = max(timeout * SHARE, timeout - AHEAD_SECONDS)

    @functools.wraps(test)
    async def watched(**fixtures: Any) -> None:
        stood: list[str] = []
        token = trio.lowlevel.current_trio_token()

        def give_up() -> None:
            stood.extend(tasks())
            scope.cancel()

        def ring() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(give_up)

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        with trio.CancelScope() as scope:
            timer.start()
            try:
                await test(**fixtures)
            finally:
                timer.cancel()
        if stood:
            pytest.fail("\n".join([f"hung for {seconds:g} s; its tasks stood at:", *stood]), pytrace=False)

    return watched


def tasks() -> list[str]:
    """Every task below the main one, indented by nursery, with the innermost lines outside Trio itself."""
    root = trio.lowlevel.current_root_task()
    return list(_below(root, 0)) if root else []


def _below(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    inside_trio = str(Path(trio.__file__).parent)
    places = [
        f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
        for frame, line in task.iter_await_frames()
        if not frame.f_code.co_filename.startswith(inside_trio)
    ]
    yield f"{'  ' * depth}{task.name}: {' > '.join(places[-3:]) or 'in trio'}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child, depth + 1)
