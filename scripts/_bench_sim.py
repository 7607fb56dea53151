"""How many calls a second of one core's time the simulator makes, nobody watching: see `scripts/bench_sim --help`.

The cell is that of the comparison: 10 replicas of 8 slots, exp(10ms), the better of two random replicas, 60 % load,
1 ms one way between replicas, none to clients: the second copy of a tie is seldom sent, unless it is sent at once. The
peer is a SimPy model such as one writes in an afternoon: the same arrivals, the same choice, the same slots and service
times; a call waits at two resources and leaves one when the other has let it in. There are no messages, latencies,
clients, deadlines or backups. Beside it a bare loop over a heap, without ties: what it reaches is what Python leaves to
win at most.

Each subject has a process to itself, as a run of a comparison has, and they take turns, after everything that ages
(markers, tombstones) has aged. Called by scripts/bench_sim, inside the project's environment, in the checkout.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Protocol

import _bench
import _bench_scale as scale
import psutil
import simpy
from _bench import as_program, positive, whole, wholes
from rich.console import Console
from rich.table import Table

import tiedreq
from tiedreq.core.policy import Backup, Plain, Policy, Tied
from tiedreq.laws import Exponential
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.units import LatencyLaw, LatencySpec

REPLICAS, SLOTS, SERVICE, LOAD, LATENCY = 10, 8, 0.010, 0.6, 0.001
RATE = LOAD * REPLICAS * SLOTS / SERVICE
TIMEOUT = 10.0
FOREVER = 10**12
PEER, BARE = "SimPy, tied, no latency", "bare queues"
ROUNDS_DEFAULT, SECONDS_DEFAULT, WARMUP_DEFAULT = 9, 1.0, 12.0
QUICK = 3, 0.3, 2.0
UNIT = "calls/s"
CALLS_DEFAULT = 1_000_000
ENDURE_PARTS = 20
MIB = 1024 * 1024


class Subject(Protocol):
    """Something that simulates calls."""

    def advance(self, seconds: float) -> int:
        """Let ``seconds`` of virtual time pass; returns how many calls had their outcome in it."""


class Simulated:
    """The simulator: production cores, messages, measured links."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self._load = Workload(Exponential(SERVICE), stream(seed, "law"))
        network = NetworkOptions(mesh=LatencySpec(LatencyLaw(LATENCY)))
        self._world = World(WorldOptions(replicas=REPLICAS, slots=SLOTS, network=network), self._load, seed=seed)
        self._world.start()
        make = partial(self._load.make, policy=policy, timeout=TIMEOUT)
        OpenLoop(self._world, make, self._world.random("arrivals"), rate=RATE, calls=FOREVER).start()

    def advance(self, seconds: float) -> int:
        counts, clock = self._load.counts, self._world.clock
        before = counts.answered
        clock.run(clock.now + seconds)
        if counts.failed:
            raise SystemExit(f"{counts.failed} calls failed: this is not the load that was to be measured")
        return counts.answered - before


class BareQueues:
    """Arrivals, queues and slots on a heap, nothing else."""

    def __init__(self, seed: int) -> None:
        self._rng = stream(seed, "bare")
        self._queues: list[deque[float]] = [deque() for _ in range(REPLICAS)]
        self._running = [0] * REPLICAS
        self._entries: list[tuple[float, int, int]] = [(0.0, 0, -1)]
        self._number = 0
        self._now = 0.0

    def advance(self, seconds: float) -> int:
        until = self._now + seconds
        entries, running, queues, rng = self._entries, self._running, self._queues, self._rng
        done = 0
        while entries[0][0] <= until:
            now, _, replica = heappop(entries)
            if replica < 0:
                self._push(now + rng.expovariate(RATE), -1)
                replica = self._choose(rng)
                if running[replica] < SLOTS:
                    running[replica] += 1
                    self._push(now + rng.expovariate(1 / SERVICE), replica)
                else:
                    queues[replica].append(now)
                continue
            done += 1
            if queues[replica]:
                queues[replica].popleft()
                self._push(now + rng.expovariate(1 / SERVICE), replica)
            else:
                running[replica] -= 1
        self._now = until
        return done

    def _choose(self, rng: Random) -> int:
        first, second = rng.sample(range(REPLICAS), 2)
        load = self._running[second] + len(self._queues[second])
        return second if load < self._running[first] + len(self._queues[first]) else first

    def _push(self, when: float, replica: int) -> None:
        self._number += 1
        heappush(self._entries, (when, self._number, replica))


