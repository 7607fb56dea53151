"""Load: how long handlers take, who calls and when, and what became of it.

``Workload`` is what a world is given: handlers take times from a law, drawn for every execution or (``intrinsic``)
once per call, and some replicas are slow. ``OpenLoop`` makes calls at the times of a Poisson process whatever the
answers, ``ClosedLoop`` lets each worker call again when it has an outcome, ``Pauses`` stops replicas now and then.

Counts are exact for executions that start within ``linger`` seconds (usually ``LINGER``) of the outcome of their call;
memory does not grow with the number of calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tiedreq.core.commands import OutcomeKind
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Result, Submit
from tiedreq.core.policy import Policy
from tiedreq.core.types import Window
from tiedreq.laws import ServiceLaw
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.handlers import Execution
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.world import World
from tiedreq.slowness import PauseSpec

ANSWER = Answer(b"")
LINGER = 2.0
NOTHING: dict[int, Traced] = {}
"""Of clients that made no call here."""


@dataclass(slots=True)
class Counts:
    """What happened, in calls, executions and seconds of slots.

    ``duplicates`` are calls with two or more handlers started, ``completed_twice`` calls whose handler ran to its end
    twice or more. ``used_seconds`` of the ``busy_seconds`` gave the answers that were taken.
    """

    calls: int = 0
    answered: int = 0
    failed: int = 0
    executions: int = 0
    duplicates: int = 0
    completed_twice: int = 0
    busy_seconds: float = 0.0
    used_seconds: float = 0.0

    @property
    def wasted_seconds(self) -> float:
        """Busy seconds of executions whose result was not used."""
        return self.busy_seconds - self.used_seconds


class Traced:
    """What is remembered of a call. ``intended_at`` is when it was to be made, on the world's clock.

    ``service_time`` in seconds belongs to the call where slowness is intrinsic, else it is None.
    """

    __slots__ = ("completions", "intended_at", "service_time", "starts")

    def __init__(self, intended_at: float, service_time: float | None = None) -> None:
        self.intended_at = intended_at
        self.service_time = service_time
        self.starts = 0
        self.completions = 0


class Workload:
    """Handlers and users of a world.

    ``slow`` maps a replica's name to the factor by which its handlers take longer. ``completed`` hears of every
    outcome, with the latency in seconds from the intended time of the call.
    """

    def __init__(
        self,
        law: ServiceLaw,
        rng: Random,
        *,
        intrinsic: bool = False,
        slow: dict[str, float] | None = None,
        completed: Callable[[OpenCall, float], None] | None = None,
        linger: float = LINGER,
    ) -> None:
        self.counts = Counts()
        self._linger = linger
        self.listeners: list[Callable[[OpenCall, float], None]] = [] if completed is None else [completed]
        self._law = law
        self._rng = rng
        self._intrinsic = intrinsic
        self._slow = slow or {}
        self._traced: dict[int, dict[int, Traced]] = {}  # by client and number
        self._ended: deque[tuple[float, int, int]] = deque()

    # ---- users ------------------------------------------------------------------------------------------------

    def make(
        self,
        caller: CallerNode,
        policy: Policy,
        *,
        method: str = "work",
        timeout: float = 3_600.0,
        idempotent: bool = True,
        window: Window | None = None,
        intended_at: float | None = None,
    ) -> OpenCall:
        """Make a call. ``intended_at`` is when it should have been made, if that was earlier."""
        self.counts.calls += 1
        service_time = self._law.sample(self._rng) if self._intrinsic else None
        traced = Traced(caller.clock.now if intended_at is None else intended_at, service_time)
        call = caller.call(method, policy, timeout, idempotent=idempotent, window=window, tag=traced)
        if call.outcome is None:
            self._traced.setdefault(caller.identity.incarnation, {})[call.number] = traced
        return call

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        """Every answer is taken."""
        return True

    def completed(self, caller: CallerNode, call: OpenCall, service_time: float) -> None:
        """Count an outcome, and tell who listens."""
        counts, now = self.counts, caller.clock.now
        if call.outcome is not None and call.outcome.kind == OutcomeKind.ANSWERED:
            counts.answered += 1
            counts.used_seconds += service_time
        else:
            counts.failed += 1
        ended = self._ended
        ended.append((now, caller.identity.incarnation, call.number))
        while ended[0][0] < now - self._linger:
            _, client, number = ended.popleft()
            self._traced.get(client, NOTHING).pop(number, None)
        latency = now - call.tag.intended_at
        for listener in self.listeners:
            listener(call, latency)

    # ---- handlers ---------------------------------------------------------------------------------------------

    def begin(self, node: ReplicaNode, submit: Submit) -> float:
        """A handler starts: its service time in seconds."""
        self.counts.executions += 1
        client, number, _, _ = submit.copy
        traced = self._traced.get(client, NOTHING).get(number)
        seconds = None
        if traced is not None:
            seconds = traced.service_time
            traced.starts += 1
            if traced.starts == 2:
                self.counts.duplicates += 1
        if seconds is None:
            seconds = self._law.sample(self._rng)
        return seconds * self._slow[node.name] if node.name in self._slow else seconds

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        """A handler has come to its end."""
        self.counts.busy_seconds += node.clock.now - execution.begun_at
        client, number, _, _ = execution.submit.copy
        traced = self._traced.get(client, NOTHING).get(number)
        if traced is not None:
            traced.completions += 1
            if traced.completions == 2:
                self.counts.completed_twice += 1
        return ANSWER

    def stopped(self, node: ReplicaNode, execution: Execution) -> None:
        """A handler was stopped."""
        self.counts.busy_seconds += node.clock.now - execution.begun_at

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        """Handlers stop at once."""
        return 0.0

    def becomes_stoppable(self, node: ReplicaNode, submit: Submit) -> float | None:
        """Handlers in threads never say how they can be stopped."""
        return None


class OpenLoop:
    """Calls at the times of a Poisson process of ``rate`` calls per second, over all callers in turn.

    It ends after ``calls`` calls; ``idle`` is True then.
    """

    def __init__(
        self, world: World, make: Callable[[CallerNode], object], rng: Random, *, rate: float, calls: int
    ) -> None:
        self._clock = world.clock
        self._callers = list(world.callers.values())
        self._make = make
        self._rng = rng
        self._rate = rate
        self._left = calls
        self._turn = 0

    @property
    def idle(self) -> bool:
        """True when no more calls will be made."""
        return self._left <= 0

    def start(self) -> None:
        """Make the first call after an exponential time."""
        self._clock.at(self._clock.now + self._rng.expovariate(self._rate), self._arrive)

    def stop(self) -> None:
        """Make no more calls."""
        self._left = 0

    def _arrive(self, _: None, __: None) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        self._turn = (self._turn + 1) % len(self._callers)
        if self._left:
            self._clock.at(self._clock.now + self._rng.expovariate(self._rate), self._arrive)
        caller = self._callers[self._turn]
        if caller.alive and not caller.frozen:
            self._make(caller)


class ClosedLoop:
    """``workers`` that each make a call, wait for its outcome, think for ``think`` seconds, and call again."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        make: Callable[[CallerNode], OpenCall],
        *,
        workers: int,
        calls: int,
        think: float = 0.0,
    ) -> None:
        self._clock = world.clock
        self._callers = list(world.callers.values())
        self._make = make
        self._workers = workers
        self._left = calls
        self._think = think
        self._waiting: dict[OpenCall, int] = {}
        workload.listeners.append(self._completed)

    @property
    def idle(self) -> bool:
        """True when no more calls will be made."""
        return self._left <= 0

    def start(self) -> None:
        """Let every worker make its first call."""
        for worker in range(self._workers):
            self._clock.at(self._clock.now, self._work, worker)

    def stop(self) -> None:
        """Make no more calls."""
        self._left = 0

    def _work(self, worker: int, _: None) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        caller = self._callers[worker % len(self._callers)]
        if not caller.alive or caller.frozen:
            self._clock.at(self._clock.now + max(self._think, 0.1), self._work, worker)
            return
        call = self._make(caller)
        if call.outcome is None:
            self._waiting[call] = worker
        else:
            self._clock.at(self._clock.now + max(self._think, 0.001), self._work, worker)

    def _completed(self, call: OpenCall, latency: float) -> None:
        worker = self._waiting.pop(call, None)
        if worker is not None:
            self._clock.at(self._clock.now + self._think, self._work, worker)


class Pauses:
    """Stops replicas entirely, running work too: the pauses of ``PauseSpec``."""

    def __init__(self, world: World, spec: PauseSpec, rng: Random) -> None:
        self._world = world
        self._spec = spec
        self._rng = rng

    def start(self) -> None:
        """Begin the first interval of every replica concerned."""
        for index, name in enumerate(self._world.replicas):
            if self._spec.replica in (None, index):
                self._next(name)

    def _next(self, name: str) -> None:
        clock = self._world.clock
        clock.at(clock.now + self._rng.expovariate(1 / self._spec.every), self._pause, name)

    def _pause(self, name: str, _: None) -> None:
        self._world.freeze(name, self._spec.duration)
        clock = self._world.clock
        clock.at(clock.now + self._spec.duration, self._resume, name)

    def _resume(self, name: str, _: None) -> None:
        self._next(name)
