"""One searching run: from a seed to a verdict.

First the safety phase: calls are made and faults strike. Then faults stop, everything is mended, no more calls are
made, and everything must drain, sooner than the deadline of many calls: an answer that depends on a deadline where a
message or a lost link should have told is a defect. What does not drain is told by ``World.pending``. Checkers watch
throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from tiedreq.core.call import CallCore, CallStats
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.replica_stats import ReplicaStats
from tiedreq.sim.checker import Violation
from tiedreq.sim.faults import Faults
from tiedreq.sim.options import SimOptions
from tiedreq.sim.traffic import Traffic
from tiedreq.sim.watch import Watch
from tiedreq.sim.workload import ClosedLoop, Counts, OpenLoop
from tiedreq.sim.world import World, stream

SAFETY_STEPS = 50
"""How often the safety phase is looked at to see whether all calls have been made."""
DRAIN_STEP = 0.25
DRAIN_MAX = 300.0
"""Seconds of virtual time that draining may take: less than some calls have, which must end by something else."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run showed. ``digest`` is the hash of its trace, ``lines`` the transcript if it was kept."""

    options: SimOptions
    violations: tuple[Violation, ...]
    digest: str
    steps: int
    seconds: float
    counts: Counts
    faults: dict[str, int]
    lost_messages: int
    counters: dict[str, float]
    sizes: dict[str, int]
    lines: list[str] = field(repr=False)

    @property
    def ok(self) -> bool:
        """True when no invariant was broken and everything drained."""
        return not self.violations

    def summary(self) -> str:
        """What happened, in a few words."""
        return (
            f"{self.counts.calls} calls, {self.counts.executions} executions, {sum(self.faults.values())} faults, "
            f"{self.steps} steps, {self.seconds:.2f} s, hash {self.digest}"
        )


def run_seed(
    seed: int,
    *,
    keep: bool = False,
    replica_core: Callable[..., ReplicaCore] = ReplicaCore,
    call_core: Callable[..., CallCore] = CallCore,
) -> RunResult:
    """Run the options that belong to ``seed``."""
    return run(SimOptions.draw(seed), keep=keep, replica_core=replica_core, call_core=call_core)


def run(
    options: SimOptions,
    *,
    keep: bool = False,
    replica_core: Callable[..., ReplicaCore] = ReplicaCore,
    call_core: Callable[..., CallCore] = CallCore,
    interrupted: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run ``options`` to the end or to the first violation. ``keep`` the transcript, which costs time and memory.

    ``interrupted`` is asked now and then, between two steps. Raises KeyboardInterrupt when it says yes.
    """
    return _Run(options, keep, replica_core, call_core, interrupted).result()


class _Run:
    """A run under way."""

    def __init__(
        self,
        options: SimOptions,
        keep: bool,
        replica_core: Callable[..., ReplicaCore],
        call_core: Callable[..., CallCore],
        interrupted: Callable[[], bool],
    ) -> None:
        slowed: dict[str, float] = {}
        seed = options.seed
        self.options = options
        self.interrupted = interrupted
        self.watch = Watch(keep=keep)
        self.traffic = Traffic(options.traffic, options.world.methods, stream(seed, "traffic"), slowed)
        self.world = World(
            options.world,
            self.traffic,
            seed=seed,
            observer=self.watch,
            replica_core=replica_core,
            call_core=call_core,
            streams=self.traffic,
        )
        self.watch.clock = self.world.clock
        self.faults = Faults(self.world, options.faults, self.world.random("faults"), slowed)
        self.loop = self._loop()

    def _loop(self) -> OpenLoop | ClosedLoop:
        traffic, make = self.options.traffic, self.traffic.make_any
        if traffic.workers:
            return ClosedLoop(self.world, self.traffic, make, workers=traffic.workers, calls=traffic.calls)
        return OpenLoop(self.world, make, self.world.random("arrivals"), rate=traffic.rate, calls=traffic.calls)

    def result(self) -> RunResult:
        """Run both phases."""
        violations = self.watch.checkers.violations
        try:
            self._safety()
            if not violations:
                self._drain()
        except Exception as error:
            # A core that raises broke the protocol or itself, and a broken one may raise anything.
            reason = f"{type(error).__name__}: {error}"
            violations.append(Violation("raised", _place(error), reason, self.world.clock.now))
        return self._finished(violations)

    def _safety(self) -> None:
        self.world.start()
        self.loop.start()
        self.faults.start()
        clock, broken = self.world.clock, self.watch.checkers.violations
        end = clock.now + self.options.seconds
        while not broken and clock.now < end and not self.loop.idle:
            self._go_on(min(end, clock.now + self.options.seconds / SAFETY_STEPS))
        self.loop.stop()

    def _go_on(self, until: float) -> None:
        if self.interrupted():
            raise KeyboardInterrupt
        self.world.clock.run(until)

    def _drain(self) -> None:
        """Let everything come to rest, or report what does not."""
        world, checkers = self.world, self.watch.checkers
        clock = world.clock
        self.faults.stop()
        end = clock.now + DRAIN_MAX
        pending = world.pending()
        while pending is not None and not checkers.violations and clock.now < end:
            self._go_on(clock.now + DRAIN_STEP)
            pending = world.pending()
        if checkers.violations:
            return
        if pending is not None:
            checkers.violations.append(Violation("L1", "the world", f"does not drain: {pending}", clock.now))
        else:
            checkers.on_quiescent([replica.core for replica in world.replicas.values()], [], clock.now)

    def _finished(self, violations: list[Violation]) -> RunResult:
        world, trace = self.world, self.watch.trace
        counters: dict[str, float] = {}
        for replica in world.replicas.values():
            _add(counters, replica.core.stats)
        for caller in world.callers.values():
            _add(counters, caller.stats)
        return RunResult(
            options=self.options,
            violations=tuple(violations),
            digest=trace.digest,
            steps=trace.steps,
            seconds=world.clock.now,
            counts=self.traffic.counts,
            faults=self.faults.counts,
            lost_messages=world.network.lost_messages,
            counters=counters,
            sizes=world.sizes(),
            lines=trace.lines,
        )


def _place(error: Exception) -> str:
    """Where an exception was raised: the innermost function."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "nowhere"
    return f"{traceback.tb_frame.f_code.co_qualname}, line {traceback.tb_lineno}"


def _add(counters: dict[str, float], stats: ReplicaStats | CallStats) -> None:
    """Add one core's counters to the sums by name; replicas that are gone took theirs with them."""
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, int | float):
            counters[item.name] = counters.get(item.name, 0) + value
