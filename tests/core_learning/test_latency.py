"""The estimator against Kaplan and Meier computed the long way, and where too little is known."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.core import latency
from tiedreq.core.errors import BadOption
from tiedreq.core.latency import LatencyEstimator, bucket_edge, bucket_of, law_of


def product_limit(ended: list[float], stopped: list[float], time: float) -> float:
    """P(S > time) by the definition, over single times."""
    alive = 1.0
    for moment in sorted({t for t in ended if t <= time}):
        at_risk = sum(t >= moment for t in ended) + sum(t >= moment for t in stopped)
        alive *= 1 - ended.count(moment) / at_risk
    return alive


# Times far enough apart that each has a bucket of its own.
TIMES = st.lists(st.sampled_from([round(0.001 * 1.1**k, 9) for k in range(40)]), max_size=60)


@given(TIMES.filter(bool), TIMES)
def test_it_is_the_product_limit(ended: list[float], stopped: list[float]) -> None:
    estimator = LatencyEstimator()
    for time in ended:
        estimator.add(time, 0.0)
    for time in stopped:
        estimator.add_stopped(time, 0.0)
    law = estimator.law()
    assert law is not None
    for time in {0.0005, *ended, *stopped}:
        found = law.survival(time * 1.03)
        if found is None:
            assert time * 1.03 >= law.horizon and max(stopped) >= max(ended)
        else:
            assert found == pytest.approx(product_limit(ended, stopped, time), abs=1e-9)
    assert law.unknown == pytest.approx(product_limit(ended, stopped, math.inf), abs=1e-9)
    assert sum(cell.mass for cell in law.cells) + law.unknown == pytest.approx(1)


@given(st.lists(st.floats(1e-6, 3600), min_size=1, max_size=100), st.floats(0.01, 0.99))
def test_quantiles_are_within_one_percent(times: list[float], q: float) -> None:
    estimator = LatencyEstimator()
    for time in times:
        estimator.add(time, 0.0)
    law = estimator.law()
    assert law is not None
    found = law.quantile(q)
    if len(times) * (1 - q) < 1 - 1e-9:
        assert found is None
    else:
        exact = sorted(times)[max(0, math.ceil(q * len(times) - 1e-9) - 1)]
        assert found == pytest.approx(exact, rel=0.0203)
    assert law.mean == pytest.approx(math.fsum(times) / len(times), rel=1e-6)


@given(st.floats(1e-6, 3600))
def test_a_bucket_is_as_wide_as_it_says(time: float) -> None:
    edge = bucket_edge(bucket_of(time))
    assert time <= edge * (1 + 1e-9) and edge <= time * 1.01 / 0.99 * (1 + 1e-9)


# ---- too little known (B15) ------------------------------------------------------------------------------------------


def test_before_the_first_sample_there_is_no_law() -> None:
    estimator = LatencyEstimator()
    assert estimator.law() is None
    estimator.add_stopped(0.5, 0.0)
    assert estimator.law() is None  # one copy took longer than half a second: not a law


@pytest.mark.parametrize("samples", [1, 2, 19, 20])
def test_a_quantile_needs_samples_beyond_it(samples: int) -> None:
    estimator = LatencyEstimator()
    for number in range(samples):
        estimator.add(0.010 + 0.001 * number, 0.0)
    law = estimator.law()
    assert law is not None and law.mean > 0
    for q in (0.01, 0.5, 0.95, 0.999):
        found = law.quantile(q)
        assert (found is None) == (samples * (1 - q) < 1 - 1e-9)
        assert found is None or 0.0099 < found < 0.0301


@pytest.mark.parametrize("q", [0.0, 1.0, 95, -0.1, math.nan, "0.5", True])
def test_a_bad_quantile_is_refused(q: float) -> None:
    law = law_of([(0.01, 1.0)], 100)
    with pytest.raises(BadOption, match="quantile"):
        law.quantile(q)


def test_a_quiet_hour_takes_nothing_away() -> None:
    estimator = LatencyEstimator()
    for number in range(500):
        estimator.add(0.010, number * 0.01)
    before = estimator.law()
    assert before is not None
    estimator.add(0.010, 3_605.0)  # rotates: the new window has one sample, the one before has the rest
    after = estimator.law()
    assert after is not None and after.quantile(0.99) == pytest.approx(0.010, rel=0.01)
    assert after.samples == 501


def test_a_window_stretches_until_it_holds_enough() -> None:
    estimator = LatencyEstimator(window=30.0, samples_min=200)
    for number in range(150):
        estimator.add(0.010, number * 1.0)
    for number in range(350):
        estimator.add(0.030, 150.0 + number)
    # Windows are [0, 200) with 150 fast ones, [200, 400) and the rest: the first has gone by now.
    law = estimator.law()
    assert law is not None
    assert law.survival(0.020) == 1.0
    assert estimator.samples == 300


def test_what_is_older_than_two_windows_is_gone() -> None:
    estimator = LatencyEstimator()
    for number in range(70_000):
        estimator.add(0.010 if number < 10_000 else 0.020, number * 0.001)
    law = estimator.law()
    assert law is not None and law.survival(0.015) == 1.0


def test_the_tail_that_was_stopped_is_unknown() -> None:
    estimator = LatencyEstimator()
    for _ in range(95):
        estimator.add(0.010, 0.0)
    for _ in range(5):
        estimator.add_stopped(0.050, 0.0)
    law = estimator.law()
    assert law is not None
    assert law.unknown == pytest.approx(0.05)
    assert law.survival(0.009) == 1.0 and law.survival(0.049) == pytest.approx(0.05) and law.survival(0.05) is None
    assert law.horizon == pytest.approx(0.05, rel=0.03)
    assert law.quantile(0.9) == pytest.approx(0.010) and law.quantile(0.96) is None
    assert math.isfinite(law.mean)


def test_memory_speaks_up_only_where_few_recent_copies_lasted() -> None:
    rng = Random(4)
    estimator = LatencyEstimator()
    for number in range(10_000):  # 10/s: long enough for several windows of 30 s
        estimator.add(0.3 if rng.random() < 0.02 else 0.01, number * 0.1)
    for number in range(800):  # from now on, every straggler is stopped
        if rng.random() < 0.02:
            estimator.add_stopped(0.02, 1000 + number * 0.1)
        else:
            estimator.add(0.01, 1000 + number * 0.1)
    law = estimator.law()
    assert law is not None
    assert law.unknown == 0.0
    assert law.survival(0.2) == pytest.approx(0.02, abs=0.012)
    for number in range(800):  # stragglers have become shorter, and memory does not insist
        estimator.add(0.03 if rng.random() < 0.2 else 0.01, 1100 + number * 0.1)
    changed = estimator.law()
    assert changed is not None and changed.survival(0.2) == 0.0


# ---- odd times -------------------------------------------------------------------------------------------------------


def test_a_coarse_clock_is_no_surprise() -> None:
    """B53: a clock of 15.6 ms sees services of 1 ms take 0 or 15.6 ms."""
    tick = 0.015625
    rng = Random(1)
    for resolution in (latency.TIME_MIN, tick):
        estimator = LatencyEstimator(resolution=resolution)
        for number in range(2_000):
            begin = rng.random() * 10
            measured = math.floor((begin + 0.001) / tick) * tick - math.floor(begin / tick) * tick
            estimator.add(measured, number * 0.01)
        law = estimator.law()
        assert law is not None
        assert law.mean >= resolution and min(cell.value for cell in law.cells) >= resolution * 0.999
        assert law.quantile(0.5) == pytest.approx(resolution, rel=0.01)


def test_all_zero_is_the_shortest_time() -> None:
    estimator = LatencyEstimator()
    for _ in range(300):
        estimator.add(0.0, 0.0)
        estimator.add(-0.001, 0.0)
    law = estimator.law()
    assert law is not None and law.mean == pytest.approx(1e-6) and law.quantile(0.5) == pytest.approx(1e-6)
    assert law.survival(1.0001e-6) == 0.0


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(allow_nan=True, allow_infinity=True), st.floats(-10, 1e5)), max_size=200
    )
)
def test_nothing_that_comes_in_breaks_it(samples: list[tuple[bool, float, float]]) -> None:
    estimator = LatencyEstimator(window=1.0, samples_min=5)
    for ended, time, now in samples:
        (estimator.add if ended else estimator.add_stopped)(time, now)
    assert estimator.refused == sum(not math.isfinite(time) for _, time, _ in samples)
    law = estimator.law()
    if law is not None:
        assert 0 <= law.unknown < 1 and 1e-6 * 0.999 <= law.mean <= 3_600 * 1.02
        assert all(1e-6 <= cell.edge <= 3_600 * 1.0203 and cell.mass > 0 for cell in law.cells)
        assert all(a.edge < b.edge and a.value <= b.value for a, b in pairwise(law.cells))


def test_memory_is_bounded_whatever_comes_in() -> None:
    estimator = LatencyEstimator(window=0.01, samples_min=100)
    rng = Random(2)
    for number in range(60_000):
        estimator.add(10 ** rng.uniform(-9, 6), number * 0.001)
    sizes = [len(buckets) for buckets in vars(estimator).values() if isinstance(buckets, dict)]
    assert max(sizes) <= 1_102
    law = estimator.law()
    assert law is not None and len(law.cells) <= 1_102


def test_options_are_checked() -> None:
    for options in ({"window": 0.0}, {"samples_min": 0}, {"resolution": 0.0}, {"resolution": math.inf}):
        with pytest.raises(BadOption):
            LatencyEstimator(**options)  # type: ignore[arg-type]
