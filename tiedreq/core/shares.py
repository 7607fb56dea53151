"""Whose turn it is while copies of several clients wait: those of clients that have not yet their share of the slots.

A client's share is the number of slots divided by the number of clients that wait or run, at least one. Of a method
that may have only so many slots a client has such a share as well, among those that wait for that method or run it.
Entering and leaving cost the same however many copies wait. Choosing looks at the clients that run, of which there are
no more than slots; only when the oldest copy's client has its share all clients that wait are looked at. Used by
``core.workqueue``, as long as there is more than one client.
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
    """What waits, by lane and client; each copy has a place, and the lowest came first. Below 0: before all others."""

    __slots__ = ("_clients", "_waiting")

    def __init__(self, lanes: Iterable[str]) -> None:
        self._waiting: dict[str, dict[int, OrderedDict[CopyId, int]]] = {name: {} for name in lanes}
        self._clients: dict[int, int] = {}  # in how many lanes each waits

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
        of_all = 0 if running is None else self._share(ALL, self._clients, running)
        best: tuple[bool, int] | None = None
        chosen: tuple[str, CopyId] | None = None
        for name, head in heads:
            waiting = self._waiting[name]
            copy, place, beyond = head, waiting[head[0]][head], False
            if running is not None:
                all_, own = running.counts[ALL], running.counts[name]
                of_lane = of_all if name == ALL else self._share(name, waiting, running)
                beyond = all_.get(head[0], 0) >= of_all or own.get(head[0], 0) >= of_lane
                if beyond:
                    for client, places in waiting.items():
                        first, at = next(iter(places.items()))
                        below = all_.get(client, 0) < of_all and own.get(client, 0) < of_lane
                        if below and (beyond or at < place):
                            copy, place, beyond = first, at, False
            if best is None or (beyond, place) < best:
                best, chosen = (beyond, place), (name, copy)
        return chosen

    @staticmethod
    def _share(name: str, waiting: Mapping[int, object], running: Running) -> int:
        """Of the slots of a lane, or of all, while these clients wait for it."""
        clients = len(waiting)
        for client in running.counts[name]:
            if client not in waiting:
                clients += 1
        return max(1, running.slots[name] // max(1, clients))
