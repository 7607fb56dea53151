"""A cluster of real processes that is broken on purpose, and what it must look like when the fault is over."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

import tiedreq
from cluster.control_file import read_control_file
from cluster.control_socket import ask
from tests.breaking import _app
from tests.breaking._history import Verdict, judge, read_runs
from tests.breaking._load import Load
from tests.cluster._launcher import Up

BASELINE_SECONDS = 5.0
"""What is promised, on a machine that has nothing else to do. One that has may take longer: see ``stretch``."""
GAUGES = ("queue", "copies", "executions", "ties", "claiming", "parked_claims", "cancel_markers")
"""What is empty where nothing is under way. Markers are not: they stay for seconds after any call, fault or none."""


def stretch() -> float:
    """How many times as long everything takes here just now as it would without the work of others, 1 or more.

    A process that loads what a replica loads is started twice; what it takes is compared with the processor time that
    it gets. (The second one finds the files in memory.)
    """
    found = []
    for _ in range(2):
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import cluster.replica"], check=True, timeout=120)
        took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(took / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return max(1.0, found[-1])


class Bar:
    """The time within which all is to be as before, from the moment when a fault is over. Seconds."""

    def __init__(self) -> None:
        self._began = trio.current_time()
        self._limit: float | None = None

    @property
    def passed(self) -> float:
        """Seconds since the fault was over."""
        return trio.current_time() - self._began

    async def reached(self) -> float | None:
        """The limit once that is reached; None before. The machine is measured only if there is need."""
        if self.passed < BASELINE_SECONDS:
            return None
        if self._limit is None:
            self._limit = BASELINE_SECONDS * await trio.to_thread.run_sync(stretch)
        return self._limit if self.passed >= self._limit else None

    async def until(self, true: Callable[[], Awaitable[object]]) -> None:
        """Wait until ``await true()``; fail when it does not come about in time."""
        while not await true():
            if (limit := await self.reached()) is not None:
                raise AssertionError(f"not within {limit:.1f} s: {true}")
            await trio.sleep(0.05)


async def until(true: Callable[[], Awaitable[object]], *, patience: float = 20.0) -> None:
    """Wait until ``await true()``; fail when it does not come about."""
    with trio.fail_after(patience):
        while not await true():  # noqa: ASYNC110 - there is no event for what another process does
            await trio.sleep(0.05)


class Broken:
    """One launcher with its replicas; ``do`` breaks and mends it as ``cluster.ctl`` does."""

    def __init__(self, launcher: Up) -> None:
        self.launcher = launcher
        self.folder = launcher.cwd
        self.killed: set[int] = set()
        self.bar: Bar | None = None
        """Of the fault that was over last and that nobody has waited for."""

    async def do(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Carry out a control request; it must succeed."""
        answer = await ask(self.launcher.state, read_control_file(self.launcher.state), {"do": verb, **fields})
        assert answer["ok"], answer
        return answer

    def mended(self) -> Bar:
        """A fault is over, or, where the cluster mends it by itself, has begun: from now on it has so much time."""
        self.bar = Bar()
        return self.bar

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """What the launcher knows of each replica."""
        found: dict[str, dict[str, Any]] = (await self.do("status"))["status"]["replicas"]
        return found

    async def pid(self, name: str) -> int:
        """The process of a replica."""
        return int((await self.replicas())[name]["pid"])

    async def kill(self, name: str) -> int:
        """End a replica's process by SIGKILL; its process id."""
        pid = await self.pid(name)
        self.killed.add(pid)
        await self.do("kill", replica=name)
        return pid

    async def wrong(self, client: tiedreq.Client) -> list[str]:
        """What is not as it is when nothing is wrong and nothing is asked for."""
        replicas = await self.replicas()
        found = [f"{name} is {seen['state']}" for name, seen in replicas.items() if seen["state"] != "up"]
        told = await client.inquire("snapshot", timeout=1.0)
        found += [f"{name} does not answer" for name in sorted(set(replicas) - set(told))]
        for name, seen in told.items():
            found += [f"{name}: {gauge} {size}" for gauge, size in seen["sizes"].items() if gauge in GAUGES and size]
            if seen["free"] != seen["slots"]:
                found.append(f"{name}: {seen['running']} running")
            links = sum(link["up"] for link in seen["links"].values())
            if links != len(replicas) - 1:
                found.append(f"{name}: {links} links")
            if seen["callers"] != 1:
                found.append(f"{name}: {seen['callers']} callers")
        if client.stats()["in_flight"]:
            found.append("calls without outcome")
        return found

    async def baseline(self, client: tiedreq.Client) -> float:
        """Wait until nothing is left of a fault; the seconds since it was over. ``client`` is the only one.

        Fails when they are more than is promised. Where it was not said when a fault was over, they count from now.
        """
        bar, self.bar = self.bar or Bar(), None
        while wrong := await self.wrong(client):
            if (limit := await bar.reached()) is not None:
                raise AssertionError(f"not at baseline within {limit:.1f} s: {wrong}")
            await trio.sleep(0.05)
        print(f"at baseline {bar.passed:.2f} s after the fault")
        return bar.passed

    async def until_up(self, name: str, *, but: int) -> None:
        """Wait until a replica is up in another process than ``but``."""

        async def is_up() -> bool:
            seen = (await self.replicas())[name]
            return seen["state"] == "up" and seen["pid"] != but

        await until(is_up)

    @asynccontextmanager
    async def under_load(self, rate: float, **options: Any) -> AsyncIterator[Load]:
        """Load for as long as the block runs. Afterwards the cluster is at baseline and its history is right."""
        async with tiedreq.connect(self.launcher.cluster_file) as client, trio.open_nursery() as nursery:
            load = Load(client, rate, nursery=nursery, **options)
            await trio.sleep(0.5)
            yield load
            await load.end()
            await self.baseline(client)
        assert len(load.sent) > rate / 2

    def verdict(self, load: Load) -> Verdict:
        """The judgement on what ``load`` did."""
        return judge(load.sent, load.outcomes, read_runs(self.folder), killed=self.killed)


Start = Callable[..., Broken]


@contextmanager
def starting(folder: Path) -> Iterator[Start]:
    """A function that starts launchers of the service in ``folder``; all are ended with the block."""
    started: list[Up] = []

    def start(*options: str, replicas: int = 4, more: str = "", dashboard: bool = False) -> Broken:
        _app.write(folder, more)
        count = ("--replicas", str(replicas), "--slots", "4", "--app", "app:service")
        started.append(Up(folder, *count, *(() if dashboard else ("--no-dashboard",)), *options))
        started[-1].ready()
        return Broken(started[-1])

    try:
        yield start
        assert [launcher.stop() for launcher in started] == [0] * len(started)
    finally:
        for launcher in started:
            launcher.end()


@contextmanager
def files_limited(pid: int, most: int) -> Iterator[None]:
    """Let a process open ``most`` descriptors while the block runs."""
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, before)
