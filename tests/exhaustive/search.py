"""The search: every state that can be reached, breadth first, so that what breaks an invariant is found by a shortest
history; then, backwards from the ends, whether from every state an end can be reached.
"""

from __future__ import annotations

import gc
import time
from array import array
from dataclasses import dataclass, field

from tests.exhaustive.case import Case
from tests.exhaustive.story import tell
from tests.exhaustive.world import Move, State, World
from tiedreq.sim.checkers import Violation

NO_PARENT = -1


@dataclass
class Report:
    """What a search found. ``complete`` is False when it was stopped before it had seen everything."""

    case: Case
    states: int = 0
    moves: int = 0
    ends: int = 0
    seconds: float = 0.0
    complete: bool = True
    violations: tuple[Violation, ...] = ()
    history: list[str] = field(default_factory=list)
    interned: str = ""

    def __str__(self) -> str:
        rate = self.states / self.seconds if self.seconds else 0.0
        whole = "" if self.complete else " (not all)"
        return (
            f"{self.case.name:<28} {self.states:>9,} states{whole} {self.moves:>10,} moves {self.ends:>8,} ends "
            f"{self.seconds:7.1f} s {rate:9,.0f}/s  {self.interned}"
        )

    def story(self) -> str:
        """The violation and how it came about, for a person to read."""
        lines = [self.case.describe(), *map(str, self.violations), *self.history]
        return "\n".join(lines)


class Search:
    """One walk through a case."""

    def __init__(self, case: Case, *, states_max: int | None = None, seconds_max: float | None = None) -> None:
        self.world = World(case)
        self.report = Report(case)
        self._states_max = states_max
        self._seconds_max = seconds_max
        self._states: list[State] = []
        self._ids: dict[State, int] = {}
        self._parents = array("l")
        self._from = array("l")  # free moves, for the way back
        self._to = array("l")

    def run(self) -> Report:
        """Walk until all is seen, something is broken, or a limit is met."""
        began = time.process_time()
        gc.set_threshold(200_000, 50, 1_000)
        report = self.report
        self._see(self.world.begin(), NO_PARENT)
        position = 0
        while position < len(self._states) and not report.violations:
            if self._stop(began):
                report.complete = False
                break
            self._expand(position)
            position += 1
        if report.complete and not report.violations:
            self._check_ends()
        report.states = len(self._states)
        report.seconds = time.process_time() - began
        report.interned = self.world.tables.sizes()
        return report

    def _stop(self, began: float) -> bool:
        if self._states_max is not None and len(self._states) >= self._states_max:
            return True
        return self._seconds_max is not None and time.process_time() - began > self._seconds_max

    def _see(self, state: State, parent: int) -> int:
        known = self._ids.get(state)
        if known is None:
            known = self._ids[state] = len(self._states)
            self._states.append(state)
            self._parents.append(parent)
        return known

    def _expand(self, position: int) -> None:
        state = self._states[position]
        report = self.report
        stays = True
        for move in () if self.world.over(state) else self.world.moves(state):
            report.moves += 1
            if move.broken:
                self._broken(position, move, move.broken)
                return
            if move.to == state:
                continue
            number = self._see(move.to, position)
            if not move.fault:
                stays = False
                self._from.append(position)
                self._to.append(number)
        if stays:
            report.ends += 1
            broken = self.world.quiescent(state)
            if broken:
                self._broken(position, None, broken)

    def _check_ends(self) -> None:
        """L2: from every state, by moves that are no faults, a state in which every call has ended."""
        count = len(self._states)
        starts = array("l", bytes(array("l").itemsize * (count + 1)))
        for to in self._to:
            starts[to + 1] += 1
        for number in range(count):
            starts[number + 1] += starts[number]
        filled = array("l", starts)
        back = array("l", bytes(array("l").itemsize * len(self._to)))
        for origin, to in zip(self._from, self._to, strict=True):
            back[filled[to]] = origin
            filled[to] += 1
        reached = bytearray(count)
        todo = [number for number, state in enumerate(self._states) if self.world.done(state)]
        for number in todo:
            reached[number] = 1
        while todo:
            number = todo.pop()
            for origin in back[starts[number] : starts[number + 1]]:
                if not reached[origin]:
                    reached[origin] = 1
                    todo.append(origin)
        lost = reached.find(0)
        if lost >= 0:
            self._broken(lost, None, (Violation("L2", "a call", "no end can be reached from here", 0.0),))

    def _broken(self, position: int, last: Move | None, violations: tuple[Violation, ...]) -> None:
        path = [last] if last is not None else []
        while (parent := self._parents[position]) != NO_PARENT:
            target = self._states[position]
            path.append(next(move for move in self.world.moves(self._states[parent]) if move.to == target))
            position = parent
        self.report.violations = violations
        self.report.history = tell(self.world, path[::-1])
