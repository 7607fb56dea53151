"""Design 6.2: how long copy k is held back. The general properties are in tests/properties."""

from __future__ import annotations

import pytest

from tests.core.test_picker import NOW, view
from tiedreq.core.picker import ReplicaView
from tiedreq.core.stagger import MARGIN_MIN, STAGGER_MAX, UNKNOWN_ROUND_TRIP, notice_latency, stagger_times
from tiedreq.core.types import Load


def measured(link: int, name: str, round_trip: float, deviation: float = 0.0, **notices: float) -> ReplicaView:
    each = view(link, name)
    each.round_trip, each.round_trip_deviation = round_trip, deviation
    each.notice_latencies = dict(notices)
    return each


def test_the_formula() -> None:
    a = measured(1, "a", 0.010, 0.001, b=0.004)
    b = measured(2, "b", 0.006, 0.0005)
    assert stagger_times([a, b], NOW) == [0.0, pytest.approx(0.005 + 0.004 - 0.003 + 3 * 0.0015)]


def test_the_margin_has_a_floor() -> None:
    a, b = measured(1, "a", 0.010, b=0.004), measured(2, "b", 0.010)
    assert stagger_times([a, b], NOW)[1] == pytest.approx(0.004 + MARGIN_MIN)


def test_nothing_is_held_back_behind_a_replica_with_a_queue_and_no_free_slot() -> None:
    a, b = measured(1, "a", 0.010, b=0.004), measured(2, "b", 0.010)
    a.take_load(Load(queued=1, free=0, received=0, pushback=0.0), NOW)
    assert stagger_times([a, b], NOW) == [0.0, 0.0]
    assert stagger_times([a, b], NOW + 1.0)[1] > 0, "the report is stale"


def test_a_third_copy_waits_for_the_notices_of_both() -> None:
    a = measured(1, "a", 0.010, b=0.001, c=0.001)
    b = measured(2, "b", 0.010, c=0.020)
    c = measured(3, "c", 0.010)
    first, second, third = stagger_times([a, b, c], NOW)
    assert first == 0.0
    assert second == pytest.approx(0.001 + MARGIN_MIN)
    assert third == pytest.approx(second + 0.020 + MARGIN_MIN)


def test_it_is_never_negative_nor_longer_than_the_roof() -> None:
    near, far = measured(1, "a", 0.001, b=0.0), measured(2, "b", 10.0)
    assert stagger_times([near, far], NOW) == [0.0, 0.0]
    assert stagger_times([far, measured(3, "c", 0.001)], NOW) == [0.0, STAGGER_MAX]


def test_the_notice_latency_is_the_sources_then_the_targets_then_by_way_of_the_client() -> None:
    a, b = measured(1, "a", 0.010, b=0.004), measured(2, "b", 0.006, a=0.009)
    assert notice_latency(a, b) == 0.004
    a.notice_latencies = {}
    assert notice_latency(a, b) == 0.009
    b.notice_latencies = {}
    assert notice_latency(a, b) == pytest.approx(0.008)


def test_nothing_measured_is_a_small_guess_not_zero() -> None:
    a, b = view(1, "a"), view(2, "b")
    assert stagger_times([a, b], NOW)[1] == pytest.approx(UNKNOWN_ROUND_TRIP + MARGIN_MIN)


def test_alone_at_once() -> None:
    assert stagger_times([view(1, "a")], NOW) == [0.0]
