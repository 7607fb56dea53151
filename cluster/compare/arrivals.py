"""When the calls of a simulated run come, where that is no Poisson process (``tiedreq.sim.workload.OpenLoop``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.compare.trace import Recording
from tiedreq.sim.caller_node import OpenCall
from tiedreq.sim.world import World

if TYPE_CHECKING:
    from cluster.compare.simulated import Bench

__all__ = ["Recorded", "Workers"]


class Recorded:
    """Calls at recorded times, over all callers in turn."""

    def __init__(self, world: World, bench: Bench, recording: Recording) -> None:
        self._clock = world.clock
        self._callers = list(world.callers.values())
        self._bench = bench
        self._arrivals = recording.arrivals
        self._next = 0
        self._begin_at = 0.0

    def start(self) -> None:
        """The first recorded time is now."""
        self._begin_at = self._clock.now
        self._arrive_later()

    def stop(self) -> None:
        """Make no more calls."""
        self._next = len(self._arrivals)

    def _arrive_later(self) -> None:
        if self._next < len(self._arrivals):
            self._clock.at(self._begin_at + self._arrivals[self._next], self._arrive)

    def _arrive(self, _: None, __: None) -> None:
        if self._next < len(self._arrivals):
            self._next += 1
            self._arrive_later()
            self._bench.make(self._callers[self._next % len(self._callers)])


class Workers:
    """A closed loop: each worker calls again as soon as it has an outcome."""

    def __init__(self, world: World, bench: Bench, workers: int) -> None:
        self._clock = world.clock
        self._callers = list(world.callers.values())
        self._bench = bench
        self._workers = workers
        self._worker_of: dict[OpenCall, int] = {}
        self._stopped = False
        bench.outcome_listeners.append(self._completed)

    def start(self) -> None:
        """Let every worker make its first call."""
        for worker in range(self._workers):
            self._clock.at(self._clock.now, self._work, worker)

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped = True

    def _work(self, worker: int, _: None) -> None:
        if not self._stopped:
            call = self._bench.make(self._callers[worker % len(self._callers)])
            self._worker_of[call] = worker

    def _completed(self, call: OpenCall) -> None:
        worker = self._worker_of.pop(call, None)
        if worker is not None:
            self._clock.at(self._clock.now, self._work, worker)
