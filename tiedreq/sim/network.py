"""The network between nodes: connections that break, and on each two directed links that carry messages in order.

A message arrives after the latency of its direction, in the order of sending (unless ``overtaking`` says otherwise:
a large message, sent in chunks, may be overtaken). It is lost only with its connection. A direction between two nodes
can be *held*: messages stop and wait, can be looked at and delivered one by one, and go on when it is released.
A *partition* is a hold that makes both ends give the connection up after a silence, unless it heals before.

Every connection has a number of its own (its epoch). Both ends learn of a loss at times of their own, so a new
connection may be up before an end has noticed that the old one is gone. The dialer dials again, always.

Not for bytes: messages are handed over as values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappush
from random import Random
from typing import NamedTuple, Protocol

from tiedreq.core.checks import check_number
from tiedreq.core.messages import Goodbye, Message, Submit, Welcome
from tiedreq.core.types import Identity
from tiedreq.sim.clock import NEVER, Clock
from tiedreq.units import LatencyLaw, LatencySpec

GOODBYE = Goodbye("closed", "the other side is leaving")


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the network behaves. Durations are seconds.

    ``mesh`` is the latency between replicas (r0, r1 …), ``client`` between callers (c0, c1 …) and replicas. An end
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

    def __post_init__(self) -> None:
        for name in ("notice_max", "silence", "reconnect_max", "overtaking_delay"):
            check_number(name, getattr(self, name), 0.0, 3600.0, "seconds")
        check_number("notice_min", self.notice_min, 0.0, self.notice_max, "seconds")
        check_number("reconnect_min", self.reconnect_min, 1e-6, self.reconnect_max, "seconds")
        check_number("overtaking", self.overtaking, 0.0, 1.0)

    def law(self, source: str, target: str) -> LatencyLaw:
        """The latency of the direction from one node to another, by their names."""
        between_replicas = source.startswith("r") and target.startswith("r")
        return (self.mesh if between_replicas else self.client).law(source, target)


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

    def lost(self, link: int) -> None:
        """This end has learnt that a connection is gone."""


class Opening(NamedTuple):
    """The first message on a connection, from its acceptor: the end of the handshake, and the Welcome."""

    connection: Connection
    welcome: Welcome


Parcel = Message | Opening


class NetworkObserver(Protocol):
    """Who wants to know what the network did."""

    def network(self, what: str, source: str, target: str, link: int, message: Parcel | None) -> None:
        """``what`` happened: ``lost`` (with the message), ``cut``, ``hold``, ``release``, ``partition``, ``heal``."""


class Direction:
    """One direction of one connection. ``waiting`` is what arrived while it was held, None when it is not held."""

    __slots__ = (
        "_arrive",
        "_clock",
        "_last_at",
        "_law",
        "_mean",
        "_network",
        "_receive",
        "closed",
        "link",
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
        self._last_at = 0.0
        self._receive = target.receive
        self._arrive = self._arrived
        self.source = source.name
        self.target = target.name
        self.link = link
        self.closed = False
        self.waiting: deque[Parcel] | None = None

    def send(self, message: Parcel) -> None:
        """Put a message on its way."""
        clock = self._clock
        mean = self._mean
        when = clock.now + (self._law.sample(self._network.rng) if mean is None else mean)
        if when < self._last_at:
            when = self._last_at
        if mean is None and self._network.overtaken(message):
            when += self._network.overtaking_delay()
        else:
            self._last_at = when
        heappush(clock.entries, (when, clock.number(), self._arrive, message, None))

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
    """One end of a connection: its node as it was then, and whether it has been told that the connection is gone."""

    __slots__ = ("generation", "identity", "node", "outgoing", "told")

    def __init__(self, node: Node, outgoing: Direction) -> None:
        self.node = node
        self.identity = node.identity
        self.generation = node.generation
        self.outgoing = outgoing
        self.told = False


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


class Network:
    """All connections of a world."""

    def __init__(
        self, clock: Clock, options: NetworkOptions, rng: Random, observer: NetworkObserver | None = None
    ) -> None:
        self.clock = clock
        self.options = options
        self.rng = rng
        self.lost_messages = 0
        self._observer = observer
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._connections: dict[int, Connection] = {}
        self._links = 0
        self._held: dict[tuple[str, str], None] = {}
        self._parted: dict[tuple[str, str], int] = {}
        self._partitions = 0

    # ---- connections ------------------------------------------------------------------------------------------

    def connect(self, dialer: Node, acceptor: Node) -> None:
        """Keep these two connected from now on."""
        pair = Pair(dialer, acceptor)
        self._pairs[dialer.name, acceptor.name] = pair
        self._dial(pair)

    def revived(self, node: Node) -> None:
        """A node has started again: it dials whom it dials."""
        for pair in self._pairs.values():
            if pair.dialer is node:
                pair.connection = None
                pair.dialing = False
                self._dial(pair)

    def _dial(self, pair: Pair) -> None:
        if pair.dialing or pair.connection is not None or not pair.dialer.alive:
            return
        if pair.dialer.frozen:
            self._dial_later(pair)
            return
        pair.dialing = True
        there = self.options.law(pair.dialer.name, pair.acceptor.name)
        back = self.options.law(pair.acceptor.name, pair.dialer.name)
        wait = there.sample(self.rng) + back.sample(self.rng) + there.sample(self.rng)
        self.clock.at(self.clock.now + wait, self._accept, pair, pair.dialer.generation)

    def _accept(self, pair: Pair, generation: int) -> None:
        if pair.dialer.generation != generation or not pair.dialer.alive:
            return
        pair.dialing = False
        dialer, acceptor = pair.dialer, pair.acceptor
        reachable = acceptor.alive and not self._is_parted(dialer.name, acceptor.name)
        if not reachable or acceptor.frozen or dialer.frozen:
            self._dial_later(pair)
            return
        self._links += 1
        connection = Connection(self, pair, self._links)
        self._connections[connection.link] = connection
        pair.connection = connection
        for end, _ in connection.ends():
            direction = end.outgoing
            if (direction.source, direction.target) in self._held:
                direction.hold()
        acceptor.accepted(connection)

    def _dial_later(self, pair: Pair) -> None:
        wait = self.rng.uniform(self.options.reconnect_min, self.options.reconnect_max)
        self.clock.at(self.clock.now + wait, self._dial_again, pair, pair.dialer.generation)

    def _dial_again(self, pair: Pair, generation: int) -> None:
        if pair.dialer.generation == generation:
            self._dial(pair)

    def connections(self, first: str, second: str | None = None) -> list[Connection]:
        """The connections that exist between two nodes, or of one node, oldest first. Normally one per pair."""
        return [
            connection
            for connection in self._connections.values()
            if first in (names := (connection.dialer.node.name, connection.acceptor.node.name))
            and (second is None or second in names)
        ]

    def pairs(self) -> list[tuple[str, str]]:
        """The (dialer, acceptor) pairs that are kept connected."""
        return list(self._pairs)

    # ---- breaks -----------------------------------------------------------------------------------------------

    def cut(self, connection: Connection) -> None:
        """Break a connection: what is under way is lost, and each end learns of it at a time of its own."""
        self._tell("cut", connection.dialer.node.name, connection.acceptor.node.name, connection.link)
        for end, other in connection.ends():
            other.outgoing.close()
            wait = self.rng.uniform(self.options.notice_min, self.options.notice_max)
            self.clock.at(self.clock.now + wait, self._break, connection, end)

    def cut_now(self, connection: Connection, first: str) -> None:
        """Break a connection so that the end at the node ``first`` learns of it at once, the other one not yet."""
        end = connection.end_of(first)
        for _, other in connection.ends():
            other.outgoing.close()
        self._break(connection, end)

    def notice(self, connection: Connection, name: str) -> None:
        """The end at the node ``name`` learns now that the connection is gone."""
        self._break(connection, connection.end_of(name))

    def crashed(self, node: Node) -> None:
        """A node is gone without a word: its ends end at once, the others learn of it."""
        for connection in self.connections(node.name):
            for end, other in connection.ends():
                if end.node is node:
                    end.told = True
                    end.outgoing.close()
                    other.outgoing.close()
                    wait = self.rng.uniform(self.options.notice_min, self.options.notice_max)
                    self.clock.at(self.clock.now + wait, self._break, connection, other)
            self._forget_if_told(connection)

    def leave(self, node: Node) -> None:
        """A node says goodbye on all its connections: what it sent before still arrives, nothing reaches it."""
        for connection in self.connections(node.name):
            end, other = connection.end_of(node.name), connection.other_end(node.name)
            if not end.told:
                end.outgoing.send(GOODBYE)
                end.told = True
                other.outgoing.close()
                self._forget_if_told(connection)

    def said_goodbye(self, link: int, node: Node) -> None:
        """The Goodbye of the other end has arrived at ``node``."""
        connection = self._connections.get(link)
        if connection is not None:
            self._break(connection, connection.end_of(node.name))

    def _break(self, connection: Connection, end: End) -> None:
        """An end learns that its connection is gone: nothing passes any more, either way."""
        end.outgoing.close()
        self._lose_end(connection, end)

    def _lose_end(self, connection: Connection, end: End) -> None:
        if end.told:
            return
        end.told = True
        node = end.node
        connection.other_end(node.name).outgoing.close()
        self._forget_if_told(connection)
        if not node.alive or node.generation != end.generation:
            return
        node.lost(connection.link)
        pair = self._pairs[connection.dialer.node.name, connection.acceptor.node.name]
        if end is connection.dialer and pair.connection is connection:
            pair.connection = None
            self._dial_later(pair)

    def _forget_if_told(self, connection: Connection) -> None:
        if connection.dialer.told and connection.acceptor.told:
            self._connections.pop(connection.link, None)

    # ---- hold and partition -----------------------------------------------------------------------------------

    def hold(self, source: str, target: str) -> None:
        """Messages from ``source`` to ``target`` wait, on every connection of the two."""
        self._tell("hold", source, target, 0)
        self._held[source, target] = None
        for direction in self.directions(source, target):
            direction.hold()

    def release(self, source: str, target: str) -> None:
        """They go on."""
        self._tell("release", source, target, 0)
        self._held.pop((source, target), None)
        for direction in self.directions(source, target):
            direction.release()

    def partition(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target``, until ``heal``; the target gives the connection up in time."""
        self._tell("partition", source, target, 0)
        self.hold(source, target)
        self._partitions += 1
        self._parted[source, target] = self._partitions
        wait = self.options.silence * (1 + self.rng.random())
        self.clock.at(self.clock.now + wait, self._silent, (source, target), self._partitions)

    def heal(self, source: str, target: str) -> None:
        """The partition is over. What waited on connections that nobody gave up arrives."""
        self._tell("heal", source, target, 0)
        self._parted.pop((source, target), None)
        self.release(source, target)

    def heal_all(self) -> None:
        """All holds and partitions are over."""
        for source, target in list(self._parted):
            self.heal(source, target)
        for source, target in list(self._held):
            self.release(source, target)

    def _is_parted(self, first: str, second: str) -> bool:
        return (first, second) in self._parted or (second, first) in self._parted

    def _silent(self, names: tuple[str, str], partition: int) -> None:
        """The target has heard nothing for too long: it gives up, and says so if it can."""
        if self._parted.get(names) != partition:
            return
        source, target = names
        for connection in self.connections(source, target):
            self.silent_end(connection, connection.end_of(target))

    def silent_end(self, connection: Connection, end: End) -> None:
        """An end has heard nothing for too long: it gives the connection up, and says so in case it is heard."""
        if not end.told:
            end.outgoing.send(GOODBYE)
            self._lose_end(connection, end)

    # ---- looking ----------------------------------------------------------------------------------------------

    def directions(self, source: str | None = None, target: str | None = None) -> Iterator[Direction]:
        """The directions that can carry messages, oldest connection first."""
        for connection in self._connections.values():
            for end, _ in connection.ends():
                direction = end.outgoing
                if source in (None, direction.source) and target in (None, direction.target) and not direction.closed:
                    yield direction

    def flights(self) -> list[Flight]:
        """Messages under way that will arrive if nothing breaks, the next one first; those that wait come last."""
        flying = []
        for when, _, action, first, _ in sorted(self.clock.entries, key=lambda entry: entry[:2]):
            direction = getattr(action, "__self__", None)
            if isinstance(direction, Direction) and not direction.closed:
                flying.append(Flight(when, direction, first))
        held = (d for d in self.directions() if d.waiting is not None)
        return flying + [Flight(NEVER, d, message) for d in held for message in d.waiting or ()]

    def overtaken(self, message: Parcel) -> bool:
        """Whether this message, being sent in chunks, lets those behind it pass. The handshake never does."""
        options = self.options
        return options.overtaking > 0 and isinstance(message, Submit) and self.rng.random() < options.overtaking

    def overtaking_delay(self) -> float:
        """How much later a message that is overtaken arrives, in seconds."""
        return self.rng.random() * self.options.overtaking_delay

    def lose(self, direction: Direction, message: Parcel) -> None:
        """A message went down with its connection."""
        self.lost_messages += 1
        self._tell("lost", direction.source, direction.target, direction.link, message)

    def _tell(self, what: str, source: str, target: str, link: int, message: Parcel | None = None) -> None:
        if self._observer is not None:
            self._observer.network(what, source, target, link, message)
