"""One run of one cell in virtual time, on the cores of production.

Calls come at the times of a Poisson process whatever the answers (or from workers in a closed loop). The warm-up is
run like the rest and not measured. After the last call the run goes on until every measured call has its outcome and
no execution is left, or for ``DRAIN_FACTOR`` times the measured window.

One caller makes all calls unless the cell says otherwise: the published experiments had one client each, and what a
client learns is then what one process of a user learns.

Common random numbers: arrivals, the service time of a call's first execution, pauses and latencies come from streams
of their own, the same for every policy with the same seed. Times of further executions come from another stream.

Not for load of searching runs (``tiedreq.sim.traffic``), and not for live replicas (``live``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from cluster.compare.arrivals import Recorded, Workers
from cluster.compare.cell import Cell
from cluster.compare.policies import policy_of
from cluster.compare.tally import SAMPLES_MAX, Tally
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.events import Answer, Fault
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.messages import Result, Submit
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import UNTIED, CopyKind, MethodInfo
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.handlers import Execution
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.workload import OpenLoop, Pauses
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.sim.zone_pauses import ZonePauses

__all__ = ["Bench", "Run", "run_cell", "world_options"]

ANSWER = Answer(b"")
METHOD = "work"
MANY = 100_000_000
TOMBSTONES = 10_000
DRAIN_FACTOR = 3.0
DRAIN_MIN = 30.0
DRAIN_STEP = 0.1
QUEUE_SAMPLES = 256
ENDLESS = 1 << 62

assert QUEUE_SAMPLES <= SAMPLES_MAX


class Request(bytes):
    """A call's payload, and what is remembered of the call: replicas of the simulation are handed the very object.

    So the memory of a call ends with its last copy, whatever became of the call itself. Times are seconds.
    """

    intended_at: float
    measured: bool
    service_time: float
    root: Root | None = None
    starts = 0
    tied_starts = 0
    completions = 0
    queue_wait = 0.0


class Root:
    """A root call of a fan-out: it has its answer when all of its calls have."""

    __slots__ = ("failed", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.failed = False


class Bench:
    """The handlers and users of a measured world: a ``tiedreq.sim.world.Load``. It fills a tally."""

    def __init__(self, cell: Cell, seed: int | str) -> None:
        self.cell = cell
        self.tally = Tally()
        self.open_calls = 0
        self.calls_left = ENDLESS if cell.calls is None else cell.calls
        self.outcome_listeners: list[Callable[[OpenCall], None]] = []
        self._first_times = stream(seed, "service")
        self._more_times = stream(seed, "service of further executions")
        self._slow = {f"r{slow.replica}": slow.factor for slow in cell.slow}
        self._policy = policy_of(cell)
        self._stoppable = cell.handlers == "cancellable"
        self._begin_at = 0.0
        self._window = (0.0, float("inf"))

    def begins(self, now: float, begin: float, end: float) -> None:
        """The run begins ``now``; calls made from ``begin`` up to ``end`` are measured (absolute times)."""
        self._begin_at = now
        self._window = begin, end

    def ends(self, now: float) -> None:
        """The measured window is closed now."""
        self._window = self._window[0], now

    # ---- users ------------------------------------------------------------------------------------------------

    def make_root(self, caller: CallerNode) -> None:
        """Make as many calls at once as the cell's fan-out says."""
        root = Root(self.cell.fan_out) if self.cell.fan_out > 1 else None
        for _ in range(self.cell.fan_out):
            self.make(caller, root)

    def make(self, caller: CallerNode, root: Root | None = None) -> OpenCall:
        """Make a call now."""
        now = caller.clock.now
        begin, end = self._window
        request = Request(b"")
        request.intended_at = now
        request.service_time = self.cell.service.sample(self._first_times)
        request.measured = measured = begin <= now < end and self.calls_left > 0
        if root is not None:
            request.root = root
        if measured:
            self.calls_left -= 1
            self.tally.calls += 1
            self.tally.offered += 1
        self.open_calls += 1
        return caller.call(
            METHOD,
            self._policy,
            self.cell.timeout,
            idempotent=True,
            stoppable=self._stoppable,
            payload=request,
            tag=request,
        )

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        """Every answer is taken; how long its execution had to wait is remembered."""
        call.tag.queue_wait = result.queue_wait
        return True

    def completed(self, caller: CallerNode, call: OpenCall, service_time: float) -> None:
        """A call has its outcome: count it."""
        self.open_calls -= 1
        request: Request = call.tag
        now = caller.clock.now
        if self._window[0] <= now < self._window[1]:
            self.tally.achieved += 1
        if request.measured:
            self._count(call, request, now, service_time)
        for listener in self.outcome_listeners:
            listener(call)

    def _count(self, call: OpenCall, request: Request, now: float, service_time: float) -> None:
        tally, outcome = self.tally, call.outcome
        assert outcome is not None
        copies = call.core.copies
        backups, tied = 0, False
        for copy, sent in copies.items():
            backups += sent.kind == CopyKind.BACKUP
            tied |= copy.rank != UNTIED
        tally.backups_sent += backups
        tally.ties += tied
        latency = now - request.intended_at
        if outcome.kind != OutcomeKind.ANSWERED:
            tally.errors += 1
        else:
            assert outcome.copy is not None
            winner = copies[outcome.copy]
            tally.answered += 1
            tally.backups_won += winner.kind == CopyKind.BACKUP
            tally.wasted_seconds -= service_time
            tally.queue_wait.add(request.queue_wait)
            tally.wait.add(winner.sent_at - request.intended_at + request.queue_wait)
        self._count_latency(request, latency, outcome.kind == OutcomeKind.ANSWERED)

    def _count_latency(self, request: Request, latency: float, answered: bool) -> None:
        tally, root = self.tally, request.root
        if root is None:
            if answered:
                tally.latency.add(latency)
            return
        root.left -= 1
        root.failed |= not answered
        if answered:
            tally.sub_latency.add(latency)
        if root.left == 0 and not root.failed:
            tally.roots += 1
            tally.latency.add(latency)

    # ---- handlers ---------------------------------------------------------------------------------------------

    def begin(self, node: ReplicaNode, submit: Submit) -> float:
        """A handler starts: its service time in seconds."""
        request: Request = submit.payload  # type: ignore[assignment]  # the network of a simulation hands objects over
        request.starts += 1
        if submit.copy.rank != UNTIED:
            request.tied_starts += 1
        if request.measured:
            tally = self.tally
            tally.executions += 1
            tally.duplicates += request.starts == 2
            tally.double_starts += request.tied_starts == 2 and submit.copy.rank != UNTIED
        cell = self.cell
        if request.starts == 1 or cell.intrinsic:
            seconds = request.service_time
        else:
            seconds = cell.service.sample(self._more_times)
        brown_out = cell.brown_out
        if brown_out is not None and brown_out.begin <= node.clock.now - self._begin_at < brown_out.end:
            seconds += brown_out.extra
        return seconds * self._slow[node.name] if node.name in self._slow else seconds

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        """A handler has come to its end."""
        self._occupied(node, execution)
        request: Request = execution.submit.payload  # type: ignore[assignment]  # as in ``begin``
        request.completions += 1
        if request.completions == 2 and request.measured:
            self.tally.completed_twice += 1
        return ANSWER

    def stopped(self, node: ReplicaNode, execution: Execution) -> None:
        """A handler was stopped."""
        self._occupied(node, execution)

    def _occupied(self, node: ReplicaNode, execution: Execution) -> None:
        tally, now, begun_at = self.tally, node.clock.now, execution.begun_at
        if execution.submit.payload.measured:  # type: ignore[attr-defined]  # as in ``begin``
            tally.busy_seconds += now - begun_at
            tally.wasted_seconds += now - begun_at
        begin, end = self._window
        inside = min(now, end) - max(begun_at, begin)
        if inside > 0:
            tally.window_busy_seconds += inside

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        """Handlers that can be stopped stop at once."""
        return 0.0

    def becomes_stoppable(self, node: ReplicaNode, submit: Submit) -> float | None:
        """Handlers in threads never say how they can be stopped."""
        return None


