"""Design 6.3: when a backup is sent, where to, and that it stands apart from the tie."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.parts import BAD_ANSWER
from tests.core.telling import copy_id
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.events import Fault
from tiedreq.core.messages import Ended, Result, Started, Submit
from tiedreq.core.policy import Backup, Hedged, Tied
from tiedreq.core.types import UNTIED, Cause, CopyKind, CopyState

DELAY = 0.03
BACKUP = Backup(after=DELAY)
TIE = Tied(stagger=0.0, backup=BACKUP)


def sent_to(t: Triangle, name: str) -> list[Submit]:
    return [f.message for f in t.flights if f.route == f"u>{name}" and isinstance(f.message, Submit)]


def backups(t: Triangle) -> list[str]:
    """Where backups have gone so far, in order."""
    return [t.watch.targets[copy] for copy, submit in t.watch.submits.items() if submit.kind == CopyKind.BACKUP]


def occupy(t: Triangle, *names: str) -> None:
    """Take every slot of these replicas with other calls."""
    for name in names:
        for _ in range(t.nodes[name].core.slots):
            t.call(at=name, timeout=1000.0)
    t.flush()


# ---- the clock ------------------------------------------------------------------------------------------------


def test_hedged_the_clock_runs_from_the_sending() -> None:
    t = Triangle()
    t.call(Hedged(Backup(after=DELAY, since="send")))
    t.advance(DELAY - 0.001)
    assert backups(t) == []
    t.advance(0.001)
    assert backups(t) == ["b"]


def test_the_clock_runs_from_started() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.advance(0.02)
    t.flush()
    t.advance(DELAY - 0.001)
    assert backups(t) == []
    t.advance(0.001)
    assert backups(t) == ["c"]


def test_the_clock_runs_from_the_partners_dropped_when_the_starter_froze_before_its_word_left() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.hold("a>u")
    t.deliver("u>a")
    t.settle("a")
    t.flush()
    assert t.watch.fates[copy_id("1/r0.1")] == CopyState.DROPPED
    t.advance(DELAY)
    assert t.under_way("a>u") == ["Started"]
    assert backups(t) == ["c"]


def test_the_clock_runs_from_the_partners_yielded() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.hold("a>u", "a>b", "b>u")
    t.flush()
    t.release("a>b")
    t.flush()
    t.deliver("b>u", Ended)
    assert t.calls[1].copies[copy_id("1/r0.1")].cause == Cause.STARTED
    t.advance(DELAY)
    assert backups(t) == ["c"]


def test_dropped_because_of_next_starts_no_clock() -> None:
    t = Triangle("abc")
    occupy(t, "a", "b")
    call = t.call(TIE, at="abc", method="scan", timeout=100.0)
    t.flush()
    assert t.calls[call].copies[copy_id(f"{call}/r0.1")].cause == Cause.NEXT
    t.advance(BACKUP.ceiling - 0.001)
    assert backups(t) == []


def test_the_ceiling_covers_a_frozen_queue() -> None:
    t = Triangle("abc")
    t.freeze("a")
    t.freeze("b")
    t.call(TIE, at="abc")
    t.advance(BACKUP.ceiling - 0.001)
    assert backups(t) == []
    t.advance(0.001)
    assert backups(t) == ["c"]


def test_the_ceiling_is_void_once_a_start_is_known() -> None:
    """A call that waited for long in the queue and then started has its whole delay."""
    t = Triangle("abc")
    backup = Backup(after=1.0)
    occupy(t, "a", "b")
    t.call(Tied(stagger=0.0, backup=backup), at="abc", timeout=100.0)
    t.flush()
    t.advance(backup.ceiling - 0.5)
    t.finish("a", "1/u0")
    t.flush()
    t.advance(1.0 - 0.001)
    assert backups(t) == []
    t.advance(0.001)
    assert backups(t) == ["c"]


def test_the_first_of_two_starts_counts() -> None:
    t = Triangle("abc")
    t.call(Tied(stagger=0.02, backup=BACKUP, yield_=False), at="abc")
    t.hold("a>b")
    t.flush()
    assert t.calls[1].wake_at == pytest.approx(t.now + DELAY)


def test_min_after_holds() -> None:
    t = Triangle()
    t.call(Hedged(Backup(after=0.0, min_after=0.005, since="send")))
    t.advance(0.004)
    assert backups(t) == []
    t.advance(0.001)
    assert backups(t) == ["b"]


def test_a_new_round_sets_the_clock_anew() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.flush()
    t.advance(DELAY - 0.005)
    t.crash("a")
    t.flush()
    t.advance(DELAY - 0.001)
    assert backups(t) == []


# ---- where to -------------------------------------------------------------------------------------------------


def test_to_a_third_replica_if_there_is_one() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.flush()
    t.advance(DELAY)
    (submit,) = sent_to(t, "c")
    assert (submit.kind, submit.copy.rank, submit.partners) == (CopyKind.BACKUP, UNTIED, ())


def test_else_to_one_whose_copy_has_ended() -> None:
    t = Triangle("ab")
    t.call(TIE, at="ab")
    t.flush()
    t.advance(DELAY)
    assert backups(t) == ["b"]


def test_never_to_a_replica_with_a_living_copy() -> None:
    t = Triangle("ab")
    t.call(TIE, at="ab")
    t.hold("b>u")
    t.flush()
    t.advance(DELAY)
    assert backups(t) == []
    assert t.stats.backups_without_target == 1
    t.release("b>u")
    t.flush()
    t.advance(DELAY)
    assert backups(t) == ["b"]


def test_never_to_a_replica_whose_copy_is_yet_to_be_sent() -> None:
    t = Triangle("ab")
    t.call(Tied(stagger=1.0, backup=Backup(after=DELAY, since="send")), at="ab")
    t.advance(0.5)
    assert backups(t) == []


def test_nowhere_to_go_is_counted_once_and_the_call_goes_on() -> None:
    """One replica, delay 2 ms, deadline 10 s: no copy is sent twice to it, and the call does not spin."""
    t = Triangle("a")
    call = t.call(Hedged(Backup(after=0.002, since="send")), timeout=10.0)
    wakes = 0
    while t.calls[call].wake_at < t.now + 10.0 and wakes < 1000:
        t.advance(t.calls[call].wake_at - t.now)
        wakes += 1
    assert wakes <= 14
    assert (t.stats.backups_without_target, t.stats.copies_sent) == (1, 1)


def test_a_call_that_waits_for_a_replica_sets_no_backup_clock() -> None:
    t = Triangle("a")
    call = t.call(Tied(stagger=0.0, backup=Backup(after=DELAY, since="send")), timeout=10.0)
    deadline = t.now + 10.0
    t.crash("a")
    assert t.calls[call].wake_at == deadline


def test_a_replica_that_asks_for_no_backups_gets_none() -> None:
    t = Triangle("ab")
    t.push_back("b", 0.2)
    t.call(TIE, at="ab")
    t.flush()
    t.advance(DELAY * 2)
    assert backups(t) == []
    t.advance(0.2)
    assert backups(t) == ["b"]


def test_at_most_max_per_call() -> None:
    t = Triangle("abcdef")
    t.call(Hedged(Backup(after=DELAY, since="send", max_per_call=3)), at="abcdef")
    t.advance(1.0)
    assert backups(t) == ["b", "c", "d"]


def test_after_the_last_backup_no_clock_runs_any_more() -> None:
    t = Triangle("abc")
    deadline = t.now + 10.0
    call = t.call(Tied(stagger=0.0, backup=Backup(after=DELAY, max_per_call=1)), at="abc")
    t.flush()
    t.advance(DELAY)
    assert t.calls[call].wake_at == deadline
    t.flush()
    assert t.calls[call].wake_at == deadline, "the backup's own start sets no clock either"


def test_a_second_backup_waits_for_the_start_of_the_first() -> None:
    t = Triangle("abcd")
    occupy(t, "c")
    t.call(TIE, at="abcd")
    t.flush()
    t.advance(DELAY)
    t.flush()
    t.advance(DELAY * 2)
    assert backups(t) == ["c"], "the first backup still waits in its queue"
    t.finish("c", "1/u0")
    t.flush()
    t.advance(DELAY)
    assert backups(t) == ["c", "d"]


# ---- it stands apart ------------------------------------------------------------------------------------------


def test_s12_no_notice_ends_a_backup() -> None:
    """A late Started of the tie reaches the replica at which the backup runs."""
    t = Triangle("ab")
    call = t.call(TIE, at="ab")
    t.hold("b>a")
    t.flush()
    t.advance(DELAY)
    t.flush()
    backup = copy_id("1/u0")
    assert t.running("b") == [backup]
    t.cut("a", "b")
    t.connect("a", "b")
    t.deliver("a>b", Started, "1/r0.0")
    t.flush()
    assert t.running("b") == [backup]
    t.finish("b", "1/u0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED
    assert t.stats.backups_won == 1


def test_a_backup_is_no_living_copy_for_failover() -> None:
    t = Triangle("abc")
    t.call(TIE, at="abc")
    t.flush()
    t.advance(DELAY)
    t.crash("a")
    assert [submit.kind for submit in sent_to(t, "c")] == [CopyKind.BACKUP], "a waiting backup's replica comes last"
    assert [submit.copy for submit in sent_to(t, "b")] == [copy_id("1/u1")]


def test_a_failover_goes_to_the_backups_replica_when_there_is_no_other() -> None:
    t = Triangle("ab")
    call = t.call(Hedged(Backup(after=DELAY, since="send")), at="ab")
    t.advance(DELAY)
    t.crash("a")
    assert [submit.copy for submit in sent_to(t, "b")] == [copy_id("1/u1"), copy_id("1/u2")]
    t.flush()
    t.finish("b", "1/u1")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_with_rounds_spent_a_living_backup_may_still_answer() -> None:
    t = Triangle("abc", rounds_max=1)
    call = t.call(TIE, at="abc")
    t.flush()
    t.advance(DELAY)
    t.flush()
    t.crash("a")
    assert t.outcome(call) is None
    t.finish("c", "1/u0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_with_rounds_spent_the_last_backups_end_is_the_calls() -> None:
    t = Triangle("abc", rounds_max=1)
    call = t.call(TIE, at="abc")
    t.flush()
    t.advance(DELAY)
    t.flush()
    t.crash("a")
    t.crash("c")
    assert t.ended(call) == OutcomeKind.UNAVAILABLE


def test_after_a_retryable_failure_a_living_backup_is_waited_for() -> None:
    for outcome in (Fault("busy", "", b"", True), BAD_ANSWER):
        t = Triangle("abc")
        call = t.call(TIE, at="abc")
        t.flush()
        t.advance(DELAY)
        t.flush()
        t.finish("a", "1/r0.0", outcome)
        t.flush()
        assert t.stats.failovers == 0
        t.finish("c", "1/u0")
        t.flush()
        assert t.ended(call) == OutcomeKind.ANSWERED


def test_the_winner_among_backup_and_original_cancels_the_other() -> None:
    t = Triangle()
    call = t.call(Hedged(Backup(after=DELAY, since="send")), at="ab")
    t.flush()
    t.advance(DELAY)
    t.flush()
    assert [len(t.running(name)) for name in "ab"] == [1, 1]
    t.finish("b", "1/u1")
    t.deliver("b>u", Result)
    assert t.under_way("u>a") == ["Cancel"]
    assert t.stats.backups_won == 1
    t.flush()
    assert [t.running(name) for name in "ab"] == [[], []]
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_a_backup_that_started_late_is_told_apart_from_a_tie() -> None:
    """Started of a backup keeps no unsent copy of a tie back."""
    t = Triangle("abc")
    t.freeze("a")
    t.call(Tied(stagger=0.1, backup=Backup(after=DELAY, since="send")), at="abc")
    t.advance(DELAY)
    t.deliver("u>c")
    t.settle("c")
    t.deliver("c>u", Started)
    t.advance(0.1)
    assert [submit.kind for submit in sent_to(t, "b")] == [CopyKind.TIE]
