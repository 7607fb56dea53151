"""The gain rule: its reference values, the brute force, and laws where no delay is worth it."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core_learning.laws import LAWS, exact, learned
from tiedreq.core.delay import DENIAL_PRICE, SEEN_MIN, TOLERANCE, NoDelay, assess, choose_delay
from tiedreq.core.latency import LatencyEstimator, Law, law_of

REFERENCE = [
    ("rare-stalls", 0.05, 10.1),
    ("rare-stalls", 0.10, 10.1),
    ("rare-stalls", 0.20, 10.1),
    ("cold-cache", 0.05, 25.6),
    ("cold-cache", 0.10, 25.6),
    ("cold-cache", 0.20, 25.6),
    ("long-tail", 0.05, 67.0),
    ("long-tail", 0.10, 58.0),
    ("long-tail", 0.20, 51.0),
    ("stragglers", 0.10, 8.7),
]


@pytest.mark.parametrize(("name", "budget", "milliseconds"), REFERENCE)
def test_reference_from_the_law(name: str, budget: float, milliseconds: float) -> None:
    choice = choose_delay(exact(name), budget)
    assert choice.delay == pytest.approx(milliseconds / 1000, rel=0.05), choice.reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted({row[0] for row in REFERENCE}))
def test_reference_from_samples(name: str, seed: int) -> None:
    law = learned(name, 20_000, seed)
    for scenario, budget, milliseconds in REFERENCE:
        if scenario == name:
            choice = choose_delay(law, budget)
            assert choice.delay == pytest.approx(milliseconds / 1000, rel=0.05), (budget, choice.reason)


def test_a_constant_law_has_no_delay() -> None:
    for law in (exact("constant"), learned("constant", 20_000, 1)):
        assert choose_delay(law, 0.1).delay is NoDelay.NOT_WORTH
    jitter = LatencyEstimator()
    rng = Random(3)
    for _ in range(20_000):
        jitter.add(rng.uniform(0.010, 0.018), 0.0)
    law = jitter.law()
    assert law is not None and choose_delay(law, 0.1).delay is NoDelay.NOT_WORTH


def test_an_exponential_law_takes_the_quantile() -> None:
    """Below the (1 - budget) quantile the gain is flat: the delay that turns the fewest calls away."""
    for budget, quantile in ((0.05, 29.96), (0.1, 23.03), (0.2, 16.09)):
        choice = choose_delay(exact("exponential"), budget)
        assert choice.delay == pytest.approx(quantile / 1000, rel=0.02)
        assert choice.prospect is not None and choice.prospect.wanting == pytest.approx(budget, rel=0.03)


def test_a_slow_mode_bigger_than_the_budget() -> None:
    """The quantile rule would wait until the slow mode is over; a backup for a few of many is worth more."""
    choice = choose_delay(exact("cold-cache"), 0.05)
    assert choice.prospect is not None
    assert choice.prospect.wanting == pytest.approx(0.2, abs=0.01)
    assert choice.payable < 0.05  # slow backups cost more than the useful work that pays for them


def test_what_a_backup_does_on_average() -> None:
    """``Prospect`` against a simulation of the race itself."""
    law, rng = LAWS["long-tail"], Random(5)
    delay, cost = 0.060, 0.030
    wanting = work = wins = saved = 0.0
    number = 200_000
    for _ in range(number):
        first, second = law.sample(rng), law.sample(rng)
        if first > delay:
            wanting += 1
            work += min(second, first - delay + cost)
            wins += delay + cost + second < first
            saved += max(0.0, first - delay - cost - second)
    prospect = assess(exact("long-tail"), delay, cost)
    assert prospect is not None
    assert prospect.wanting == pytest.approx(wanting / number, rel=0.03)
    assert prospect.work == pytest.approx(work / wanting, rel=0.03)
    assert prospect.win_chance == pytest.approx(wins / wanting, rel=0.03)
    assert prospect.saved == pytest.approx(saved / wanting, rel=0.03)


@pytest.mark.parametrize("budget", [0.10, 0.20])
def test_second_and_third_backups_are_paid_for_too(budget: float) -> None:
    """All backups together are what the budget pays for, by a simulation of the race: not the first ones alone."""
    delays = [choose_delay(exact("stragglers"), budget, backups=backups).delay for backups in (1, 3)]
    sent = []
    for delay in delays:
        assert isinstance(delay, float)
        law, rng = LAWS["stragglers"], Random(6)
        backups = 0
        for _ in range(40_000):
            best = law.sample(rng)
            for k in range(1, 4):
                if best <= k * delay:
                    break
                backups += 1
                best = min(best, k * delay + law.sample(rng))
        sent.append(backups / 40_000)
    assert sent[0] > 1.03 * budget
    assert sent[1] == pytest.approx(budget, rel=0.04)


def test_a_costly_backup_waits_longer_or_is_not_sent() -> None:
    law = exact("rare-stalls")
    assert choose_delay(law, 0.1, cost=0.2).delay == pytest.approx(0.0101, rel=0.01)
    assert choose_delay(law, 0.1, cost=0.3).delay is NoDelay.NOT_WORTH


def test_a_few_outliers_are_no_gain() -> None:
    def with_outliers(number: int) -> Law:
        return law_of([(0.010, 1000.0), (0.300, float(number))], 1000 + number)

    assert choose_delay(with_outliers(1), 0.05).delay is NoDelay.NOT_WORTH
    assert choose_delay(with_outliers(3), 0.05).delay is NoDelay.NOT_WORTH
    one_in_six = law_of([(0.010, 1000.0), (0.021, 5.0), (100.0, 1.0)], 1006)
    choice = choose_delay(one_in_six, 0.05)
    assert choice.delay is NoDelay.NOT_WORTH and not choice.sure
    assert choose_delay(with_outliers(12), 0.05).delay == pytest.approx(0.010, rel=0.03)


def test_no_budget_no_delay() -> None:
    assert choose_delay(exact("rare-stalls"), 0.0).delay is NoDelay.NOT_WORTH


def test_an_unknown_tail_is_unknown_not_worthless() -> None:
    estimator = LatencyEstimator()
    for number in range(1_000):
        if number % 50:
            estimator.add(0.010, 0.0)
        else:
            estimator.add_stopped(0.0190, 0.0)
    law = estimator.law()
    assert law is not None
    choice = choose_delay(law, 0.05)
    assert choice.delay is NoDelay.UNKNOWN and "outlast" in choice.reason


CELLS = st.dictionaries(st.integers(0, 40), st.integers(1, 50), min_size=1, max_size=12)


def literal(law: Law, budget: float, cost: float) -> tuple[dict[float, float], float]:
    """The rule as it is written: double sums, two rounds of b. The score of each delay in the last, and of the best."""
    b, scores = budget, {}
    for _ in range(2):
        gains = {}
        for cell in law.cells:
            d, late = cell.edge, [s for s in law.cells if s.value > cell.edge]
            wanting = sum(s.mass for s in late)
            if wanting > 1e-12 and cell.seen >= SEEN_MIN:
                saving = sum(s.mass * t.mass * max(0.0, s.value - d - cost - t.value) for s in late for t in law.cells)
                served = min(1.0, b / wanting)
                gains[d] = saving * served, served, 1 / math.sqrt(cell.seen)
        best = max((gain for gain, _, _ in gains.values()), default=0.0)
        if best <= 1e-15:
            return {}, 0.0
        scores = {
            d: gain * (1 - DENIAL_PRICE * (1 - served))
            for d, (gain, served, noise) in gains.items()
            if gain >= (1 - TOLERANCE - noise) * best - 1e-15
        }
        prospect = assess(law, max(scores, key=scores.__getitem__), cost)
        assert prospect is not None
        b = budget * min(1.0, prospect.useful / prospect.work)
    return scores, max(scores.values())


@given(CELLS, st.sampled_from([0.01, 0.05, 0.2, 0.5]), st.sampled_from([0.0, 0.002, 0.1, 0.5]))
def test_against_the_rule_taken_literally(weights: dict[int, int], budget: float, cost: float) -> None:
    law = law_of([(0.001 * 1.2**k, float(weight)) for k, weight in weights.items()], 100_000)
    choice = choose_delay(law, budget, cost)
    scores, best = literal(law, budget, cost)
    if isinstance(choice.delay, float):
        assert scores[choice.delay] == pytest.approx(best, rel=1e-9)
        assert 0 < choice.payable <= budget
    else:
        assert choice.delay is NoDelay.NOT_WORTH
        assert not scores or not choice.sure


@pytest.mark.parametrize("name", ["cold-cache", "long-tail", "stragglers", "exponential", "heavy"])
def test_the_quick_search_misses_next_to_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law = learned(name, 20_000, 7)
    quick = choose_delay(law, 0.05)
    monkeypatch.setattr("tiedreq.core.delay.COARSE_POINTS", 10_000)
    full = choose_delay(law, 0.05)
    assert quick.prospect is not None and full.prospect is not None
    saved = [min(p.wanting, quick.payable) * p.saved for p in (quick.prospect, full.prospect)]
    assert saved[0] >= 0.99 * saved[1]
