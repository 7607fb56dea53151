"""All that a client learns of one method, and the decisions that rest on it: one ``MethodLearning`` per method.

It joins the law of service times (``core.latency``), the delay that follows from it (``core.delay``), the bucket of
work that pays (``core.budget``) and the governor that watches whether backups win (``core.governor``).

Who holds a call tells it: ``call_begun`` once a call; ``finished`` or ``stopped`` once for each copy that ran
(failures are not told); ``try_backup`` when a call has lasted longer than ``delay``, and ``backup_ended`` exactly once
for the ticket that it got; ``double_start``, ``try_failover`` and ``ties_allowed`` as they come up. Each takes
constant time; the delay is computed anew when it is asked for, at most once every ``REFRESH_SECONDS`` and then after
``REFRESH_SAMPLES`` new samples, or fewer in ``PATIENCE_SECONDS`` (a few milliseconds each time, measured).

Whether S is the time from the start of a copy or from its sending is up to who tells: one kind only per object.
All times are seconds, ``now`` is the client's monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tiedreq.core.budget import LinkLostBudget, Ticket, WorkBudget
from tiedreq.core.checks import Reduced, check_count, check_number, reduced
from tiedreq.core.delay import Choice, Delay, NoDelay, Prospect, assess, choose_delay
from tiedreq.core.errors import BadOption
from tiedreq.core.governor import Governor, GovernorState
from tiedreq.core.latency import SAMPLES_MIN, TIME_MAX, TIME_MIN, WINDOW, LatencyEstimator, Law, check_quantile
from tiedreq.core.policy import ceiling

REFRESH_SECONDS = 1.0
REFRESH_SAMPLES = 200
PATIENCE_SECONDS = 10.0
"""With fewer than ``REFRESH_SAMPLES`` new samples the delay is computed anew after that long."""
BACKUPS_SHARE_MIN = 0.1
"""The delay is chosen as if at least this share of the budget were left by double starts."""

STUCK_SAMPLES, STUCK_SECONDS = 20, 1.0
"""With fewer samples no copy is taken for stuck before so many seconds."""
LONGEST_SECONDS = 60.0
FORTUNE_KEPT = 1 - 1 / 64
"""What remains of what is known of the last backups with each further one."""

__all__ = ["BackupEnd", "BackupTicket", "Delay", "LearningOptions", "LearningView", "MethodLearning", "NoDelay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningOptions:
    """``budget``: extra work allowed, as a share of useful work. ``min_after``: the shortest delay.

    The delay is learned, or fixed with ``after``, or a ``quantile`` of the law. Learning begins to tell a delay after
    ``samples_min`` samples; windows are ``window`` long. ``resolution`` is that of the replicas' clocks.
    ``work_guess``: the busy time of a backup as long as nothing is known. A call gets up to ``backups``.
    """

    budget: float = 0.05
    after: float | None = None
    quantile: float | None = None
    min_after: float = 0.001
    window: float = WINDOW
    samples_min: int = SAMPLES_MIN
    resolution: float = TIME_MIN
    work_guess: float = 0.010
    backups: int = 1

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        for field, low, high, unit in (
            ("budget", 0.0, 1.0, ""),
            ("min_after", 0.0, TIME_MAX, "seconds"),
            ("window", 0.001, 86_400.0, "seconds"),
            ("resolution", TIME_MIN, 1.0, "seconds"),
            ("work_guess", TIME_MIN, TIME_MAX, "seconds"),
        ):
            object.__setattr__(self, field, check_number(field, getattr(self, field), low, high, unit))
        check_count("samples_min", self.samples_min, 1, 1_000_000)
        check_count("backups", self.backups, 1, 1_000)
        if self.after is not None and self.quantile is not None:
            raise BadOption("after, quantile: give one of them, or neither for a learned delay")
        if self.after is not None:
            object.__setattr__(self, "after", check_number("after", self.after, 0.0, TIME_MAX, "seconds"))
        if self.quantile is not None:
            object.__setattr__(self, "quantile", check_quantile(self.quantile))


class BackupEnd(Enum):
    """How a backup left its race. ``VOID``: by a failure, a refusal, a lost link, or the end of the call itself."""

    WON = "won"
    LOST = "lost"
    LOST_UNSTARTED = "lost before it started"
    VOID = "void"


class BackupTicket:
    """What a backup carries from ``try_backup`` to ``backup_ended``. ``rescue``: its call was taken for stuck."""

    __slots__ = ("chance", "rescue", "work")

    def __init__(self, work: Ticket, chance: float | None, rescue: bool) -> None:
        self.work = work
        self.chance = chance
        self.rescue = rescue


class _Fortune:
    """How many of the last backups won, next to how many were to win by chance, each fading as later ones end."""

    __slots__ = ("expected", "won")

    def __init__(self) -> None:
        self.won = 0.0
        self.expected = 0.0

    def add(self, won: bool, chance: float) -> None:
        """A backup has left its race."""
        self.won = self.won * FORTUNE_KEPT + won
        self.expected = self.expected * FORTUNE_KEPT + chance

    @property
    def short(self) -> float:
        """The share of expected wins that did not come, from 0 to 1; before the first one has ended it is 1."""
        return min(1.0, max(0.0, 1 - self.won / (self.expected + 1)))


class LearningView(NamedTuple):
    """What is shown to people. Times in seconds; None: not known. ``warning`` is in words, or None."""

    delay: Delay
    reason: str
    samples: int
    mean: float | None
    wanting: float | None
    payable: float | None
    state: GovernorState
    state_reason: str
    balance: float
    capacity: float
    denied: int
    held: int
    lost_to_double_starts: float
    warning: str | None


class MethodLearning:
    """What one client knows of one method.

    Two facts may be set anew at any time: ``cost``, what a backup takes beyond its execution (a round trip), and
    ``stoppable``, whether a running copy can be stopped. A loser that can't be is charged at least a mean execution.
    ``out`` counts backups that have left and not ended.
    """

    def __init__(self, options: LearningOptions, now: float, cost: float = 0.0) -> None:
        self.options = options
        self.cost = cost
        self.stoppable = True
        self.latency = LatencyEstimator(
            window=options.window, samples_min=options.samples_min, resolution=options.resolution
        )
        self.budget = WorkBudget(options.budget, options.work_guess, now)
        self.link_lost = LinkLostBudget(now)
        self.governor = Governor(now)
        self._floor = max(options.min_after, options.resolution)
        first = NoDelay.UNKNOWN if options.after is None else max(options.after, options.min_after)
        self._choice = Choice(first, None, 0.0, "no samples yet" if options.after is None else "a fixed delay")
        self._foreseen = 0.0
        self._work = options.work_guess
        self._in_vain = options.work_guess
        self._fortune = _Fortune()
        self.out = 0
        self._mean = options.work_guess
        self._due = now
        self._new = 0
        self._patient_until = now
        self._longest = self._longest_before = 0.0
        self._longest_until = now + LONGEST_SECONDS
        if options.budget <= 0:
            self.governor.set_off("the budget is 0")

    # ---- what copies did --------------------------------------------------------------------------------------

    def call_begun(self, now: float) -> None:
        """A call that may get a backup begins."""
        self.governor.call_begun(self._foreseen, now)

    def finished(self, service_time: float, now: float, *, used: bool, busy: float | None = None) -> None:
        """A copy ran to its end, in ``service_time`` as its replica measured it; ``used``: its answer was taken.

        ``busy``: the busy time of the execution where S is another time, as from the sending.
        """
        self._new += 1
        self.latency.add(service_time, now)
        if now >= self._longest_until:
            self._longest, self._longest_before = 0.0, self._longest
            self._longest_until = now + LONGEST_SECONDS
        if service_time > self._longest:
            self._longest = service_time
        if used:
            self.earned(service_time if busy is None else busy, now)

    def earned(self, busy: float, now: float) -> None:
        """An answer was taken of which the law is not to learn: its replica is on probation."""
        self.budget.earn(busy, now)
        self.link_lost.earn()

    def stopped(self, elapsed: float, now: float) -> None:
        """A running copy was stopped ``elapsed`` after its start was known: it yielded, lost, or nobody waits."""
        self._new += 1
        self.latency.add_stopped(elapsed, now)

    def double_start(self, extra: float, now: float) -> None:
        """Two copies of a tie started, and took ``extra`` seconds more than one execution does (less: below 0)."""
        if extra >= 0:
            self.budget.lose(extra, now)
        else:
            self.budget.regain(-extra, now)

    # ---- backups ----------------------------------------------------------------------------------------------

    def delay(self, now: float) -> Delay:
        """Seconds after which a backup is worth it, or why there are none. Cheap; computed anew now and then."""
        if now >= self._due:
            self._refresh(now)
        return self._choice.delay

    @property
    def stuck_after(self) -> float:
        """Seconds after which a copy is taken for stuck: ten times the longest that any took lately, at least 0.25 s.

        At least 1 s where few have ended; infinity before the first has.
        """
        longest = max(self._longest, self._longest_before)
        if longest <= 0.0:
            return math.inf
        after = ceiling(longest)
        return after if self.latency.samples >= STUCK_SAMPLES else max(after, STUCK_SECONDS)

    def try_backup(
        self, now: float, *, first: bool = True, again: bool = False, stuck: bool = False
    ) -> BackupTicket | None:
        """A call has lasted longer than the delay. None: wait on, there is no budget or backups are no use.

        ``first``: it is the call's first backup. The governor judges by those alone. ``again``: this wish has been
        turned down before. ``stuck``: no delay is worth it, but this copy has outlasted by far all that were seen: the
        law knows nothing of such, so that the budget alone decides. Where everything stands still such a backup does,
        too, to the deadline of its call: one that ends so takes no more from the bucket than was expected of it, or a
        few of them would leave a debt for minutes.
        """
        wanted = self.governor.backup_wanted(now, again=again)
        if not wanted and not (stuck and self.options.budget > 0):
            return None
        most = self._most()
        # One leaves for what it is expected to take, else there would never be any in a small bucket.
        least = min(most, self.budget.capacity / 1e9) if self.out else self._work
        work = self.budget.try_spend(least, now, most)
        if work is None:
            return None
        self.out += 1
        prospect = self._choice.prospect
        return BackupTicket(work, prospect.win_chance if first and prospect is not None else None, stuck and not wanted)

    def _most(self) -> float:
        """The busy time that is set aside for a backup until it has ended, in seconds.

        The law says what one takes that fares as it foresees. Where slowness belongs to the call, each takes as long as
        the rest of the call, ten times that or more, and dozens would leave before the first one tells. So it is the
        latter before any has won, and in so far as the last ones have not won as foreseen.
        """
        return self._work + self._fortune.short * max(0.0, self._in_vain - self._work)

    def backup_ended(self, ticket: BackupTicket, end: BackupEnd, busy: float, now: float) -> None:
        """A backup is over after ``busy`` seconds of execution (0: never started). A second time changes nothing."""
        if not ticket.work.open:
            return
        self.out -= 1
        if busy > 0 and end != BackupEnd.WON and not self.stoppable:
            busy = max(busy, self._mean)
        if ticket.rescue and end == BackupEnd.VOID:
            busy = min(busy, ticket.work.taken / 1e9)
        self.budget.settle(ticket.work, busy, now)
        if end != BackupEnd.VOID and ticket.chance is not None:
            self._fortune.add(end == BackupEnd.WON, ticket.chance)
            self.governor.backup_ended(end == BackupEnd.WON, end != BackupEnd.LOST_UNSTARTED, ticket.chance, now)

    # ---- ties and failover ------------------------------------------------------------------------------------

    def ties_allowed(self, now: float) -> bool:
        """False for a while when double starts have emptied the bucket: send one copy."""
        return self.budget.ties_allowed(now)

    def try_failover(self, now: float, *, link_lost: bool, under_way: int = 0) -> bool:
        """A copy is gone and another is to be sent. False: end the call with the error that caused it.

        After a refusal this takes a call's work from the bucket that backups use; after a lost link, one from a limit
        of its own, which is larger where many calls are ``under_way``.
        """
        if link_lost:
            return self.link_lost.try_spend(now, under_way)
        return self.budget.try_spend(self._mean, now) is not None

    @property
    def mean(self) -> float:
        """The mean service time in seconds, or a guess as long as nothing is known."""
        return self._mean

    # ---- what is known ----------------------------------------------------------------------------------------

    def law(self) -> Law | None:
        """The law of service times as known now; None before the first sample."""
        return self.latency.law()

    def view(self, now: float) -> LearningView:
        """What to show."""
        delay, law, governor = self.delay(now), self.latency.law(), self.governor.view()
        prospect = self._choice.prospect
        return LearningView(
            delay=delay,
            reason=self._choice.reason,
            samples=self.latency.samples,
            mean=None if law is None else law.mean,
            wanting=None if prospect is None else prospect.wanting,
            payable=None if prospect is None else self._choice.payable,
            state=governor.state,
            state_reason=governor.reason,
            balance=self.budget.balance / 1e9,
            capacity=self.budget.capacity / 1e9,
            denied=self.budget.denied,
            held=governor.held,
            lost_to_double_starts=self.budget.lost / 1e9,
            warning=self._warning(delay),
        )

    def _warning(self, delay: Delay) -> str | None:
        resolution = self.latency.resolution
        if isinstance(delay, float) and resolution > TIME_MIN and delay <= resolution:
            return f"the delay, {delay:.6f} s, is not above the clock's resolution, {resolution:.6f} s"
        return None

    def _refresh(self, now: float) -> None:
        enough = REFRESH_SAMPLES if now < self._patient_until else 1
        if self._new < enough or self.latency.samples < self.options.samples_min:
            return
        law = self.latency.law()
        if law is None:
            return
        self._new = 0
        self._due = now + REFRESH_SECONDS
        self._patient_until = now + PATIENCE_SECONDS
        self._choice = choice = self._choose(law, now)
        self._mean = law.mean
        prospect = choice.prospect
        self._foreseen = 0.0 if prospect is None else max(prospect.wanting, choice.payable)
        self._work, self._in_vain = (law.mean, law.mean) if prospect is None else (prospect.work, prospect.in_vain)
        self.budget.set_work(self._work, now)
        if self.options.budget > 0:
            self.governor.set_off(choice.reason if choice.delay == NoDelay.NOT_WORTH else None)

    def _choose(self, law: Law, now: float) -> Choice:
        budget = self.options.budget * max(BACKUPS_SHARE_MIN, 1 - self.budget.lost_share(now))
        if self.options.after is not None:
            return self._given(law, self._choice.delay, budget, "a fixed delay")
        if self.options.quantile is not None:
            quantile = law.quantile(self.options.quantile)
            delay = NoDelay.UNKNOWN if quantile is None else max(quantile, self._floor)
            return self._given(law, delay, budget, f"the {self.options.quantile:g} quantile")
        choice = choose_delay(law, budget, self.cost, stoppable=self.stoppable, backups=self.options.backups)
        if not choice.sure and isinstance(self._choice.delay, float):
            return self._choice._replace(reason=f"as before: {choice.reason}")
        if not isinstance(choice.delay, float) or choice.delay >= self._floor:
            return choice
        later = assess(law, self._floor, self.cost, stoppable=self.stoppable)
        if later is None or later.saved <= 0:
            return Choice(NoDelay.NOT_WORTH, None, 0.0, f"nothing is gained after the least delay, {self._floor:g} s")
        return self._given(law, self._floor, budget, "the least delay")

    def _given(self, law: Law, delay: Delay, budget: float, reason: str) -> Choice:
        """A delay that the rule did not choose, and what to expect of it."""
        prospect: Prospect | None = None
        if isinstance(delay, float):
            prospect = assess(law, delay, self.cost, stoppable=self.stoppable)
        return Choice(delay, prospect, budget, reason)
