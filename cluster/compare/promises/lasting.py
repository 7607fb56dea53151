"""What holds over time: the learned delay stays where it is, the budget is kept, and a brown-out passes by itself.

* ``steady``: a million calls of a stationary heavy tail. The delay that is learned at the end is that of the beginning
  (hedging does not train its own estimate away), and backups have taken their budget of work, neither more nor less.
* ``brown-out``: the scenario of that name, which is over after 90 s, in four phases: before, during, the two windows of
  30 s after it, and then. In each phase extra work is within the budget, and in the last one everything is as before.

A run is one world, looked at from outside: its calls are counted by phase, and the busy time of backups is what their
handlers took at the replicas, not what the client's own budget says. Durations are seconds.

With ``scale`` below 1 there are fewer calls: fewer replicas and less traffic, at the same load and for the same time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.compare.cell import Cell
from cluster.compare.promises.cells import cell_of, milliseconds
from cluster.compare.promises.reach import Reached, reached
from cluster.compare.simulated import Bench, Run, world_options
from cluster.compare.tally import Tally
from tiedreq.core.governor import GovernorState
from tiedreq.core.types import CopyKind
from tiedreq.laws import parse_law
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.handlers import Execution
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.world import World

__all__ = ["SUBJECTS", "Phase", "brown_out_lines", "steady_lines", "watch"]

BUDGET = 0.05
STEADY_CALLS = 1_000_000
STEADY_LOAD = 0.5
STEADY_LAW = "lognormal(median=10ms,sigma=1.5)"
STEADY_PHASES = 100
"""So often the delay is looked at."""

DRIFT_MAX = 0.05
MISSED_MAX = 0.10
REPLICAS_MIN = 2
PHASES = (30.0, 90.0, 150.0, 175.0)
"""The ends of a brown-out's phases, from the first call: before, during, two windows, after."""

MOVED_MAX = 0.15
TAIL_MAX = 1.10
"""The p99 after a brown-out, relative to before: a hundred calls or more decide it in the shortest runs."""


@dataclass(slots=True)
class Phase:
    """One stretch of a run: what was measured in it, and what the client had learned at its end.

    ``delay`` is None where none is known; ``backup_seconds`` is the busy time of backups.
    """

    tally: Tally
    backup_seconds: float = 0.0
    delay: float | None = None
    state: GovernorState = GovernorState.OFF

    @property
    def useful_seconds(self) -> float:
        """Busy time of the executions whose answers were used."""
        return self.tally.busy_seconds - self.tally.wasted_seconds


class _Watched(Bench):
    """A bench whose tally is exchanged at the end of each phase."""

    def __init__(self, cell: Cell, seed: int) -> None:
        super().__init__(cell, seed)
        self.phases = [Phase(self.tally)]

    def next_phase(self, world: World) -> None:
        """A phase ends now."""
        (caller,) = world.callers.values()
        phase = self.phases[-1]
        views = caller.learning.view(world.clock.now) if caller.learning is not None else []
        if views:
            phase.delay = views[0]["delay"]
            phase.state = GovernorState(views[0]["state"])
        self.tally = Tally()
        self.phases.append(Phase(self.tally))

    def _occupied(self, node: ReplicaNode, execution: Execution) -> None:
        super()._occupied(node, execution)
        if execution.submit.kind == CopyKind.BACKUP:
            self.phases[-1].backup_seconds += node.clock.now - execution.begun_at


def watch(cell: Cell, seed: int, ends: Sequence[float]) -> list[Phase]:
    """Run a cell with one client, and tell of each phase. ``ends`` count from the first call, warm-up included."""
    bench = _Watched(cell, seed)
    world = World(world_options(cell), bench, seed=seed)
    world.start()
    begin = world.clock.now
    for end in ends:
        world.clock.at(begin + end, lambda _, __: bench.next_phase(world))
    with uncollected():
        Run(cell, seed, world, bench).run()
    return bench.phases[: len(ends)]


