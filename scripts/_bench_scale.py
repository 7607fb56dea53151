"""What a simulated call costs as replicas grow in number at equal load of each: ``scripts/bench_sim --replicas``.

Each size has a process to itself. It sets its world up, makes few calls for ``LEARN`` virtual seconds, in which the
client learns when backups are worth sending, then the full load for ``WARMUP``, in which whatever ages or fills has
done so, and then ``calls`` calls in ``ROUNDS`` parts; of each part the processor time per call is taken. What ages is
shortened, for all sizes alike (``LIMITS``): a replica would else remember five seconds of markers, which are five
million calls at a thousand replicas and fifty thousand at ten, and what is compared must be the same. The sizes run one
after the other.

Time alone would not tell what the program does more of from what the machine does more slowly: a thousand replicas do
not fit into the caches of a processor. So there is a control beside each size but the first: as many replicas, in
worlds of the first size that go on together and know nothing of each other. As many executions are under way in it, so
the processor has as far to go for each, but no mesh in it is larger. And at last ``COUNTED`` calls of each run under a
profiler, which counts the functions called.
"""

from __future__ import annotations

import cProfile
import multiprocessing
import pstats
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil
from _bench import Row, row

from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.policy import Policy, Tied
from tiedreq.laws import Exponential
from tiedreq.sim.clock import Clock
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.units import LatencyLaw, LatencySpec

SLOTS, SERVICE, LOAD, MESH, CLIENT = 16, 0.010, 0.6, 0.001, 0.0002
LIMITS = ReplicaLimits(tombstones_max=64, marker_age_max=0.05)
MANY = 100_000_000
FOREVER = 10**12
ROUNDS = 5
LEARN, LEARN_RATE = 2.0, 1_000.0
WARMUP = 0.1
LINGER = 0.05
COUNTED = 2_000
MIB = 1024 * 1024


class Size(NamedTuple):
    """What one size came to. Seconds of processor time; memory of the process in bytes, before and after the calls.

    ``replicas`` are in ``worlds`` of equal size.
    """

    replicas: int
    worlds: int
    set_up: float
    per_call: list[float]
    functions: float
    before: int
    after: int
    failed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.replicas} replicas" if self.worlds == 1 else f"{self.replicas} replicas in {self.worlds} worlds"


class Worlds:
    """Worlds with one clock between them, each with a load of its own."""

    def __init__(self, count: int, replicas: int, policy: Policy, seed: int) -> None:
        self.clock = Clock()
        self._rate = LOAD * replicas * SLOTS / SERVICE
        self._policy = policy
        network = NetworkOptions(mesh=LatencySpec(LatencyLaw(MESH)), client=LatencySpec(LatencyLaw(CLIENT)))
        options = WorldOptions(
            replicas=replicas,
            slots=SLOTS,
            network=network,
            picker="adaptive",
            learns=True,
            replica_limits=LIMITS,
            client_limits=ClientLimits(calls_in_flight_max=MANY),
        )
        self._all: list[tuple[World, Workload]] = []
        for index in range(count):
            own = f"{seed}/{index}"
            load = Workload(Exponential(SERVICE), stream(own, "law"), linger=LINGER)
            world = World(options, load, seed=own, clock=self.clock)
            world.start()
            self._all.append((world, load))

    @property
    def answered(self) -> int:
        """Calls so far."""
        return sum(load.counts.answered for _, load in self._all)

    @property
    def failed(self) -> int:
        """Calls so far that failed."""
        return sum(load.counts.failed for _, load in self._all)

    def _loops(self, purpose: str, rate_max: float) -> list[OpenLoop]:
        loops = []
        for world, load in self._all:
            make = partial(load.make, policy=self._policy, timeout=10.0)
            rate = min(self._rate, rate_max)
            loops.append(OpenLoop(world, make, world.random(purpose), rate=rate, calls=FOREVER))
            loops[-1].start()
        return loops

    def warm_up(self) -> None:
        """Learn, and fill everything; the load goes on afterwards."""
        few = self._loops("first arrivals", LEARN_RATE)
        self.clock.run(self.clock.now + LEARN)
        for loop in few:
            loop.stop()
        self._loops("arrivals", float("inf"))
        self.clock.run(self.clock.now + WARMUP)

    def run(self, calls: float) -> None:
        """Let time pass for so many calls."""
        self.clock.run(self.clock.now + calls / self._rate / len(self._all))


def measure(replicas: int, worlds: int, calls: int, policy: Policy, seed: int) -> Size:
    """Run one size in this process."""
    began = time.process_time()
    process = psutil.Process()
    with uncollected():
        all_ = Worlds(worlds, replicas // worlds, policy, seed)
        set_up = time.process_time() - began
        all_.warm_up()
        before = process.memory_info().rss
        per_call = []
        for _ in range(ROUNDS):
            answered, began = all_.answered, time.process_time()
            all_.run(calls / ROUNDS)
            per_call.append((time.process_time() - began) / max(1, all_.answered - answered))
        after = process.memory_info().rss
        functions = _functions(all_)
    return Size(replicas, worlds, set_up, per_call, functions, before, after, all_.failed)


def _functions(worlds: Worlds) -> float:
    """How many functions are called for a call that is answered."""
    profile, answered = cProfile.Profile(), worlds.answered
    profile.enable()
    worlds.run(COUNTED)
    profile.disable()
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]  # which typeshed leaves out
    return total / max(1, worlds.answered - answered)


def _child(replicas: int, worlds: int, calls: int, policy: Policy, seed: int, answer: Connection) -> None:
    answer.send(measure(replicas, worlds, calls, policy, seed))


def measure_apart(replicas: int, worlds: int, calls: int, seed: int) -> Size:
    """Run one size in a process of its own. Raises ``SystemExit`` when that fails, or a call does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(replicas, worlds, calls, Tied(), seed, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        size: Size = ours.recv()
    except EOFError:
        raise SystemExit(f"{replicas} replicas: the process ended early") from None
    process.join()
    if size.failed:
        raise SystemExit(f"{size.name}: {size.failed} calls failed")
    return size


def compare(sizes: list[int], calls: int, seed: int) -> list[Row]:
    """Run every size and its control, and make rows of them."""
    first = sizes[0]
    rows: list[Row] = []
    smallest: Size | None = None
    for replicas in sizes:
        size = measure_apart(replicas, 1, calls, seed)
        smallest = smallest or size
        rows += rows_of(size, smallest)
        if replicas > first and replicas % first == 0:
            control = measure_apart(replicas, replicas // first, calls, seed)
            rows += rows_of(control, smallest)
            rows.append(_cost(size, control))
    return rows


def rows_of(size: Size, first: Size) -> list[Row]:
    """Processor time, set-up and memory of a size, in comparison with the first."""
    return [
        _cost(size, first),
        row(f"{size.name}, functions called for it", "", [size.functions], peer=first.name, peers=[first.functions]),
        row(f"{size.name}, set-up of a replica", "ms", [1e3 * size.set_up / size.replicas]),
        row(f"{size.name}, memory", "MiB", [size.after / MIB]),
        row(f"{size.name}, memory added by the calls", "MiB", [(size.after - size.before) / MIB]),
    ]


def _cost(size: Size, peer: Size) -> Row:
    own, others = ([1e6 * seconds for seconds in each.per_call] for each in (size, peer))
    return row(f"{size.name}, a call", "us", own, peer=peer.name, peers=others)
