"""What observation costs per call, and which part of it how much. See `scripts/bench_observe --help`.

Two replicas and a client in one process, over real sockets, of which by turns is observed: nothing, twice; only the
rings that ``tiedreq explain`` reads; only the counts and histograms of the metrics; both, as it is by default; only the
pauses of the event loop; all of it, as it is while somebody looks. A turn takes a few hundredths of a second and their
order is drawn anew for each round, so that what disturbs the machine disturbs all. It is the same cluster in all turns:
two of them differ by more than is measured here, for each learns from its own times. The processor time is that of the
whole process. Handlers do nothing, so a call is as cheap as it gets and the share as high as it gets, unless ``--work``
lets each compute for a while. How far the second ratio of nothing is from 1 tells how much of the others' is noise.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import Any

import trio
from _bench import Row, as_program, parser, row, whole, wholes, write
from rich.console import Console
from rich.table import Table

import tiedreq
from tiedreq.observe.client import ClientObserver
from tiedreq.observe.pauses import LoopPauses
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.units import parse_duration

ROUNDS_DEFAULT, CALLS_DEFAULT = 60, 300
PAYLOAD = bytes(128)
NOTHING, RINGS, METRICS, BOTH, PAUSES, WATCHED = "nothing", "rings", "metrics", "default", "pauses", "watched"
CONTROL = "nothing again"
PARTS = (NOTHING, RINGS, METRICS, BOTH, PAUSES, WATCHED, CONTROL)
POLICIES: dict[str, tiedreq.Policy] = {
    "plain": tiedreq.Plain(),
    "tied": tiedreq.Tied(),
    "tied, sent at once": tiedreq.Tied(stagger=0.0),
}


def make_service(work: float = 0.0) -> tiedreq.Service:
    """``echo`` computes for ``work`` seconds of processor time: so much work, found out once, not so long."""
    service, data = tiedreq.Service("bench"), bytes(1_000_000)
    began = time.process_time()
    for _ in range(20):
        zlib.crc32(data)
    size = int(len(data) * 20 * work / (time.process_time() - began)) if work else 0

    @service.method(idempotent=True)
    async def echo(ctx: tiedreq.Context, args: Any) -> Any:
        for left in range(size, 0, -len(data)):
            zlib.crc32(data[:left] if left < len(data) else data)
        return args

    return service


class Cluster:
    """Two replicas and a client of theirs. What is observed of them is switched between turns."""

    def __init__(
        self,
        service: tiedreq.Service,
        client: tiedreq.Client,
        handles: list[tiedreq.ReplicaHandle],
        pauses: LoopPauses,
    ) -> None:
        self.client = client
        self._servers = [handle._server for handle in handles]
        self._pauses = pauses
        self._observers = {part: self._observed(part, service) for part in (RINGS, METRICS, BOTH, WATCHED)}

    def _observed(self, part: str, service: tiedreq.Service) -> tuple[ClientObserver, list[ReplicaObserver]]:
        replicas = [ReplicaObserver(server, service, cluster="bench") for server in self._servers]
        client = ClientObserver(self.client)
        observers: list[Any] = [client, *replicas]
        for observer in observers:
            observer.keeps, observer.counts = part != METRICS, part != RINGS
        return client, replicas

    def digest(self) -> None:
        """Keep and count what waits for that."""
        for observer in (self.client.observer, *(server.observer for server in self._servers)):
            if observer is not None:
                observer.digest()

    @contextmanager
    def observed(self, part: str) -> Iterator[None]:
        """For the length of a turn."""
        client, replicas = self._observers.get(part, (None, [None, None]))
        self.client.observer = client
        for server, observer in zip(self._servers, replicas, strict=True):
            server.observer = observer
            server.core.retired = None if observer is None else observer.retired
        try:
            if part in (PAUSES, WATCHED):
                self._pauses.view()
            yield
        finally:
            if part in (PAUSES, WATCHED):
                self._pauses._stop()


@asynccontextmanager
async def cluster(service: tiedreq.Service) -> AsyncIterator[Cluster]:
    """Start two replicas and connect a client."""
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        handles: list[tiedreq.ReplicaHandle] = []
        for name in ("a", "b"):
            handles.append(await nursery.start(partial(tiedreq.serve, service, name=name, observe=None)))
        peers = {handle.name: handle.url for handle in handles}
        for handle in handles:
            handle.set_peers(peers)
        async with tiedreq.connect(list(peers.values()), observe=None) as client:
            await trio.sleep(1.0)  # until the replicas have measured their links
            pauses = LoopPauses()
            nursery.start_soon(pauses.run)
            made = Cluster(service, client, handles, pauses)
            yield made
            client.observer = None
        nursery.cancel_scope.cancel()


async def turn(one: Cluster, policy: tiedreq.Policy, calls: int, flight: int) -> tuple[float, float]:
    """Microseconds per call: of processor time, and of time. What waits to be kept and counted is so within them."""
    numbers, client = iter(range(calls)), one.client

    async def worker() -> None:
        for _ in numbers:
            await client.request("echo", PAYLOAD, policy=policy)

    began, used = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(flight):
            nursery.start_soon(worker)
    one.digest()
    return (time.process_time() - used) / calls * 1e6, (time.perf_counter() - began) / calls * 1e6


Times = dict[tuple[str, str, str], list[float]]
"""Of each kind of call, each quantity and each part: one value for each round."""


async def measure(rounds: int, calls: int, flights: list[int], work: float) -> Times:
    service, random = make_service(work), Random(1)
    found: Times = {}
    async with cluster(service) as one:
        for round_ in range(rounds + 1):
            gc.freeze()  # what replicas remember of the turns so far is no part of the next ones
            for flight in flights:
                for name, policy in POLICIES.items():
                    for part in random.sample(PARTS, len(PARTS)):
                        count = calls if flight > 1 else max(1, calls // 5)
                        with one.observed(part):
                            used, took = await turn(one, policy, count, flight)
                        if round_:  # the first one warms up
                            kind = f"{name}, {flight} in flight"
                            found.setdefault((kind, "processor time", part), []).append(used)
                            found.setdefault((kind, "time", part), []).append(took)
    return found


def rows_of(found: Times) -> list[Row]:
    """Each part beside nothing at all."""
    rows: list[Row] = []
    for (kind, quantity, part), values in found.items():
        name, unit = f"{kind}, {quantity}: {part}", "µs per call"
        if part == NOTHING:
            rows.append(row(name, unit, values))
        else:
            peer, peers = f"{kind}, {quantity}: {NOTHING}", found[kind, quantity, NOTHING]
            rows.append(row(name, unit, values, peer=peer, peers=peers))
    return rows


def show(rows: list[Row]) -> None:
    """A line for each kind of call and quantity: what a call takes with nothing observed, and the ratios to that."""
    table = Table(title="Client and replicas, µs per call, and ratios; medians over rounds")
    for column in ("", *PARTS):
        table.add_column(column, justify="right" if column else "left")
    values = {each["name"]: each for each in rows}
    for name in dict.fromkeys(each["name"].rpartition(":")[0] for each in rows):
        ratios = [f"{values[f'{name}: {part}']['ratio']:.3f}" for part in PARTS[1:]]
        table.add_row(name, f"{values[f'{name}: {NOTHING}']['value']:,.5g}", *ratios)
    Console().print(table)


def duration(text: str) -> float:
    """An option: a duration with its unit."""
    try:
        return parse_duration(text)
    except tiedreq.BadOption as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    options = parser("bench_observe", "Measure what observation costs per call, and which part of it how much.")
    options.add_argument("--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="turns (%(default)s)")
    options.add_argument(
        "--calls", type=whole, default=CALLS_DEFAULT, metavar="N", help="in a turn (%(default)s; one at a time a fifth)"
    )
    options.add_argument(
        "--in-flight", type=wholes, default=[64, 1], metavar="N,N", help="calls at once (64,1: one after another)"
    )
    options.add_argument("--work", type=duration, default=0.0, metavar="D", help="computed by each execution (none)")
    chosen = options.parse_args()
    logging.disable(logging.WARNING)
    rows = rows_of(trio.run(measure, chosen.rounds, chosen.calls, chosen.in_flight, chosen.work))
    show(rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
