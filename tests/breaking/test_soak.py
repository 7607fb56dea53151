"""Load over minutes with faults now and then: memory, descriptors and tasks stay where they were."""

from __future__ import annotations

from functools import partial
from itertools import cycle

import psutil
import pytest
import trio

from tests.breaking._cluster import Broken, Start, until
from tests.breaking._load import Load

LEAST_SECONDS, AROUND_SECONDS = 7.0, 25.0
"""How long there is load at least, and what it takes to start, fill tables, mend and stop."""
WARM = 0.2
"""The part of the load after which is looked for the first time."""
TOMBSTONES = 200
"""So many ended copies does a replica remember here, so that this table is full before memory is looked at."""
GROWTH_MAX = 0.05
RINGS_BYTES = 1_500_000
"""The rings of copies and notices have all their memory from the start; the system counts it once it is written to."""
SLACK_BYTES = 2_500_000
"""What an allocator may keep in a run of minutes."""
ROUND_SECONDS = 2.0
PATIENT_SECONDS = 60.0
"""Within which each call is answered, also where other work takes the processors for a while."""
TASKS_MORE = 12
"""A replica keeps some workers that wait for handlers to lead."""


async def taken(cluster: Broken, load: Load) -> dict[str, tuple[int, int, int, int]]:
    """Of each replica: bytes of memory, open descriptors, threads, Trio's tasks."""
    found, replicas, told = {}, await cluster.replicas(), {}
    while told.keys() != replicas.keys():
        told = await load.client.inquire("snapshot", timeout=10)
    for name, seen in replicas.items():
        process = psutil.Process(seen["pid"])
        tasks = told[name]["process"]["tasks"]
        found[name] = (process.memory_info().rss, process.num_fds(), process.num_threads(), tasks)
    return found


async def tables_are_full(load: Load) -> bool:
    """Whether each replica remembers as many ended copies as it may."""
    told = await load.client.inquire("snapshot", timeout=5)
    return len(told) == 4 and all(seen["sizes"]["tombstones"] == TOMBSTONES for seen in told.values())


async def trouble(cluster: Broken) -> None:
    """Frozen, cut off, slow, by turns, and mended again."""
    for name, other in cycle([("r0", "r1"), ("r1", "r2"), ("r2", "r3"), ("r3", "r0")]):
        await trio.sleep(ROUND_SECONDS / 2)
        await cluster.do("partition", **{"from": name, "to": other})
        await cluster.do("slow", replica=other, factor=5)
        await cluster.do("pause", replica=name)
        await trio.sleep(0.1)
        await cluster.do("resume", replica=name)
        await trio.sleep(ROUND_SECONDS / 2)
        await cluster.do("heal", all=True)


@pytest.mark.soak
async def test_nothing_grows(start: Start, rate: float, minutes: float) -> None:
    """Ties settle under faults for as long as there is time; then everything is where it was before."""
    seconds = max(LEAST_SECONDS, 60 * minutes - AROUND_SECONDS)
    cluster = start("--limit", f"tombstones_max={TOMBSTONES}")
    looks: list[str] = []
    async with cluster.under_load(rate, timeout=PATIENT_SECONDS) as load:
        with trio.move_on_after(WARM * seconds):
            await trouble(cluster)
        await cluster.do("heal", all=True)
        await until(partial(tables_are_full, load), patience=120)
        await trio.sleep(2)
        before = await taken(cluster, load)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble, cluster)
            for _ in range(8):
                await trio.sleep((1 - WARM) * seconds / 8)
                pids = [seen["pid"] for seen in (await cluster.replicas()).values()]
                looks.append("/".join(f"{psutil.Process(pid).memory_info().rss / 1e6:.1f}" for pid in pids))
            nursery.cancel_scope.cancel()
        await cluster.do("heal", all=True)
        await trio.sleep(2)
        after = await taken(cluster, load)
    print(f"{len(load.sent)} calls; bytes, descriptors, threads, tasks before {before}, after {after}")
    print(f"megabytes meanwhile: {', '.join(looks)}")
    for name, (memory, files, threads, tasks) in before.items():
        assert after[name][0] < memory * (1 + GROWTH_MAX) + RINGS_BYTES + SLACK_BYTES, (before, after)
        assert after[name][1] <= files + 2 and after[name][2] <= threads + 1, (before, after)
        assert after[name][3] <= tasks + TASKS_MORE, (before, after)
    assert cluster.verdict(load).errors == {}
