"""What a simulated call costs as replicas grow in number at equal load of each: ``scripts/bench_sim --replicas``.

Each size has a process to itself. It sets its world up, makes few calls for ``LEARN`` virtual seconds, in which the
client learns when backups are worth sending, then the full load for ``WARMUP``, in which whatever ages or fills has
done so, and then ``calls`` calls in ``ROUNDS`` parts; of each part the processor time per call is taken. What ages is
shortened, for all sizes alike (``LIMITS``): a replica would else remember five seconds of markers, which are five
million calls at a thousand replicas and fifty thousand at ten, and what is compared must be the same. The sizes run one
after the other.

Time alone would not tell what the program does more of from what the machine does more slowly: a thousand replicas do
not fit into the caches of a processor. So at last ``COUNTED`` calls run under a profiler, which counts the functions
called.
"""

from __future__ import annotations

import cProfile
import gc
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
    """What one size came to. Seconds of processor time; memory of the process in bytes, before and after the calls."""

    replicas: int
    set_up: float
    per_call: list[float]
    functions: float
    before: int
    after: int
    failed: int


def measure(replicas: int, calls: int, policy: Policy, seed: int) -> Size:
    """Run one size in this process."""
    gc.set_threshold(100_000, 50, 100)  # nothing here makes cycles; what lives long is looked at seldom
    began = time.process_time()
    load = Workload(Exponential(SERVICE), stream(seed, "law"), linger=LINGER)
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
    world = World(options, load, seed=seed)
    world.start()
    set_up = time.process_time() - began
    rate = LOAD * replicas * SLOTS / SERVICE
    make = partial(load.make, policy=policy, timeout=10.0)
    clock, process = world.clock, psutil.Process()
    few = OpenLoop(world, make, world.random("first arrivals"), rate=min(rate, LEARN_RATE), calls=FOREVER)
    few.start()
    clock.run(clock.now + LEARN)
    few.stop()
    OpenLoop(world, make, world.random("arrivals"), rate=rate, calls=FOREVER).start()
    clock.run(clock.now + WARMUP)
    before = process.memory_info().rss
    per_call = []
    for _ in range(ROUNDS):
        answered, began = load.counts.answered, time.process_time()
        clock.run(clock.now + calls / ROUNDS / rate)
        per_call.append((time.process_time() - began) / max(1, load.counts.answered - answered))
    after = process.memory_info().rss
    functions = _functions(world, load, COUNTED / rate)
    return Size(replicas, set_up, per_call, functions, before, after, load.counts.failed)


def _functions(world: World, load: Workload, seconds: float) -> float:
    """How many functions are called for a call that is answered, over so many virtual seconds."""
    profile, answered = cProfile.Profile(), load.counts.answered
    profile.enable()
    world.clock.run(world.clock.now + seconds)
    profile.disable()
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]  # which typeshed leaves out
    return total / max(1, load.counts.answered - answered)


def _child(replicas: int, calls: int, policy: Policy, seed: int, answer: Connection) -> None:
    answer.send(measure(replicas, calls, policy, seed))


def measure_apart(replicas: int, calls: int, seed: int) -> Size:
    """Run one size in a process of its own. Raises ``SystemExit`` when that fails, or a call does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(replicas, calls, Tied(), seed, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        size: Size = ours.recv()
    except EOFError:
        raise SystemExit(f"{replicas} replicas: the process ended early") from None
    process.join()
    if size.failed:
        raise SystemExit(f"{replicas} replicas: {size.failed} calls failed")
    return size


def rows_of(sizes: list[Size]) -> list[Row]:
    """Processor time, set-up and memory of each size, in comparison with the first."""
    rows = []
    first = sizes[0]
    for size in sizes:
        name, peer = f"{size.replicas} replicas", f"{first.replicas} replicas"
        micro = [1e6 * seconds for seconds in size.per_call]
        base = [1e6 * seconds for seconds in first.per_call]
        rows.append(row(f"{name}, a call", "us", micro, peer=peer, peers=base))
        counted = [size.functions]
        rows.append(row(f"{name}, functions called for it", "", counted, peer=peer, peers=[first.functions]))
        rows.append(row(f"{name}, set-up of a replica", "ms", [1e3 * size.set_up / size.replicas]))
        rows.append(row(f"{name}, memory", "MiB", [size.after / MIB]))
        rows.append(row(f"{name}, memory added by the calls", "MiB", [(size.after - size.before) / MIB]))
    return rows
