"""Whose turn it is while copies of several clients wait: those of clients that have not yet their share of the slots.

A client's share is the number of slots divided by the number of clients that wait or run, at least one. Entering and
leaving cost the same however many copies wait; only when the oldest copy's client has its share all clients that wait
are looked at. Used by ``core.workqueue``, as long as there is more than one client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from tiedreq.core.types import CopyId


class Shares:
    """What waits, by lane and client; each copy has a place, and the lowest came first. Below 0: before all others."""

    __slots__ = ("_waiting",)

    def __init__(self, lanes: Iterable[str]) -> None:
        self._waiting: dict[str, dict[int, OrderedDict[CopyId, int]]] = {name: {} for name in lanes}

    def add(self, lane: str, copy: CopyId, place: int) -> None:
        """A copy waits."""
        places = self._waiting[lane].setdefault(copy[0], OrderedDict())
        places[copy] = place
        if place < 0:
            places.move_to_end(copy, last=False)

    def remove(self, lane: str, copy: CopyId) -> None:
        """It waits no more."""
        places = self._waiting[lane][copy[0]]
        del places[copy]
        if not places:
            del self._waiting[lane][copy[0]]

    def choose(
        self, heads: Iterable[tuple[str, CopyId]], running: Mapping[int, int], slots: int
    ) -> tuple[str, CopyId] | None:
        """The lane and the copy whose turn it is; ``heads`` are the oldest copies of the lanes that may run one more.

        ``running`` says how many of the ``slots`` each client has. Where all clients have their share, or more, the
        oldest copy is next.
        """
        share = max(1, slots // max(1, self._clients(running)))
        best: tuple[bool, int] | None = None
        chosen: tuple[str, CopyId] | None = None
        for name, head in heads:
            waiting = self._waiting[name]
            copy, place = head, waiting[head[0]][head]
            beyond = place > 0 and running.get(copy[0], 0) >= share
            if beyond:
                for client, places in waiting.items():
                    first, at = next(iter(places.items()))
                    if running.get(client, 0) < share and (beyond or at < place):
                        copy, place, beyond = first, at, False
            if best is None or (beyond, place) < best:
                best, chosen = (beyond, place), (name, copy)
        return chosen

    def _clients(self, running: Mapping[int, int]) -> int:
        found = {client for waiting in self._waiting.values() for client in waiting}
        found.update(client for client, count in running.items() if count)
        return len(found)
