"""What heartbeats would measure: round trips of client links, and notice latencies between replicas.

Round trips are drawn from the laws of both directions, a frozen answerer answers when it wakes, and the estimate is the
core's own (``RoundTrip``). A new link begins with ``warm_up`` measurements, as if it had been up for a while.
Not for messages: nothing is sent.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from tiedreq.core.events import NoticeLatencyMeasured
from tiedreq.core.picker import ReplicaView
from tiedreq.core.pulse import RoundTrip
from tiedreq.sim.caller_node import CallerNode
from tiedreq.sim.clock import Clock
from tiedreq.sim.network import Network
from tiedreq.sim.replica_node import ReplicaNode


class Nodes(Protocol):
    """The nodes of a world."""

    clock: Clock
    network: Network
    replicas: dict[str, ReplicaNode]
    callers: dict[str, CallerNode]


class Meter:
    """Measures every ``interval`` seconds, for ever once ``start`` was called."""

    def __init__(self, nodes: Nodes, rng: Random, *, interval: float, warm_up: int) -> None:
        self._nodes = nodes
        self._rng = rng
        self._interval = interval
        self._warm_up = warm_up
        self._trips: dict[int, RoundTrip] = {}
        self._peers: dict[tuple[str, int], RoundTrip] = {}

    def start(self) -> None:
        """Measure from now on."""
        self._measure(None, None)

    def connected(self, caller: str, view: ReplicaView) -> None:
        """A caller has a new link: it knows its round trip at once."""
        trip = self._trips[view.link] = RoundTrip()
        for _ in range(self._warm_up):
            trip.add(self._draw(caller, view.name))
        _show(view, trip)

    def _draw(self, source: str, target: str) -> float:
        options = self._nodes.network.options
        return options.law(source, target).sample(self._rng) + options.law(target, source).sample(self._rng)

    def _echo_at(self, source: str, target: str) -> float:
        now = self._nodes.clock.now
        replica = self._nodes.replicas[target]
        return max(now, replica.frozen_until if replica.frozen else now) + self._draw(source, target)

    def _measure(self, _: None, __: None) -> None:
        clock = self._nodes.clock
        for caller in self._nodes.callers.values():
            if caller.alive and not caller.frozen:
                self._measure_views(caller)
        for replica in self._nodes.replicas.values():
            if replica.alive and not replica.frozen:
                self._measure_peers(replica)
        clock.at(clock.now + self._interval, self._measure)

    def _measure_views(self, caller: CallerNode) -> None:
        clock = self._nodes.clock
        for view in caller.table.views():
            clock.at(self._echo_at(caller.name, view.name), self._view_echoed, view, clock.now)

    def _view_echoed(self, view: ReplicaView, asked_at: float) -> None:
        trip = self._trips[view.link]
        trip.add(self._nodes.clock.now - asked_at)
        _show(view, trip)

    def _measure_peers(self, replica: ReplicaNode) -> None:
        clock = self._nodes.clock
        for link, peer in replica.peers.items():
            at = self._echo_at(replica.name, peer)
            key = replica.name, link
            if key not in self._peers:
                trip = self._peers[key] = RoundTrip()
                for _ in range(self._warm_up):
                    trip.add(self._draw(replica.name, peer))
                at = clock.now
            clock.at(at, self._peer_echoed, (replica, link, peer), clock.now if at > clock.now else None)

    def _peer_echoed(self, about: tuple[ReplicaNode, int, str], asked_at: float | None) -> None:
        replica, link, peer = about
        if not replica.alive or replica.frozen or link not in replica.peers:
            return
        trip = self._peers[replica.name, link]
        if asked_at is not None:
            trip.add(self._nodes.clock.now - asked_at)
        assert trip.mean is not None
        replica.step(NoticeLatencyMeasured(peer, trip.mean / 2))


def _show(view: ReplicaView, trip: RoundTrip) -> None:
    view.round_trip = trip.mean
    view.round_trip_deviation = trip.deviation
