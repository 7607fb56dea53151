"""The brake against dumb models: the bucket of work, and the bucket of failovers after lost links.

A model keeps the list of what came in and exact fractions, and reads like the formulas. The brake itself counts whole
nanoseconds and keeps its average of income up to date, so its figures are compared up to what rounding can do, and a
decision is left open where that could decide it.
"""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiedreq.core.budget import (
    BURST_BACKUPS,
    FLOOR_SECONDS,
    HOLD_SECONDS,
    LINK_LOST_BURST,
    LINK_LOST_FADE_SECONDS,
    LINK_LOST_PER_SECOND,
    LINK_LOST_SHARE,
    LINK_LOST_TIMES,
    RATE_SECONDS,
    UNTIED_SECONDS,
    LinkLostBudget,
    Ticket,
    WorkBudget,
)

NANO = 10**9
RELATIVE = Fraction(1, 10**12)
TINY = 1e-200
works = st.floats(0.0, 0.5)
pauses = st.sampled_from([0.0, 1e-4, 0.01, 0.5, 1.0, 1.05, 7.0, 60.0]) | st.floats(0.0, 100.0)


def nanoseconds(seconds: float) -> int:
    """A duration as the brake counts it."""
    return round(seconds * NANO)


def add(amounts: dict[Fraction, int], at: Fraction, amount: int) -> None:
    """Note what came in, and when."""
    amounts[at] = amounts.get(at, 0) + amount


def average(amounts: dict[Fraction, int], now: Fraction) -> Fraction:
    """Work per second: each amount counts with what is left of it when the average fades over ``RATE_SECONDS``."""
    left = (amount * Fraction(math.exp(-float(now - at) / RATE_SECONDS)) for at, amount in amounts.items())
    return sum(left, Fraction(0)) / Fraction(RATE_SECONDS)


class Bucket:
    """The model. ``slack`` is how far rounding may have carried the real one away from it, in nanoseconds."""

    def __init__(self, share: float, work: float) -> None:
        self.share = Fraction(share)
        self.work = nanoseconds(work)
        self.now = Fraction(0)
        self.earned: dict[Fraction, int] = {}
        self.lost: dict[Fraction, int] = {}
        self.untied_until: Fraction | None = None
        self.slack = Fraction(2)
        self.balance = self.capacity()

    def capacity(self) -> Fraction:
        """max(10 backups, 2 s of the share of income); nothing without a share."""
        if not self.share:
            return Fraction(0)
        held = Fraction(HOLD_SECONDS) * self.share * average(self.earned, self.now)
        return max(Fraction(BURST_BACKUPS * self.work), held)

    def floor(self) -> Fraction:
        """Work of one backup every ten seconds, per second."""
        return self.work / Fraction(FLOOR_SECONDS) if self.share else Fraction(0)

    def pace(self) -> Fraction:
        """What comes in, per second."""
        return self.share * average(self.earned, self.now) + self.floor()

    def put(self, amount: Fraction | int) -> None:
        """Anything is added (or taken, when below 0); what there is no room for is gone."""
        self.balance = min(self.balance + amount, self.capacity())
        self.slack += 2 + RELATIVE * self.capacity()

    def wait(self, seconds: Fraction) -> None:
        """Time passes, and the floor comes in."""
        self.now += seconds
        self.put(self.floor() * seconds)

    def earn(self, work: int) -> None:
        """The share of an answer's work."""
        add(self.earned, self.now, work)
        self.put(self.share * work)

    def affords(self, work: int) -> bool | None:
        """Whether a copy may leave; None when that is within rounding."""
        if not self.share:
            return False
        return None if abs(self.balance - work) <= self.slack else self.balance > work

    def lose(self, work: int) -> bool | None:
        """A double start cost so much; whether ties have to pause for it, None when that is within rounding."""
        add(self.lost, self.now, work)
        self.balance -= work
        cause, half = average(self.lost, self.now), self.pace() / 2
        close = abs(self.balance) <= self.slack or abs(cause - half) <= RELATIVE * (cause + half)
        return None if close else self.balance < 0 and cause > half

    def regain(self, work: int) -> None:
        """A double start took so much less than one execution does."""
        add(self.lost, self.now, -work)
        self.put(work)


