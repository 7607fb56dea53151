"""A cluster of real processes that is broken on purpose, and what it must look like when the fault is over."""

from __future__ import annotations

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
"""What is promised."""
SLACK_SECONDS = 15.0
"""What a busy machine may need beyond it: to start a process takes it seconds."""
GAUGES = ("queue", "copies", "executions", "ties", "claiming", "parked_claims", "cancel_markers")
"""What is empty where nothing is under way. Markers are not: they stay for seconds after any call, fault or none."""


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

    async def do(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Carry out a control request; it must succeed."""
        answer = await ask(self.launcher.state, read_control_file(self.launcher.state), {"do": verb, **fields})
        assert answer["ok"], answer
        return answer

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
        """Wait until nothing is left of a fault; the seconds that it took. ``client`` is the only one."""
        began, patience = trio.current_time(), BASELINE_SECONDS + SLACK_SECONDS
        while wrong := await self.wrong(client):
            assert trio.current_time() < began + patience, f"not at baseline after {patience:g} s: {wrong}"
            await trio.sleep(0.1)
        return trio.current_time() - began

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

    def start(*options: str, replicas: int = 4, more: str = "") -> Broken:
        _app.write(folder, more)
        count = ("--replicas", str(replicas), "--slots", "4", "--app", "app:service", "--no-dashboard")
        started.append(Up(folder, *count, *options))
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
