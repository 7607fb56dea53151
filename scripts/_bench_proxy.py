"""Ties through sidecars beside client-side hedging, and what a sidecar adds: see `scripts/bench_proxy --help`.

Four replicas of a web service that knows nothing of us, each a process of its own with a sidecar beside it, and a
front, all on this machine.

* What it adds: one request at a time, by turns to a random replica and through the front; the difference of the
  medians. ``--at-sidecar`` asks one of the sidecars, which is a front as well, too.
* Pauses: every replica is stopped for 200 ms every 5 s (SIGSTOP, SIGCONT), each at times of its own. Calls arrive at
  random times, whatever became of those before; a call's latency counts from its time of arrival. `direct` sends each
  to a random replica, `hedged` is `tiedreq.httpx.HedgedTransport` over the four, `sidecars` the front. They take turns,
  and have the same arrivals and the same work. A replica has so many places (`--slots`), whoever asks.

`executions` are handlers that began, per call: the work that hedging and ties cost.

``--beside DIR`` puts the sidecars and the front of another build of tiedreq beside the same replicas, and takes turns
with them: DIR holds the package ``tiedreq``, as an unpacked wheel or a checkout does.

Called by scripts/bench_proxy, inside the project's environment, in the checkout.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from random import Random

import httpx
import trio
from _bench import Row, as_program, cpu_seconds, installation, parser, positive, row, whole, write
from _bench_proxy_site import BESIDE, DIRECT, REPLICAS, SIDECARS, Plain, Site
from rich.console import Console
from rich.table import Table

from tiedreq.httpx import HedgedTransport
from tiedreq.proxy.upstream import UpstreamError

SERVER = "-m hypercorn _bench_proxy_app:app --workers 0 --log-level warning --bind 127.0.0.1:{port}"
APP = f"{shlex.quote(sys.executable)} {SERVER}"
PAUSE_SECONDS, PAUSE_EVERY = 0.2, 5.0
CALL_SECONDS = 10.0
TURN_REQUESTS, WARM_TURNS = 20, 10
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
HEDGED = "hedged"

Ask = Callable[[str], Awaitable[None]]


async def hedged(client: httpx.AsyncClient, path: str) -> None:
    """One request by the hedging transport. Raises ``httpx.HTTPError``."""
    (await client.get(f"http://service{path}")).raise_for_status()


# ---- what it adds ---------------------------------------------------------------------------------------------


async def added(site: Site, options: argparse.Namespace) -> list[Row]:
    """What one request through the front takes longer, and the processor time of front and sidecars.

    Many short turns, in each a request by each way in turn: to a replica, which is any of them as it is for the front,
    and to the front. `calm` are the tenth of the turns that were quickest: what the machine does for others lengthens
    all of them, but not alike.
    """
    ways = {name: Plain(ports) for name, ports in site.ways().items()}
    path = options.path.format(ms=options.fixed)
    meshes = {SIDECARS: site.mesh} | ({} if site.beside is None else {BESIDE: site.beside})
    turns: list[dict[str, float]] = []
    before: dict[str, float] = {}
    for number in range(-WARM_TURNS, options.turns):
        if number == 0:
            before = {name: cpu_seconds(mesh.pids) for name, mesh in meshes.items()}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURN_REQUESTS):
            for name, way in ways.items():
                began = time.perf_counter()
                await way.ask(path)
                taken[name].append(1000 * (time.perf_counter() - began))
        if number >= 0:
            turns.append({name: statistics.median(times) for name, times in taken.items()})
    calm = sorted(turns, key=lambda times: sum(times.values()))[: max(options.turns // 10, 1)]
    rows: list[Row] = []
    for what, some in (("", turns), ("calm, ", calm)):
        title = f"one at a time, {what}"
        rows += [row(f"{title}{name}: p50", "ms", [each[name] for each in some]) for name in ways]
        more = {name: [each[name] - each[DIRECT] for each in some] for name in ways if name != DIRECT}
        for name, values in more.items():
            peers = more[SIDECARS] if name != SIDECARS else None
            label = f"{title}added" if name == SIDECARS else f"{title}added, {name}"
            rows.append(row(f"{label}: p50", "ms", values, peer=SIDECARS, peers=peers))
    for name, mesh in meshes.items():
        requests = options.turns * TURN_REQUESTS * (2 if mesh.at_sidecar else 1)
        used = 1000 * (cpu_seconds(mesh.pids) - before[name]) / requests
        who = "front and sidecars" if name == SIDECARS else f"front and {name}"
        rows.append(row(f"one at a time, {who}: processor time", "ms per request", [used]))
    return rows


# ---- pauses ---------------------------------------------------------------------------------------------------


async def pause(group: int, random: Random) -> None:
    """Stop a replica now and then, until cancelled."""
    try:
        await trio.sleep(random.uniform(0, PAUSE_EVERY))
        while True:
            os.killpg(group, signal.SIGSTOP)
            await trio.sleep(PAUSE_SECONDS)
            os.killpg(group, signal.SIGCONT)
            await trio.sleep(PAUSE_EVERY * random.uniform(0.8, 1.2) - PAUSE_SECONDS)
    finally:
        os.killpg(group, signal.SIGCONT)


class Turn:
    """What became of the calls of one turn."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self.executions = 0.0

    def quantile(self, share: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def turn(ask: Ask, options: argparse.Namespace, seed: int) -> Turn:
    """So many seconds of calls at random times."""
    random, result = Random(seed), Turn()

    async def call(at: float, path: str) -> None:
        try:
            with trio.fail_after(CALL_SECONDS):
                await ask(path)
        except (UpstreamError, httpx.HTTPError, trio.TooSlowError) as error:
            result.errors.append(repr(error))
        result.latencies.append(trio.current_time() - at)

    async with trio.open_nursery() as nursery:
        at = trio.current_time()
        end = at + options.seconds
        while (at := at + random.expovariate(options.rate)) < end:
            milliseconds = options.mean * random.uniform(0.8, 1.2)
            await trio.sleep_until(at)
            nursery.start_soon(call, at, options.path.format(ms=f"{milliseconds:.2f}"))
    return result


async def paused(site: Site, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """All turns, after one of each that does not count."""
    direct, front = Plain(site.ports), Plain([site.front])
    hosts = [f"http://127.0.0.1:{port}" for port in site.ports]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    transport = HedgedTransport(httpx.AsyncHTTPTransport(limits=limits), hosts={"http://service": hosts})
    results: dict[str, list[Turn]] = {name: [] for name in options.subjects}
    async with httpx.AsyncClient(transport=transport, timeout=CALL_SECONDS) as client:
        asks: dict[str, Ask] = {DIRECT: direct.ask, SIDECARS: front.ask, HEDGED: partial(hedged, client)}
        async with trio.open_nursery() as nursery:
            for number, group in enumerate(site.groups):
                nursery.start_soon(pause, group, Random(number))
            for round_ in range(options.rounds + 1):
                for name in options.subjects:
                    before = await direct.executions() if options.counts else 0
                    result = await turn(asks[name], options, round_)
                    if options.counts:
                        result.executions = (await direct.executions() - before) / max(len(result.latencies), 1)
                    if round_:
                        results[name].append(result)
            nursery.cancel_scope.cancel()
    return results


def rows_of(results: dict[str, list[Turn]]) -> Iterator[Row]:
    """All rows of the pauses, compared with hedging."""
    for name, turns in results.items():
        for what, share in QUANTILES.items():
            values = [each.quantile(share) for each in turns]
            peers = [each.quantile(share) for each in results[HEDGED]] if HEDGED in results else None
            yield row(f"pauses, {name}: {what}", "ms", values, peer=HEDGED, peers=peers)
        yield row(f"pauses, {name}: executions", "per call", [each.executions for each in turns])
        yield row(f"pauses, {name}: errors", "calls", [float(len(each.errors)) for each in turns])


def show_all(rows: list[Row], results: dict[str, list[Turn]], options: argparse.Namespace) -> None:
    """Two tables."""
    console = Console()
    for each in rows:
        if not each["name"].startswith("pauses"):
            told = "" if each["ratio"] is None else f", {each['ratio']:.3f} x {each['ratio_to']}"
            console.print(f"{each['name']}: {each['value']:.3f} {each['unit']} (spread {each['spread']:.3f}){told}")
    calls = sum(len(each.latencies) for turns in results.values() for each in turns) // max(len(results), 1)
    table = Table(
        title=f"{REPLICAS} replicas, each stopped {PAUSE_SECONDS:g} s every {PAUSE_EVERY:g} s; {calls:,} calls each at "
        f"{options.rate:g}/s of {options.mean:g} ms, {options.slots} places; medians of {options.rounds} rounds, ms"
    )
    for column in ("", *QUANTILES, "p99.9 to hedged", "executions", "errors"):
        table.add_column(column, justify="left" if not column else "right")
    named = {each["name"]: each for each in rows}
    for name in results:
        cells = [f"{named[f'pauses, {name}: {what}']['value']:.1f}" for what in QUANTILES]
        ratio = named[f"pauses, {name}: p99.9"]["ratio"]
        executions, errors = (named[f"pauses, {name}: {what}"]["value"] for what in ("executions", "errors"))
        table.add_row(name, *cells, "" if ratio is None else f"{ratio:.2f}", f"{executions:.3f}", f"{errors:g}")
    if results:
        console.print(table)
    for name, turns in results.items():
        for error in [error for each in turns for error in each.errors][:3]:
            console.print(f"{name}: {error}")


# ---- the command line -----------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """The options."""
    options = parser(
        "bench_proxy", "Ties through sidecars beside client-side hedging, on replicas that stop now and then."
    )
    options.add_argument("--rounds", type=whole, default=3, metavar="N", help="turns of each (3)")
    options.add_argument("--seconds", type=positive, default=60.0, metavar="S", help="length of a turn (60)")
    options.add_argument("--rate", type=positive, default=60.0, metavar="N", help="calls a second (60)")
    options.add_argument("--mean", type=positive, default=40.0, metavar="MS", help="work of a call, ± 20 %% (40)")
    options.add_argument("--slots", type=whole, default=1, metavar="N", help="places of a replica (1)")
    options.add_argument("--turns", type=whole, default=100, metavar="N", help="of requests one at a time (100)")
    options.add_argument("--fixed", type=positive, default=1.0, metavar="MS", help="their work (1)")
    options.add_argument("--command", metavar="TEXT", help="another service: a command with {port} in it")
    options.add_argument("--path", default="/work?ms={ms}", help="its path, with {ms} in it (/work?ms={ms})")
    options.add_argument("--at-sidecar", action="store_true", help="one at a time to a sidecar that is a front, too")
    options.add_argument(
        "--beside", type=installation, metavar="DIR", help="one at a time through the tiedreq in DIR, too"
    )
    options.add_argument("--only", metavar="NAME[,NAME…]", help=f"of {DIRECT}, {HEDGED}, {SIDECARS}; or none")
    options.add_argument("--quick", action="store_true", help="one round of 20 s: to see that it works")
    chosen = options.parse_args()
    chosen.counts = chosen.command is None
    chosen.command = chosen.command or APP
    names = [DIRECT, HEDGED, SIDECARS] if chosen.only is None else chosen.only.split(",")
    chosen.subjects = [] if names == ["none"] else names
    for name in chosen.subjects:
        if name not in (DIRECT, HEDGED, SIDECARS):
            options.error(f"argument --only: {name!r} is not one of {DIRECT}, {HEDGED}, {SIDECARS}")
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.turns = 1, 20.0, 20
    return chosen


async def run(site: Site, options: argparse.Namespace) -> tuple[list[Row], dict[str, list[Turn]]]:
    """Everything."""
    await site.ready(options.path.format(ms=1))
    rows = await added(site, options)
    results = await paused(site, options) if options.subjects else {}
    return [*rows, *rows_of(results)], results


def main() -> int:
    """Run the benchmark; the exit code."""
    options = arguments()
    with ExitStack() as stack:
        rows, results = trio.run(run, Site(options, stack), options)
    show_all(rows, results, options)
    write(options.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
