"""The parts of the network: options, what a node is, directions, the two ends of a connection.

Not for what happens to them: ``network`` makes, breaks, holds and releases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappush
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tiedreq.core.checks import Reduced, check_number, reduced
from tiedreq.core.messages import Message, Welcome
from tiedreq.core.types import Identity
from tiedreq.units import LatencyLaw, LatencySpec

if TYPE_CHECKING:
    from tiedreq.sim.network import Network


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the network behaves. Durations are seconds.

    ``mesh`` is the latency between replicas (r0, r1 …), ``client`` between callers (c0, c1 …) and replicas; ``zones``
    says in which zone the node of a name is, where latencies name zones. An end
    learns of a break between ``notice_min`` and ``notice_max`` after it; the silence that makes an end give up takes
    ``silence`` to twice that; the dialer tries again ``reconnect_min`` to ``reconnect_max`` later. A message is
    overtaken by those that follow for up to ``overtaking_delay``, with the probability ``overtaking``.
    """

    mesh: LatencySpec = field(default_factory=LatencySpec)
    client: LatencySpec = field(default_factory=LatencySpec)
    notice_min: float = 0.0
    notice_max: float = 0.05
    silence: float = 1.0
    reconnect_min: float = 0.01
    reconnect_max: float = 0.2
    overtaking: float = 0.0
    overtaking_delay: float = 0.005
    zones: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        for name in ("notice_max", "silence", "reconnect_max", "overtaking_delay"):
            check_number(name, getattr(self, name), 0.0, 3600.0, "seconds")
        check_number("notice_min", self.notice_min, 0.0, self.notice_max, "seconds")
        check_number("reconnect_min", self.reconnect_min, 1e-6, self.reconnect_max, "seconds")
        check_number("overtaking", self.overtaking, 0.0, 1.0)

    def law(self, source: str, target: str) -> LatencyLaw:
        """The latency of the direction from one node to another, by their names."""
        between_replicas = source.startswith("r") and target.startswith("r")
        spec = self.mesh if between_replicas else self.client
        return (
            spec.law(source, target, self.zones.get(source, ""), self.zones.get(target, ""))
            if spec.links
            else spec.default
        )


class Node(Protocol):
    """What the network needs of a replica or a caller.

    ``generation`` grows with every restart. One that is ``frozen`` neither dials nor accepts.
    """

    name: str
    identity: Identity
    alive: bool
    frozen: bool
    generation: int

    def receive(self, link: int, message: Parcel) -> None:
        """A message arrived."""

    def accepted(self, connection: Connection) -> None:
        """A connection that another node dialed is up here; an ``Opening`` is to be sent over it first of all."""

    def lost(self, link: int, *, drained: bool) -> None:
        """This end has learnt that a connection is gone, ``drained`` by the last word of a drained replica."""


class NetworkObserver(Protocol):
    """Who wants to know what the network did."""

    def network(self, what: str, source: str, target: str, link: int, message: Parcel | None) -> None:
        """``what`` happened: ``lost`` (with the message), ``cut``, ``hold``, ``release``, ``partition``, ``heal``."""