class SimPyModel:
    """The peer: a call asks two replicas for a slot, and no longer asks the second one once it has the first."""

    def __init__(self, seed: int) -> None:
        self._rng = stream(seed, "simpy")
        self._environment = simpy.Environment()
        self._replicas = [simpy.Resource(self._environment, SLOTS) for _ in range(REPLICAS)]
        self._done = 0
        self._environment.process(self._arrivals())

    def advance(self, seconds: float) -> int:
        before = self._done
        self._environment.run(self._environment.now + seconds)
        return self._done - before

    def _arrivals(self) -> Generator[simpy.Event, None, None]:
        while True:
            yield self._environment.timeout(self._rng.expovariate(RATE))
            self._environment.process(self._call())

    def _call(self) -> Generator[simpy.Event, None, None]:
        first, second = self._rng.sample(self._replicas, 2)
        if second.count + len(second.queue) < first.count + len(first.queue):
            first, second = second, first
        asked = first.request(), second.request()
        yield asked[0] | asked[1]
        if asked[0].triggered:
            (winner, place), (loser, other) = (asked[0], first), (asked[1], second)
        else:
            (winner, place), (loser, other) = (asked[1], second), (asked[0], first)
        if loser.triggered:
            other.release(loser)
        else:
            loser.cancel()
        yield self._environment.timeout(self._rng.expovariate(1 / SERVICE))
        place.release(winner)
        self._done += 1


def take_turns(make: Callable[[], Subject], turns: Connection) -> None:
    """The process of one subject: asked for seconds of virtual time, it answers with its calls per second."""
    with uncollected():  # the peer doesn't make cycles either
        subject = make()
        while (seconds := turns.recv()) is not None:
            began = time.process_time()
            calls = subject.advance(seconds)
            turns.send(calls / (time.process_time() - began))


