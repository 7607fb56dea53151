"""When a backup is worth sending: the delay that saves most time for the work that it may cost.

With S the service time of a copy, S' that of its backup (independent, of the same law), c what a backup needs beyond
its execution (a round trip) and b the share of calls whose backup the budget can pay, a delay d saves per call

    gain(d) = min(P(S > d), b) · E[(S - d - c - S')+ | S > d]

and the delay with the largest gain is taken. Among delays within 2 % of it (and what its samples leave open, one part
in the square root of the copies seen beyond the delay) the one that turns few calls away is taken: below the (1 - b)
quantile an exponential law is flat. Turning all away would cost a quarter of the gain; so where a longer delay turns
hardly anybody less away, as between two modes, the gain alone decides. "The longest within 2 %" is not that: on
a smooth tail it is up to a tenth longer than the best and turns nobody less away.

The share b. A backup that runs to its end costs E[S'] where a call costs E[S]: a budget of work pays for the share
budget · E[S] / E[S'] = budget of calls. Two things differ. Income is less: the bucket earns on useful work only, per
call U(d), and the time that a stopped straggler no longer takes is not earned. Cost is less: a backup is stopped when
the original returns first, and is busy for W(d) = E[min(S', S - d + c) | S > d] (E[S'] where a handler can't be
stopped). What income does not cover must not be counted on; what stopping saves is left in the bucket, for double
starts and bad luck, rather than spent on more backups for calls that are nearly done:

    b = budget · min(1, U(d) / W(d)) / (1 + A(d))

at the delay d that b itself leads to, found in two rounds that begin with b = budget. A(d) is how many more backups a
call comes to want that has got one, up to n in all. The next one is due d later, if neither has returned by then:

    A(d) = sum over k = 1 … n - 1 of  P(S > (k + 1) d | S > d) · P(S > d) · … · P(S > k d)

Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013), wait for the 95th percentile: that is this rule on a smooth
tail with a budget of 5 %. On atoms, or with a slow mode larger than the budget, the quantile gains nothing.

Not for who pays (``core.budget``) or for whether backups win in fact (``core.governor``). All times are seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from tiedreq.core.latency import Law

TOLERANCE = 0.02
DENIAL_PRICE = 0.25
SEEN_MIN = 5.0
"""A delay is considered only if that many copies were seen to last longer."""
NOISE = 2.0
"""The gain must be that many standard errors above 0."""
COARSE_POINTS = 64


class NoDelay(Enum):
    """Why there is no delay. ``UNKNOWN``: too little was seen, the start-up delay applies. ``NOT_WORTH``: send none."""

    UNKNOWN = "unknown"
    NOT_WORTH = "no delay is worth it"


Delay = float | NoDelay


class Prospect(NamedTuple):
    """What a backup at a given delay is expected to do, by the law of service times.

    ``wanting`` is P(S > d), ``work`` the busy seconds of one backup (stopped when the original returns first),
    ``in_vain`` those of one that never wins, because its call is slow by itself; ``win_chance`` the chance that it
    answers first, ``saved`` the seconds that it saves a call that wants it, and ``useful`` the mean service time of the
    answers used when every call that wants a backup gets one.
    """

    wanting: float
    work: float
    in_vain: float
    win_chance: float
    saved: float
    useful: float
    noise: float
    """The standard error of ``saved``, in seconds."""


class Choice(NamedTuple):
    """The outcome of the rule: the delay, what to expect of it (None without one), the share b, and why.

    Not ``sure``: too little was seen to find a gain, which is no reason to give up a delay that was found before.
    """

    delay: Delay
    prospect: Prospect | None
    payable: float
    reason: str
    sure: bool = True


class _Table:
    """Prefix sums over a law. What lasts beyond its horizon counts as ending there: gains are lower bounds."""

    def __init__(self, law: Law, stoppable: bool) -> None:
        self.stoppable = stoppable
        self.edges = [cell.edge for cell in law.cells]
        self.values = [cell.value for cell in law.cells]
        self.masses = [cell.mass for cell in law.cells]
        self.seen = [cell.seen for cell in law.cells]
        if law.unknown:
            self.edges.append(law.horizon)
            self.values.append(law.horizon)
            self.masses.append(law.unknown)
            self.seen.append(0.0)
        self.below = list(accumulate(self.masses, initial=0.0))
        weighted = (value * mass for value, mass in zip(self.values, self.masses, strict=True))
        self.time_below = list(accumulate(weighted, initial=0.0))

    def wanting(self, k: int) -> float:
        """P(S > edge of cell k)."""
        return max(0.0, self.below[-1] - self.below[k + 1])

    def saving(self, k: int, cost: float) -> float:
        """E[(S - d - cost - S')+; S > d] at d = edge of cell k, in one pass over S with a pointer into S'."""
        values, masses, below, time_below = self.values, self.masses, self.below, self.time_below
        start = self.edges[k] + cost
        total, n, size = 0.0, 0, len(values)
        for j in range(k + 1, size):
            left = values[j] - start
            while n < size and values[n] < left:
                n += 1
            if n:
                total += masses[j] * (left * below[n] - time_below[n])
        return total

    def more(self, delay: float, backups: int) -> float:
        """How many more backups a call wants that has one, of ``backups`` in all: A(d)."""
        alone = self.beyond(delay)
        if alone <= 0:
            return 0.0
        total, slow = 0.0, 1.0
        for k in range(1, backups):
            slow *= self.beyond(k * delay)
            total += slow * self.beyond((k + 1) * delay) / alone
        return total

    def beyond(self, delay: float) -> float:
        """P(S > delay)."""
        return max(0.0, self.below[-1] - self.below[bisect_right(self.values, delay)])

    def prospect(self, delay: float, cost: float) -> Prospect | None:
        """What to expect of a backup after ``delay``; None when no copy is known to last that long."""
        first = bisect_right(self.values, delay)
        wanting = max(0.0, self.below[-1] - self.below[first])
        if wanting <= 0:
            return None
        everything = self.time_below[-1]
        useful, work, wins, saved, squares = self.time_below[first], 0.0, 0.0, 0.0, 0.0
        longest = (everything - useful) / wanting
        for j in range(first, len(self.values)):
            left, mass = self.values[j] - delay - cost, self.masses[j]
            n = bisect_right(self.values, left)
            gain = left * self.below[n] - self.time_below[n] if n else 0.0
            wins += mass * self.below[n]
            saved += mass * gain
            squares += mass * gain * gain
            useful += mass * (self.values[j] * (1 - self.below[n]) + self.time_below[n])
            stop = self.values[j] - delay + cost
            m = bisect_right(self.values, stop)
            work += mass * (self.time_below[m] + stop * (1 - self.below[m]))
        mean = saved / wanting
        seen = max(self.seen[first - 1], 1.0) if first else 1.0
        noise = math.sqrt(squares / wanting / seen)
        busy = min(work / wanting, everything) if self.stoppable else everything
        in_vain = max(busy, longest - delay + cost if self.stoppable else longest)
        return Prospect(wanting, busy, in_vain, wins / wanting, mean, useful, noise)


def assess(law: Law, delay: float, cost: float = 0.0, *, stoppable: bool = True) -> Prospect | None:
    """What to expect of a backup after a ``delay`` that somebody else chose; None when none is known to be wanted."""
    return _Table(law, stoppable).prospect(delay, cost)


def choose_delay(law: Law, budget: float, cost: float = 0.0, *, stoppable: bool = True, backups: int = 1) -> Choice:
    """The delay that saves most, by the module's rule. ``budget`` is extra work as a share of useful work.

    Not ``stoppable``: a backup that loses runs to its end all the same. A call gets up to ``backups``.
    """
    if budget <= 0:
        return Choice(NoDelay.NOT_WORTH, None, 0.0, "the budget is 0")
    table = _Table(law, stoppable)
    search = _Search(table, cost)
    payable, best, prospect = budget, None, None
    for _ in range(2):
        best = search.best(payable)
        prospect = None if best is None else table.prospect(table.edges[best], cost)
        if best is None or prospect is None:
            break
        more = table.more(table.edges[best], backups)
        payable = budget * min(1.0, prospect.useful / prospect.work) / (1 + more)
    if best is None or prospect is None or prospect.saved <= 0:
        if law.unknown:
            told = f"{law.unknown:.1%} of copies outlast all that is known"
            return Choice(NoDelay.UNKNOWN, None, payable, told, sure=False)
        told = "a second copy would rarely be faster than the first"
        return Choice(NoDelay.NOT_WORTH, None, payable, told, sure=not search.passed_over)
    if prospect.saved <= NOISE * prospect.noise:
        told = "too few slow copies were seen to tell a gain from noise"
        return Choice(NoDelay.NOT_WORTH, None, payable, told, sure=False)
    told = f"{prospect.wanting:.1%} of copies last longer, a backup wins {prospect.win_chance:.0%} of these"
    return Choice(table.edges[best], prospect, payable, told)


class _Search:
    """Finds the best cell: a coarse pass over every few cells, then all cells around the winner, until it stays.

    Each gain costs time linear in the cells, so this is O(cells x ``COARSE_POINTS``) rather than quadratic.
    """

    def __init__(self, table: _Table, cost: float) -> None:
        self._table = table
        self._cost = cost
        self._savings: dict[int, float] = {}
        beyond = [k for k in range(len(table.edges)) if table.wanting(k) > 0]
        self._candidates = [k for k in beyond if table.seen[k] >= SEEN_MIN]
        self.passed_over = len(beyond) > len(self._candidates)
        self._stride = 1 + len(self._candidates) // COARSE_POINTS

    def best(self, payable: float) -> int | None:
        """The cell at whose edge a backup saves most when a share ``payable`` of calls can have one; None: nothing."""
        count = len(self._candidates)
        if count == 0:
            return None
        tried = set(range(0, count, self._stride)) | {count - 1}
        position = None
        while True:
            better = self._pick(tried, payable)
            if better is None or better == position:
                return None if better is None else self._candidates[better]
            position = better
            tried.update(range(max(0, position - self._stride), min(count, position + self._stride + 1)))

    def _pick(self, tried: set[int], payable: float) -> int | None:
        table = self._table
        gains: list[tuple[float, float, int]] = []
        close: list[tuple[float, int]] = []
        for position in tried:
            k = self._candidates[position]
            saving = self._savings.get(k)
            if saving is None:
                saving = self._savings[k] = table.saving(k, self._cost)
            served = min(1.0, payable / table.wanting(k))
            gains.append((saving * served, served, position))
        most = max(gains)[0]
        if most <= 0:
            return None
        for gain, served, position in gains:
            seen = table.seen[self._candidates[position]]
            if gain >= (1 - TOLERANCE - 1 / math.sqrt(seen)) * most:
                close.append((gain * (1 - DENIAL_PRICE * (1 - served)), position))
        return max(close)[1]