class Direction:
    """One direction of one connection. ``waiting`` is what arrived while it was held, None when it is not held.

    ``sent`` counts the messages that were put on their way.
    """

    __slots__ = (
        "_arrive",
        "_clock",
        "_lane",
        "_last_at",
        "_law",
        "_mean",
        "_network",
        "_receive",
        "closed",
        "link",
        "sent",
        "source",
        "target",
        "waiting",
    )

    def __init__(self, network: Network, source: Node, target: Node, link: int) -> None:
        self._network = network
        self._clock = network.clock
        self._law = network.options.law(source.name, target.name)
        plain = self._law.jitter == 0 and network.options.overtaking == 0
        self._mean = self._law.mean if plain else None
        self._lane = network.clock.lane(self._mean) if self._mean else None
        self._last_at = 0.0
        self._receive = target.receive
        self._arrive = self._arrived
        self.source = source.name
        self.target = target.name
        self.link = link
        self.closed = False
        self.sent = 0
        self.waiting: deque[Parcel] | None = None

    def send(self, message: Parcel) -> None:
        """Put a message on its way."""
        self.sent += 1
        clock, mean = self._clock, self._mean
        if mean is not None:
            when = clock.now + mean
        else:
            when = clock.now + self._law.sample(self._network.rng)
            if when < self._last_at:
                when = self._last_at
            if self._network.overtaken(message):
                when += self._network.overtaking_delay()
            else:
                self._last_at = when
        if self._lane is not None and when > clock.now:
            self._lane.append((when, clock.number(), self._arrive, message, None))
        elif when > clock.now:
            heappush(clock.entries, (when, clock.number(), self._arrive, message, None))
        else:
            clock.soon.append((when, clock.number(), self._arrive, message, None))

    def _arrived(self, message: Parcel, _: None) -> None:
        if self.closed:
            self._network.lose(self, message)
        elif self.waiting is not None:
            self.waiting.append(message)
        else:
            self._receive(self.link, message)

    def hold(self) -> None:
        """From now on messages wait instead of arriving."""
        if self.waiting is None:
            self.waiting = deque()

    def release(self) -> None:
        """What waits arrives now, in order."""
        waiting, self.waiting = self.waiting, None
        for message in waiting or ():
            self._clock.at(self._clock.now, self._arrive, message)

    def deliver(self, index: int = 0) -> Parcel:
        """Let one message that waits arrive at once, before all others."""
        assert self.waiting is not None
        message = self.waiting[index]
        del self.waiting[index]
        self._receive(self.link, message)
        return message

    def close(self) -> None:
        """Nothing arrives any more: what is on its way is lost."""
        self.closed = True
        for message in self.waiting or ():
            self._network.lose(self, message)
        if self.waiting:
            self.waiting.clear()


class End:
    """One end of a connection: its node as it was then, whether it has been told that the connection is gone, and
    whether the other end was a replica that had drained.
    """

    __slots__ = ("drained", "generation", "identity", "node", "outgoing", "told")

    def __init__(self, node: Node, outgoing: Direction) -> None:
        self.node = node
        self.identity = node.identity
        self.generation = node.generation
        self.outgoing = outgoing
        self.told = False
        self.drained = False


class Connection:
    """A connection between a dialer and an acceptor. ``link`` is its number, at both ends."""

    __slots__ = ("acceptor", "dialer", "link")

    def __init__(self, network: Network, pair: Pair, link: int) -> None:
        self.link = link
        self.dialer = End(pair.dialer, Direction(network, pair.dialer, pair.acceptor, link))
        self.acceptor = End(pair.acceptor, Direction(network, pair.acceptor, pair.dialer, link))

    def ends(self) -> tuple[tuple[End, End], tuple[End, End]]:
        """Each end with the other one."""
        return (self.dialer, self.acceptor), (self.acceptor, self.dialer)

    def end_of(self, name: str) -> End:
        """The end at the node of that name."""
        return self.dialer if self.dialer.node.name == name else self.acceptor

    def other_end(self, name: str) -> End:
        """The end that is not at the node of that name."""
        return self.acceptor if self.dialer.node.name == name else self.dialer


class Opening(NamedTuple):
    """The first message on a connection, from its acceptor: the end of the handshake, and the Welcome."""

    connection: Connection
    welcome: Welcome


Parcel = Message | Opening


class Pair:
    """Two nodes that are to be connected, and their newest connection."""

    __slots__ = ("acceptor", "connection", "dialer", "dialing")

    def __init__(self, dialer: Node, acceptor: Node) -> None:
        self.dialer = dialer
        self.acceptor = acceptor
        self.connection: Connection | None = None
        self.dialing = False


class Flight(NamedTuple):
    """A message under way: ``due`` is when it arrives, infinity when its direction is held."""

    due: float
    direction: Direction
    message: Parcel
