"""What is learned of an endpoint from its first calls on."""

from __future__ import annotations

from random import Random

import pytest

from tiedreq.core.delay import NoDelay
from tiedreq.core.learning import LearningOptions
from tiedreq.core.policy import Backup
from tiedreq.hedging.planning import copies
from tiedreq.hedging.starting import LATER, START_SAMPLES, START_SAMPLES_MAX, StartingBook, StartingLesson
from tiedreq.laws import Constant, parse_law

STRAGGLERS = parse_law("lognormal(mean=5ms,sd=2ms)*10@0.05")


def taught(lesson: StartingLesson, law, count: int, *, now: float = 0.0, seed: int = 1) -> float:
    rng = Random(seed)
    for _ in range(count):
        lesson.finished(law.sample(rng), now, used=True)
        lesson.delay(now)
        now += 0.001
    return now


@pytest.mark.parametrize(("budget", "low", "high"), [(0.1, 0.007, 0.012), (0.2, 0.006, 0.009), (0.9, 0.004, 0.006)])
def test_a_quantile_is_told_at_first(budget, low, high) -> None:
    lesson = StartingLesson(LearningOptions(budget=budget), 0.0)
    now = taught(lesson, STRAGGLERS, START_SAMPLES - 1)
    assert lesson.delay(now) == NoDelay.UNKNOWN
    now = taught(lesson, STRAGGLERS, 130, now=now)
    delay = lesson.delay(now)
    assert isinstance(delay, float) and low < delay < high


def test_the_rule_takes_over() -> None:
    lesson = StartingLesson(LearningOptions(budget=0.1), 0.0)
    now = taught(lesson, STRAGGLERS, 1500)
    delay = lesson.delay(now)
    assert isinstance(delay, float) and 0.0080 < delay < 0.0095


def test_what_was_learned_first_is_learned_anew_however_fast_calls_come() -> None:
    lesson = StartingLesson(LearningOptions(budget=0.1), 0.0)
    rng, delays = Random(1), []
    for scale, count in ((1.0, 400), (4.0, 1200)):
        for _ in range(count):
            lesson.finished(scale * STRAGGLERS.sample(rng), 0.0, used=True)
            lesson.delay(0.0)
        delays.append(lesson.delay(0.0))
    assert delays[1] > 2 * delays[0]


def test_an_atom_is_waited_for() -> None:
    lesson = StartingLesson(LearningOptions(budget=0.1), 0.0)
    now = taught(lesson, parse_law("bimodal(10ms,300ms,0.02)"), 1500)
    delay = lesson.delay(now)
    assert isinstance(delay, float) and 0.010 < delay < 0.0103


def test_where_a_backup_is_never_worth_it_none_is_told_in_the_end() -> None:
    lesson = StartingLesson(LearningOptions(budget=0.1), 0.0)
    now = taught(lesson, Constant(0.005), START_SAMPLES_MAX + 300)
    assert lesson.delay(now) in (NoDelay.NOT_WORTH, NoDelay.UNKNOWN)


@pytest.mark.parametrize("options", [{"budget": 0.0}, {"after": 0.05}, {"quantile": 0.99}])
def test_what_was_given_stays(options) -> None:
    lesson = StartingLesson(LearningOptions(**options), 0.0)
    now = taught(lesson, STRAGGLERS, 100)
    expected = {"budget": NoDelay.UNKNOWN, "after": 0.05, "quantile": NoDelay.UNKNOWN}
    assert lesson.delay(now) == expected[next(iter(options))]


def test_a_book_is_bounded_and_keeps_what_is_used() -> None:
    book, backup = StartingBook(3), Backup(since="send")
    first = book.lesson("first", backup, 0.0)
    for number in range(10):
        book.lesson(f"other {number}", backup, 0.0)
        assert book.lesson("first", backup, 0.0) is first and len(book) <= 3
    assert isinstance(first, StartingLesson)


def lesson_of(law_text: str, budget: float, backups: int, count: int = 3000) -> StartingLesson:
    lesson = StartingLesson(LearningOptions(budget=budget), 0.0, backups)
    taught(lesson, parse_law(law_text), count, seed=2)
    return lesson


@pytest.mark.parametrize("budget", [0.05, 0.1])
@pytest.mark.parametrize("backups", [1, 2])
def test_a_smooth_law_gets_the_delay_that_spends_the_budget_in_copies(budget, backups) -> None:
    lesson = lesson_of("exp(10ms)", budget, backups)
    delay, law = lesson.delay(3.0), lesson.latency.law()
    assert isinstance(delay, float) and law is not None
    assert budget * 0.9 < copies(law, delay, backups, LATER) <= budget * 1.05


def test_a_slow_mode_larger_than_the_budget_keeps_the_delay_of_the_rule() -> None:
    lesson = lesson_of("bimodal(20ms,500ms,0.25)", 0.1, 2)
    delay = lesson.delay(3.0)
    assert isinstance(delay, float) and delay < 0.03
