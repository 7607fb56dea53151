"""How many copies a delay comes to, and which delay comes to as many as the budget names."""

from __future__ import annotations

from random import Random

import pytest

from tiedreq.core.latency import RELATIVE_ERROR, Law, law_of
from tiedreq.hedging.planning import copies, spending
from tiedreq.laws import parse_law

LATER = 1.5


def law(text: str, count: int = 20_000) -> Law:
    rng, service = Random(1), parse_law(text)
    return law_of([(service.sample(rng), 1.0) for _ in range(count)], count)


def played(text: str, delay: float, backups: int, calls: int = 40_000) -> float:
    """Copies per call beyond the first, counted: each backup leaves when nothing has answered by its time."""
    rng, service, sent = Random(2), parse_law(text), 0
    for _ in range(calls):
        answered = service.sample(rng)
        for number in range(backups):
            at = delay + number * LATER * delay
            if answered <= at:
                break
            sent += 1
            answered = min(answered, at + service.sample(rng))
    return sent / calls


STRAGGLERS = "lognormal(mean=5ms,sd=2ms)*10@0.05"


@pytest.mark.parametrize("backups", [1, 2, 4])
@pytest.mark.parametrize(
    ("text", "delay"), [(STRAGGLERS, 0.0087), ("exp(10ms)", 0.01), ("bimodal(10ms,300ms,0.2)", 0.02)]
)
def test_copies_are_counted_as_they_come(text, delay, backups) -> None:
    assert copies(law(text), delay, backups, LATER) == pytest.approx(played(text, delay, backups), rel=0.06)


@pytest.mark.parametrize("backups", [1, 2])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_delay_found_spends_the_share(share, backups) -> None:
    known = law(STRAGGLERS)
    delay = spending(known, share, backups, LATER)
    assert delay is not None
    assert copies(known, delay * (1 + 2 * RELATIVE_ERROR), backups, LATER) <= share + 1e-9
    assert copies(known, delay * (1 - 2 * RELATIVE_ERROR), backups, LATER) >= share - 1e-9
    assert played(STRAGGLERS, delay, backups) == pytest.approx(share, rel=0.1)


def test_second_backups_are_paid_by_a_longer_delay() -> None:
    known = law("lognormal(mean=5ms,sd=2ms)*10@0.2")
    one, two = spending(known, 0.3, 1, LATER), spending(known, 0.3, 2, LATER)
    assert one is not None and two is not None and 1.02 * one < two < 1.5 * one


def test_an_atom_is_waited_for_to_its_end() -> None:
    delay = spending(law("bimodal(10ms,300ms,0.02)"), 0.1, 2, LATER)
    assert delay is not None and 0.010 <= delay < 0.0103


def test_where_too_much_is_unknown_no_delay_is_known() -> None:
    known = law_of([(0.01, 1.0)], 100)
    assert spending(Law(known.cells, 0.2, 100), 0.1, 2, LATER) is None
    assert spending(Law(known.cells, 0.2, 100), 0.5, 2, LATER) is not None
