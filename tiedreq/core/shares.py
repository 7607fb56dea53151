"""Whose turn it is while copies of several clients wait: those of clients that have not yet their share of the slots.

A client's share is the number of slots divided by the number of clients that wait or run, at least one. Of a method
that may have only so many slots a client has such a share as well, among those that wait for that method or run it.
Where there are more clients than slots they take turns: the one whose last start is longest ago is next.

Entering and leaving cost the same however many copies wait. Choosing looks at the clients that run, of which there are
no more than slots; when the oldest copy's client has its share, or clients take turns, all clients that wait are looked
at. Used by ``core.workqueue``, as long as there is more than one client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from tiedreq.core.types import CopyId

ALL = ""
"""The lane of methods without a limit, and the name under which all that runs is counted."""
TURNS_SPARE = 128
"""The last starts of so many clients may be remembered beyond those of twice as many as wait."""


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
    """What waits, by lane and client; each copy has a place, and the lowest came first. Below 0: before all others."""

    __slots__ = ("_clients", "_turn", "_turns", "_waiting")

    def __init__(self, lanes: Iterable[str]) -> None:
        self._waiting: dict[str, dict[int, OrderedDict[CopyId, int]]] = {name: {} for name in lanes}
        self._clients: dict[int, int] = {}  # in how many lanes each waits
        self._turns: dict[str, dict[int, int]] = {name: {} for name in self._waiting}  # when each was chosen last
        self._turn = 0

    def add(self, lane: str, copy: CopyId, place: int) -> None:
        """A copy waits."""
        client, waiting = copy[0], self._waiting[lane]
        if client not in waiting:
            waiting[client] = OrderedDict()
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
                del self._clients[client]

    def choose(self, heads: Iterable[tuple[str, CopyId]], running: Running | None) -> tuple[str, CopyId] | None:
        """The lane and the copy whose turn it is; ``heads`` are the oldest copies of the lanes that may run one more.

        Where all clients have their share, or more, or without ``running``, the oldest copy is next.
        """
        if running is None:
            return min(heads, key=lambda head: self._waiting[head[0]][head[1][0]][head[1]], default=None)
        whole, turns = self._share(ALL, self._clients, running), self._turns[ALL]
        best: tuple[bool, int, int] | None = None
        chosen: tuple[str, CopyId] | None = None
        for name, head in heads:
            beyond, place, copy = self._choose_in(name, head, running, whole)
            rank = beyond, 0 if beyond or whole else turns.get(copy[0], 0), place
            if best is None or rank < best:
                best, chosen = rank, (name, copy)
        if chosen is not None:
            self._took_turn(chosen[0], chosen[1][0], running)
        return chosen

    def _choose_in(self, name: str, head: CopyId, running: Running, whole: int) -> tuple[bool, int, CopyId]:
        """Of one lane: whether the copy's client has its share, the copy's place, and the copy."""
        waiting = self._waiting[name]
        own = whole if name == ALL else self._share(name, waiting, running)
        of_all, of_lane = max(1, whole), max(1, own)
        runs, runs_here = running.counts[ALL], running.counts[name]
        client, place = head[0], waiting[head[0]][head]
        beyond = runs.get(client, 0) >= of_all or runs_here.get(client, 0) >= of_lane
        if whole and own and not beyond:
            return beyond, place, head
        turns = self._turns[ALL if own else name]
        best = beyond, 0 if beyond or (whole and own) else turns.get(client, 0), place
        chosen = head
        for client, places in waiting.items():
            if runs.get(client, 0) < of_all and runs_here.get(client, 0) < of_lane:
                copy, place = next(iter(places.items()))
                rank = False, 0 if whole and own else turns.get(client, 0), place
                if rank < best:
                    best, chosen = rank, copy
        return best[0], best[2], chosen

    def _took_turn(self, name: str, client: int, running: Running) -> None:
        self._turn += 1
        for lane in {ALL, name}:
            turns = self._turns[lane]
            turns[client] = self._turn
            if len(turns) > TURNS_SPARE + 2 * len(self._clients):
                runs = running.counts[ALL]
                self._turns[lane] = {one: at for one, at in turns.items() if one in self._clients or one in runs}

    @staticmethod
    def _share(name: str, waiting: Mapping[int, object], running: Running) -> int:
        """Of the slots of a lane, or of all, while these clients wait for it; 0: there are more clients than slots."""
        clients = len(waiting)
        for client in running.counts[name]:
            if client not in waiting:
                clients += 1
        return running.slots[name] // max(1, clients)

    def snapshot(self) -> tuple[object, ...]:
        """What choices depend on beyond what waits and runs: who was chosen in which order."""
        return tuple((name, tuple(sorted(turns, key=turns.__getitem__))) for name, turns in self._turns.items())
