"""Ties through sidecars beside client-side hedging, and what a sidecar adds: see `scripts/bench_proxy --help`.

Four replicas of a web service that knows nothing of us, each a process of its own with a sidecar beside it, and a
front, all on this machine.

* What it adds: one request at a time, by turns to a random replica and through the front; the difference of the
  medians.
* Pauses: every replica is stopped for 200 ms every 5 s (SIGSTOP, SIGCONT), each at times of its own. Calls arrive at
  random times, whatever became of those before; a call's latency counts from its time of arrival. `direct` sends each
  to a random replica, `hedged` is `tiedreq.httpx.HedgedTransport` over the four, `sidecars` the front. They take turns,
  and have the same arrivals and the same work. A replica has so many places (`--slots`), whoever asks.

`executions` are handlers that began, per call: the work that hedging and ties cost.

Called by scripts/bench_proxy, inside the project's environment, in the checkout.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import httpx
import trio
from _bench import Row, as_program, cpu_seconds, parser, positive, row, whole, write
from rich.console import Console
from rich.table import Table

from tiedreq.httpx import HedgedTransport
from tiedreq.proxy.upstream import HttpClient, UpstreamError, dial_tcp

SCRIPTS = Path(__file__).resolve().parent
SERVER = "-m hypercorn _bench_proxy_app:app --workers 0 --log-level warning --bind 127.0.0.1:{port}"
APP = f"{shlex.quote(sys.executable)} {SERVER}"
REPLICAS = 4
PAUSE_SECONDS, PAUSE_EVERY = 0.2, 5.0
START_SECONDS = 60.0
CALL_SECONDS = 10.0
TURN_REQUESTS, WARM_TURNS = 20, 10
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
HEDGED, SIDECARS, DIRECT = "hedged", "sidecars", "direct"

Ask = Callable[[str], Awaitable[None]]


# ---- processes ------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def process(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block."""
    child = subprocess.Popen(
        command, cwd=SCRIPTS, env=os.environ | environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield child
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            os.killpg(child.pid, number)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(ports: list[int]) -> None:
    """Wait until something listens at each port. Raises ``TimeoutError``."""
    limit = time.monotonic() + START_SECONDS
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                if time.monotonic() > limit:
                    raise TimeoutError(f"nothing listens at port {port} after {START_SECONDS:g} s") from None
                time.sleep(0.1)


class Site:
    """The replicas' processes and ports, and the front's port."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        ports = free_ports(2 * REPLICAS + 1)
        self.ports, mesh, self.front = ports[:REPLICAS], ports[REPLICAS:-1], ports[-1]
        self.groups: list[int] = []
        self.ours: list[int] = []
        for port in self.ports:
            command = shlex.split(options.command.format(port=port))
            self.groups.append(stack.enter_context(process(command, SLOTS=str(options.slots))).pid)
        wait_for(self.ports)
        tiedreq = [sys.executable, "-m", "tiedreq"]
        quiet = ["--log-level", "error"]
        peers = ",".join(f"r{number}=ws://127.0.0.1:{port}" for number, port in enumerate(mesh))
        for number, (port, upstream) in enumerate(zip(mesh, self.ports, strict=True)):
            where = ["--upstream", f"http://127.0.0.1:{upstream}", "--listen", f"127.0.0.1:{port}", "--peers", peers]
            sidecar = ["--name", f"r{number}", "--slots", str(options.slots)]
            self.ours.append(stack.enter_context(process([*tiedreq, "proxy", *where, *sidecar, *quiet])).pid)
        wait_for(mesh)
        replicas = ",".join(f"ws://127.0.0.1:{port}" for port in mesh)
        front = ["front", "--listen", f"127.0.0.1:{self.front}", "--replicas", replicas]
        self.ours.append(stack.enter_context(process([*tiedreq, *front, *quiet])).pid)
        wait_for([self.front])


# ---- who asks -------------------------------------------------------------------------------------------------


class Plain:
    """Requests to ports of this host, one chosen at random for each."""

    def __init__(self, ports: list[int]) -> None:
        self._host = [(b"host", b"127.0.0.1")]
        self._clients = [HttpClient(dial_tcp("127.0.0.1", port, 5.0), idle_max=64) for port in ports]
        self._random = Random(1)

    async def ask(self, path: str) -> None:
        """Make one request. Raises ``UpstreamError``."""
        await self.text(self._random.choice(self._clients), path)

    async def ready(self, path: str) -> None:
        """Wait until a request is answered."""
        with trio.fail_after(START_SECONDS):
            while True:
                try:
                    return await self.ask(path)
                except UpstreamError:
                    await trio.sleep(0.2)

    async def text(self, client: HttpClient, path: str) -> bytes:
        """The body of an answer. Raises ``UpstreamError`` for any status but 200."""
        response = await client.send(b"GET", path.encode(), self._host, b"", repeat=True)
        try:
            body = b""
            while part := await response.receive():
                body += part
        finally:
            await response.aclose()
        if response.status != 200:
            raise UpstreamError(f"status {response.status}: {body!r}")
        return body

    async def executions(self) -> int:
        """How many handlers have begun at all of them, where they tell."""
        return sum([int(await self.text(client, "/count")) for client in self._clients])


async def hedged(client: httpx.AsyncClient, path: str) -> None:
    """One request by the hedging transport. Raises ``httpx.HTTPError``."""
    (await client.get(f"http://service{path}")).raise_for_status()


# ---- what it adds ---------------------------------------------------------------------------------------------


async def added(site: Site, options: argparse.Namespace) -> list[Row]:
    """What one request through the front takes longer, and the processor time of front and sidecars.

    Many short turns, in each a request to either by turns: to a replica, which is any of them as it is for the front,
    and to the front. `calm` are the tenth of the turns that were quickest: what the machine does for others lengthens
    both, but not alike.
    """
    direct, sidecars = Plain(site.ports), Plain([site.front])
    path = options.path.format(ms=options.fixed)
    turns: list[tuple[float, float]] = []
    before = 0.0
    for number in range(-WARM_TURNS, options.turns):
        if number == 0:
            before = cpu_seconds(site.ours)
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURN_REQUESTS):
            for plain, times in zip((direct, sidecars), taken, strict=True):
                began = time.perf_counter()
                await plain.ask(path)
                times.append(1000 * (time.perf_counter() - began))
        if number >= 0:
            turns.append((statistics.median(taken[0]), statistics.median(taken[1])))
    used = 1000 * (cpu_seconds(site.ours) - before) / (options.turns * TURN_REQUESTS)
    calm = sorted(turns, key=sum)[: max(options.turns // 10, 1)]
    rows = []
    for name, some in (("", turns), ("calm, ", calm)):
        ends = list(zip(*some, strict=True))
        rows += [row(f"one at a time, {name}{who}: p50", "ms", ends[at]) for at, who in enumerate((DIRECT, SIDECARS))]
        rows.append(row(f"one at a time, {name}added: p50", "ms", [through - straight for straight, through in some]))
    return [*rows, row("one at a time, front and sidecars: processor time", "ms per request", [used])]


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
            console.print(f"{each['name']}: {each['value']:.3f} {each['unit']} (spread {each['spread']:.3f})")
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
    await Plain([site.front]).ready(options.path.format(ms=1))
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
