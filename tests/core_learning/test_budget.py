"""The bucket of work against a dumb model, and the cases in which others lost or made tokens."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.core.budget import (
    BURST_BACKUPS,
    FLOOR_SECONDS,
    HOLD_SECONDS,
    LINK_LOST_BURST,
    UNTIED_SECONDS,
    LinkLostBudget,
    Ticket,
    WorkBudget,
)

NANO = 1_000_000_000
WORK = st.floats(0, 0.5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("earn"), WORK),
        st.tuples(st.just("spend"), WORK),
        st.tuples(st.just("most"), WORK),
        st.tuples(st.just("settle"), WORK),
        st.tuples(st.just("settle again"), WORK),
        st.tuples(st.just("crash"), WORK),
        st.tuples(st.just("lose"), WORK),
        st.tuples(st.just("wait"), st.floats(-1, 100)),
        st.tuples(st.just("work"), WORK),
    ),
    max_size=80,
)


class Model:
    """Lists of what happened; every figure is summed anew from them."""

    def __init__(self, share: float, work: float) -> None:
        self.budget = WorkBudget(share, work, 0.0)
        self.share = share
        self.now = self.latest = 0.0
        self.work_max = work
        self.deposits: list[int] = []
        self.out: list[Ticket] = []
        self.spent: dict[Ticket, int] = {}
        self.expected: dict[Ticket, int] = {}
        self.lost: list[int] = []

    def do(self, what: str, amount: float) -> None:
        budget, now = self.budget, self.now
        match what:
            case "earn":
                budget.earn(amount, now)
                self.deposits.append(round(self.share * round(amount * NANO)))
            case "spend":
                budget.income(now)  # what the bucket can hold may have shrunk by now
                before, ticket = budget.balance, budget.try_spend(amount, now)
                self._left(ticket, round(amount * NANO), before)
            case "most":
                budget.income(now)
                before, ticket = budget.balance, budget.try_spend(amount / 10, now, amount)
                taken = max(round(amount / 10 * NANO), min(round(amount * NANO), before))
                self._left(ticket, taken, before)
                assert ticket is None or ticket.taken == taken
            case "settle" if self.out:
                ticket = self.out.pop(0)
                budget.settle(ticket, amount, now)
                self.spent[ticket] = round(amount * NANO)
            case "settle again" if self.spent:
                ended = next((ticket for ticket in self.spent if not ticket.open), None)
                if ended is not None:
                    budget.settle(ended, amount, now)
            case "crash" if self.out:
                self.out.pop()  # nobody will ever settle it
            case "lose":
                budget.lose(amount, now)
                self.lost.append(round(amount * NANO))
            case "wait":
                self.now += amount  # a clock that goes back is no reason to pay
                self.latest = max(self.latest, self.now)
            case "work":
                budget.set_work(amount, now)
                self.work_max = max(self.work_max, amount)

    def _left(self, ticket: Ticket | None, amount: int, before: int) -> None:
        if ticket is not None:
            assert self.budget.balance >= 0
            self.out.append(ticket)
            self.spent[ticket] = self.expected[ticket] = amount
        else:
            assert self.share == 0 or before < amount

    def check(self) -> None:
        budget = self.budget
        taken = sum(self.spent.values()) + sum(self.lost)
        assert budget.taken == taken
        assert budget.lost == sum(self.lost)
        assert budget.deposited - budget.floored == sum(self.deposits)
        assert budget.floored <= self.work_max * NANO * self.latest / FLOOR_SECONDS + self.latest + 1
        assert budget.balance == budget.initial + budget.deposited - budget.forfeited - budget.taken
        overrun = sum(max(0, spent - self.expected[ticket]) for ticket, spent in self.spent.items())
        assert budget.balance >= -overrun - sum(self.lost)
        debt = max(0, -budget.balance)
        assert taken <= budget.initial + budget.floored + sum(self.deposits) + debt


@given(st.sampled_from([0.0, 0.01, 0.05, 1.0]), st.floats(0.001, 0.1), STEPS)
def test_against_the_model(share: float, work: float, steps: list[tuple[str, float]]) -> None:
    model = Model(share, work)
    for what, amount in steps:
        model.do(what, amount)
        model.check()
        if what in ("earn", "settle", "work"):
            assert model.budget.balance <= max(0, model.budget.capacity)


def drained(share: float = 0.05, work: float = 0.010) -> WorkBudget:
    budget = WorkBudget(share, work, 0.0)
    while budget.try_spend(work, 0.0):
        pass
    return budget


def test_it_starts_full_and_denies_when_empty() -> None:
    budget = drained()
    assert budget.taken == BURST_BACKUPS * 10_000_000
    assert budget.balance == 0 and budget.denied == 1
    assert budget.try_spend(0.010, 0.0) is None and budget.denied == 2


def test_what_is_set_aside_beyond_the_expected_comes_back() -> None:
    budget = WorkBudget(0.05, 0.010, 0.0)
    ticket = budget.try_spend(0.010, 0.0, 0.150)
    assert ticket is not None and ticket.taken == budget.initial and budget.balance == 0
    assert budget.try_spend(0.010, 0.0, 0.150) is None
    budget.settle(ticket, 0.010, 0.0)
    assert budget.balance == 90_000_000
    ticket = budget.try_spend(0.010, 0.0, 0.040)
    assert ticket is not None and budget.balance == 50_000_000
    for _ in range(2):
        budget.settle(ticket, 0.070, 0.0)
    assert budget.balance == 20_000_000


def test_it_is_full_again_in_the_computed_time() -> None:
    """B12: drained, then ten thousand answers at 1,000/s."""
    budget = drained()
    full_at, balances = None, []
    for number in range(1, 10_001):
        now = number * 0.001
        budget.earn(0.010, now)
        balances.append(budget.balance)
        assert budget.balance <= budget.capacity
        if full_at is None and budget.balance == budget.capacity:
            full_at = now
    # 0.1 s of work are missing, 0.5 s come in per second and 0.001 by the floor.
    assert full_at == pytest.approx(0.1 / 0.501, rel=0.02)
    steps = [b - a for a, b in pairwise(balances)]
    assert max(steps) <= 502_000  # continuous: no burst ever comes in
    # The capacity follows the traffic: two seconds of what comes in, here on the way to 10 s of work a second.
    assert budget.capacity == pytest.approx(HOLD_SECONDS * 0.05 * budget.income(10.0) * NANO, rel=1e-6)


def test_seconds_to_full_is_kept() -> None:
    budget = WorkBudget(0.05, 0.010, 0.0)
    for number in range(1, 100_001):
        budget.earn(0.010, number * 0.001)
    while budget.try_spend(0.010, 100.0):
        pass
    promised = budget.seconds_to_full(100.0)
    assert promised is not None
    number = 100_000
    while budget.balance < budget.capacity:
        number += 1
        budget.earn(0.010, number * 0.001)
    assert number * 0.001 - 100.0 == pytest.approx(promised, rel=0.02)


def test_ten_idle_minutes_fill_it_and_no_more() -> None:
    budget = drained()
    assert budget.seconds_to_full(0.0) == pytest.approx(BURST_BACKUPS * FLOOR_SECONDS)
    ticket = budget.try_spend(0.010, 9.9)
    assert ticket is None
    assert budget.try_spend(0.010, 10.1) is not None
    assert budget.seconds_to_full(600.0) == 0.0
    assert budget.balance == budget.capacity == BURST_BACKUPS * 10_000_000


@pytest.mark.parametrize("end", ["cancelled", "timed out", "crashed"])
def test_callers_that_leave_lose_and_make_nothing(end: str) -> None:
    """B12: however a backup ends, the bucket has paid its true work; one that never tells has paid the expected."""
    budget = WorkBudget(0.05, 0.010, 0.0)
    rng, true, expected = Random(1), 0, 0
    for number in range(1, 10_001):
        now = number * 0.001
        budget.earn(0.010, now)
        if number % 25 == 0:
            ticket = budget.try_spend(0.010, now)
            assert ticket is not None
            expected += 10_000_000
            if end != "crashed":
                busy = rng.choice([0.0, 0.004, 0.010])
                true += round(busy * NANO)
                budget.settle(ticket, busy, now)
                budget.settle(ticket, busy, now)
    assert budget.taken == (expected if end == "crashed" else true)
    assert budget.balance == budget.initial + budget.deposited - budget.forfeited - budget.taken
    assert budget.balance <= budget.capacity


def test_a_backup_that_takes_longer_is_paid_back_first() -> None:
    budget = WorkBudget(0.05, 0.010, 0.0)
    tickets = [budget.try_spend(0.010, 0.0) for _ in range(BURST_BACKUPS)]
    for ticket in tickets:
        assert ticket is not None
        budget.settle(ticket, 0.300, 0.0)
    assert budget.balance == -BURST_BACKUPS * 290_000_000
    number = 0
    while budget.try_spend(0.010, number * 0.001) is None:
        number += 1
        budget.earn(0.010, number * 0.001)
    assert number * 0.010 * 0.05 == pytest.approx(2.91, rel=0.02)


def test_a_low_rate_has_a_floor() -> None:
    """B14: at a call a second, 5 % of 10 ms is a backup every 20 s; the floor gives one more every 10 s."""
    budget, sent = drained(), 0
    for second in range(1, 1_001):
        budget.earn(0.010, float(second))
        ticket = budget.try_spend(0.010, float(second))
        if ticket is not None:
            budget.settle(ticket, 0.010, float(second))
            sent += 1
    assert sent == pytest.approx(1_000 / 20 + 1_000 / FLOOR_SECONDS, abs=1)


def test_the_floor_comes_in_however_often_it_is_asked_for() -> None:
    budget = drained(work=0.0005)
    for number in range(20_001):
        budget.income(number * 1e-5)  # half a nanosecond each time
    assert budget.floored == pytest.approx(10_000, abs=2)


def test_no_budget_at_all() -> None:
    budget = WorkBudget(0.0, 0.010, 0.0)
    budget.earn(10.0, 100.0)
    assert budget.try_spend(0.0, 200.0) is None and budget.denied == 1
    assert budget.balance == 0 and budget.seconds_to_full(200.0) == 0.0
    budget.lose(0.001, 200.0)
    assert not budget.ties_allowed(10_000.0)  # nothing may be lost, and nothing comes in to pay for it


# ---- ties ------------------------------------------------------------------------------------------------------------


def test_double_starts_that_empty_the_bucket_stop_ties_for_a_while() -> None:
    budget = WorkBudget(0.05, 0.010, 0.0)
    now = 0.0
    while budget.ties_allowed(now):
        now += 0.01
        budget.earn(0.010, now)
        budget.lose(0.005, now)
    assert budget.balance < 0
    stopped = now
    while not budget.ties_allowed(now):
        now += 0.01
        budget.earn(0.010, now)
    assert now - stopped >= UNTIED_SECONDS - 1e-9 and budget.balance >= 0
    assert now - stopped < 5 * UNTIED_SECONDS


def test_over_time_double_starts_stay_within_the_budget() -> None:
    budget, now, useful = WorkBudget(0.05, 0.010, 0.0), 0.0, 0.0
    for _ in range(100_000):
        now += 0.001
        budget.earn(0.010, now)
        useful += 0.010
        if budget.ties_allowed(now):
            budget.lose(0.004, now)
    assert budget.lost / NANO == pytest.approx(0.05 * useful, rel=0.05)


def test_backups_that_empty_the_bucket_do_not_stop_ties() -> None:
    budget, now = drained(), 0.0
    for number in range(10_000):
        now += 0.001
        budget.earn(0.010, now)
        ticket = budget.try_spend(0.010, now)
        if ticket is not None:
            budget.settle(ticket, 0.012, now)
        if number % 1000 == 999:
            budget.lose(0.002, now)
        assert budget.ties_allowed(now)
    assert 0 < budget.lost_share(now) < 0.02


# ---- lost links ------------------------------------------------------------------------------------------------------


def test_lost_links_have_a_bucket_of_their_own() -> None:
    budget = LinkLostBudget(0.0)
    sent = sum(budget.try_spend(0.0, 1) for _ in range(500))
    assert sent == LINK_LOST_BURST and budget.denied == 500 - sent
    assert not budget.try_spend(0.9, 1) and budget.try_spend(1.0, 1)
    for _ in range(100):
        budget.earn()
    assert sum(budget.try_spend(1.0, 1) for _ in range(20)) == 10
    assert sum(budget.try_spend(10_000.0, 1) for _ in range(500)) == LINK_LOST_BURST


def test_a_lost_replica_may_take_along_as_many_as_are_under_way() -> None:
    """And a second one soon after; who comes and goes for long is not helped for ever."""
    budget = LinkLostBudget(0.0)
    assert sum(budget.try_spend(now, 3000) for now in (0.0, 10.0) for _ in range(3000)) == 6000
    assert sum(budget.try_spend(11.0, 3000) for _ in range(3000)) < 600
    assert sum(budget.try_spend(11.0, 30) for _ in range(3000)) == 0
    assert sum(budget.try_spend(600.0, 30) for _ in range(3000)) == LINK_LOST_BURST


def test_few_calls_have_what_a_large_loss_left_them() -> None:
    """A replica is lost with hundreds of calls; soon after, when few are under way, another one is."""
    budget = LinkLostBudget(0.0)
    assert all(budget.try_spend(0.0, 2000) for _ in range(500))
    assert sum(budget.try_spend(1.0, 20) for _ in range(500)) == LINK_LOST_BURST
