"""Restarts and deaths, over and over, while calls are made by the ten thousand: not one of them fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle

import pytest
import trio

from tests.breaking._cluster import Broken, Start
from tests.breaking._load import Load

Trouble = Callable[[Broken, Load, int], Awaitable[None]]
CALLS_FULL = 50_000
CALLS_LEAST = 300
PATIENT_SECONDS = 60.0
"""Within which each call is answered, also where other work takes the processors for a while."""
PEACE_SECONDS = 5.0
"""Between two deaths: a replica that dies more than three times in ten seconds is given up."""


async def rolling_restart(cluster: Broken, load: Load, calls: int) -> None:
    """All four, one after the other, again and again."""
    while len(load.sent) < calls:
        await cluster.do("restart")
        await trio.sleep(1)


async def single_kill(cluster: Broken, load: Load, calls: int) -> None:
    """One dies; when it is back and had some peace, another one does."""
    for name in cycle(["r1", "r3", "r0", "r2"]):
        pid = await cluster.kill(name)
        await cluster.until_up(name, but=pid)
        with trio.move_on_after(PEACE_SECONDS):
            while len(load.sent) < calls:  # noqa: ASYNC110 - the load goes on by itself
                await trio.sleep(0.1)
        if len(load.sent) >= calls:
            return


@pytest.mark.soak
@pytest.mark.parametrize("trouble", [rolling_restart, single_kill], ids=["rolling restart", "kill"])
async def test_no_call_is_lost(start: Start, rate: float, minutes: float, trouble: Trouble) -> None:
    """50,000 calls where there is time for them; each has its one answer, and what ran is accounted for."""
    calls = max(CALLS_LEAST, min(CALLS_FULL, int(60 * rate * (minutes - 1))))
    cluster = start()
    async with cluster.under_load(rate, timeout=PATIENT_SECONDS) as load:
        await trouble(cluster, load, calls)
    verdict = cluster.verdict(load)
    print(f"{verdict.calls} calls, {sum(verdict.errors.values())} failed, {verdict.doubled} ran twice")
    assert verdict.errors == {} and verdict.calls >= calls