# ---- a million calls ------------------------------------------------------------------------------------------


def _replicas(scale: float) -> int:
    return max(REPLICAS_MIN, round(10 * min(1.0, scale)))


def steady_cell(scale: float) -> Cell:
    """The cell of a stationary heavy tail."""
    law = parse_law(STEADY_LAW)
    base = Cell(scenario="steady", policy="auto", replicas=_replicas(scale), service=law, rate=1.0, duration=1.0)
    rate = STEADY_LOAD * base.capacity / base.service.mean()
    return base.but(rate=rate, load=STEADY_LOAD, duration=STEADY_CALLS * scale / rate)


def steady_lines(scale: float, seeds: Sequence[int]) -> list[Reached]:
    """How far the delay drifts, and by what share backups take more or less than their budget."""
    cell = steady_cell(scale)
    assert cell.duration is not None
    ends = [cell.warmup + cell.duration * (index + 1) / STEADY_PHASES for index in range(STEADY_PHASES)]
    drifts, missed = [], []
    for seed in seeds:
        phases = watch(cell, seed, ends)
        delays = [math.nan if phase.delay is None else phase.delay for phase in phases]
        fifth = len(delays) // 5
        drifts.append(abs(statistics.fmean(delays[-fifth:]) / statistics.fmean(delays[:fifth]) - 1))
        useful = math.fsum(phase.useful_seconds for phase in phases)
        spent = math.fsum(phase.backup_seconds for phase in phases) / useful
        missed.append(abs(spent / BUDGET - 1))
    return [
        reached(cell, "drift of the delay", DRIFT_MAX, drifts),
        reached(cell, "budget of work missed by", MISSED_MAX, missed),
    ]


# ---- a brown-out ----------------------------------------------------------------------------------------------


def brown_out_cell(policy: str, scale: float) -> Cell:
    """The scenario's cell, long enough for a phase after two windows."""
    cell = cell_of("brown-out", policy, latency=0.001, load=0.5)
    replicas = _replicas(scale)
    assert cell.rate is not None
    return cell.but(replicas=replicas, rate=cell.rate * replicas / cell.replicas, duration=PHASES[-1] - cell.warmup)


def brown_out_lines(scale: float, seeds: Sequence[int]) -> list[Reached]:
    """Extra work in each phase, and whether the last one is like the first."""
    cell = brown_out_cell("auto", scale)
    runs = [watch(cell, seed, PHASES) for seed in seeds]
    plain = [watch(brown_out_cell("plain", scale), seed, PHASES) for seed in seeds]
    lines = []
    for index, name in enumerate(("before", "during", "two windows", "after")):
        ratios = [_busy(ours[index]) / _busy(theirs[index]) for ours, theirs in zip(runs, plain, strict=True)]
        lines.append(reached(cell, f"busy time / plain, {name}", 1 + BUDGET, ratios))
    lines.append(reached(cell, "delay moved, after", MOVED_MAX, [_moved(run) for run in runs]))
    lines.append(reached(cell, "p99 after / before", TAIL_MAX, [_tail(run[-1]) / _tail(run[0]) for run in runs]))
    lowered = [float(run[-2].state != GovernorState.OK) for run in runs]
    lines.append(reached(cell, "budget lowered, after", 0.0, lowered))
    return lines


def _busy(phase: Phase) -> float:
    return phase.tally.busy_seconds / phase.tally.calls


def _tail(phase: Phase) -> float:
    return milliseconds(phase.tally, 99.0)


def _moved(run: Sequence[Phase]) -> float:
    before, after = run[0].delay, run[-2].delay
    return math.inf if before is None or after is None else abs(after / before - 1)


SUBJECTS: dict[str, Callable[[float, Sequence[int]], list[Reached]]] = {
    "brown-out": brown_out_lines,
    "steady": steady_lines,
}
