"""Means with intervals over seeds, and the trend of a queue."""

from random import Random

import pytest

from cluster.compare.statistics import mean_of, student_t, upward_trend


def test_students_t_beyond_its_table_meets_known_values() -> None:
    assert student_t(1) == pytest.approx(12.7062)
    assert student_t(31) == pytest.approx(2.0395, abs=1e-4)
    assert student_t(100) == pytest.approx(1.9840, abs=1e-4)
    assert student_t(10_000) == pytest.approx(1.9602, abs=1e-4)


def test_an_interval_over_seeds() -> None:
    mean = mean_of([1.0, 2.0, 3.0])
    assert mean is not None and mean.interval is not None
    assert mean.value == 2.0
    assert mean.interval == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)


def test_one_seed_has_no_interval_and_none_no_mean() -> None:
    one = mean_of([5.0])
    assert one is not None and (one.value, one.interval) == (5.0, None)
    assert mean_of([]) is None


def test_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    rng, held = Random(3), 0
    for _ in range(1_000):
        mean = mean_of([rng.gauss(10, 2) for _ in range(4)])
        assert mean is not None and mean.interval is not None
        held += mean.interval[0] <= 10 <= mean.interval[1]
    assert 930 <= held <= 970


def test_a_queue_that_grows_for_good_has_a_trend() -> None:
    assert upward_trend([(t / 10, t * 1.0) for t in range(256)], rate=100.0)


def test_a_queue_that_wanders_has_none() -> None:
    rng = Random(4)
    wandering = [(t / 10, 20 + rng.gauss(0, 8)) for t in range(256)]
    assert not upward_trend(wandering, rate=100.0)
    assert not upward_trend([(t / 10, max(0.0, 100.0 - t)) for t in range(256)], rate=100.0)


def test_growth_of_next_to_none_of_the_calls_is_no_trend() -> None:
    assert not upward_trend([(t / 10, t * 0.01) for t in range(256)], rate=100.0)


def test_few_samples_say_nothing() -> None:
    assert not upward_trend([(0.0, 0.0), (1.0, 1_000.0)], rate=1.0)