class Counters:
    """What the nodes count by themselves, read at both ends of the window: the difference is measured."""

    def __init__(self, world: World) -> None:
        self.messages = sum(direction.sent for direction in world.network.directions())
        stats = [replica.core.stats for replica in world.replicas.values()]
        self.notices = sum(one.notices for one in stats)
        self.late_notices = sum(one.late_notices for one in stats)
        self.denied = sum(caller.stats.backups_denied for caller in world.callers.values())


def run_cell(cell: Cell, seed: int) -> Tally:
    """Run a simulated cell with one seed. Raises ``BadOption`` when the policy is not known."""
    wall, cpu = time.perf_counter(), time.process_time()
    bench = Bench(cell, seed)
    world = World(world_options(cell), bench, seed=seed)
    world.start()
    with uncollected():
        Run(cell, seed, world, bench).run()
    tally = bench.tally
    tally.wall_seconds = time.perf_counter() - wall
    tally.cpu_seconds = time.process_time() - cpu
    return tally


def world_options(cell: Cell) -> WorldOptions:
    """The replicas, clients and links of a cell."""
    stoppable = cell.handlers == "cancellable"
    # An unstable run shows its queue, no refusals; many replicas remember ended copies for some seconds only.
    limits = {"queue_length_max": MANY, "copies_per_caller_max": MANY, "tombstones_max": TOMBSTONES}
    return WorldOptions(
        replicas=cell.replicas,
        slots=cell.slots,
        callers=cell.callers,
        methods=(HeldMethod(MethodInfo(METHOD, True, stoppable, 86_400.0), None),),
        network=NetworkOptions(mesh=cell.mesh_latency, client=cell.client_latency),
        replica_limits=ReplicaLimits(**limits),
        client_limits=ClientLimits(calls_in_flight_max=MANY),
        picker=cell.picker,
        learns=True,
        zones=cell.zones,
        zone_blind=cell.zone_blind,
    )


