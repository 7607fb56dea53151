"""``python -m cluster.streams``: tied streams on live replicas, next to hedged and plain ones in the same run.

Replicas are processes on this host, started by ``cluster.up``; each policy has a client of its own, and they take
turns, a block of calls each, so that what disturbs the machine disturbs them all. Two scenarios:

* ``cold-cache``: no queue. The time to the first item is 15 ms, and 200 ms in one of five executions: a model with its
  prompt in a cache, or not.
* ``busy-models``: few slots and a queue in front of each; the slots are busy with whole streams, and every replica
  stops now and then for 200 ms, as a garbage collection or a noisy neighbour does (it is stopped by a signal).

Latency is that of the first item with content, from the intended time of the call.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TextIO

import click
import trio
from rich.console import Console
from rich.table import Table

import tiedreq
from cluster.compare.document import json_target, write_json
from cluster.compare.interrupted import interruptible
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied
from tiedreq.laws import parse_law
from tiedreq.net.edge import no_groups

service = tiedreq.Service("models")
"""What the replicas serve: see ``generate``."""

READY_SECONDS = 60.0
ASKED_MAX = 100
HEADINGS = {
    "duplicate_execution_rate": "duplicates",
    "executions_per_call": "executions",
    "extra_busy_ratio": "busy",
}
_draws = Random()


@service.stream(idempotent=True)
async def generate(ctx: tiedreq.Context, args: Any) -> AsyncIterator[str]:
    """``items`` tokens, ``every`` seconds apart; the time to the first is drawn anew from the law ``first``."""
    yield ""  # the connection is there: not content
    await trio.sleep(parse_law(args["first"]).sample(_draws))
    for number in range(args["items"]):
        if number:
            await trio.sleep(args["every"])
        yield f"token {number} "


@dataclass(frozen=True, slots=True)
class Scenario:
    """Replicas, slots, what a stream takes, and how calls come: ``workers`` in a closed loop, or ``rate`` per second.

    ``pauses`` is the mean interval in seconds at which each replica stops for ``PAUSE_SECONDS``; 0 for never.
    """

    name: str
    replicas: int
    slots: int
    first: str
    items: int
    every: float
    workers: int = 0
    rate: float = 0.0
    pauses: float = 0.0
    budget: float = 0.05


PAUSE_SECONDS = 0.2
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "cold-cache",
            replicas=4,
            slots=64,
            first="mix(0.8:lognormal(mean=15ms,sd=3ms),0.2:lognormal(mean=200ms,sd=25ms))",
            items=3,
            every=0.001,
            workers=8,
            budget=0.2,
        ),
        Scenario(
            "busy-models",
            replicas=4,
            slots=2,
            first="exp(40ms)",
            items=3,
            every=0.003,
            rate=80.0,
            pauses=5.0,
        ),
    )
}


def policies(budget: float) -> dict[str, Policy]:
    """The policies that are compared. The backups' delay is learned."""
    return {
        "plain": Plain(),
        "hedged": Hedged(Backup(since="send", budget=budget)),
        "tied": Tied(backup=Backup(budget=budget)),
    }


