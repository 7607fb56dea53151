"""One tied call in virtual time, recorded for a timeline: its copies, its notices, its outcome.

Two replicas with one slot each are busy with something else until a set moment; then the call's copies get their turn.
The cores are those of production, and nothing of what happens is decided here. Times are milliseconds from the call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiedreq.core.commands import CompleteCall, SendCaller, SendCopy, SendPeer, StartWork
from tiedreq.core.events import Answer, Fault, PeerStarted, SubmitReceived
from tiedreq.core.messages import Ended, Result, Started, Submit
from tiedreq.core.policy import Backup, Hedged, Tied
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.handlers import Execution
from tiedreq.sim.links import NetworkOptions, Parcel
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.world import World, WorldOptions
from tiedreq.units import LatencyLaw, LatencySpec

__all__ = ["Copy", "Notice", "Race", "run_race"]

SEED = 1
CLIENT_LATENCY = 0.002
SERVICE = 0.020
SETTLE = 1.0
"""Seconds before the call, so that the links are measured."""


@dataclass(slots=True)
class Copy:
    """A copy of the call at a replica: when it was sent, came, started and ended (ms), and how it ended."""

    replica: str
    sent: float
    came: float | None = None
    started: float | None = None
    ended: float | None = None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A Started notice from one replica to another, sent and handled (ms)."""

    source: str
    target: str
    sent: float
    handled: float


@dataclass(slots=True)
class Race:
    """What happened to one call. ``free_at``: until when each replica was busy with something else (ms)."""

    mesh_latency: float
    free_at: dict[str, float]
    copies: dict[Any, Copy] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    answered: float | None = None
    winner: str = ""


class _Recorder:
    """The load and the observer of the world: what replicas do, and what is written down."""

    def __init__(self, race: Race, busy: dict[str, float]) -> None:
        self.race = race
        self.call_number = 0
        self.world: World
        self._busy = busy
        self._zero = 0.0
        self._under_way: dict[Any, list[tuple[str, float]]] = {}

    def watch(self, number: int) -> None:
        """The call of that number is the one to be recorded, and it is made next, at this moment."""
        self.call_number = number
        self._zero = self.world.clock.now

    def _now(self) -> float:
        return (self.world.clock.now - self._zero) * 1000

    # ---- load -------------------------------------------------------------------------------------------------

    def begin(self, node: ReplicaNode, submit: Submit) -> float:
        return SERVICE if submit.copy.number == self.call_number else self._busy[node.name]

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        return Answer(b"")

    def stopped(self, node: ReplicaNode, execution: Execution) -> None:
        pass

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        return 0.0

    def becomes_stoppable(self, node: ReplicaNode, submit: Submit) -> float | None:
        return None

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        return True

    def completed(self, caller: CallerNode, call: OpenCall, service_time: float) -> None:
        pass

    # ---- observer ---------------------------------------------------------------------------------------------

    def before_replica(self, node: ReplicaNode, event: Any) -> None:
        pass

    def before_call(self, node: CallerNode, call: OpenCall, event: Any) -> None:
        pass

    def network(self, what: str, source: str, target: str, link: int, message: Parcel | None) -> None:
        pass

    def fault(self, what: str, node: str, detail: str) -> None:
        pass

    def call(self, node: CallerNode, call: OpenCall, event: Any, commands: list[Any]) -> None:
        if call.number != self.call_number:
            return
        for command in commands:
            if isinstance(command, SendCopy):
                replica = command.submit.partners[command.submit.copy.rank].name
                self.race.copies[command.submit.copy] = Copy(replica, self._now())
            elif isinstance(command, CompleteCall):
                self.race.answered = self._now()
                self.race.winner = self.race.copies[command.outcome.copy].replica if command.outcome.copy else ""

    def replica(self, node: ReplicaNode, event: Any, commands: list[Any]) -> None:
        now, copies = self._now(), self.race.copies
        if isinstance(event, SubmitReceived) and event.submit.copy in copies:
            copies[event.submit.copy].came = now
        elif isinstance(event, PeerStarted) and event.copy in copies:
            source, sent = self._under_way[event.copy].pop(0)
            self.race.notices.append(Notice(source, node.name, sent, now))
        for command in commands:
            if isinstance(command, StartWork) and command.submit.copy in copies:
                copies[command.submit.copy].started = now
            elif isinstance(command, SendPeer) and isinstance(command.message, Started):
                self._under_way.setdefault(command.message.copy, []).append((node.name, now))
            elif isinstance(command, SendCaller) and isinstance(command.message, Ended | Result):
                message = command.message
                if message.copy in copies and copies[message.copy].ended is None:
                    copy = copies[message.copy]
                    copy.ended = now
                    copy.how = "done" if isinstance(message, Result) else message.state.label


def run_race(free_at: tuple[float, float], mesh_latency: float) -> Race:
    """One tied call of 20 ms at two replicas that get free after ``free_at`` seconds. ``mesh_latency`` in seconds.

    The client is 2 ms away from both, one way.
    """
    busy = {f"r{index}": seconds for index, seconds in enumerate(free_at)}
    race = Race(mesh_latency * 1000, {name: seconds * 1000 for name, seconds in busy.items()})
    recorder = _Recorder(race, {name: seconds - CLIENT_LATENCY for name, seconds in busy.items()})
    network = NetworkOptions(
        mesh=LatencySpec(LatencyLaw(mesh_latency)), client=LatencySpec(LatencyLaw(CLIENT_LATENCY)), notice_max=0.0
    )
    world = World(WorldOptions(replicas=2, slots=1, network=network), recorder, seed=SEED, observer=recorder)
    recorder.world = world
    world.start()
    clock, caller = world.clock, world.callers["c0"]
    clock.run(clock.now + SETTLE)
    both = Hedged(Backup(budget=None, after=0.0, min_after=0.0, since="send", max_per_call=1), cancel_losers=False)
    first = caller.call("work", both, 10.0, idempotent=True)
    clock.run(clock.now)
    recorder.watch(first.number + 1)
    caller.call("work", Tied(backup=None, stagger=0.0), 10.0, idempotent=True)
    clock.run(clock.now + SETTLE)
    return race
