"""The connections of a small world: which exist, which of them are broken, and what each side knows of that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

NEW, UP, GONE = range(3)
CALLER_SIDE = -1


class Entry(NamedTuple):
    """One connection. ``sides`` says what the dialer and the acceptor know of it.

    ``drained``: the acceptor ended it in order, after all that it had to tell its caller.
    """

    link: int
    cut: bool
    sides: tuple[int, int]
    drained: bool = False


class Pair(NamedTuple):
    """All connections of one pair of processes that a side still knows of; ``epochs`` were there so far."""

    epochs: int
    entries: tuple[Entry, ...]


class News(NamedTuple):
    """Something that may happen to a connection: ``kind`` is up, loss, break (the first to learn of a loss) or dial.
    ``drained``: the loss is told by the last word of a replica that has drained.
    """

    kind: str
    link: int
    side: int
    who: int
    to: int
    drained: bool = False


class Connections:
    """The connections of all pairs as interned values: every method takes one and returns one, by its number.

    Processes are numbered: replicas from 0, the caller is -1. Pair ``i`` below the number of replicas is the caller and
    replica ``i``; the rest are pairs of replicas. The first of a pair dials.
    """

    def __init__(self, replicas: int) -> None:
        self.pairs = [(CALLER_SIDE, i) for i in range(replicas)] + list(combinations(range(replicas), 2))
        self._values: list[tuple[Pair, ...]] = []
        self._ids: dict[tuple[Pair, ...], int] = {}
        self._status: list[dict[tuple[int, int], int]] = []
        self._open: list[frozenset[tuple[int, int]]] = []
        self._crashed: dict[tuple[int, int, bool], int] = {}
        self._news: dict[int, tuple[News, ...]] = {}

    def number(self, pair: int, epoch: int) -> int:
        """The link number of a connection, the same on both sides."""
        return 100 * (pair + 1) + epoch

    def pair(self, i: int, j: int) -> int:
        """The number of the pair of two replicas."""
        return self.pairs.index((min(i, j), max(i, j)))

    def ends(self, link: int) -> tuple[int, int]:
        """The dialer and the acceptor of a connection."""
        return self.pairs[link // 100 - 1]

    def begin(self) -> int:
        """Everybody is connected with everybody."""
        return self._keep(tuple(Pair(1, (Entry(self.number(i, 0), False, (UP, UP)),)) for i in range(len(self.pairs))))

    def status(self, value: int, link: int, side: int) -> int:
        """What a side knows of a connection."""
        return self._status[value].get((link, side), GONE)

    def open(self, value: int, link: int, side: int) -> bool:
        """True when a message that is sent now to that side of a connection may arrive."""
        return (link, side) in self._open[value]

    def _keep(self, value: tuple[Pair, ...]) -> int:
        known = self._ids.get(value)
        if known is None:
            known = self._ids[value] = len(self._values)
            self._values.append(value)
            entries = [entry for pair in value for entry in pair.entries]
            self._status.append({(entry.link, side): entry.sides[side] for entry in entries for side in (0, 1)})
            self._open.append(
                frozenset((e.link, side) for e in entries for side in (0, 1) if not e.cut and e.sides[side] != GONE)
            )
        return known

    def _replace(self, value: int, link: int, entry: Entry) -> int:
        pairs = list(self._values[value])
        number = link // 100 - 1
        kept = (entry if old.link == link else old for old in pairs[number].entries)
        pairs[number] = pairs[number]._replace(entries=tuple(e for e in kept if e.sides != (GONE, GONE)))
        return self._keep(tuple(pairs))

    def _entry(self, value: int, link: int) -> Entry:
        return next(entry for entry in self._values[value][link // 100 - 1].entries if entry.link == link)

    def cut(self, value: int, link: int, *, drained: bool = False) -> int:
        """A connection breaks. A side that has not heard that it is up never will."""
        entry = self._entry(value, link)
        first, second = (GONE if side == NEW else side for side in entry.sides)
        in_order = entry.drained or (drained and not entry.cut)
        return self._replace(value, link, Entry(link, True, (first, second), in_order))

    def know(self, value: int, link: int, side: int, status: int) -> int:
        """A side learns something of a connection."""
        entry = self._entry(value, link)
        sides = (status, entry.sides[1]) if side == 0 else (entry.sides[0], status)
        return self._replace(value, link, entry._replace(sides=sides))

    def dial(self, value: int, pair: int) -> tuple[int, int]:
        """A new connection, of which neither side has heard yet, and its link number.

        The dialer dials when it knows of no connection that is or will be up.
        """
        pairs = list(self._values[value])
        link = self.number(pair, pairs[pair].epochs)
        entries = (*pairs[pair].entries, Entry(link, False, (NEW, NEW)))
        pairs[pair] = Pair(pairs[pair].epochs + 1, entries)
        return self._keep(tuple(pairs)), link

    def end(self, value: int, who: int, *, drained: bool) -> int:
        """A process ends, and with it its side of every connection; in order when it has drained."""
        known = self._crashed.get((value, who, drained))
        if known is None:
            known = self._crashed[value, who, drained] = self._end(value, who, drained)
        return known

    def news(self, value: int) -> tuple[News, ...]:
        """All that may happen to connections next."""
        known = self._news.get(value)
        if known is None:
            known = self._news[value] = tuple(self._next(value))
        return known

    def _next(self, value: int) -> Iterator[News]:
        for number, pair in enumerate(self._values[value]):
            ends = self.pairs[number]
            for entry in pair.entries:
                for side, who in enumerate(ends):
                    if entry.sides[side] == NEW:
                        yield News("up", entry.link, side, who, self.know(value, entry.link, side, UP))
                    elif entry.sides[side] == UP:
                        kind = "loss" if entry.cut else "break"
                        broken = self.cut(value, entry.link)
                        to = self.know(broken, entry.link, side, GONE)
                        yield News(kind, entry.link, side, who, to, entry.drained)
            if all(entry.sides[0] == GONE for entry in pair.entries):
                dialed, link = self.dial(value, number)
                yield News("dial", link, 0, ends[0], dialed)

    def _end(self, value: int, who: int, drained: bool) -> int:
        for number, ends in enumerate(self.pairs):
            if who in ends:
                for entry in self._values[value][number].entries:
                    value = self.cut(value, entry.link, drained=drained and CALLER_SIDE in ends)
                    if any(left.link == entry.link for left in self._values[value][number].entries):
                        value = self.know(value, entry.link, ends.index(who), GONE)
        return value
