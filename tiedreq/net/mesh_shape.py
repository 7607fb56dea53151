"""What one replica's frames to its peers meet: latency, and nothing at all where a peer is cut off.

Owns the delay lines of a replica's mesh links. A line of an accepted connection belongs to nobody until the other side
is proven (``identify``), and from then on to that peer: whom a block is about hears no Welcome. Not for what clients
get: their lines have neither latency nor block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tiedreq.net.shaping import DelayLine
from tiedreq.units import LatencySpec

ZONES_KNOWN_MAX = 4096
"""Of so many peers is the zone remembered."""


class MeshShape:
    """The delay lines of the replica ``name`` in ``zone``; ``spec`` is the latency of all links of the cluster.

    In which zone a peer is becomes known with its Welcome, and is remembered from link to link.
    """

    def __init__(self, name: str, spec: LatencySpec, zone: str = "") -> None:
        self._name = name
        self._spec = spec
        self._zone = zone
        self._zones: dict[str, str] = {}
        self._blocked: frozenset[str] = frozenset()
        self._random = Random()
        self._lines: dict[DelayLine, str | None] = {}

    @contextmanager
    def line(self, peer: str | None = None) -> Iterator[DelayLine]:
        """A line to ``peer``, or to one that is not known yet, for as long as the block runs."""
        line = DelayLine()
        self._lines[line] = peer
        self._apply(line)
        try:
            yield line
        finally:
            del self._lines[line]

    def identify(self, line: DelayLine, peer: str) -> None:
        """Whom a line leads to has become known."""
        self._lines[line] = peer
        self._apply(line)

    def locate(self, peer: str, zone: str) -> None:
        """In which zone a peer is has become known."""
        if self._zones.get(peer, "") != zone:
            if len(self._zones) >= ZONES_KNOWN_MAX:
                self._zones.clear()
            self._zones[peer] = zone
            self._apply_all()

    def set_latency(self, spec: LatencySpec) -> None:
        """From now on frames have this latency."""
        self._spec = spec
        self._apply_all()

    @property
    def blocked(self) -> frozenset[str]:
        """The peers that nothing reaches."""
        return self._blocked

    def set_blocked(self, peers: frozenset[str]) -> None:
        """From now on nothing reaches these peers, and everything the others."""
        self._blocked = peers
        self._apply_all()

    def _apply_all(self) -> None:
        for line in self._lines:
            self._apply(line)

    def _apply(self, line: DelayLine) -> None:
        peer = self._lines[line]
        if peer is None:
            return
        law, rng = self._spec.law(self._name, peer, self._zone, self._zones.get(peer, "")), self._random
        line.set_law((lambda: law.sample(rng)) if law.mean else None)
        if peer in self._blocked:
            line.block()
        elif line.blocked:
            line.unblock()