class Run:
    """Warm-up, window and drain of one world."""

    def __init__(self, cell: Cell, seed: int | str, world: World, bench: Bench) -> None:
        self._cell = cell
        self._world = world
        self._bench = bench
        self._arrivals: OpenLoop | Workers | Recorded
        if cell.workers:
            self._arrivals = Workers(world, bench, cell.workers)
        elif cell.recording is not None:
            self._arrivals = Recorded(world, bench, cell.recording)
        else:
            assert cell.rate is not None
            rng: Random = stream(seed, "arrivals")
            rate = cell.rate / cell.fan_out
            self._arrivals = OpenLoop(world, bench.make_root, rng, rate=rate, calls=ENDLESS)
        self._pauses: list[Pauses | ZonePauses] = [
            *(Pauses(world, spec, stream(seed, f"pauses {at}")) for at, spec in enumerate(cell.pauses)),
            *(ZonePauses(world, spec, stream(seed, f"zone pauses {at}")) for at, spec in enumerate(cell.zone_pauses)),
        ]

    def run(self) -> None:
        """Let it all happen, and complete the tally."""
        cell, world, bench = self._cell, self._world, self._bench
        clock, tally = world.clock, bench.tally
        begin = clock.now + cell.warmup
        end = float("inf") if cell.duration is None else begin + cell.duration
        bench.begins(clock.now, begin, end)
        for pauses in self._pauses:
            pauses.start()
        self._arrivals.start()
        clock.run(begin)
        before = Counters(world)
        self._window(begin, end)
        self._arrivals.stop()
        bench.ends(clock.now)
        after = Counters(world)
        tally.span = clock.now - begin
        tally.slot_seconds = tally.span * cell.capacity
        tally.messages = after.messages - before.messages
        tally.notices = after.notices - before.notices
        tally.late_notices = after.late_notices - before.late_notices
        tally.backups_denied = after.denied - before.denied
        self._notice_latency()
        self._drain()
        tally.unfinished = tally.calls - tally.answered - tally.errors

    def _window(self, begin: float, end: float) -> None:
        """Run the measured window, and sample the queues. With a number of calls its end is that of the last one."""
        clock, bench = self._world.clock, self._bench
        if self._cell.duration is not None:
            for index in range(1, QUEUE_SAMPLES + 1):
                clock.run(begin + (end - begin) * index / QUEUE_SAMPLES)
                self._sample(begin)
            return
        wanted = bench.calls_left
        step = self._step(wanted)
        while bench.calls_left > 0:
            clock.run(clock.now + step)
            self._sample(begin)
            if len(bench.tally.queue) == SAMPLES_MAX:
                bench.tally.queue = bench.tally.queue[1::2]
                step *= 2

    def _step(self, calls: int) -> float:
        """Seconds between samples of the queues when the window is a number of calls."""
        rate = self._cell.rate
        if rate is None:
            return 0.1
        return max(1e-6, calls / rate / QUEUE_SAMPLES)

    def _sample(self, begin: float) -> None:
        if not self._cell.workers:
            queued = sum(replica.core.queue_length for replica in self._world.replicas.values())
            self._bench.tally.queue.append((self._world.clock.now - begin, float(queued)))

    def _notice_latency(self) -> None:
        tally = self._bench.tally
        for caller in self._world.callers.values():
            for view in caller.table.views():
                for seconds in view.notice_latencies.values():
                    tally.notice_seconds += seconds
                    tally.notice_samples += 1

    def _drain(self) -> None:
        """Let what is under way end."""
        clock, world = self._world.clock, self._world
        limit = clock.now + max(DRAIN_MIN, DRAIN_FACTOR * self._bench.tally.span)
        while clock.now < limit and (self._bench.open_calls or any(r.executions for r in world.replicas.values())):
            clock.run(clock.now + DRAIN_STEP)
