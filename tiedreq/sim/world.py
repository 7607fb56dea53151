"""A world: replicas and callers on a network in virtual time. The cores in it are those of production.

It is built from options and a seed; every random number comes from that seed. Broken cores can be put in place of the
right ones (``replica_core``, ``call_core``), to see whether anything notices. Worlds with one ``clock`` between them
know nothing of each other and go on together.

Not for load (``workload``) nor for faults by plan (``faults``), though it has the verbs that both use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from tiedreq.core.call import CallCore
from tiedreq.core.checks import Reduced, check_count, check_number, reduced
from tiedreq.core.errors import BadOption
from tiedreq.core.groups import group_of
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import MethodInfo
from tiedreq.sim.caller_node import CallerNode, CallerObserver, OpenCall, Users
from tiedreq.sim.clock import Clock, SimulationError
from tiedreq.sim.handlers import Handlers, Streams
from tiedreq.sim.links import NetworkObserver, NetworkOptions
from tiedreq.sim.meter import Meter
from tiedreq.sim.network import Network
from tiedreq.sim.replica_node import ReplicaNode, ReplicaObserver
from tiedreq.units import check_zone

CONNECTING_MAX = 60.0
MUST_DRAIN = ("queue", "copies", "executions", "ties", "markers", "cancel_markers", "claiming", "parked_claims")
METHOD = HeldMethod(MethodInfo("work", True, True, 86_400.0), None)


class Observer(ReplicaObserver, CallerObserver, NetworkObserver, Protocol):
    """Who sees everything: transcripts, checkers."""


class Load(Handlers, Users, Protocol):
    """What callers ask for and what replicas do about it."""


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What a world consists of. Durations are seconds.

    ``replicas`` are named r0, r1 …, ``callers`` c0, c1 …. A copy finds its outbox full with the probability
    ``unsent``. Callers choose with the ``picker`` of that name, and with ``learns`` they have learned delays and the
    brake. Links are measured every ``measure_interval``, and ``warm_up`` times when they are new.

    Replicas and callers stand in ``zones`` in turn; with ``zone_blind`` they don't say so, and only latencies know it.
    Replicas are linked within their groups (``core.groups``): all to all as long as there is one group.
    """

    replicas: int = 3
    slots: int = 2
    callers: int = 1
    methods: tuple[HeldMethod, ...] = (METHOD,)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    replica_limits: ReplicaLimits = field(default_factory=ReplicaLimits)
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    unsent: float = 0.0
    measure_interval: float = 0.5
    warm_up: int = 16
    picker: str = "two-choices"
    learns: bool = False
    zones: tuple[str, ...] = ()
    zone_blind: bool = False

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        check_count("replicas", self.replicas, 1, 1_000)
        check_count("slots", self.slots, 1, 1_000)
        check_count("callers", self.callers, 1, 1_000)
        check_count("warm_up", self.warm_up, 1, 1_000)
        check_number("unsent", self.unsent, 0.0, 1.0)
        check_number("measure_interval", self.measure_interval, 0.001, 86_400.0, "seconds")
        if not self.methods:
            raise BadOption("methods: a replica without a method has nothing to do")
        for zone in self.zones:
            check_zone(zone, field="zones")

    @property
    def replica_zones(self) -> dict[str, str]:
        """The zone of each replica by name; empty where there are no zones."""
        return _in_turn("r", self.replicas, self.zones)

    @property
    def caller_zones(self) -> dict[str, str]:
        """The zone of each caller by name; empty where there are no zones."""
        return _in_turn("c", self.callers, self.zones)


def _in_turn(letter: str, count: int, zones: tuple[str, ...]) -> dict[str, str]:
    return {f"{letter}{index}": zones[index % len(zones)] for index in range(count)} if zones else {}


def stream(seed: int | str, purpose: str) -> Random:
    """Random numbers for one purpose: one more draw for it changes nothing for any other."""
    return Random(f"{seed}/{purpose}")


