"""When calls want to be woken: nobody is woken for a time that has moved on meanwhile, or for a call that has ended."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tiedreq.net.times import SPARE, Times


def call(number: int, wanted: float) -> Any:
    """What ``Times`` looks at of a call, as the driver makes it: nothing is set for it yet."""
    core = SimpleNamespace(request=SimpleNamespace(id=SimpleNamespace(number=number)), wake_at=wanted)
    return SimpleNamespace(core=core, waking_at=math.inf)


def test_a_time_that_moved_on_wakes_nobody() -> None:
    one, other = call(1, 1.0), call(2, 2.0)
    calls = {1: one, 2: other}
    times = Times(calls)
    for each in calls.values():
        times.set(each, each.core.wake_at)
    one.core.wake_at = 5.0
    assert times.next_due(1.5) is None and times.earliest == 2.0, "not even for a look"
    del calls[2]
    assert times.next_due(3.0) is None and times.earliest == 5.0
    assert times.next_due(5.0) is one and one.waking_at == math.inf
    assert times.next_due(5.0) is None and times.earliest == math.inf and len(times) == 0


def test_sooner_is_told_of_times_before_all_others() -> None:
    calls = {number: call(number, 0.0) for number in range(3)}
    times, told = Times(calls), []
    times.sooner = told.append
    for number, at in ((0, 3.0), (1, 4.0), (2, 2.0)):
        calls[number].core.wake_at = at
        times.set(calls[number], at)
    assert told == [3.0, 2.0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans()), max_size=80))
def test_every_call_is_woken_at_its_time_and_at_no_other(moves: list[tuple[int, int, bool]]) -> None:
    """Calls begin, move their times and end at random; each moment those and only those are due whose time has come."""
    calls: dict[int, Any] = {}
    times = Times(calls)
    for now, (number, after, ends) in enumerate(moves):
        if ends:
            calls.pop(number, None)
        else:
            moved = calls.setdefault(number, call(number, math.inf))
            moved.core.wake_at = now + after if after else math.inf
            if moved.core.wake_at < moved.waking_at:
                times.set(moved, moved.core.wake_at)
        expected = {number for number, each in calls.items() if each.core.wake_at <= now}
        found = set()
        while (due := times.next_due(now)) is not None:
            found.add(due.core.request.id.number)
            due.core.wake_at = math.inf
        assert found == expected
        assert times.earliest == min((each.core.wake_at for each in calls.values()), default=math.inf)
        assert len(times) <= SPARE + 4 * max(1, len(calls))
