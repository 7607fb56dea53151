"""Faults by plan: what goes wrong in a world, how often and for how long, until it is told to stop.

Every kind comes at exponential intervals of its own; a kind without an interval never comes. ``Faults.stop`` mends
everything: partitions heal, what is down starts again. Not for what a fault means (``network``, ``world``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random

from tiedreq.core.checks import check_number
from tiedreq.core.events import PushbackRequested
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.world import World
from tiedreq.units import format_duration


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Mean seconds between faults of each kind, over the whole world; 0 for never. Lengths in seconds.

    ``crash``, ``drain`` and ``caller_crash`` last until the restart, ``freeze`` and ``caller_freeze`` stop a node,
    ``cut`` breaks a connection, ``hold`` stops one direction for less time than anybody notices, ``partition`` stops
    both directions and ``one_way`` one of them until it heals, ``slow`` makes a replica's handlers ``slow_factor``
    times as long, ``pushback`` makes a replica ask for no backups. Each lasts up to ``length_max``, drawn anew.
    """

    crash: float = 0.0
    drain: float = 0.0
    freeze: float = 0.0
    cut: float = 0.0
    hold: float = 0.0
    partition: float = 0.0
    one_way: float = 0.0
    slow: float = 0.0
    pushback: float = 0.0
    caller_crash: float = 0.0
    caller_freeze: float = 0.0
    slow_factor: float = 10.0
    length_max: float = 0.5

    def __post_init__(self) -> None:
        for option in fields(self):
            check_number(option.name, getattr(self, option.name), 0.0, 86_400.0)

    def __str__(self) -> str:
        told = [
            f"{option.name} every {format_duration(round(getattr(self, option.name), 6))}"
            for option in fields(self)
            if option.name not in ("slow_factor", "length_max") and getattr(self, option.name)
        ]
        if not told:
            return "none"
        return f"{', '.join(told)}; up to {format_duration(round(self.length_max, 6))} long"


class Faults:
    """Inflicts faults on a world from ``start`` to ``stop``. ``counts`` says how many of each kind there were.

    ``slowed`` is where it keeps the factors of replicas that are slow for a while, for the workload to read.
    """

    def __init__(self, world: World, options: FaultOptions, rng: Random, slowed: dict[str, float]) -> None:
        self.counts: dict[str, int] = {}
        self.slowed = slowed
        self._world = world
        self._options = options
        self._rng = rng
        self._over = False
        self._inflict: dict[str, Callable[[float], bool]] = {
            "crash": self._crash,
            "drain": self._drain,
            "freeze": self._freeze,
            "cut": self._cut,
            "hold": self._hold,
            "partition": self._partition,
            "one_way": self._one_way,
            "slow": self._slow,
            "pushback": self._pushback,
            "caller_crash": self._caller_crash,
            "caller_freeze": self._caller_freeze,
        }

    def start(self) -> None:
        """From now on."""
        for kind in self._inflict:
            self._next(kind)

    def stop(self) -> None:
        """No more faults, and all that lasts is mended now (a freeze ends by itself)."""
        self._over = True
        self._world.network.heal_all()
        self.slowed.clear()
        for name in [*self._world.replicas, *self._world.callers]:
            if not self._world.node(name).alive:
                self._world.restart(name)

    def _next(self, kind: str) -> None:
        every: float = getattr(self._options, kind)
        if every:
            self._after(self._rng.expovariate(1 / every), self._strike, kind)

    def _strike(self, kind: str, _: None) -> None:
        if self._over:
            return
        if self._inflict[kind](self._rng.random() * self._options.length_max):
            self.counts[kind] = self.counts.get(kind, 0) + 1
        self._next(kind)

    def _after(self, seconds: float, action: Callable[..., None], first: object = None, second: object = None) -> None:
        self._world.clock.at(self._world.clock.now + seconds, action, first, second)

    # ---- nodes ------------------------------------------------------------------------------------------------

    def _replica(self) -> ReplicaNode | None:
        alive = [replica for replica in self._world.replicas.values() if replica.alive]
        return self._rng.choice(alive) if alive else None

    def _crash(self, seconds: float) -> bool:
        replica = self._replica()
        if replica is not None:
            self._world.crash(replica.name)
            self._after(seconds, self._restart, replica.name)
        return replica is not None

    def _drain(self, seconds: float) -> bool:
        replica = self._replica()
        if replica is not None and not replica.leaving:
            self._world.drain(replica.name)
            self._after(seconds, self._restart, replica.name)
            return True
        return False

    def _restart(self, name: str, _: None) -> None:
        """Start what has ended; one that still drains gets more time."""
        replica = self._world.replicas.get(name)
        if replica is not None and replica.alive:
            if replica.leaving:
                self._after(self._options.length_max, self._restart, name)
        elif replica is not None or not self._world.callers[name].alive:
            self._world.restart(name)

    def _freeze(self, seconds: float) -> bool:
        replica = self._replica()
        if replica is not None:
            self._world.freeze(replica.name, seconds)
            if seconds > self._world.options.network.silence:
                self._give_up(replica.name)
        return replica is not None

    def _give_up(self, name: str) -> None:
        """The others take a long silence for death, sometimes: each of them by itself."""
        for connection in self._world.network.connections(name):
            if self._rng.random() < 0.5:
                silence = self._world.options.network.silence
                self._after(silence, self._world.network.silent_end, connection, connection.other_end(name))

    def _slow(self, seconds: float) -> bool:
        replica = self._replica()
        if replica is not None:
            self.slowed[replica.name] = self._options.slow_factor
            self._after(seconds, self._fast, replica.name)
        return replica is not None

    def _fast(self, name: str, _: None) -> None:
        self.slowed.pop(name, None)

    def _pushback(self, seconds: float) -> bool:
        replica = self._replica()
        if replica is not None and not replica.frozen:
            replica.step(PushbackRequested(seconds))
            return True
        return False

    def _caller_crash(self, seconds: float) -> bool:
        alive = [caller for caller in self._world.callers.values() if caller.alive]
        if alive:
            name = self._rng.choice(alive).name
            self._world.crash_caller(name)
            self._after(seconds, self._restart, name)
        return bool(alive)

    def _caller_freeze(self, seconds: float) -> bool:
        alive = [caller for caller in self._world.callers.values() if caller.alive]
        if alive:
            self._world.freeze(self._rng.choice(alive).name, seconds)
        return bool(alive)

    # ---- the network ------------------------------------------------------------------------------------------

    def _cut(self, seconds: float) -> bool:
        network = self._world.network
        connections = [c for pair in network.pairs() for c in network.connections(*pair)]
        if connections:
            network.cut(self._rng.choice(connections))
        return bool(connections)

    def _names(self) -> tuple[str, str]:
        first, second = self._rng.choice(self._world.network.pairs())
        return (first, second) if self._rng.random() < 0.5 else (second, first)

    def _hold(self, seconds: float) -> bool:
        names = self._names()
        network = self._world.network
        network.hold(*names)
        self._after(min(seconds, network.options.silence), network.release, *names)
        return True

    def _partition(self, seconds: float) -> bool:
        first, second = self._names()
        network = self._world.network
        for names in ((first, second), (second, first)):
            network.partition(*names)
            self._after(seconds, network.heal, *names)
        return True

    def _one_way(self, seconds: float) -> bool:
        names = self._names()
        network = self._world.network
        network.partition(*names)
        self._after(seconds, network.heal, *names)
        return True
