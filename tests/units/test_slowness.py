import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.errors import BadOption
from tiedreq.slowness import PauseSchedule, PauseSpec, SlowSpec, parse_pause, parse_slow
from tiedreq.units import DURATION_MAX

indexes = st.integers(0, 9999)


@given(st.builds(SlowSpec, indexes, st.floats(0, 10_000)))
def test_a_slow_replica_reads_back_to_an_equal_one(slow: SlowSpec) -> None:
    assert parse_slow(str(slow)) == slow


@given(st.builds(PauseSpec, st.floats(0, DURATION_MAX), st.floats(0.010, DURATION_MAX), st.one_of(st.none(), indexes)))
def test_a_pause_reads_back_to_an_equal_one(pause: PauseSpec) -> None:
    assert parse_pause(str(pause)) == pause


def test_the_forms_of_the_contract() -> None:
    assert parse_slow("0:3") == SlowSpec(0, 3.0)
    assert parse_pause("200ms@5s") == PauseSpec(0.2, 5.0)
    assert parse_pause("3:200ms@5s") == PauseSpec(0.2, 5.0, replica=3)


@pytest.mark.parametrize("text", ["", "3", "0:", "x:3", "-1:3", "0:x", "0:-1", "0:20000", "12345:2", "0:3:4"])
def test_a_bad_slow_replica_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=r"^--slow: "):
        parse_slow(text, field="--slow")


@pytest.mark.parametrize("text", ["", "200ms", "200@5s", "200ms@5", "200ms@0", "200ms@1ms", "x:1ms@5s", ":1ms@5s"])
def test_a_bad_pause_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=r"^--pause: "):
        parse_pause(text, field="--pause")


@pytest.mark.parametrize("index", [-1, 10_000, 1.0, True, "0"])
def test_what_is_no_index_is_refused(index: int) -> None:
    with pytest.raises(BadOption, match="is not the index of a replica, 0 to 9999"):
        SlowSpec(index, 2.0)
    with pytest.raises(BadOption, match="is not the index of a replica, 0 to 9999"):
        PauseSpec(0.1, 1.0, index)


class Script(Random):
    """Gives fixed intervals in place of exponential ones."""

    def __init__(self, *intervals: float) -> None:
        super().__init__(0)
        self._intervals = iter(intervals)

    def expovariate(self, lambd: float = 1.0) -> float:
        return next(self._intervals, 1_000.0)


def schedule(*intervals: float, duration: float = 0.5, begin: float = 10.0) -> PauseSchedule:
    return PauseSchedule(PauseSpec(duration, 1.0), Script(*intervals), begin=begin)


def test_work_outside_pauses_takes_its_time() -> None:
    assert schedule(5.0).end_of(2.0, begin=10.0) == 12.0


def test_work_is_extended_by_every_pause_it_meets() -> None:
    # Pauses from 11 to 11.5, 12.5 to 13 and 20 to 20.5.
    assert schedule(1.0, 1.0, 7.0).end_of(3.0, begin=10.0) == 14.0


def test_an_extension_may_reach_into_the_next_pause() -> None:
    # Pauses from 11 to 11.5 and from 11.7 to 12.2: without the first, the work would end before the second.
    assert schedule(1.0, 0.2).end_of(1.5, begin=10.0) == pytest.approx(12.5)


def test_work_that_begins_in_a_pause_waits_for_its_end() -> None:
    pauses = schedule(1.0)
    assert pauses.end_of(0.0, begin=11.0) == 11.5
    assert pauses.end_of(1.0, begin=11.2) == pytest.approx(12.5)


def test_work_that_ends_as_a_pause_begins_is_not_extended() -> None:
    assert schedule(1.0).end_of(1.0, begin=10.0) == 11.0


def test_pauses_of_an_idle_time_extend_nothing() -> None:
    pauses = schedule(1.0, 1.0, 1.0)
    assert pauses.end_of(1.0, begin=100.0) == 101.0


@given(st.floats(0, 2), st.floats(0.010, 5), st.integers(), st.lists(st.floats(0, 3), min_size=1, max_size=30))
def test_work_in_progress_at_once_is_extended_by_the_same_pauses(
    duration: float, every: float, seed: int, begins: list[float]
) -> None:
    """Against a plain second implementation: walk the pauses of the whole run from their beginning."""
    pauses = PauseSchedule(PauseSpec(duration, every), Random(seed), begin=0.0)
    rng = Random(seed)
    windows: list[tuple[float, float]] = []
    end = unpaused = 0.0
    while unpaused < 10:
        gap = rng.expovariate(1 / every)
        unpaused += gap
        windows.append((end + gap, end + gap + duration))
        end += gap + duration
    for begin in sorted(begins):
        expected, work = begin, 0.7
        for window_begin, window_end in windows:
            if window_end <= expected:
                continue
            gap = max(0.0, window_begin - expected)
            if work <= gap and not window_begin <= begin:
                break
            work -= min(work, gap)
            expected = window_end
        assert pauses.end_of(0.7, begin=begin) == pytest.approx(expected + work)


def test_pauses_take_the_share_of_time_that_the_spec_says() -> None:
    pauses = PauseSchedule(parse_pause("200ms@5s"), Random(5), begin=0.0)
    now, worked = 0.0, 0.0
    for _ in range(50_000):
        now, worked = pauses.end_of(1.0, begin=now), worked + 1.0
    assert now / worked == pytest.approx(1 + 0.2 / 5, abs=5 * 0.2 / 5 / math.sqrt(10_000))


def test_the_same_seed_gives_the_same_pauses_however_often_it_is_asked() -> None:
    spec = parse_pause("50ms@200ms")
    often, once = (PauseSchedule(spec, Random("7/r1"), begin=0.0) for _ in range(2))
    ends = [often.end_of(0.1, begin=begin / 10) for begin in range(100)]
    assert once.end_of(0.1, begin=9.9) == ends[-1]
    assert all(first <= second for first, second in pairwise(ends))
