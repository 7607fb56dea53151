"""Handlers as stretches of virtual time, and what decides how long each is. Durations are seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Submit

if TYPE_CHECKING:
    from tiedreq.sim.replica_node import ReplicaNode


class Execution:
    """A handler that runs: when it will be done if nothing stops it, in seconds of virtual time."""

    __slots__ = ("begun_at", "ended", "finish_at", "stop_asked", "stoppable", "stopping", "submit")

    def __init__(self, submit: Submit, now: float, seconds: float, stoppable: bool) -> None:
        self.submit = submit
        self.begun_at = now
        self.finish_at = now + seconds
        self.stoppable = stoppable
        self.stop_asked = False
        self.stopping = False
        self.ended = False


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
