"""Traffic of a searching run: calls of several methods and policies, some cancelled, some failing, some turned down.

Not for measuring: ``workload`` has one method, one law and exact counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tiedreq.core.checks import check_count, check_number
from tiedreq.core.errors import BadOption
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Result, Submit
from tiedreq.core.policy import Plain, Policy
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import Window
from tiedreq.laws import Exponential, ServiceLaw
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.handlers import Execution, Stage, Streams
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.workload import Workload

LAW = Exponential(0.01)
AGAIN = Fault("busy", "try another replica", b"", True)
LENGTHS = (0, 1, 2, 3, 10)
WINDOWS = (1, 2, 5)
FINAL = Fault("bad argument", "the same everywhere", b"", False)


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What users ask for and how handlers behave. Durations are seconds, shares are probabilities.

    ``calls`` come at ``rate`` per second, or from ``workers`` in a closed loop where that is not 0. Each takes one of
    the ``policies`` (a method that may not run twice is called plainly) and one of the ``timeouts``. ``cancelled`` of
    them are cancelled within ``cancel_within``. Of the handlers ``failing`` ask for another replica and ``final`` fail
    for good; ``rejected`` answers are turned down. A handler takes ``stop_seconds`` to stop; those in threads say with
    the probability ``stop_enabled`` how that can be done.
    """

    calls: int = 100
    rate: float = 100.0
    workers: int = 0
    law: ServiceLaw = LAW
    intrinsic: bool = False
    policies: tuple[Policy, ...] = (Plain(),)
    timeouts: tuple[float, ...] = (5.0,)
    cancelled: float = 0.0
    cancel_within: float = 0.05
    failing: float = 0.0
    final: float = 0.0
    rejected: float = 0.0
    stop_seconds: float = 0.0
    stop_enabled: float = 0.0

    def __post_init__(self) -> None:
        check_count("calls", self.calls, 1, 100_000_000)
        check_count("workers", self.workers, 0, 1_000_000)
        check_number("rate", self.rate, 1e-6, 1e9, "calls per second")
        for name in ("cancelled", "failing", "final", "rejected", "stop_enabled"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("cancel_within", "stop_seconds"):
            check_number(name, getattr(self, name), 0.0, 3_600.0, "seconds")
        if not self.policies or not self.timeouts:
            raise BadOption("policies, timeouts: at least one of each")


class Traffic(Workload, Streams):
    """The handlers and users that ``TrafficOptions`` describe. ``slowed`` is read anew at every start of a handler."""

    def __init__(
        self, options: TrafficOptions, methods: tuple[HeldMethod, ...], rng: Random, slowed: Mapping[str, float]
    ) -> None:
        super().__init__(options.law, rng, intrinsic=options.intrinsic)
        self.options = options
        self._methods = [method.info for method in methods]
        self._slowed = slowed

    def make_any(self, caller: CallerNode) -> OpenCall:
        """Make a call of any kind."""
        rng, options = self._rng, self.options
        method = rng.choice(self._methods)
        policy = rng.choice(options.policies) if method.idempotent else Plain()
        timeout = min(rng.choice(options.timeouts), method.timeout_max)
        window = Window(rng.choice(WINDOWS), 1_000, rng.random() < 0.2) if method.stream else None
        call = self.make(
            caller, policy, method=method.name, timeout=timeout, idempotent=method.idempotent, window=window
        )
        if options.cancelled and rng.random() < options.cancelled:
            wait = rng.random() * options.cancel_within
            caller.clock.at(caller.clock.now + wait, self._cancel, caller, call)
        return call

    def _cancel(self, caller: CallerNode, call: OpenCall) -> None:
        caller.cancel(call)

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        """Some answers are turned down."""
        return not self.options.rejected or self._rng.random() >= self.options.rejected

    def begin(self, node: ReplicaNode, submit: Submit) -> float:
        """A handler starts."""
        return super().begin(node, submit) * self._slowed.get(node.name, 1.0)

    def plan(self, node: ReplicaNode, submit: Submit) -> list[Stage]:
        """Some preambles and some content, in any number and at any intervals."""
        rng = self._rng
        preambles = [Stage(0.0, False)] * rng.choice((0, 0, 0, 1, 3))
        content = [Stage(rng.choice((0.0, 0.0, 0.001, 0.01)), rng.random() < 0.8) for _ in range(rng.choice(LENGTHS))]
        return [*preambles, *content]

    def take_seconds(self) -> float:
        """Some users take their time."""
        return self._rng.choice((0.0, 0.0, 0.0, 0.003))

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        """Some handlers fail."""
        answer = super().end(node, execution)
        options = self.options
        if options.failing and self._rng.random() < options.failing:
            return AGAIN
        if options.final and self._rng.random() < options.final:
            return FINAL
        return answer

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        """Some handlers have to clean up."""
        return self.options.stop_seconds and self._rng.random() * self.options.stop_seconds

    def becomes_stoppable(self, node: ReplicaNode, submit: Submit) -> float | None:
        """Some handlers in threads say how they can be stopped."""
        options = self.options
        if options.stop_enabled and self._rng.random() < options.stop_enabled:
            return self._rng.random() * options.law.mean()
        return None