class BrakeMachine(RuleBasedStateMachine):
    """Everything that may be done to the bucket of work, done to the model as well."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: list[tuple[Ticket, int]] = []
        self.taken = self.lost = self.denied = 0

    @initialize(share=st.sampled_from([0.0, 0.01, 0.05, 0.2, 1.0]), work=st.floats(0.001, 0.1), asks=st.booleans())
    def begin(self, share: float, work: float, asks: bool) -> None:
        """A bucket, and its model, at the hour 0. ``asks``: whether ties may be sent is asked all the time."""
        self.asks = asks
        self.now = 0.0
        self.budget, self.model = WorkBudget(share, work, 0.0), Bucket(share, work)

    @rule(seconds=pauses)
    def wait(self, seconds: float) -> None:
        later = self.now + seconds
        self.model.wait(Fraction(later) - Fraction(self.now))
        self.now = later
        self.budget.income(later)

    @rule(useful=works, times=st.sampled_from([1, 1, 5, 40]))
    def earn(self, useful: float, times: int) -> None:
        for _ in range(times):
            self.budget.earn(useful, self.now)
            self.model.earn(nanoseconds(useful))

    @rule(expected=works | st.floats(0.0, 0.02), times=st.sampled_from([1, 1, 3, 15]))
    def spend(self, expected: float, times: int) -> None:
        amount = nanoseconds(expected)
        for _ in range(times):
            ticket = self.budget.try_spend(expected, self.now)
            may = self.model.affords(amount)
            assert may is None or may == (ticket is not None)
            if ticket is None:
                self.denied += 1
            else:
                self.model.balance -= amount
                self.taken += amount
                self.tickets.append((ticket, amount))

    @precondition(lambda self: self.tickets)
    @rule(which=st.integers(0, 30), busy=works, twice=st.booleans())
    def settle(self, which: int, busy: float, twice: bool) -> None:
        ticket, amount = self.tickets.pop(which % len(self.tickets))
        self.budget.settle(ticket, busy, self.now)
        if twice:
            self.budget.settle(ticket, 0.3, self.now)
        self.model.put(amount - nanoseconds(busy))
        self.taken += nanoseconds(busy) - amount

    @rule(work=st.floats(0.0, 0.1))
    def learn_the_work_of_a_backup(self, work: float) -> None:
        self.budget.set_work(work, self.now)
        self.model.work = nanoseconds(work)
        self.model.put(0)

    @rule(saved=works)
    def regain(self, saved: float) -> None:
        amount = nanoseconds(saved)
        self.budget.regain(saved, self.now)
        self.taken -= amount
        self.lost -= amount
        self.model.regain(amount)

    @rule(busy=st.floats(0.001, 0.5) | st.floats(0.001, 0.02), times=st.sampled_from([1, 1, 5]))
    def lose(self, busy: float, times: int) -> None:
        amount = nanoseconds(busy)
        for _ in range(times):
            self.budget.lose(busy, self.now)
            self.taken += amount
            self.lost += amount
            pause = self.model.lose(amount)
            assume(pause is not None)
            if pause:
                self.model.untied_until = Fraction(self.now) + Fraction(UNTIED_SECONDS)

    @rule()
    def ask_for_ties(self) -> None:
        """A pause lasts a second and until the debt is paid; then it is forgotten."""
        model, allowed = self.model, self.budget.ties_allowed(self.now)
        if model.untied_until is None:
            assert allowed
            return
        early = Fraction(self.now) - model.untied_until
        if early < -RELATIVE or model.balance < -model.slack:
            assert not allowed
        elif early > RELATIVE and model.balance > model.slack:
            assert allowed
        if allowed:
            model.untied_until = None

    @invariant()
    def the_figures_are_those_of_the_model(self) -> None:
        budget, model = self.budget, self.model
        assert abs(budget.balance - model.balance) <= model.slack
        assert abs(budget.capacity - model.capacity()) <= model.slack
        assert (budget.taken, budget.lost, budget.denied) == (self.taken, self.lost, self.denied)
        assert budget.balance == budget.initial + budget.deposited - budget.forfeited - budget.taken
        assert math.isclose(
            budget.income(self.now) * NANO, average(model.earned, model.now), rel_tol=1e-9, abs_tol=TINY
        )
        pace = model.pace()
        lost = max(Fraction(0), average(model.lost, model.now))
        share = min(Fraction(1), lost / pace) if pace else Fraction(0)
        assert math.isclose(budget.lost_share(self.now), share, rel_tol=1e-9, abs_tol=1e-12)

    @invariant()
    def ties_may_be_sent_when_the_model_says(self) -> None:
        if self.asks:
            self.ask_for_ties()

    @invariant()
    def it_is_full_again_when_the_formula_says(self) -> None:
        told, pace = self.budget.seconds_to_full(self.now), self.model.pace()
        missing = self.model.capacity() - self.model.balance
        if abs(missing) <= self.model.slack:
            assert told is None or told <= 0 or Fraction(told) * pace <= 2 * self.model.slack
        elif missing < 0 or pace > 0:
            assert told is not None and abs(Fraction(told) * pace - max(missing, Fraction(0))) <= 2 * self.model.slack
        else:
            assert told is None


class LinkLostMachine(RuleBasedStateMachine):
    """The bucket of failovers against a fraction. Many calls are under way, or few."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.budget, self.denied = 0.0, LinkLostBudget(0.0), 0
        self.small, self.large = Fraction(0), Fraction(0)
        self.since = Fraction(0)

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def pay(self, copies: Fraction) -> None:
        self.large = max(Fraction(0), self.large - max(Fraction(0), copies - self.small))
        self.small = max(Fraction(0), self.small - copies)

    @rule(times=st.integers(1, 50))
    def earn(self, times: int) -> None:
        for _ in range(times):
            self.budget.earn()
        self.pay(times * Fraction(LINK_LOST_SHARE))

    @rule(times=st.integers(1, 150), under_way=st.integers(0, 120))
    def spend(self, times: int, under_way: int) -> None:
        passed, self.since = Fraction(self.now) - self.since, Fraction(self.now)
        self.large *= Fraction(math.exp(-float(passed) / LINK_LOST_FADE_SECONDS))
        self.pay(passed * Fraction(LINK_LOST_PER_SECOND))
        most = max(Fraction(0), Fraction(LINK_LOST_TIMES) * under_way - Fraction(LINK_LOST_BURST))
        slack = Fraction(1, 10**6)
        for _ in range(times):
            left = self.budget.try_spend(self.now, under_way)
            if left and self.large + 1 <= most + slack and self.budget.large > self.large:
                self.large += 1
            else:
                assert self.large + 1 >= most - slack
                assert left == (self.small + 1 <= LINK_LOST_BURST) or abs(self.small + 1 - LINK_LOST_BURST) < slack
                self.small += left
            self.denied += not left

    @invariant()
    def the_figures_are_those_of_the_model(self) -> None:
        assert abs(Fraction(self.budget.small) - self.small) <= Fraction(1, 10**6)
        assert abs(Fraction(self.budget.large) - self.large) <= Fraction(1, 10**6)
        assert self.budget.denied == self.denied


TestBrake = BrakeMachine.TestCase
TestLinkLost = LinkLostMachine.TestCase
