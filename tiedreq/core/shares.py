"""Whose turn it is while copies of several clients wait: those of clients that have not yet their share of the slots.

A client's share is the number of slots divided by the number of clients that wait or run, at least one. Of a method
that may have only so many slots a client has such a share as well, among those that wait for that method or run it.
Where there are more clients than slots they take turns, in the order in which they came to wait or were chosen last.

Entering and leaving cost the same however many copies and clients wait. Choosing looks at the clients that run, of
which there are no more than slots, and at as many that wait. Used by ``core.workqueue``, as long as there is more than
one client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from tiedreq.core.types import CopyId

ALL = ""
"""The lane of methods without a limit, and the name under which all that runs is counted."""


class Running:
    """How many slots each client has: of all ``slots``, and of those of each method that has a limit."""

    __slots__ = ("counts", "slots")

    def __init__(self, slots: int, limits: Mapping[str, int]) -> None:
        self.slots = {ALL: slots, **limits}
        self.counts: dict[str, dict[int, int]] = {name: {} for name in self.slots}

    def add(self, method: str, client: int) -> None:
        """One more runs."""
        for name in (ALL, method):
            counts = self.counts.get(name)
            if counts is not None:
                counts[client] = counts.get(client, 0) + 1


class Shares:
    """What waits, by lane and client; each copy has a place, and the lowest came first. Below 0: before all others.

    Clients stand in the order of their turns.
    """

    __slots__ = ("_clients", "_turn", "_turns", "_waiting")

    def __init__(self, lanes: Iterable[str]) -> None:
        self._waiting: dict[str, OrderedDict[int, OrderedDict[CopyId, int]]] = {name: OrderedDict() for name in lanes}
        self._clients: dict[int, int] = {}  # in how many lanes each waits
        self._turns: dict[int, int] = {}  # of those, the lowest is next
        self._turn = 0

    def add(self, lane: str, copy: CopyId, place: int) -> None:
        """A copy waits."""
        client, waiting = copy[0], self._waiting[lane]
        if client not in waiting:
            waiting[client] = OrderedDict()
            if client not in self._clients:
                self._turn += 1
                self._turns[client] = self._turn
            self._clients[client] = self._clients.get(client, 0) + 1
        places = waiting[client]
        places[copy] = place
        if place < 0:
            places.move_to_end(copy, last=False)

    def remove(self, lane: str, copy: CopyId) -> None:
        """It waits no more."""
        client, waiting = copy[0], self._waiting[lane]
        places = waiting[client]
        del places[copy]
        if not places:
            del waiting[client]
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client], self._turns[client]

    def choose(self, heads: Iterable[tuple[str, CopyId]], running: Running | None) -> tuple[str, CopyId] | None:
        """The lane and the copy whose turn it is; ``heads`` are the oldest copies of the lanes that may run one more.

        Where all clients have their share, or more, or without ``running``, the oldest copy is next.
        """
        if running is None:
            return min(heads, key=lambda head: self._waiting[head[0]][head[1][0]][head[1]], default=None)
        whole = self._share(ALL, self._clients, running)
        best: tuple[bool, int, int] | None = None
        chosen: tuple[str, CopyId] | None = None
        for name, head in heads:
            beyond, place, copy = self._choose_in(name, head, running, whole)
            rank = beyond, 0 if beyond or whole else self._turns[copy[0]], place
            if best is None or rank < best:
                best, chosen = rank, (name, copy)
        if chosen is not None:
            client = chosen[1][0]
            self._waiting[chosen[0]].move_to_end(client)
            self._turn += 1
            self._turns[client] = self._turn
        return chosen

    def _choose_in(self, name: str, head: CopyId, running: Running, whole: int) -> tuple[bool, int, CopyId]:
        """Of one lane: whether the copy's client has its share, the copy's place, and the copy."""
        waiting = self._waiting[name]
        own = whole if name == ALL else self._share(name, waiting, running)
        of_all, of_lane = max(1, whole), max(1, own)
        runs, runs_here = running.counts[ALL], running.counts[name]
        by_turns = not (whole and own)
        beyond, place, chosen = True, waiting[head[0]][head], head
        if not by_turns and runs.get(head[0], 0) < of_all and runs_here.get(head[0], 0) < of_lane:
            return False, place, head
        for client, places in waiting.items():
            if runs.get(client, 0) < of_all and runs_here.get(client, 0) < of_lane:
                copy, at = next(iter(places.items()))
                if beyond or at < place:
                    beyond, place, chosen = False, at, copy
                if by_turns:
                    break
        return beyond, place, chosen

    @staticmethod
    def _share(name: str, waiting: Mapping[int, object], running: Running) -> int:
        """Of the slots of a lane, or of all, while these clients wait for it; 0: there are more clients than slots."""
        clients = len(waiting)
        for client in running.counts[name]:
            if client not in waiting:
                clients += 1
        return running.slots[name] // max(1, clients)

    def snapshot(self) -> tuple[object, ...]:
        """What choices depend on beyond what waits and runs: whose turn is when."""
        lanes = tuple((name, tuple(waiting)) for name, waiting in self._waiting.items())
        return lanes, tuple(sorted(self._turns, key=self._turns.__getitem__))
