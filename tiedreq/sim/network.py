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

from collections.abc import Iterator
from random import Random

from tiedreq.core.link_rules import DRAINED
from tiedreq.core.messages import Goodbye, Submit
from tiedreq.sim.clock import NEVER, Clock
from tiedreq.sim.links import Connection, Direction, End, Flight, NetworkObserver, NetworkOptions, Node, Pair, Parcel

GOODBYE = Goodbye("closed", "the other side is leaving")
LAST_GOODBYE = Goodbye(DRAINED, "the replica has drained")


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
        """A replica that has drained says so on all its connections: what it sent before still arrives, and nothing
        reaches it any more.
        """
        for connection in self.connections(node.name):
            end, other = connection.end_of(node.name), connection.other_end(node.name)
            if not end.told:
                end.outgoing.send(LAST_GOODBYE)
                end.told = True
                other.outgoing.close()
                self._forget_if_told(connection)

    def said_goodbye(self, link: int, node: Node, code: str) -> None:
        """The Goodbye of the other end has arrived at ``node``."""
        connection = self._connections.get(link)
        if connection is not None:
            end = connection.end_of(node.name)
            end.drained = code == DRAINED
            self._break(connection, end)

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
        node.lost(connection.link, drained=end.drained)
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
        for when, _, action, first, _ in sorted(self.clock.due(), key=lambda entry: entry[:2]):
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
