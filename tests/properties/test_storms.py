"""Random histories of one client and its replicas: the invariants after each step, and nothing left in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.storms import Storm

choices = st.lists(st.integers(0, 1 << 20), max_size=120)


@given(choices, st.integers(1, 4), st.sampled_from([1, 3]))
def test_two_replicas_without_faults(steps: list[int], calls: int, queue_max: int) -> None:
    assert play(Storm("ab", calls_max=calls, faults_max=0, queue_max=queue_max), steps) == []


@given(choices, st.integers(1, 3), st.integers(1, 4))
def test_two_replicas_with_faults(steps: list[int], calls: int, faults: int) -> None:
    assert play(Storm("ab", calls_max=calls, faults_max=faults), steps) == []


@given(choices, st.integers(1, 5), st.integers(0, 5), st.sampled_from([1, 2]))
def test_three_replicas_with_faults(steps: list[int], calls: int, faults: int, slots: int) -> None:
    assert play(Storm("abc", calls_max=calls, faults_max=faults, slots=slots, queue_max=2), steps) == []


def play(storm: Storm, steps: list[int]) -> list[str]:
    """What is left when all has ended. The invariants are asserted after each step."""
    for step in steps:
        storm.step(step)
    return storm.calm()