class World:
    """Replicas and callers by name, their network and their clock."""

    def __init__(
        self,
        options: WorldOptions,
        load: Load,
        *,
        seed: int | str,
        observer: Observer | None = None,
        replica_core: Callable[..., ReplicaCore] = ReplicaCore,
        call_core: Callable[..., CallCore] = CallCore,
        streams: Streams | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options
        self.seed = seed
        self.observer = observer
        self.clock = clock if clock is not None else Clock()
        zones = {**options.replica_zones, **options.caller_zones}
        said = {} if options.zone_blind else zones
        network = replace(options.network, zones=zones)
        self.network = Network(self.clock, network, self.random("network"), observer)
        self.replicas: dict[str, ReplicaNode] = {}
        self.callers: dict[str, CallerNode] = {}
        self.meter = Meter(self, self.random("meter"), interval=options.measure_interval, warm_up=options.warm_up)
        for index in range(options.replicas):
            name = f"r{index}"
            self.replicas[name] = ReplicaNode(
                name,
                self.network,
                load,
                self.random(name),
                methods=options.methods,
                slots=options.slots,
                limits=options.replica_limits,
                observer=observer,
                core=replica_core,
                zone=said.get(name, ""),
                streams=streams,
            )
        for index in range(options.callers):
            name = f"c{index}"
            self.callers[name] = CallerNode(
                name,
                self.network,
                load,
                self.meter,
                self.random(name),
                limits=options.client_limits,
                unsent=options.unsent,
                observer=observer,
                core=call_core,
                picker=options.picker,
                learns=options.learns,
                zone=said.get(name, ""),
                streams=streams,
            )

    def random(self, purpose: str) -> Random:
        """This world's random numbers for one purpose."""
        return stream(self.seed, purpose)

    def node(self, name: str) -> ReplicaNode | CallerNode:
        """The node of that name."""
        return self.replicas[name] if name in self.replicas else self.callers[name]

    # ---- verbs ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every node, connect each pair that is to be linked (of two replicas the lower number dials), and let
        time pass until all are connected.
        """
        replicas, callers = list(self.replicas.values()), list(self.callers.values())
        for replica in replicas:
            replica.start()
        for caller in callers:
            caller.start()
        groups = {name: group_of(name, len(replicas)) for name in self.replicas}
        for index, dialer in enumerate(replicas):
            group = groups[dialer.name]
            for acceptor in replicas[index + 1 :]:
                if groups[acceptor.name] == group:
                    self.network.connect(dialer, acceptor)
        for caller in callers:
            for replica in replicas:
                self.network.connect(caller, replica)
        for one, other in self.network.pairs():  # what is connected stays so, as long as nothing happens
            while not self._are_connected(one, other):
                if self.clock.now > CONNECTING_MAX or not len(self.clock):
                    raise SimulationError(f"not connected after {self.clock.now:g} s: {one} and {other}")
                self.clock.run(self.clock.next_at)
        self.meter.start()

    def unconnected(self) -> str | None:
        """A live pair of nodes that is to be connected and is not, or None."""
        for dialer, acceptor in self.network.pairs():
            alive = self.node(dialer).alive and self.node(acceptor).alive
            if alive and not self._are_connected(dialer, acceptor):
                return f"{dialer} and {acceptor}"
        return None

    def _are_connected(self, dialer: str, acceptor: str) -> bool:
        """Whether both ends know of a connection; a replica does not tell which callers it has."""
        if dialer in self.callers:
            return self.callers[dialer].table.knows(acceptor)
        return acceptor in self.replicas[dialer].peers.values() and dialer in self.replicas[acceptor].peers.values()

    def crash(self, name: str) -> None:
        """End a replica at once."""
        self._tell("crash", name, str(self.replicas[name].identity))
        self.replicas[name].crash()

    def crash_caller(self, name: str) -> list[OpenCall]:
        """End a caller at once. Returns its open calls, which have no outcome any more."""
        self._tell("crash", name, str(self.callers[name].identity))
        return self.callers[name].crash()

    def restart(self, name: str) -> None:
        """Start a node that has ended, as a new incarnation."""
        node = self.node(name)
        assert not node.alive, f"{name} is alive"
        node.start()
        self._tell("restart", name, str(node.identity))
        self.network.revived(node)

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a node for a while."""
        node = self.node(name)
        self._tell("freeze", name, f"{seconds:.6f} s")
        node.freeze(seconds)

    def drain(self, name: str) -> None:
        """Ask a replica for an orderly end."""
        self._tell("drain", name, str(self.replicas[name].identity))
        self.replicas[name].drain()

    def _tell(self, what: str, node: str, detail: str) -> None:
        if self.observer is not None:
            self.observer.fault(what, node, detail)

    # ---- looking ----------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """The length of every collection of every live core, summed by name over the nodes."""
        total: dict[str, int] = {}
        for replica in self.replicas.values():
            if replica.alive:
                for name, size in replica.core.sizes().items():
                    total[name] = total.get(name, 0) + size
        total["calls"] = sum(len(caller.calls) for caller in self.callers.values())
        total["handlers"] = sum(len(replica.executions) for replica in self.replicas.values())
        return total

    def pending(self) -> str | None:
        """Why the world is not at rest, in words; None when nothing is under way."""
        for caller in self.callers.values():
            for call in caller.calls.values():
                return (
                    f"{caller.name}: call {call.number} is {call.core.state.name}, requested at {call.requested_at:g}"
                )
        for replica in self.replicas.values():
            if not replica.alive:
                return f"{replica.name} is down"
            if replica.executions:
                return f"{replica.name}: the handler of {next(iter(replica.executions))} runs"
            sizes = replica.core.sizes()
            for name in MUST_DRAIN:
                if sizes.get(name):
                    return f"{replica.name}: {sizes[name]} {name}"
            if replica.core.free_slots != replica.slots:
                return f"{replica.name}: {replica.core.free_slots} of {replica.slots} slots are free"
        pair = self.unconnected()
        if pair is not None:
            return f"{pair} are not connected"
        for flight in self.network.flights():
            return f"{flight.direction.source} to {flight.direction.target}: {flight.message} is under way"
        return None
