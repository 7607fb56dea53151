"""Zones that stand still: every replica of a zone stops entirely, at the same moment, now and then.

Not for pauses that belong to one replica (``workload.Pauses``).
"""

from __future__ import annotations

from random import Random

from tiedreq.sim.world import World
from tiedreq.slowness import PauseSpec


class ZonePauses:
    """Stops the zones of a world, each at exponential intervals of its own; ``spec.replica`` is not looked at."""

    def __init__(self, world: World, spec: PauseSpec, rng: Random) -> None:
        self._world = world
        self._spec = spec
        self._rng = rng
        self._zones: dict[str, list[str]] = {}
        for name, zone in world.options.replica_zones.items():
            self._zones.setdefault(zone, []).append(name)

    def start(self) -> None:
        """Begin the first interval of every zone."""
        for zone in self._zones:
            self._next(zone)

    def _next(self, zone: str) -> None:
        clock = self._world.clock
        clock.at(clock.now + self._rng.expovariate(1 / self._spec.every), self._pause, zone)

    def _pause(self, zone: str, _: None) -> None:
        for name in self._zones[zone]:
            if self._world.replicas[name].alive:
                self._world.freeze(name, self._spec.duration)
        clock = self._world.clock
        clock.at(clock.now + self._spec.duration, self._resume, zone)

    def _resume(self, zone: str, _: None) -> None:
        self._next(zone)
