"""The search: every state that can be reached, breadth first, so that what breaks an invariant is found by a shortest
history; then, backwards from the ends, whether from every state an end can be reached (L2).

A search that is stopped early has seen all histories of up to so many moves. From each of its states it demands a way
to an end or to a state that it did not come to look at.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.exhaustive.case import Case
from tests.exhaustive.story import tell
from tests.exhaustive.world import Move, State, World
from tiedreq.sim.checkers import Violation

NO_PARENT = -1
ASIDE = 1_000
"""After so many states a search looks at the clock."""


@dataclass
class Report:
    """What a search found. ``complete`` is False when it ended before it had seen everything: then it has seen
    all histories of up to ``depth`` moves. ``seconds`` are of this process's CPU.
    """

    case: Case
    states: int = 0
    moves: int = 0
    ends: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violations: tuple[Violation, ...] = ()
    history: list[str] = field(default_factory=list)
    interned: str = ""

    def __str__(self) -> str:
        rate = self.states / self.seconds if self.seconds else 0.0
        whole = "" if self.complete else f" (not all: up to {self.depth} moves)"
        return (
            f"{self.case.name:<44} {self.states:>9,} states{whole} {self.moves:>10,} moves {self.ends:>8,} ends "
            f"{self.seconds:7.1f} s {rate:9,.0f}/s  {self.interned}"
        )

    def story(self) -> str:
        """The violation and how it came about, for a person to read."""
        lines = [self.case.describe(), *map(str, self.violations), *self.history]
        return "\n".join(lines)


class Search:
    """One search of a case, to its end or until ``states_max`` states or ``seconds_max`` seconds of ``clock``.

    ``progress`` is told of the report so far now and then.
    """

    def __init__(
        self,
        case: Case,
        *,
        states_max: int | None = None,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.process_time,
        progress: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.world = World(case)
        self.report = Report(case)
        self._states_max = states_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._progress = progress
        self._states: list[State] = []
        self._ids: dict[State, int] = {}
        self._parents = array("l")
        self._from = array("l")  # free moves, for the way back
        self._to = array("l")

    def run(self) -> Report:
        """Walk until all is seen, something is broken, or a limit is met."""
        began, deadline = time.process_time(), self._clock() + (self._seconds_max or 0.0)
        gc.set_threshold(200_000, 50, 1_000)
        report = self.report
        self._see(self.world.begin(), NO_PARENT)
        position, level = 0, 1
        while position < len(self._states) and not report.violations:
            if position == level:
                report.depth += 1
                level = len(self._states)
            if position % ASIDE == 0:
                report.states, report.seconds = len(self._states), time.process_time() - began
                self._progress(report)
            if self._stop(position, deadline):
                break
            self._expand(position)
            position += 1
        else:
            report.complete = not report.violations
        if not report.violations:
            self._check_ends(position)
        report.states = len(self._states)
        report.seconds = time.process_time() - began
        report.interned = self.world.tables.sizes()
        return report

    def _stop(self, position: int, deadline: float) -> bool:
        if self._states_max is not None and len(self._states) >= self._states_max:
            return True
        return self._seconds_max is not None and position % 16 == 0 and self._clock() > deadline

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

    def _check_ends(self, expanded: int) -> None:
        """L2: from every state, by moves that are no faults, a state in which every call has ended.

        What lies behind the states from ``expanded`` on, which were not looked at, is not known: they count as ends.
        """
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
        todo = [n for n, state in enumerate(self._states) if n >= expanded or self.world.done(state)]
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
