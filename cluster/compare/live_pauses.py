"""The pauses of a live run: when each replica stops, drawn ahead for the whole run, as a simulated run draws them.

With the same seed a replica of a live run stops at the very times at which it stops in virtual time, so that the two
can be compared. Times are seconds; a schedule counts from the moment at which calls begin.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from cluster.compare.cell import Cell
from tiedreq.core.errors import BadOption
from tiedreq.sim.world import stream

__all__ = ["PAUSES_MAX", "Pause", "Stops", "draw_pauses"]

PAUSES_MAX = 200_000
"""The most pauses of all replicas in one run."""


class Pause(NamedTuple):
    """A replica stands still from ``begin`` to ``end``."""

    begin: float
    end: float


def draw_pauses(cell: Cell, seed: int, until: float) -> list[list[Pause]]:
    """The pauses of each replica, by its index, that begin before ``until``; overlapping ones are one.

    Raises ``BadOption`` when there are too many.
    """
    found: list[list[Pause]] = [[] for _ in range(cell.replicas)]
    drawn = 0
    for number, spec in enumerate(cell.pauses):
        rng = stream(seed, f"pauses {number}")
        indices = range(cell.replicas) if spec.replica is None else [spec.replica]
        # As in virtual time, the interval before a replica's next pause is drawn when the one before has ended.
        upcoming = [(rng.expovariate(1 / spec.every), order, index) for order, index in enumerate(indices)]
        heapq.heapify(upcoming)
        while upcoming[0][0] < until:
            begin, _, index = heapq.heappop(upcoming)
            end = begin + spec.duration
            found[index].append(Pause(begin, end))
            drawn += 1
            if drawn > PAUSES_MAX:
                raise BadOption(f"pause: more than {PAUSES_MAX:,} pauses in {until:g} s")
            heapq.heappush(upcoming, (end + rng.expovariate(1 / spec.every), len(indices) + drawn, index))
    return [_merged(pauses) for pauses in found]


def _merged(pauses: list[Pause]) -> list[Pause]:
    merged: list[Pause] = []
    for pause in sorted(pauses):
        if merged and pause.begin <= merged[-1].end:
            merged[-1] = Pause(merged[-1].begin, max(merged[-1].end, pause.end))
        else:
            merged.append(pause)
    return merged


class Stops:
    """What pauses do to work. They are in order and don't overlap. Times that are asked for may go forward only."""

    def __init__(self, pauses: Sequence[Pause]) -> None:
        self._pauses = pauses
        self._over = 0

    def end_of(self, work: float, *, begin: float) -> float:
        """When ``work`` seconds are done that begin at ``begin``, extended by every pause met.

        Work that begins in a pause waits for its end. Work that would end just as a pause begins has ended.
        """
        while self._over < len(self._pauses) and self._pauses[self._over].end <= begin:
            self._over += 1
        end = begin + work
        for position in range(self._over, len(self._pauses)):
            pause = self._pauses[position]
            if pause.begin >= end and pause.begin > begin:
                break
            end += pause.end - max(pause.begin, begin)
        return end
