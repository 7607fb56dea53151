"""What a client's book of lessons shows."""

from __future__ import annotations

from tiedreq.core.lessons import LearningBook
from tiedreq.core.policy import Backup


def test_backups_without_a_budget_are_shown_as_such() -> None:
    """Not as ones whose governor has nothing to say yet: it never will have."""
    book = LearningBook()
    for budget in (None, 0.05):
        book.lesson("work", Backup(after=0.03, budget=budget), 0.0)
    reasons = [(shown["state"], shown["state_reason"]) for shown in book.view(0.0)]
    assert reasons == [("ok", "no budget: nothing holds these backups back"), ("ok", "nothing is known yet")]
