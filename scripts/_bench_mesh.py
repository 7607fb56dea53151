"""What a replica of a large mesh holds while tied calls are made: see `scripts/bench_mesh --help`.

Every replica is a process of its own on this machine; they find each other by a list in a file, and a client in this
process makes tied calls both copies of which leave, in an open loop. Two meshes are measured, one after the other: with
``all links``, and with ``links on use``, as above ``mesh_full_max``. Memory is that of a replica's own (what would be
free if it ended; ``USS``), and resident memory, which counts shared pages at each of them.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil
import trio
from _bench import Row, as_program, cpu_seconds, parser, positive, row, show, whole, write

import tiedreq
from tiedreq.net.collecting import spare_the_loop

REPLICAS_DEFAULT, RATE_DEFAULT, SECONDS_DEFAULT, WORK_SECONDS = 32, 50.0, 20.0, 0.005
AT_ONCE = tiedreq.Tied(stagger=0.0, backup=None)
MESHES = {"all links": 1_000, "links on use": 1}
"""And their ``mesh_full_max``."""
START_SECONDS = 120.0
LEARN_SECONDS, REST_SECONDS = 5.0, 5.0
ENOUGH = 0.9
"""With a smaller share of the calls that were to be made, the machine was busy with something else."""
MEASURED_SECONDS = 60.0
"""How long a mesh of all links may take to be one, and to be measured."""

service = tiedreq.Service("bench")


@service.method(idempotent=True)
async def work(context: tiedreq.Context, seconds: Any) -> str:
    """Takes so many seconds."""
    await trio.sleep(seconds)
    return context.replica


# ---- a replica ------------------------------------------------------------------------------------------------------


async def replica(name: str, members: str, mesh_full_max: int) -> None:
    """Serve until standard input ends."""
    limits = tiedreq.ReplicaLimits(mesh_full_max=mesh_full_max)
    async with trio.open_nursery() as nursery:
        handle = await nursery.start(
            functools.partial(tiedreq.serve, service, name=name, discover=members, limits=limits)
        )
        spare_the_loop()
        print(handle.url, flush=True)
        async with trio.lowlevel.FdStream(os.dup(0)) as launcher:
            await launcher.receive_some()
        nursery.cancel_scope.cancel()


@contextmanager
def mesh(count: int, mesh_full_max: int) -> Iterator[tuple[Path, list[int]]]:
    """So many replicas in processes of their own: the list of them, and their process ids."""
    with tempfile.TemporaryDirectory(prefix="tiedreq-mesh-") as folder:
        path = Path(folder) / "members.txt"
        started: list[tuple[str, subprocess.Popen[str]]] = []
        try:
            for index in range(count):
                name = f"r{index:03}"
                command = [sys.executable, __file__, "--replica", name, str(path), str(mesh_full_max)]
                process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                started.append((name, process))
            lines = []
            for name, process in started:
                assert process.stdout is not None
                lines.append(f"{name}={process.stdout.readline().strip()}\n")
            fresh = path.with_suffix(".new")
            fresh.write_text("".join(lines))
            fresh.replace(path)
            yield path, [process.pid for _, process in started]
        finally:
            for _, process in started:
                process.kill()
                process.communicate()


# ---- the client -----------------------------------------------------------------------------------------------------


class Run:
    """What the calls of one turn came to."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.latencies: list[float] = []

    async def call(self, client: tiedreq.Client, intended_at: float) -> None:
        """One call, which was to be made then."""
        self.calls += 1
        try:
            await client.call("work", WORK_SECONDS, policy=AT_ONCE, timeout=30)
        except tiedreq.CallError:
            self.errors += 1
        self.latencies.append(trio.current_time() - intended_at)

    def with_(self, other: Run) -> Run:
        """Both together."""
        both = Run()
        both.calls, both.errors = self.calls + other.calls, self.errors + other.errors
        both.latencies = self.latencies + other.latencies
        return both

    def quantile(self, share: float) -> float:
        """Milliseconds that so large a share of the calls took at most."""
        return 1000 * sorted(self.latencies)[min(int(share * len(self.latencies)), len(self.latencies) - 1)]


async def linked(client: tiedreq.Client, count: int) -> dict[str, dict[str, Any]]:
    """Wait until every replica answers, and where all links are there until all are; what they say then."""
    status: dict[str, dict[str, Any]] = {}
    with trio.move_on_after(MEASURED_SECONDS):
        while True:
            status = await client.replica_status(timeout=10)
            wanted = {name: 0 if it["mesh"]["links"] != "all" else count - 1 for name, it in status.items()}
            known = all(it["mesh"]["members"] == count for it in status.values())
            if len(status) == count and known and all(status[name]["mesh"]["up"] >= n for name, n in wanted.items()):
                break
            await trio.sleep(0.5)
    return status