@dataclass(slots=True)
class Turn:
    """What one policy saw, over all its blocks. Latencies in seconds."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    calls: int = 0
    errors: int = 0
    items: int = 0
    doubled: int = 0
    started: float = 0.0
    busy: float = 0.0
    told: str = ""
    """The first error in words."""


class Bench:
    """Live replicas, and the clients that call them in turn."""

    def __init__(self, scenario: Scenario, cluster: dict[str, Any], seed: int) -> None:
        self.scenario = scenario
        self.replicas: dict[str, int] = {replica["name"]: replica["pid"] for replica in cluster["replicas"]}
        self.turns: dict[str, Turn] = {}
        self._arrivals = Random(f"{seed}/arrivals")
        self._pauses = Random(f"{seed}/pauses")

    async def counters(self, client: tiedreq.Client) -> tuple[float, float]:
        """Handlers started and busy seconds, over all replicas; a replica that stands still is asked again."""
        for _ in range(ASKED_MAX):
            status = await client.replica_status()
            if len(status) == len(self.replicas):
                break
            await trio.sleep(0.05)
        return sum(each["started"] for each in status.values()), sum(each["busy_seconds"] for each in status.values())

    async def block(self, name: str, client: tiedreq.Client, calls: int, *, measured: bool) -> None:
        """A block of calls with one policy, until all have ended."""
        turn, scenario = self.turns.setdefault(name, Turn()) if measured else Turn(), self.scenario
        before = await self.counters(client)
        async with trio.open_nursery() as nursery:
            if scenario.workers:
                left = iter(range(calls))
                for _ in range(scenario.workers):
                    nursery.start_soon(self._worker, client, turn, left)
            else:
                at = trio.current_time()
                for _ in range(calls):
                    at += self._arrivals.expovariate(scenario.rate)
                    await trio.sleep_until(at)
                    nursery.start_soon(self._call, client, turn, at)
        await trio.sleep(0.3)  # losers have ended, too
        after = await self.counters(client)
        turn.started += after[0] - before[0]
        turn.busy += after[1] - before[1]

    async def _worker(self, client: tiedreq.Client, turn: Turn, left: Iterator[int]) -> None:
        for _ in left:
            await self._call(client, turn, trio.current_time())

    async def _call(self, client: tiedreq.Client, turn: Turn, intended: float) -> None:
        scenario = self.scenario
        late = trio.current_time() - intended
        args = {"first": scenario.first, "items": scenario.items, "every": scenario.every}
        turn.calls += 1
        try:
            async with client.stream("generate", args, timeout=30.0) as stream:
                async for _ in stream:
                    turn.items += 1
            turn.first.append(late + (stream.first_item or 0.0))
            turn.whole.append(trio.current_time() - intended)
            turn.doubled += sum(attempt.started is not None for attempt in stream.attempts) > 1
        except tiedreq.CallError as error:
            turn.errors += 1
            turn.told = turn.told or str(error)

    async def pause(self, name: str) -> None:
        """Stop a replica's process now and then, until cancelled."""
        pid = self.replicas[name]
        try:
            while True:
                await trio.sleep(self._pauses.expovariate(1 / self.scenario.pauses))
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep(PAUSE_SECONDS)
                os.kill(pid, signal.SIGCONT)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def run(self, state: Path, calls: int, blocks: int) -> None:
        """All policies in turn, ``blocks`` times, after one block each that is not measured."""
        async with trio.open_nursery() as nursery:
            if self.scenario.pauses:
                for name in self.replicas:
                    nursery.start_soon(self.pause, name)
            await self._turns(state, calls, blocks)
            nursery.cancel_scope.cancel()

    async def _turns(self, state: Path, calls: int, blocks: int) -> None:
        block = max(1, calls // blocks)
        clients: dict[str, tiedreq.Client] = {}
        async with trio.open_nursery() as nursery:

            async def hold(name: str, policy: Policy, *, task_status: trio.TaskStatus[None]) -> None:
                async with tiedreq.connect(str(state / "cluster.json"), policy=policy) as client:
                    clients[name] = client
                    task_status.started()
                    await trio.sleep_forever()

            for name, policy in policies(self.scenario.budget).items():
                await nursery.start(hold, name, policy)
            for number in range(blocks + 1):
                for name, client in clients.items():
                    await self.block(name, client, block, measured=number > 0)
            nursery.cancel_scope.cancel()


def _quantile_ms(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 2) if ordered else None


def rows(scenario: Scenario, turns: dict[str, Turn]) -> list[dict[str, Any]]:
    """One row per policy, with the names of ``cluster.compare``."""
    plain = turns["plain"]
    found = []
    for name, turn in turns.items():
        calls = max(turn.calls, 1)
        quantiles = {
            f"first_item_p{label}_ms": _quantile_ms(turn.first, share)
            for label, share in (("50", 0.5), ("90", 0.9), ("99", 0.99), ("999", 0.999))
        }
        busy = turn.busy / calls
        found.append(
            {
                "world": "live",
                "scenario": scenario.name,
                "policy": name,
                "calls": turn.calls,
                "errors": turn.errors,
                "duplicate_execution_rate": round(turn.doubled / calls, 4),
                "executions_per_call": round(turn.started / calls, 4),
                **quantiles,
                "p99_ms": _quantile_ms(turn.whole, 0.99),
                "items": turn.items,
                "busy_ms_per_call": round(1000 * busy, 2),
                "extra_busy_ratio": round(busy / (plain.busy / max(plain.calls, 1)), 4) if plain.busy else None,
            }
        )
    return found


@contextmanager
def replicas_up(scenario: Scenario, state: Path) -> Iterator[dict[str, Any]]:
    """The scenario's replicas; yields the cluster file's content. Raises ``SystemExit`` when they don't come up."""
    command = [sys.executable, "-m", "cluster.up", "--app", "cluster.streams:service", "--no-dashboard", "--json"]
    command += ["--replicas", str(scenario.replicas), "--slots", str(scenario.slots), "--state-dir", str(state)]
    log = state / "launcher.log"
    with log.open("w") as errors:
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert launcher.stdout is not None
        if '"ready"' not in launcher.stdout.readline():
            raise SystemExit(f"the replicas did not come up: {log.read_text().strip()}")
        cluster: dict[str, Any] = json.loads((state / "cluster.json").read_text())
        yield cluster
    finally:
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.communicate(timeout=READY_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()


def show(scenario: Scenario, found: list[dict[str, Any]], turns: dict[str, Turn], seconds: float, file: TextIO) -> None:
    """The table, and the first error of each policy."""
    told = f"{scenario.name}: {scenario.replicas} replicas of {scenario.slots} slots, {seconds:.0f} s"
    table = Table(title=f"{told}; first item in ms")
    names = "duplicate_execution_rate executions_per_call extra_busy_ratio calls errors".split()
    columns = ["policy", names[0], names[1], *(f"first_item_p{label}_ms" for label in (50, 90, 99, 999)), *names[2:]]
    for column in columns:
        heading = HEADINGS.get(column, column.removeprefix("first_item_").removesuffix("_ms"))
        table.add_column(heading, justify="left" if column == "policy" else "right")
    for row in found:
        table.add_row(*(str(row[column]) for column in columns))
    console = Console(file=file, width=None if file.isatty() else 120)
    console.print(table)
    for name, turn in turns.items():
        if turn.told:
            console.print(f"the first error of {name}: {turn.told}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="SCENARIO", type=click.Choice(list(SCENARIOS)))
@click.option("--calls", default=2000, show_default=True, type=click.IntRange(1, 1_000_000), help="For each policy.")
@click.option("--blocks", default=5, show_default=True, type=click.IntRange(1, 1000), help="Turns of each policy.")
@click.option("--seed", default=1, show_default=True, help="Of arrivals and pauses.")
@click.option(
    "--json", "target", metavar="FILE", callback=json_target, help="Write the rows there; - is standard output."
)
def main(name: str, calls: int, blocks: int, seed: int, target: str | None) -> None:
    """Compare tied, hedged and plain streams on live replicas.

    SCENARIO is cold-cache or busy-models.
    """
    scenario, began = SCENARIOS[name], time.monotonic()
    with (
        interruptible(lambda: "before the end"),
        tempfile.TemporaryDirectory() as folder,
        replicas_up(scenario, Path(folder)) as cluster,
    ):
        bench = Bench(scenario, cluster, seed)
        with no_groups():
            trio.run(bench.run, Path(folder), calls, blocks)
    found = rows(scenario, bench.turns)
    show(scenario, found, bench.turns, time.monotonic() - began, sys.stderr if target == "-" else sys.stdout)
    if target is not None:
        options = {"calls": calls, "blocks": blocks, "seed": seed, **asdict(scenario)}
        document = {"schema": 1, "options": options, "rows": found}
        if target == "-":
            print(json.dumps(document))
        else:
            write_json(document, Path(target))


if __name__ == "__main__":
    main()
