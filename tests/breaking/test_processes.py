"""Faults that end processes, or that meet them where they start: killed, restarted, drained, no disk, odd clocks."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

import tiedreq
from cluster.control_file import read_control_file
from tests.breaking import _app
from tests.breaking._cluster import Start
from tests.cluster._launcher import Up
from tests.system.test_dashboard import GROWTH_BYTES_MAX, STALLED, Dashboard, client_that_does_not_read

pytestmark = pytest.mark.system


async def test_a_replica_is_killed(start: Start, rate: float) -> None:
    cluster = start()
    async with cluster.under_load(rate) as load:
        pid, bar = await cluster.kill("r1"), cluster.mended()
        await cluster.until_up("r1", but=pid)
        await bar.until(partial(load.answered_by, "r1", trio.current_time()))
    verdict = cluster.verdict(load)
    assert verdict.errors == {}


async def test_a_rolling_restart_loses_no_call(start: Start, rate: float) -> None:
    """B43: all four, one after the other, and not one call fails. At full size 500 calls a second are driven."""
    cluster = start()
    before = {name: seen["pid"] for name, seen in (await cluster.replicas()).items()}
    async with cluster.under_load(rate) as load:
        await cluster.do("restart")
        cluster.mended()
        await trio.sleep(0.3)
    after = {name: seen["pid"] for name, seen in (await cluster.replicas()).items()}
    assert not set(before.values()) & set(after.values())
    verdict = cluster.verdict(load)
    assert verdict.errors == {}
    assert verdict.completed_twice <= verdict.doubled <= 0.2 * verdict.calls


async def test_both_replicas_of_a_pair_drain_at_once(start: Start, rate: float) -> None:
    """B43: what the one lets go may be on its way to the other, which lets go too. Two others are left."""
    cluster = start()
    async with cluster.under_load(rate) as load:
        async with trio.open_nursery() as nursery:
            for name in ("r0", "r1"):
                nursery.start_soon(partial(cluster.do, "drain", replica=name))
        states = {name: seen["state"] for name, seen in (await cluster.replicas()).items()}
        assert states == {"r0": "drained", "r1": "drained", "r2": "up", "r3": "up"}
        for name in ("r0", "r1"):
            await cluster.do("restart", replica=name)
        cluster.mended()
    assert cluster.verdict(load).errors == {}


async def test_clients_of_the_dashboard_that_stop_reading(start: Start, rate: float) -> None:
    """B23: calls and others who look notice nothing, and nothing piles up for those who do not read."""
    cluster = start(replicas=3, dashboard=True)
    dashboard = Dashboard(read_control_file(cluster.launcher.state).dashboard or "")
    launcher = psutil.Process(cluster.launcher.pid)
    async with cluster.under_load(rate) as load:
        before = launcher.memory_info().rss
        with ExitStack() as stack:
            for _ in range(STALLED):
                stack.enter_context(client_that_does_not_read(dashboard))
            begin = trio.current_time()
            for _ in range(5):
                now = await trio.to_thread.run_sync(dashboard.now)
                assert {each["state"] for each in now["replicas"]} == {"up"}
                await trio.sleep(0.3)
            assert set(load.answered_since(begin)) == {"r0", "r1", "r2"}
            assert launcher.memory_info().rss - before < GROWTH_BYTES_MAX
        cluster.mended()
    assert cluster.verdict(load).errors == {}


ROOM = """

import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
"""A replica inherits its launcher's limit, and the service's book is not what is out of room."""


async def test_no_disk_is_left_in_the_state_directory(start: Start, rate: float) -> None:
    """The launcher can't write a byte when a replica dies: calls go on, and the file follows when there is room."""
    cluster = start(replicas=3, more=ROOM)
    launcher = psutil.Process(cluster.launcher.pid)
    before = launcher.rlimit(psutil.RLIMIT_FSIZE)
    async with cluster.under_load(rate / 2) as load:
        launcher.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        old = await cluster.kill("r0")
        await cluster.until_up("r0", but=old)
        back = trio.current_time()
        assert cluster.launcher.replica_pids()["r0"] == old, "the old file is whole"
        with trio.fail_after(20):
            while "r0" not in load.answered_since(back):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.05)
        launcher.rlimit(psutil.RLIMIT_FSIZE, before)
        bar = cluster.mended()
        while cluster.launcher.replica_pids()["r0"] == old:
            assert await bar.reached() is None
            await trio.sleep(0.05)
        assert cluster.launcher.replica_pids()["r0"] == await cluster.pid("r0")
    assert cluster.verdict(load).errors == {}
    assert not list(cluster.launcher.state.glob(".cluster-*")), "no piece of a file is left"
    assert cluster.launcher.stderr.count("can't be written") == 1


@pytest.mark.parametrize(("room", "code"), [(0, 2), (20, 1)], ids=["for nothing", "for the lock alone"])
def test_no_disk_is_left_at_the_start(tmp_path: Path, room: int, code: int) -> None:
    """One line says so, and nothing is left."""
    _app.write(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        launcher = Up(tmp_path, "--replicas", "2", "--app", "app:service", "--no-dashboard")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    try:
        assert launcher.wait() == code, launcher.stderr
        assert launcher.out == []
        assert len(launcher.error) == 1 and "can't be written: File too large" in launcher.stderr
    finally:
        launcher.end()


CLOCKS = """

import time

_real = time.time


def stepping():
    return _real() + (-3600, 3600, 0)[(int(_real() * 10) + os.getpid()) % 3]


time.time = stepping
"""


async def test_wall_clocks_that_step(start: Start, rate: float) -> None:
    """B27: each replica's wall clock jumps by hours, there and back, in the middle of calls."""
    cluster = start(replicas=3, more=CLOCKS)
    seen: dict[str, set[int]] = {"r0": set(), "r1": set(), "r2": set()}
    async with cluster.under_load(rate) as load, tiedreq.connect(cluster.launcher.cluster_file) as client:
        await trio.sleep(1)
        with trio.fail_after(30):
            while not all(hours == {-1, 0, 1} for hours in seen.values()):
                for name, told in (await client.inquire("snapshot")).items():
                    seen[name].add(round((told["time"] - time.time()) / 3600))
                await trio.sleep(0.03)
    assert cluster.verdict(load).errors == {}
