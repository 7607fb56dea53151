"""Handlers as stretches of virtual time, and what decides how long each is. Durations are seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Submit

if TYPE_CHECKING:
    from tiedreq.sim.replica_node import ReplicaNode


class Stage(NamedTuple):
    """What the handler of a stream does next: after ``seconds`` it yields an item, with content or without."""

    seconds: float
    content: bool


NO_PLAN: list[Stage] = []
"""Of all that are no streams."""


class Execution:
    """A handler that runs: when it will be done if nothing stops it, in seconds of virtual time.

    ``plan`` is what is left of a stream's items. ``finish_at`` is then when the next of them is yielded, and what
    follows the last one takes no time. A ``paused`` stream yields nothing.
    """

    __slots__ = ("begun_at", "ended", "finish_at", "paused", "plan", "stop_asked", "stoppable", "stopping", "submit")

    def __init__(self, submit: Submit, now: float, seconds: float, stoppable: bool) -> None:
        self.submit = submit
        self.begun_at = now
        self.finish_at = now + seconds
        self.stoppable = stoppable
        self.stop_asked = False
        self.stopping = False
        self.ended = False
        self.paused = False
        self.plan = NO_PLAN


class Handlers(Protocol):
    """What the handlers of all replicas do. Durations are seconds."""

    def begin(self, node: ReplicaNode, submit: Submit) -> float:
        """A handler starts; how long will it run?"""

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        """A handler has come to its natural end; what does it answer?"""

    def stopped(self, node: ReplicaNode, execution: Execution) -> None:
        """A handler was stopped, or died with its replica."""

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        """How long a handler that is told to stop takes to do so."""

    def becomes_stoppable(self, node: ReplicaNode, submit: Submit) -> float | None:
        """Seconds after its start when a handler in a thread says how it can be stopped; None for never."""


class Streams:
    """What the handlers and users of streams do: here one item, taken as soon as it comes."""

    def plan(self, node: ReplicaNode, submit: Submit) -> list[Stage]:
        """The items of a stream whose handler starts, the first after the service time that ``begin`` told."""
        return [Stage(0.0, True)]

    def take_seconds(self) -> float:
        """How long the user of a stream is busy before the next item is taken."""
        return 0.0
