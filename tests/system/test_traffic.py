"""Traffic: what the launcher drives by itself, and calls that go on while replicas die and freeze."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

import tiedreq
from tests.cluster._launcher import Up, write_app
from tiedreq import Backup, Policy, Tied

pytestmark = pytest.mark.system

Start = Callable[..., Up]

FIELDS = (
    "calls errors offered_rate achieved_rate p50_ms p99_ms p999_ms executions_per_call duplicate_execution_rate".split()
)

APP = """
    import random, trio, tiedreq
    service = tiedreq.Service("app")

    @service.method(idempotent=True)
    async def square(ctx, args):
        await trio.sleep(random.expovariate(1 / 0.005))
        return {"square": args["number"] ** 2, "replica": ctx.replica}
"""


@pytest.mark.parametrize("policy", ["plain", "hedged", "tied", "tied-classic"])
def test_a_run_of_the_demo(up: Start, policy: str) -> None:
    options = ["--rate", "200", "--policy", policy, "--duration", "3s", "--service", "exp(5ms)", "--json"]
    launcher = up("--replicas", "4", "--mesh-latency", "1ms", *options)
    launcher.event("ready")
    summary = launcher.event("summary")
    assert launcher.event("stopped")["exit"] == 0
    assert launcher.wait() == 0
    assert set(FIELDS) <= set(summary)
    assert all(isinstance(summary[name], int | float) and math.isfinite(summary[name]) for name in FIELDS)
    assert summary["errors"] == summary["unfinished"] == 0
    assert 450 < summary["calls"] < 750 and 150 < summary["offered_rate"] < 250
    assert summary["achieved_rate"] > 0.9 * summary["offered_rate"]
    assert 2 < summary["p50_ms"] < summary["p99_ms"] < summary["p999_ms"]
    assert 0 <= summary["duplicate_execution_rate"] < 0.2
    assert summary["executions_per_call"] == pytest.approx(1 + summary["duplicate_execution_rate"], abs=0.02)
    if policy == "plain":
        assert summary["executions_per_call"] == 1


def test_lookups_and_searches_until_stopped(up: Start) -> None:
    launcher = up("--replicas", "2", "--rate", "50", "--json")
    launcher.event("ready")
    trio.run(trio.sleep, 3)
    launcher.signal(signal.SIGINT)
    summary = launcher.event("summary")
    assert summary["errors"] == summary["unfinished"] == 0 and summary["calls"] > 50
    assert launcher.wait() == 0


class Load:
    """Open-loop calls of ``square`` at ``rate``; each answer is checked, each error must be a documented one."""

    def __init__(self, client: tiedreq.Client, rate: float, policy: Policy, timeout: float) -> None:
        self.errors: Counter[str] = Counter()
        self.late: list[float] = []
        self.answers: list[tuple[float, str]] = []
        self.calls = 0
        self._client = client
        self._rate = rate
        self._policy = policy
        self._timeout = timeout

    async def run(self, seconds: float) -> None:
        rng, begin = Random(1), trio.current_time()
        at = begin
        async with trio.open_nursery() as nursery:
            while (at := at + rng.expovariate(self._rate)) < begin + seconds:
                await trio.sleep_until(at)
                self.calls += 1
                nursery.start_soon(self._call, self.calls)

    async def _call(self, number: int) -> None:
        began = trio.current_time()
        try:
            answer = await self._client.call("square", {"number": number}, policy=self._policy, timeout=self._timeout)
        except tiedreq.CallError as error:
            self.errors[type(error).__name__] += 1
        else:
            assert answer["square"] == number * number
            self.answers.append((trio.current_time(), answer["replica"]))
        took = trio.current_time() - began
        if took > self._timeout + 0.5:
            self.late.append(took)


async def until_back(launcher: Up, name: str, pid: int) -> None:
    with trio.fail_after(20):
        while launcher.replica_pids()[name] == pid:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def freeze(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def one_at_a_time(launcher: Up) -> Load:
    pids = launcher.replica_pids()
    async with tiedreq.connect(launcher.cluster_file) as client, trio.open_nursery() as nursery:
        load = Load(client, 300, Tied(backup=Backup(after=0.05)), timeout=2.0)
        nursery.start_soon(load.run, 16)
        await trio.sleep(1)
        for name in ("r0", "r1"):
            os.kill(pids[name], signal.SIGKILL)
            await until_back(launcher, name, pids[name])
            await trio.sleep(0.7)
        await freeze(pids["r2"], 5)
        nursery.start_soon(trio.sleep, 1)
    return load


def test_one_replica_fails_at_a_time_and_no_call_does(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path, APP)
    launcher = up("--replicas", "4", "--app", "app:service")
    launcher.ready()
    load = trio.run(one_at_a_time, launcher)
    assert not load.errors
    assert not load.late
    assert len(load.answers) == load.calls > 4_000
    end = max(at for at, _ in load.answers)
    last = Counter(replica for at, replica in load.answers if at > end - 2)
    assert set(last) == {"r0", "r1", "r2", "r3"}, "restarted and thawed replicas are used again"
    assert min(last.values()) > 50
    assert launcher.stop() == 0


async def several_at_once(launcher: Up) -> Load:
    pids = launcher.replica_pids()
    async with tiedreq.connect(launcher.cluster_file) as client, trio.open_nursery() as nursery:
        load = Load(client, 300, Tied(backup=Backup(after=0.05)), timeout=2.0)
        nursery.start_soon(load.run, 10)
        await trio.sleep(1)
        os.kill(pids["r0"], signal.SIGKILL)
        nursery.start_soon(freeze, pids["r2"], 5)
        await trio.sleep(1)
        os.kill(pids["r1"], signal.SIGKILL)
    return load


def test_three_of_four_in_trouble(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path, APP)
    launcher = up("--replicas", "4", "--app", "app:service")
    launcher.ready()
    load = trio.run(several_at_once, launcher)
    assert not load.late
    assert set(load.errors) <= {"DeadlineExceeded", "Overloaded", "Unavailable"}
    assert load.errors.total() < 0.01 * load.calls
    assert len(load.answers) + load.errors.total() == load.calls
    end = max(at for at, _ in load.answers)
    assert {replica for at, replica in load.answers if at > end - 2} == {"r0", "r1", "r2", "r3"}
    assert launcher.stop() == 0
