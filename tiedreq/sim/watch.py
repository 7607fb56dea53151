"""Watches a world: every step goes into the trace and past the checkers. The first violation stops the clock."""

from __future__ import annotations

from tiedreq.core.commands import CallCommand, ReplicaCommand, StartWork
from tiedreq.core.events import CallEvent, CallRequested, InputSettled, ReplicaEvent
from tiedreq.core.types import Identity
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.checker import Violation
from tiedreq.sim.checkers import CheckerSet
from tiedreq.sim.clock import Clock
from tiedreq.sim.links import Opening, Parcel
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.trace import Trace


class Watch:
    """An observer of one world. ``clock`` is that world's, to be set before it starts."""

    clock: Clock

    def __init__(self, *, keep: bool) -> None:
        self.trace = Trace(keep=keep)
        self.checkers = CheckerSet()
        self._alive: dict[str, Identity] = {}

    def before_replica(self, node: ReplicaNode, event: ReplicaEvent) -> None:
        """A replica's core is about to take a step."""
        self._alive[node.name] = node.identity
        self.checkers.before_replica_step(node.name, event, node.core, self.clock.now)

    def replica(self, node: ReplicaNode, event: ReplicaEvent, commands: list[ReplicaCommand]) -> None:
        """A replica's core has taken a step."""
        now = self.clock.now
        self.trace.add(now, node.name, event, tuple(commands))
        self.checkers.on_replica_step(node.name, event, commands, node.core, now)
        if not isinstance(event, InputSettled):
            self._no_start(event, commands)
        if self.checkers.violations:
            self.clock.stop()

    def _no_start(self, event: ReplicaEvent, commands: list[ReplicaCommand]) -> None:
        """Settle, then start: only the end of a batch of input fills slots (rule 2 of a copy at a replica)."""
        for command in commands:
            if isinstance(command, StartWork):
                reason = f"starts in answer to {type(event).__name__}, before all input is handled"
                self.checkers.violations.append(Violation("5.2", str(command.submit.copy), reason, self.clock.now))

    def before_call(self, node: CallerNode, call: OpenCall, event: CallEvent) -> None:
        """A call's core is about to take a step."""
        self.checkers.before_call_step(call.core.request.id, event, call.core, self.clock.now)

    def call(self, node: CallerNode, call: OpenCall, event: CallEvent, commands: list[CallCommand]) -> None:
        """A call's core has taken a step."""
        now = self.clock.now
        self.trace.names.setdefault(node.identity.incarnation, node.name)
        name, told = f"{node.name}.{call.number}", tuple(commands)
        if isinstance(event, CallRequested):
            request = call.core.request
            text = f"call {request.method} {request.policy} deadline {request.deadline * 1e3:.4f} ms"
            self.trace.add(now, name, text, told)
        else:
            self.trace.add(now, name, event, told)
        self.checkers.on_call_step(call.core.request.id, event, commands, call.core, now)
        if self.checkers.violations:
            self.clock.stop()

    def network(self, what: str, source: str, target: str, link: int, message: Parcel | None) -> None:
        """Something happened to a connection."""
        detail = f"{what} {source} > {target}{f' link {link}' if link else ''}"
        about: object = message.welcome if isinstance(message, Opening) else message
        self.trace.add(self.clock.now, "net", detail, () if about is None else (about,))

    def fault(self, what: str, node: str, detail: str) -> None:
        """Something was done to a node."""
        now = self.clock.now
        self.trace.add(now, node, f"{what} {detail}")
        if what in ("crash", "left") and node in self._alive:
            self.checkers.on_crash(self._alive.pop(node), now)
