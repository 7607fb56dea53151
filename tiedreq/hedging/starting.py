"""What is learned of an endpoint, and its first calls, before enough is known for the rule of ``core.delay``.

That rule wants some two hundred answers, and enough slow ones among them to tell a gain from noise. A client of
services that are not its own has many endpoints with few calls each, so until then the delay is a quantile of what has
been seen: with a budget of 10 % the 90th percentile, and never below the 50th. It is told after ``START_SAMPLES``
copies, computed anew when a tenth more are known, and given up for good once the rule has found a delay or is sure
that there is none. The budget pays for these backups as for all others.

The rule pays in work, and names a bucket of the learned law, which is 2 % wide, by its upper end. A budget of a client
is also taken for what it may send, in copies: where the delay that comes to just so many, second backups counted
(``hedging.planning``), saves as much as the rule's, as far as can be told, it is taken instead. Else the delay is the
middle of the rule's bucket where the law is smooth, as waiting for its end gains nothing; a bucket that many copies end
in (the usual time of a law with atoms) is waited for to its end.

Times are seconds.
"""

from __future__ import annotations

import math

from tiedreq.core.delay import TOLERANCE, Choice, Delay, NoDelay, Prospect, assess
from tiedreq.core.latency import RELATIVE_ERROR, Law
from tiedreq.core.learning import LearningOptions
from tiedreq.core.lessons import DEFAULT_BACKUP, UNBRAKED, LearningBook, Lesson
from tiedreq.core.policy import Backup
from tiedreq.hedging.planning import THIN, spending

LATER = 1.5
"""A second backup waits so many times as long as the first."""
START_SAMPLES = 20
START_SAMPLES_MAX = 2_000
"""With more copies than that, the rule's "nothing is known to be gained" is taken for an answer."""
EARLY_SAMPLES = 2_000
"""Until then the rule is asked anew with every ``REFRESH_SAMPLES`` copies, however fast they come."""
QUANTILE_MIN = 0.5
UNBRAKED_QUANTILE = 0.95


class StartingLesson(Lesson):
    """A lesson that has something to say from the ``START_SAMPLES``-th copy on."""

    def __init__(self, options: LearningOptions, now: float, backups: int = 1) -> None:
        super().__init__(options, now)
        self._backups = backups
        self._starting = options.after is None and options.quantile is None and options.budget > 0
        self._quantile = UNBRAKED_QUANTILE if options.budget >= UNBRAKED else max(QUANTILE_MIN, 1 - options.budget)
        self._start: Delay = NoDelay.UNKNOWN
        self._start_due = START_SAMPLES
        self._asked: Choice | None = None
        self._told = 0.0

    def delay(self, now: float) -> Delay:
        """Seconds after which a backup is worth it, or why there are none."""
        samples = self.latency.samples
        if samples < EARLY_SAMPLES:
            self._due = min(self._due, now)
        found = super().delay(now)
        if not self._starting:
            return self._planned(found)
        if isinstance(found, float) or samples > START_SAMPLES_MAX or (found == NoDelay.NOT_WORTH and self.sure):
            self._starting = False
            return self._planned(found)
        if samples >= self._start_due:
            self._start_due = samples + max(samples // 10, 1)
            law = self.latency.law()
            quantile = None if law is None else law.quantile(self._quantile)
            if quantile is not None:
                self._start = max(quantile, self.options.min_after)
        return self._start

    def _planned(self, delay: Delay) -> Delay:
        """The delay that spends the budget in copies, or the rule's; computed once for each choice of the rule."""
        options, choice = self.options, self._choice
        if not isinstance(delay, float) or options.after is not None or options.quantile is not None:
            return delay
        if choice is not self._asked:
            self._asked = choice
            law, prospect = self.latency.law(), choice.prospect
            known = law is not None and prospect is not None
            self._told = self._plan(law, delay, choice, prospect) if law and prospect and known else delay
        return self._told

    def _plan(self, law: Law, delay: float, choice: Choice, prospect: Prospect) -> float:
        options = self.options
        share = options.budget * (1 + RELATIVE_ERROR)  # no more exactly than times are known
        planned = spending(law, share, self._backups, LATER) if options.budget < UNBRAKED else None
        if planned is not None and planned >= options.min_after:
            found = assess(law, planned, self.cost, stoppable=self.stoppable)
            if found is not None:
                close = 1 - TOLERANCE - 1 / math.sqrt(max(law.samples * found.wanting, 1.0))  # as the rule has it
                gain, best = found.saved * found.wanting, prospect.saved * min(prospect.wanting, choice.payable)
                if gain >= close * best:
                    return planned
        mass = sum(cell.mass for cell in law.cells if abs(cell.edge - delay) < 1e-9)
        return max(delay * (1 - RELATIVE_ERROR), options.min_after) if mass < THIN * prospect.wanting else delay

    @property
    def sure(self) -> bool:
        """False while the rule has seen too little to say whether there is anything to gain."""
        return self._choice.sure


class StartingBook(LearningBook):
    """A book of such lessons."""

    def lesson(self, method: str, backup: Backup | None, now: float) -> Lesson:
        """The lesson of an endpoint; begun now if there is none."""
        used = DEFAULT_BACKUP if backup is None else backup
        if (method, used) not in self._lessons:
            if len(self._lessons) >= self._lessons_max:
                del self._lessons[next(iter(self._lessons))]
            self._lessons[method, used] = StartingLesson(_options(used), now, used.max_per_call)
        return super().lesson(method, backup, now)


def _options(backup: Backup) -> LearningOptions:
    return LearningOptions(
        budget=UNBRAKED if backup.budget is None else backup.budget,
        after=None if isinstance(backup.after, str) else backup.after,
        quantile=backup.quantile,
        min_after=backup.min_after,
    )