class Measured:
    """A subject in a process of its own, and its calls per second of processor time in each round."""

    def __init__(self, name: str, make: Callable[[], Subject]) -> None:
        self.name = name
        self.rates: list[float] = []
        context = multiprocessing.get_context("spawn")
        self._turns, theirs = context.Pipe()
        self._process = context.Process(target=take_turns, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def advance(self, seconds: float) -> float:
        """Take a turn; returns its rate."""
        self._turns.send(seconds)
        try:
            return float(self._turns.recv())
        except EOFError:
            raise SystemExit(f"{self.name}: its process ended early") from None

    def measure(self, seconds: float) -> None:
        """One round."""
        self.rates.append(self.advance(seconds))

    def end(self) -> None:
        """End its process."""
        self._turns.send(None)
        self._process.join()

    def row(self, peer: float) -> dict[str, str | float]:
        """What the contract of all bench scripts asks for; ``spread`` is from the slowest to the fastest round."""
        value = statistics.median(self.rates)
        return {
            "name": self.name,
            "value": round(value, 1),
            "unit": UNIT,
            "spread": round(max(self.rates) - min(self.rates), 1),
            "ratio_to": PEER,
            "ratio": round(value / peer, 5),
        }


def subjects(seed: int) -> list[Measured]:
    """Everything that is measured, the peer last."""
    policies: dict[str, Policy] = {
        "plain": Plain(),
        "tied": Tied(backup=None),
        "tied, learned backup": Tied(),
        "tied, backup": Tied(backup=Backup(after=0.030)),
        "tied, sent at once, backup": Tied(stagger=0.0, backup=Backup(after=0.030)),
    }
    simulated = [Measured(name, partial(Simulated, policy, seed)) for name, policy in policies.items()]
    return [*simulated, Measured(BARE, partial(BareQueues, seed)), Measured(PEER, partial(SimPyModel, seed))]


def endure(calls: int, seed: int, file: Path | None) -> int:
    """Simulate so many calls in this process, and look at its memory on the way."""
    process, rates, resident = psutil.Process(), [], []
    build = "compiled" if tiedreq.compiled else "pure Python"
    with uncollected():
        subject, done = Simulated(Tied(), seed), 0
        while done < calls:
            began, part = time.process_time(), 0
            while part < calls / ENDURE_PARTS and done + part < calls:
                part += subject.advance(1.0)
            rates.append(part / (time.process_time() - began))
            resident.append(process.memory_info().rss / MIB)
            done += part
            print(f"{done:>12,} calls {resident[-1]:8.1f} MiB {rates[-1]:10,.0f} {UNIT}", flush=True)
    first = f"memory after {1 / ENDURE_PARTS:.0%} of the calls"
    rows = [
        _bench.row(f"tied, learned backup, {build}", UNIT, rates),
        _bench.row(first, "MiB", resident[:1]),
        _bench.row("memory after each part from then on", "MiB", resident[1:]),
        _bench.row(f"memory after {done:,} calls", "MiB", resident[-1:], peer=first, peers=resident[:1]),
    ]
    _bench.show("Many calls in one process", rows)
    _bench.write(file, rows)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_sim",
        description="Measure how many calls are simulated in a second of one core's time, beside a SimPy model "
        "of the same replicas; with --replicas, what a call costs in worlds of several sizes at equal load; with "
        "--endure, what many calls leave in memory.",
    )
    parser.add_argument(
        "--replicas", type=wholes, metavar="N[,N…]", help="compare worlds of so many replicas instead: 10,100,1000"
    )
    parser.add_argument(
        "--calls", type=whole, default=CALLS_DEFAULT, metavar="N", help="of each of these worlds (%(default)s)"
    )
    parser.add_argument(
        "--endure", type=whole, metavar="N", help="simulate N calls in one process instead, and look at its memory"
    )
    parser.add_argument(
        "--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="how often each takes its turn (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS_DEFAULT, metavar="S", help="virtual seconds of a turn (%(default)s)"
    )
    parser.add_argument(
        "--warmup", type=positive, default=WARMUP_DEFAULT, metavar="S", help="virtual seconds before (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="three short rounds after a short warm-up")
    parser.add_argument("--seed", type=int, default=1, help="of all random numbers (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warmup = QUICK
    return options


def show(rows: list[dict[str, str | float]]) -> None:
    """The table."""
    table = Table(title="Calls simulated per second of one core's time; median over rounds")
    for column in ("", UNIT, "spread", f"ratio to {PEER}"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['value']:,.0f}", f"{row['spread']:,.0f}", f"{row['ratio']:.4f}")
    Console().print(table)


def compare_sizes(sizes: list[int], calls: int, seed: int, file: Path | None) -> int:
    """What a call costs as replicas grow in number."""
    rows = scale.compare(sizes, calls, seed)
    title = f"{calls:,} calls at {scale.LOAD:.0%} of each replica's {scale.SLOTS} slots"
    _bench.show(f"Processor time and memory of a simulated world; {title}", rows)
    _bench.write(file, rows)
    return 0


def main() -> int:
    options = arguments()
    if options.replicas:
        return compare_sizes(options.replicas, options.calls, options.seed, options.json)
    if options.endure:
        return endure(options.endure, options.seed, options.json)
    measured = subjects(options.seed)
    for each in measured:
        each.advance(options.warmup)
    for _ in range(options.rounds):
        for each in measured:
            each.measure(options.seconds)
    for each in measured:
        each.end()
    peer = statistics.median(measured[-1].rates)
    rows = [each.row(peer) for each in measured]
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    as_program(main)
