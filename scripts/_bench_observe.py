"""What observation costs: processor time per call with it and without it. See `scripts/bench_observe --help`.

Three clusters in one process, each with its client, over real sockets: one is observed as it is by default (rings,
counts, histograms, the lag of the loop), two are not at all. They take turns, in changing order, so that what disturbs
the machine disturbs all. The time is that of the whole process: client and replicas. Handlers do nothing, so a call is
as cheap as it gets and the share is as high as it gets, unless ``--work`` lets each compute for a while. How far the
ratio of the second cluster that is not observed is from 1 tells how much of the first one's is noise.
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
from typing import Any

import trio
from _bench import Row, as_program, parser, row, show, whole, write

import tiedreq
from tiedreq.observe.options import Observe
from tiedreq.units import parse_duration

ROUNDS_DEFAULT, CALLS_DEFAULT, FLIGHT_DEFAULT = 150, 100, 32
PAYLOAD = bytes(128)
UNIT = "µs per call"
OBSERVED, NOT_OBSERVED, CONTROL = "observed", "not observed", "not observed either"


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
    """Two replicas and a client of theirs. ``pauses`` is what measures the loop, once for both replicas."""

    def __init__(self, client: tiedreq.Client, handles: list[tiedreq.ReplicaHandle]) -> None:
        self.client = client
        observers = [handle._server.observer for handle in handles]
        self.pauses = list(dict.fromkeys(observer.pauses for observer in observers if observer is not None))

    @contextmanager
    def having_its_turn(self) -> Iterator[tiedreq.Client]:
        """Its loop is measured, and that of nobody else: they are out of turn, and have let go of it."""
        for pauses in self.pauses:
            trio.lowlevel.add_instrument(pauses)
        try:
            yield self.client
        finally:
            for pauses in self.pauses:
                trio.lowlevel.remove_instrument(pauses)


@asynccontextmanager
async def cluster(observe: Observe | None, service: tiedreq.Service) -> AsyncIterator[Cluster]:
    """Start two replicas and connect a client."""
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        handles: list[tiedreq.ReplicaHandle] = []
        for name in ("a", "b"):
            handles.append(await nursery.start(partial(tiedreq.serve, service, name=name, observe=observe)))
        peers = {handle.name: handle.url for handle in handles}
        for handle in handles:
            handle.set_peers(peers)
        async with tiedreq.connect(list(peers.values()), observe=observe) as client:
            await trio.sleep(1.0)  # until the replicas have measured their links
            made = Cluster(client, handles)
            for pauses in made.pauses:
                trio.lowlevel.remove_instrument(pauses)
            yield made
            for pauses in made.pauses:
                trio.lowlevel.add_instrument(pauses)
        nursery.cancel_scope.cancel()


async def turn(client: tiedreq.Client, policy: tiedreq.Policy, calls: int, flight: int) -> float:
    """Microseconds of processor time per call."""
    numbers = iter(range(calls))

    async def worker() -> None:
        for _ in numbers:
            await client.request("echo", PAYLOAD, policy=policy)

    began = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(flight):
            nursery.start_soon(worker)
    return (time.process_time() - began) / calls * 1e6


async def measure(rounds: int, calls: int, flight: int, work: float) -> list[Row]:
    service = make_service(work)
    policies: dict[str, tiedreq.Policy] = {"plain": tiedreq.Plain(), "tied, sent at once": tiedreq.Tied(stagger=0.0)}
    values: dict[tuple[str, str], list[float]] = {}
    async with (
        cluster(None, service) as unobserved,
        cluster(Observe(), service) as observed,
        cluster(None, service) as control,
    ):
        clusters = [(NOT_OBSERVED, unobserved), (OBSERVED, observed), (CONTROL, control)]
        gc.freeze()
        for round_ in range(rounds + 1):
            for name, policy in policies.items():
                for kind, one in clusters[round_ % 3 :] + clusters[: round_ % 3]:
                    with one.having_its_turn() as client:
                        taken = await turn(client, policy, calls, flight)
                    if round_:  # the first one warms up
                        values.setdefault((name, kind), []).append(taken)
    rows: list[Row] = []
    for name in policies:
        peer = values[name, NOT_OBSERVED]
        rows.append(row(f"{name}, {NOT_OBSERVED}", UNIT, peer))
        for kind in (OBSERVED, CONTROL):
            rows.append(row(f"{name}, {kind}", UNIT, values[name, kind], peer=f"{name}, {NOT_OBSERVED}", peers=peer))
    return rows


def duration(text: str) -> float:
    """An option: a duration with its unit."""
    try:
        return parse_duration(text)
    except tiedreq.BadOption as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    options = parser("bench_observe", "Measure what observation costs: processor time per call with it and without.")
    options.add_argument("--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="turns (%(default)s)")
    options.add_argument("--calls", type=whole, default=CALLS_DEFAULT, metavar="N", help="in a turn (%(default)s)")
    options.add_argument("--in-flight", type=whole, default=FLIGHT_DEFAULT, metavar="N", help="(%(default)s)")
    options.add_argument("--work", type=duration, default=0.0, metavar="D", help="computed by each execution (none)")
    chosen = options.parse_args()
    logging.disable(logging.WARNING)
    rows = trio.run(measure, chosen.rounds, chosen.calls, chosen.in_flight, chosen.work)
    show("Processor time of client and replicas; medians over rounds", rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
