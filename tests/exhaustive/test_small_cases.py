"""Every interleaving of small cases, over the production cores: no invariant is broken, and an end is always in reach.

Each case names a floor of distinct states, so that a search that sees less than it did fails. What they see is printed
with ``-s``.
"""

from __future__ import annotations

import pytest

from tests.exhaustive.case import STAGGERED, TIE, Case
from tests.exhaustive.search import Search
from tiedreq.core.policy import Backup, Hedged, Plain

LOSSES = ("crash", "cut", "drain")
ALL = (*LOSSES, "raise", "unacceptable", "fill", "expire", "deadline", "cancel", "unsent")

CASES = [
    Case("tied", floor=60),
    Case("tied, one fault", faults=1, kinds=ALL, floor=8_000),
    Case("staggered, one fault", faults=1, kinds=ALL, policies=(STAGGERED,), floor=2_000),
    Case("tied, busy, a loss", faults=1, kinds=LOSSES, policies=(TIE,), busy=True, floor=5_000),
    Case("can't be stopped, a loss", faults=1, kinds=LOSSES, stoppable=False, busy=True, floor=2_000),
    Case("markers that go", faults=1, kinds=("evict", "age"), markers_max=1, floor=100),
    Case("plain, one fault", faults=1, kinds=ALL, policies=(Plain(),), floor=100),
    Case("may not run twice", faults=1, kinds=ALL, policies=(Plain(),), idempotent=False, floor=100),
    Case(
        "hedged, a loss",
        faults=1,
        kinds=LOSSES,
        policies=(Hedged(Backup(after=1.0, since="send")),),
        floor=1_000,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_interleaving(case: Case) -> None:
    report = Search(case, seconds_max=50).run()
    print(report)
    assert not report.violations, report.story()
    assert report.complete, "it took too long to see everything"
    assert report.states >= case.floor
