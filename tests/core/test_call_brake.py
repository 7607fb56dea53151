"""Design 6.4 to 6.8 in a call's core: what the brake denies, what is learned, observing, and what Auto sends."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.parts import OrderedTable
from tiedreq.core import throttle
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.events import Fault
from tiedreq.core.governor import GovernorState
from tiedreq.core.lessons import CallAccount, LearningBook
from tiedreq.core.picker import ReplicaTable
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.core.types import CopyKind

DELAY = 0.03
HEDGED = Hedged(Backup(after=DELAY, since="send", max_per_call=1))
RETRYABLE = Fault("busy", "later", b"", True)


def triangle(replicas: str = "abc", *, slots: int = 100, rounds_max: int = 5) -> Triangle:
    return Triangle(replicas, slots=slots, rounds_max=rounds_max, learning=LearningBook())


def lesson(t: Triangle, policy: Policy, method: str = "read"):  # type: ignore[no-untyped-def]  # a Lesson
    assert t.learning is not None
    backup = policy.backup if isinstance(policy, Hedged | Tied | Auto) else None
    return t.learning.lesson(method, backup, t.now)


def kinds(t: Triangle, call: int) -> list[CopyKind]:
    return [sent.kind for sent in t.calls[call].copies.values()]


def answer(t: Triangle, call: int, seconds: float) -> None:
    """The first copy of a call runs for so long and answers."""
    t.flush()
    t.advance(seconds)
    (copy,) = (sent for sent in t.calls[call].copies.values() if sent.alive)
    t.finish(copy.replica, f"{call}/u{copy.id.round}")
    t.flush()


# ---- backups --------------------------------------------------------------------------------------------------


def test_backups_leave_until_the_bucket_is_empty_and_each_wish_that_is_denied_counts_once() -> None:
    t = triangle()
    calls = [t.call(HEDGED, at="abc", timeout=1000.0) for _ in range(30)]
    t.flush()
    t.advance(DELAY)
    sent = t.stats.backups_sent
    assert 0 < sent < 30 and t.stats.backups_denied == 30 - sent
    assert lesson(t, HEDGED).budget.balance < lesson(t, HEDGED).mean * 1e9
    t.advance(0.5)
    assert t.stats.backups_denied == 30 - sent, "a call that asks again is no further wish"
    assert all(t.ended(call) is None for call in calls), "no budget means wait on"


def test_a_backup_without_a_budget_is_never_held_back() -> None:
    t = triangle()
    unbraked = Hedged(Backup(after=DELAY, since="send", max_per_call=1, budget=None))
    for _ in range(30):
        t.call(unbraked, at="abc", timeout=1000.0)
    t.flush()
    t.advance(DELAY)
    assert (t.stats.backups_sent, t.stats.backups_denied) == (30, 0)


def test_the_budget_is_work_a_backup_that_never_ran_costs_nothing() -> None:
    t = triangle("ab", slots=1)
    t.call(Plain(), at="b", timeout=1000.0)
    t.flush()
    before = lesson(t, HEDGED).budget.balance
    call = t.call(HEDGED, at="ab", timeout=1000.0)
    t.flush()
    t.advance(DELAY)
    t.flush()
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.BACKUP]
    assert lesson(t, HEDGED).budget.balance < before
    t.finish("a", f"{call}/u0")
    t.flush()
    assert lesson(t, HEDGED).budget.balance >= before


def test_what_a_backup_ran_is_paid_also_when_it_loses() -> None:
    t = triangle("ab")
    call = t.call(HEDGED, at="ab", timeout=1000.0)
    budget = lesson(t, HEDGED).budget
    t.flush()
    t.advance(DELAY)
    t.flush()
    t.advance(0.05)
    t.finish("a", f"{call}/u0")
    t.flush()
    assert budget.taken == pytest.approx(0.05e9, rel=0.01)
    assert budget.deposited - budget.floored == pytest.approx(0.05 * 0.08e9, rel=0.01)


def test_a_copy_that_waits_is_not_taken_for_stuck_because_one_of_an_earlier_round_has_run_long() -> None:
    t, policy = triangle(slots=1), Hedged(Backup(since="start"))
    for _ in range(400):
        answer(t, t.call(policy, at="abc", timeout=1000.0), 0.005)
    assert lesson(t, policy).governor.state is GovernorState.OFF, "no delay is worth it"
    for busy in "bc":
        t.call(Plain(), at=busy, timeout=1000.0)
    call = t.call(policy, at="abc", timeout=1000.0)
    t.flush()
    t.advance(0.2)
    t.finish("a", f"{call}/u0", RETRYABLE)
    t.flush()
    t.advance(3.0)
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.FAILOVER]
    assert (t.stats.backups_sent, t.stats.backups_denied) == (0, 1)


@pytest.mark.parametrize("policy", [Hedged(), Tied(stagger=0.0), Auto()], ids=repr)
def test_without_a_learned_law_no_backup_goes_but_by_the_ceiling(policy: Policy) -> None:
    t = triangle("abc")
    t.call(policy, at="abc", timeout=1000.0)
    t.flush()
    t.advance(0.2)
    assert t.stats.backups_sent == 0


def test_a_delay_is_learned_from_calls_of_every_policy_with_that_backup() -> None:
    t = triangle("abc")
    for index in range(400):
        answer(t, t.call(Plain(), at="abc"), 0.3 if index % 20 == 7 else 0.01)
    call = t.call(Auto(), at="abc", timeout=1000.0)
    t.flush()
    t.advance(0.0099)
    assert CopyKind.BACKUP not in kinds(t, call)
    t.advance(0.0005)
    assert kinds(t, call)[-1] == CopyKind.BACKUP


def test_no_backup_where_every_execution_takes_the_same_time() -> None:
    t = triangle("abc")
    for _ in range(400):
        answer(t, t.call(Plain(), at="abc"), 0.01)
    t.call(Auto(), at="abc", timeout=1000.0)
    t.flush()
    t.advance(0.2)
    assert t.stats.backups_sent == 0
    assert lesson(t, Auto()).governor.state == GovernorState.OFF


@pytest.mark.parametrize("started", [True, False], ids=["started", "in a queue"])
def test_a_loser_that_is_not_cancelled_costs_a_whole_execution(started: bool) -> None:
    t = triangle("ab", slots=1)
    policy = Hedged(Backup(after=DELAY, since="send", max_per_call=1), cancel_losers=False)
    if not started:
        t.call(Plain(), at="b", timeout=1000.0)
    call = t.call(policy, at="ab", timeout=1000.0)
    budget = lesson(t, policy).budget
    t.flush()
    t.advance(DELAY)
    t.flush()
    t.advance(0.001)
    t.finish("a", f"{call}/u0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED
    assert budget.taken == pytest.approx(lesson(t, policy).mean * 1e9)


# ---- ties -----------------------------------------------------------------------------------------------------


def empty(t: Triangle, policy: Policy) -> None:
    """Double starts have taken more than there was."""
    lesson(t, policy).double_start(100.0, t.now)


def test_ties_pause_when_double_starts_have_emptied_the_bucket() -> None:
    t, policy = triangle("abc"), Tied(stagger=0.0)
    assert kinds(t, t.call(policy, at="abc")) == [CopyKind.FIRST, CopyKind.TIE]
    empty(t, policy)
    assert kinds(t, t.call(policy, at="abc")) == [CopyKind.FIRST]
    assert t.stats.ties_withheld == 1
    assert kinds(t, t.call(Tied(stagger=0.0, backup=None), at="abc")) == [CopyKind.FIRST, CopyKind.TIE], "no budget"


def test_a_double_start_costs_what_both_took_beyond_one_execution() -> None:
    t, policy = triangle("ab"), Tied(stagger=0.0)
    mean = lesson(t, policy).mean
    call = t.call(policy, at="ab")
    t.deliver("u>a")
    t.deliver("u>b")
    t.settle("a")
    t.settle("b")
    t.deliver("a>u")
    t.deliver("b>u")
    t.advance(0.04)
    t.finish("a", f"{call}/r0.0")
    t.deliver("a>u")
    assert lesson(t, policy).budget.lost == pytest.approx((0.04 + 0.04 - mean) * 1e9, rel=1e-3)


# ---- failover -------------------------------------------------------------------------------------------------


def test_a_failover_that_the_bucket_denies_ends_the_call_with_what_caused_it() -> None:
    t = triangle("abc")
    lesson(t, Plain()).double_start(100.0, t.now)
    call = t.call(Plain(), at="abc", timeout=1000.0)
    t.flush()
    t.finish("a", f"{call}/u0", RETRYABLE)
    t.flush()
    outcome = t.outcome(call)
    assert outcome is not None and (outcome.kind, outcome.code) == (OutcomeKind.FAILED, "busy")
    assert t.stats.failovers_denied == 1


def test_a_lost_link_has_a_bucket_of_its_own() -> None:
    t = triangle("abc")
    lesson(t, Plain()).double_start(100.0, t.now)
    call = t.call(Plain(), at="abc", timeout=1000.0)
    t.flush()
    t.crash("a")
    t.flush()
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.FAILOVER]


def test_a_method_that_fails_again_and_again_is_not_tried_again() -> None:
    """gRPC proposal A6: below half of the tokens a failure is final. Answers fill the bucket up again."""
    t = triangle("ab", rounds_max=2)
    assert t.learning is not None
    for _ in range(int(throttle.TOKENS_MAX / 2)):
        t.learning.throttle.failed()
    call = t.call(Plain(), at="ab")
    t.flush()
    t.finish("a", f"{call}/u0", RETRYABLE)
    t.flush()
    assert t.ended(call) == OutcomeKind.FAILED and kinds(t, call) == [CopyKind.FIRST]
    for _ in range(20):
        answer(t, t.call(Plain(), at="ab"), 0.01)
    call = t.call(Plain(), at="ab")
    t.flush()
    t.finish("a", f"{call}/u0", RETRYABLE)
    assert t.learning.throttle.open
    t.flush()
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.FAILOVER]


# ---- observing, and Auto --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        Hedged(Backup(after=DELAY, since="send"), observe_only=True),
        Tied(stagger=0.0, backup=Backup(after=DELAY), observe_only=True),
        Auto(Backup(after=DELAY), observe_only=True),
    ],
    ids=repr,
)
def test_observing_sends_one_copy_and_counts_what_would_have_been_sent(policy: Policy) -> None:
    t = triangle()
    call = t.call(policy, at="abc", timeout=1000.0)
    t.flush()
    t.advance(10 * DELAY)
    assert kinds(t, call) == [CopyKind.FIRST]
    from_send = isinstance(policy, Hedged)
    # The clock of a second backup runs from the start of the first, which was not sent.
    assert (t.stats.backups_sent, t.stats.backups_observed) == (0, 2 if from_send else 1)
    assert t.stats.ties_observed == (not from_send)
    t.finish("a", f"{call}/u0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_auto_sends_one_copy_of_what_may_not_run_twice() -> None:
    t = triangle()
    call = t.call(Auto(Backup(after=DELAY)), at="abc", method="charge", timeout=1000.0)
    t.flush()
    t.advance(1.0)
    assert kinds(t, call) == [CopyKind.FIRST]


def test_auto_does_not_tie_what_cannot_be_stopped() -> None:
    t = triangle()
    call = t.call(Auto(Backup(after=DELAY)), at="abc", method="scan", timeout=1000.0)
    t.flush()
    t.advance(DELAY)
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.BACKUP]


def waited(t: Triangle, policy: Policy) -> None:
    """One call in ten has waited for 20 ms."""
    for index in range(400):
        lesson(t, policy).waits.add(0.02 if index % 10 == 3 else 0.0, t.now)


@pytest.mark.parametrize("policy", [Auto(), Tied()], ids=repr)
def test_the_second_copy_is_held_back_as_long_as_most_calls_wait(policy: Policy) -> None:
    t = triangle("ab", slots=1)
    waited(t, policy)
    assert isinstance(policy, Auto | Tied)
    account = CallAccount(t.learning, "read", policy.backup, t.now, True)
    assert account.hold(t.now) == pytest.approx(0.02, rel=0.02)
    t.call(Plain(), at="a", timeout=1000.0)
    t.flush()
    call = t.call(policy, at="ab", timeout=1000.0)
    t.flush()
    assert kinds(t, call) == [CopyKind.FIRST]
    t.advance(0.019)
    assert kinds(t, call) == [CopyKind.FIRST]
    t.advance(0.0015)
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.TIE]


@pytest.mark.parametrize(
    "policy",
    [Tied(backup=None), Tied(backup=Backup(budget=None)), Tied(exclusive=True), Tied(stagger=0.0)],
    ids=["no backup", "no budget", "exclusive", "a given stagger"],
)
def test_a_tie_without_a_budget_or_double_starts_is_not_held_back(policy: Policy) -> None:
    """Nor is one whose stagger is given."""
    t = triangle("ab", slots=1)
    waited(t, policy)
    t.call(Plain(), at="a", timeout=1000.0)
    t.flush()
    call = t.call(policy, at="ab", timeout=1000.0)
    t.flush()
    t.advance(0.005)
    assert kinds(t, call) == [CopyKind.FIRST, CopyKind.TIE]


def test_the_least_recently_used_lesson_makes_room() -> None:
    book = LearningBook(lessons_max=2)
    first = book.lesson("a", None, 0.0)
    book.lesson("b", None, 0.0)
    assert book.lesson("a", None, 1.0) is first
    book.lesson("c", None, 2.0)
    assert len(book) == 2 and book.lesson("a", None, 3.0) is first
    assert {learned["method"] for learned in book.view(4.0)} == {"a", "c"}


def test_the_ordered_table_of_these_tests_is_the_real_one_but_for_the_choice() -> None:
    assert set(vars(OrderedTable)) & set(vars(ReplicaTable)) <= {"__init__", "__doc__", "__module__", "choose"}
