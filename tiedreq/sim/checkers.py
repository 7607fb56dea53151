"""The invariants of the protocol, one class each, fed by the steps of the production cores.

A driver of cores (simulator, exhaustive search, property test) either steps its cores through ``step_replica``
and ``step_call``, or calls ``before_…`` and ``on_…`` around its own steps, in the order of what happened. It reports
crashes, and calls ``on_quiescent`` when nothing is left to happen. What was broken stands in ``violations``.

Link state, markers and evictions are learned from the cores' own events, so a driver doesn't report them.

Checkers keep nothing: all they know is in ``History``. Not for: measuring, or anything that looks at a clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from tiedreq.core.call import CallCore
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, ReplicaCommand
from tiedreq.core.events import CallEvent, ReplicaEvent
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import CallId, Identity
from tiedreq.sim.call_checkers import BackupClockRuns, NotSentAfterStart, OneOutcome, RoundsEndByFaults
from tiedreq.sim.checker import Checker
from tiedreq.sim.checker import Violation as Violation
from tiedreq.sim.history import CallStep, History, ReplicaStep
from tiedreq.sim.replica_checkers import (
    BackupsAreAlone,
    DroppedForAPartner,
    ExclusiveStart,
    LowestRankRuns,
    NoLateStart,
    NoStartAfterEnd,
    NotAllGone,
    NothingNewWhileDraining,
    OneEnding,
    RunsOnce,
    SlotsAddUp,
    WithinLimits,
)
from tiedreq.sim.stale_checker import StaleChangesNothing
from tiedreq.sim.stream_checkers import CommittedNeverYields, ItemsInOrder, OneStream

KEPT = "queue copies executions ties claiming parked_claims markers cancel_markers".split()


class Drains(Checker):
    """L1: when nothing is left to happen, every call has ended and no live replica keeps anything of it."""

    name = "L1"

    def quiescent(self, replicas: Iterable[ReplicaCore], calls: Iterable[CallCore], now: float) -> None:
        for call in calls:
            if call.state != CallState.DONE:
                self.broken(call.request.id, f"is {call.state.name} for ever", now)
        for core in replicas:
            sizes = core.sizes()
            for name in (
                "queue",
                "copies",
                "executions",
                "ties",
                "claiming",
                "parked_claims",
                "markers",
                "cancel_markers",
            ):
                if sizes[name]:
                    self.broken(core.identity, f"{name}: {sizes[name]} left for ever", now)


CHECKERS: tuple[type[Checker], ...] = (
    OneOutcome,
    OneEnding,
    DroppedForAPartner,
    NotAllGone,
    NoStartAfterEnd,
    NoLateStart,
    RunsOnce,
    ExclusiveStart,
    WithinLimits,
    StaleChangesNothing,
    SlotsAddUp,
    LowestRankRuns,
    BackupsAreAlone,
    CommittedNeverYields,
    ItemsInOrder,
    OneStream,
    RoundsEndByFaults,
    NothingNewWhileDraining,
    NotSentAfterStart,
    BackupClockRuns,
    Drains,
)
"""All invariants of design section 9 that a step or an end can break; L2 is the business of a search."""


HOOKS = {
    name: [i for i, kind in enumerate(CHECKERS) if getattr(kind, name) is not getattr(Checker, name)]
    for name in ("replica_command", "replica_step", "call_command", "call_step", "quiescent")
}
"""Which checkers want to see what, by their place."""


class CheckerSet:
    """All checkers over one history. ``violations`` grows; nothing is raised."""

    def __init__(self, history: History | None = None) -> None:
        self.history = history if history is not None else History()
        self.violations: list[Violation] = []
        self._checkers = [kind(self.history, self.violations) for kind in CHECKERS]
        self._stale = next(c for c in self._checkers if isinstance(c, StaleChangesNothing))
        self._clock = next(c for c in self._checkers if isinstance(c, BackupClockRuns))
        self._evicted: dict[Identity, int] = {}
        self._hooks = {name: [self._checkers[i] for i in which] for name, which in HOOKS.items()}

    def go_on_from(self, history: History) -> None:
        """From now on all of that has happened."""
        self.history = history
        for checker in self._checkers:
            checker.history = history
        self._evicted.clear()

    def snapshot(self) -> tuple[Hashable, ...]:
        """All that the checkers' future depends on, as hashable plain values."""
        return self.history.snapshot()

    # ---- stepping a core under watch --------------------------------------------------------------------------

    def step_replica(self, core: ReplicaCore, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Step a replica's core, watched. What the core raises passes through, and counts as no step."""
        self.before_replica_step(core.identity.name, event, core, now)
        commands = core.step(event, now)
        self.on_replica_step(core.identity.name, event, commands, core, now)
        return commands

    def step_call(self, core: CallCore, event: CallEvent, now: float) -> list[CallCommand]:
        """Step a call's core, watched."""
        self.before_call_step(core.request.id, event, core, now)
        commands = core.step(event, now)
        self.on_call_step(core.request.id, event, commands, core, now)
        return commands

    # ---- hooks ------------------------------------------------------------------------------------------------

    def before_replica_step(self, replica: str, event: ReplicaEvent, core: ReplicaCore, now: float) -> None:
        """A replica's core is about to take a step."""
        self._stale.before_replica(event, core)
        self._evicted[core.identity] = core.markers_evicted

    def on_replica_step(
        self, replica: str, event: ReplicaEvent, commands: list[ReplicaCommand], core: ReplicaCore, now: float
    ) -> None:
        """A replica's core has taken a step. Call it before the commands are executed."""
        step = ReplicaStep(replica, event, commands, core, now)
        self.history.fold_replica_event(step)
        if core.markers_evicted != self._evicted.get(core.identity, 0):
            self._evicted[core.identity] = core.markers_evicted
            self.history.markers_evicted(core.identity)
        for index, command in enumerate(commands):
            for checker in self._hooks["replica_command"]:
                checker.replica_command(step, index, command)
            self.history.fold_replica_command(step, command)
        for checker in self._hooks["replica_step"]:
            checker.replica_step(step)

    def before_call_step(self, call: CallId, event: CallEvent, core: CallCore, now: float) -> None:
        """A call's core is about to take a step."""
        self._stale.before_call(event, core)
        self._clock.before_call(event, core)

    def on_call_step(
        self, call: CallId, event: CallEvent, commands: list[CallCommand], core: CallCore, now: float
    ) -> None:
        """A call's core has taken a step. Call it before the commands are executed."""
        step = CallStep(call, event, commands, core, now)
        self.history.fold_call_event(step)
        for index, command in enumerate(commands):
            for checker in self._hooks["call_command"]:
                checker.call_command(step, index, command)
            self.history.fold_call_command(step, command)
        for checker in self._hooks["call_step"]:
            checker.call_step(step)

    def on_crash(self, replica: Identity, now: float) -> None:
        """This incarnation of a replica is gone, at once and for good (after a drain too)."""
        self.history.fold_crash(replica)

    def on_quiescent(self, replicas: Iterable[ReplicaCore], calls: Iterable[CallCore], now: float) -> None:
        """Faults have stopped and nothing is left to happen. ``replicas`` are those alive."""
        replicas, calls = list(replicas), list(calls)
        for checker in self._hooks["quiescent"]:
            checker.quiescent(replicas, calls, now)
