"""How long further copies of a tie are held back: by the law of waits, and by how long news of a start travels."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tiedreq.core.learning import LearningOptions
from tiedreq.core.lessons import Lesson

CALLS = 20_000
SECONDS = 20.0


def lesson(wait: Callable[[Random], float]) -> Lesson:
    """What is known after twenty seconds of first copies that wait like this."""
    learned, rng = Lesson(LearningOptions(budget=0.05), 0.0), Random(1)
    for number in range(CALLS):
        learned.waits.add(wait(rng), number * SECONDS / CALLS)
    return learned


def queue(rng: Random) -> float:
    """A queue near capacity: whoever waits goes on waiting for 10 ms on average, however long it has been."""
    return rng.expovariate(100.0) if rng.random() < 0.8 else 0.0


def pauses(rng: Random) -> float:
    """The same, and two calls of a hundred meet a replica that has stopped for up to 200 ms."""
    return rng.uniform(0.0, 0.2) if rng.random() < 0.02 else queue(rng)


def test_nothing_is_held_back_as_long_as_nothing_is_known() -> None:
    assert Lesson(LearningOptions(), 0.0).hold(0.0, 0.02) == 0.0


def test_a_share_of_the_calls_waits_longer_than_the_hold() -> None:
    learned = lesson(queue)
    assert learned.hold(SECONDS) == learned.hold(SECONDS, 0.001) == pytest.approx(0.0277, rel=0.05)


def test_where_waits_end_before_the_news_of_a_start_arrives_no_second_copy_goes() -> None:
    """Of those who have waited, 13 of 100 wait for another 20 ms: nearly all of their ties would start twice."""
    learned = lesson(queue)
    law = learned.waits.law()
    assert law is not None
    held = learned.hold(SECONDS, 0.02)
    assert held > 2 * learned.hold(SECONDS) and (law.survival(held) or 0.0) < 0.002


def test_who_waits_for_a_replica_that_has_stopped_still_has_a_second_copy() -> None:
    learned = lesson(pauses)
    held = learned.hold(SECONDS, 0.02)
    assert learned.hold(SECONDS) < held < 0.06
    assert learned.hold(SECONDS, 0.05) > held, "the longer news travels, the later a second copy is worth it"


def test_the_hold_follows_what_is_learned_and_each_distance_has_its_own() -> None:
    learned = lesson(queue)
    near, far = learned.hold(SECONDS, 0.001), learned.hold(SECONDS, 0.02)
    assert (learned.hold(SECONDS, 0.001), learned.hold(SECONDS, 0.02)) == (near, far)
    for number in range(CALLS):
        learned.waits.add(0.5, SECONDS + number * SECONDS / CALLS)
    assert learned.hold(SECONDS + 0.5, 0.001) == near, "for a second"
    assert learned.hold(2 * SECONDS, 0.001) == pytest.approx(0.5, rel=0.02)
