"""Percentiles within 1 % of what a sorted list says, in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.histogram import LONGEST, SHORTEST, Histogram

PERCENTS = [0, 1, 50, 90, 99, 99.9, 100]
durations = st.floats(SHORTEST, LONGEST)


def filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(st.lists(durations, min_size=1, max_size=300), st.sampled_from(PERCENTS))
def test_it_agrees_with_a_sorted_list(values: list[float], percent: float) -> None:
    found = filled(values).percentile(percent)
    expected = sorted(values)[max(1, math.ceil(round(len(values) * percent / 100, 6))) - 1]
    assert found == pytest.approx(expected, rel=0.0101)


def test_a_thousand_values() -> None:
    histogram = filled([number / 1000 for number in range(1, 1001)])
    for percent, expected in ((50, 0.5), (99, 0.99), (99.9, 0.999), (100, 1.0)):
        assert histogram.percentile(percent) == pytest.approx(expected, rel=0.0101)


def test_nothing_is_unknown() -> None:
    assert Histogram().percentile(99) is None


@pytest.mark.parametrize(("value", "shown"), [(0.0, SHORTEST), (-1.0, SHORTEST), (1e9, LONGEST), (math.inf, LONGEST)])
def test_what_is_out_of_range_is_counted_at_the_end(value: float, shown: float) -> None:
    assert filled([value]).percentile(50) == pytest.approx(shown, rel=0.03)


def test_percentiles_have_limits() -> None:
    for percent in (-1, 100.1, math.nan):
        with pytest.raises(ValueError, match="percent"):
            filled([1.0]).percentile(percent)
