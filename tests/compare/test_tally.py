"""Distributions: exact sums, percentiles within their error, merging; tallies in bounded memory."""

import math
import pickle
from random import Random

import pytest

from cluster.compare.tally import ERROR, Distribution, Tally


def filled(values: list[float]) -> Distribution:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    return distribution


def test_percentiles_are_within_the_error_of_the_true_ones() -> None:
    rng = Random(1)
    values = sorted(rng.expovariate(100) for _ in range(5_000))
    distribution = filled(values)
    for percent in (1.0, 50.0, 90.0, 99.0, 99.9, 100.0):
        true = values[math.ceil(len(values) * percent / 100) - 1]
        assert distribution.percentile(percent) == pytest.approx(true, rel=ERROR * 1.01)
    assert distribution.mean == pytest.approx(sum(values) / len(values))


def test_the_rank_is_exact_in_thousands() -> None:
    distribution = filled([0.001] * 999 + [1.0])
    assert distribution.percentile(99.9) == pytest.approx(0.001, rel=ERROR)
    assert filled([0.001] * 998 + [1.0] * 2).percentile(99.9) == pytest.approx(1.0, rel=ERROR)


def test_zeros_are_counted_as_such() -> None:
    distribution = filled([0.0, 0.0, 0.0, 0.5])
    assert distribution.percentile(75) == 0.0
    assert distribution.positive_share == 0.25
    assert distribution.share_above(0.1) == 0.25
    assert distribution.share_above(0.6) == 0.0


def test_no_percentile_is_longer_than_the_longest() -> None:
    assert filled([0.3]).percentile(50) <= 0.3


def test_nothing_has_no_percentile_and_no_mean() -> None:
    empty = Distribution()
    assert (empty.percentile(50), empty.mean, empty.positive_share, empty.share_above(1)) == (None, None, None, None)


def test_merged_is_as_if_all_had_been_added() -> None:
    first, second = [0.001 * i for i in range(200)], [0.01 * i for i in range(50)]
    merged = filled(first)
    merged.merge(filled(second))
    whole = filled(first + second)
    assert merged.buckets == whole.buckets
    assert (merged.count, merged.zeros, merged.longest) == (whole.count, whole.zeros, whole.longest)
    assert merged.mean == pytest.approx(whole.mean)


def test_the_curve_goes_down_from_all_that_are_above_zero_to_nothing() -> None:
    curve = filled([0.0, 0.01, 0.02, 0.02]).points()
    assert curve[0] == (0.0, 0.75)
    assert [share for _, share in curve[1:]] == [0.5, 0.0]


def test_a_tally_does_not_grow_with_the_number_of_calls() -> None:
    rng, tally = Random(2), Tally()
    for _ in range(20_000):
        tally.latency.add(rng.lognormvariate(-4, 1))
    size = len(pickle.dumps(tally))
    for _ in range(20_000):
        tally.latency.add(rng.lognormvariate(-4, 1))
    assert len(pickle.dumps(tally)) < size * 1.2
    assert len(tally.latency.buckets) < 3_100


def test_tallies_merge_and_keep_their_own_queue() -> None:
    first, second = Tally(calls=2, queue=[(0.0, 1.0)], notes=["late"]), Tally(calls=3, queue=[(0.0, 9.0)])
    second.notes = ["late", "later"]
    second.wait.add(0.1)
    first.merge(second)
    assert (first.calls, first.wait.count, first.queue, first.notes) == (5, 1, [(0.0, 1.0)], ["late", "later"])
