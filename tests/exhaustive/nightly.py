"""The search that goes on as long as told: larger cases one after the other, breadth first; then random deep walks.

Each case has an equal share of the first part of the time, and what one does not need is for those after it. A search
holds at most ``STATES_MAX`` states, the walks hold none, so memory does not grow with the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.exhaustive.case import Case
from tests.exhaustive.search import Report, Search
from tests.exhaustive.walks import Walk, Walker

STATES_MAX = 2_000_000
"""About 2 kB each."""
SEARCHING = 0.6
"""The part of the time that is for searches."""
PROGRESS_SECONDS = 30.0


@dataclass
class Night:
    """What was done: a report for each case, and the walks in numbers. ``broken`` tells what went wrong."""

    reports: list[Report] = field(default_factory=list)
    first_seed: int = 0
    walks: int = 0
    moves: int = 0
    faults: int = 0
    walked_states: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        complete = sum(report.complete for report in self.reports)
        states = sum(report.states for report in self.reports)
        return (
            f"{len(self.reports)} cases searched, {complete} of them to the end, {states:,} states; "
            f"{self.walks:,} walks from seed {self.first_seed} on, {self.moves:,} moves, {self.faults:,} faults, "
            f"{self.walked_states:,} states; {self.seconds:,.0f} s: {len(self.broken)} broken"
        )


class Nightly:
    """Searches ``cases`` and then walks from ``seed`` on, for ``seconds`` of ``clock``, which is the wall's.

    ``say`` hears of everything that is finished or goes wrong, ``progress`` of how far it is.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        seconds: float,
        seed: int,
        *,
        say: Callable[[str], None] = print,
        progress: Callable[[str], None] = lambda line: None,
        states_max: int = STATES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.night = Night(first_seed=seed)
        self._cases = cases
        self._seconds = seconds
        self._say = say
        self._progress = progress
        self._states_max = states_max
        self._clock = clock
        self._began = clock()

    def run(self) -> Night:
        """Go on until the time is over. What is broken ends its own case only, and the walks."""
        self._began = self._clock()
        try:
            for number, case in enumerate(self._cases):
                left = SEARCHING * self._seconds - self._elapsed()
                if left > 0:
                    self._search(case, left / (len(self._cases) - number))
            self._walk()
        finally:
            self.night.seconds = self._elapsed()
        return self.night

    def _elapsed(self) -> float:
        return self._clock() - self._began

    def _search(self, case: Case, seconds: float) -> None:
        def progress(report: Report) -> None:
            self._progress(f"{case.name}: {report.states:,} states, up to {report.depth} moves")

        search = Search(case, states_max=self._states_max, seconds_max=seconds, clock=self._clock, progress=progress)
        self.night.reports.append(search.report)
        report = search.run()
        self._say(str(report))
        if report.violations:
            self._break(report.story())

    def _walk(self) -> None:
        walker, seed = Walker(), self.night.first_seed
        self._say(f"walks from seed {seed} on; one alone: python -m tests.exhaustive --walk {seed}")
        while True:
            walk = walker.walk(seed)
            self._count(walk, walker.seen.count)
            if walk.violations:
                self._break(walk.story())
            if walk.violations or self._elapsed() >= self._seconds:
                return
            seed += 1

    def _count(self, walk: Walk, states: int) -> None:
        night = self.night
        night.walks += 1
        night.moves += len(walk.names)
        night.faults += walk.faults
        night.walked_states = states
        self._progress(f"walks: {night.walks:,}, seed {walk.seed}, {night.moves:,} moves, {states:,} states")

    def _break(self, story: str) -> None:
        self.night.broken.append(story)
        self._say(story)