async def all_status(client: tiedreq.Client, count: int) -> dict[str, dict[str, Any]]:
    """What all replicas say, as far as they do within a minute."""
    status: dict[str, dict[str, Any]] = {}
    with trio.move_on_after(MEASURED_SECONDS):
        while len(status) < count:
            status |= await client.replica_status(timeout=10)
    return status


async def at_rest(processes: list[psutil.Process]) -> dict[str, list[float]]:
    """What a mesh does in which nothing happens, once all its round trips are known."""
    await trio.sleep(LEARN_SECONDS)
    pids = [process.pid for process in processes]
    cpu, woken = cpu_seconds(pids), [process.num_ctx_switches().voluntary for process in processes]
    await trio.sleep(REST_SECONDS)
    woken = [process.num_ctx_switches().voluntary - was for process, was in zip(processes, woken, strict=True)]
    return {
        "at rest, times a second that a replica wakes": [count / REST_SECONDS for count in woken],
        "at rest, % of a core for all replicas": [100 * (cpu_seconds(pids) - cpu) / REST_SECONDS],
    }


async def drive(path: Path, pids: list[int], rate: float, seconds: float) -> dict[str, list[float]]:
    """Make calls at this rate, and look at the replicas at the end: figures by what they are."""
    halves, random = (Run(), Run()), Random(1)
    cpu, started = 0.0, [0]
    async with tiedreq.connect(path, timeout=START_SECONDS, observe=None) as client:
        await linked(client, len(pids))
        processes = [psutil.Process(pid) for pid in pids]
        rest = await at_rest(processes)
        for run in halves:
            before = cpu_seconds([*pids, os.getpid()])
            async with trio.open_nursery() as nursery:
                at = trio.current_time()
                until = at + seconds / 2
                while (at := at + random.expovariate(rate)) < until:
                    await trio.sleep_until(at)
                    nursery.start_soon(run.call, client, at)
            cpu += cpu_seconds([*pids, os.getpid()]) - before
            status = await all_status(client, len(pids))
            started.append(sum(it["started"] for it in status.values()))
    run = halves[0].with_(halves[1])
    if len(status) < len(pids) or run.calls < ENOUGH * rate * seconds:
        told = f"{run.calls} of {rate * seconds:.0f} calls were made, {len(status)} of {len(pids)} replicas answered"
        print(f"bench_mesh: this machine is too busy for times and counts: {told}", file=sys.stderr, flush=True)
    return {
        **rest,
        "memory of its own, MB": [process.memory_full_info().uss / 1e6 for process in processes],
        "resident memory, MB": [process.memory_info().rss / 1e6 for process in processes],
        "descriptors, files": [process.num_fds() for process in processes],
        "links, links": [it["mesh"]["up"] for it in status.values()],
        "links opened, links": [it["mesh"]["opened"] for it in status.values()],
        "calls, calls": [run.calls],
        "failed, calls": [run.errors],
        "p50, ms": [run.quantile(0.5)],
        "p99, ms": [run.quantile(0.99)],
        "executions per call in the first half, handlers": [started[1] / max(halves[0].calls, 1)],
        "executions per call in the second half, handlers": [(started[2] - started[1]) / max(halves[1].calls, 1)],
        "processor time of all replicas and the client, % of a core": [100 * cpu / seconds],
    }


def measure(options: argparse.Namespace) -> list[Row]:
    """The rows: of each replica the median, and how far they are apart."""
    rows = []
    for name in options.meshes or MESHES:
        with mesh(options.replicas, MESHES[name]) as (path, pids):
            figures = trio.run(drive, path, pids, options.rate, options.seconds)
        for figure, values in figures.items():
            what, _, unit = figure.partition(", ")
            rows.append(row(f"{name}: {what}", unit, values))
    return rows


def main() -> int:
    """Read the command line and run; the exit code."""
    if sys.argv[1:2] == ["--replica"]:
        trio.run(replica, sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return 0
    options = parser("bench_mesh", "Measure what each replica of a mesh holds in memory and descriptors.")
    options.add_argument("--replicas", type=whole, default=REPLICAS_DEFAULT, metavar="N", help=f"({REPLICAS_DEFAULT})")
    options.add_argument(
        "--rate", type=positive, default=RATE_DEFAULT, metavar="F", help=f"calls per second ({RATE_DEFAULT:g})"
    )
    options.add_argument(
        "--seconds", type=positive, default=SECONDS_DEFAULT, metavar="F", help="of calls for each mesh"
    )
    options.add_argument(
        "--mesh", dest="meshes", action="append", choices=MESHES, help="one of them alone; may be repeated (both)"
    )
    chosen = options.parse_args()
    rows = measure(chosen)
    show(f"{chosen.replicas} replicas, {chosen.rate:g} tied calls/s for {chosen.seconds:g} s", rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
