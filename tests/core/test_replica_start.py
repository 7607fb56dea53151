"""Design 5, rules 1 to 4: notices before work, settle then start, double starts, handlers that can't be stopped."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.solo import PEER_LINKS, Solo
from tests.core.telling import copy_id
from tiedreq.core.events import PeerLost, StopEnabled
from tiedreq.core.policy import Tied
from tiedreq.core.types import CopyState

# ---- rule 1: the notice first ---------------------------------------------------------------------------------


def test_rule_1_the_notice_stands_before_the_start() -> None:
    solo = Solo()
    assert solo.submit("1/r0.0", tie="abc") == []
    assert solo.settle() == [
        "SendPeer b Started 1/r0.0",
        "SendPeer c Started 1/r0.0",
        "StartWork 1/r0.0",
        "SendCaller u Started 1/r0.0",
    ]


def test_an_untied_copy_starts_without_notice() -> None:
    solo = Solo()
    solo.submit("1/u0")
    assert solo.settle() == ["StartWork 1/u0", "SendCaller u Started 1/u0"]


def test_a_notice_without_a_link_is_counted() -> None:
    solo = Solo(peers="b")
    solo.submit("1/r0.0", tie="abc")
    assert solo.settle()[0] == "SendPeer b Started 1/r0.0"
    assert solo.core.stats.notices_unsent == 1


def test_a_notice_goes_to_the_incarnation_that_the_tie_names() -> None:
    solo = Solo(peers="")
    solo.connect("b", incarnation=77)
    solo.run("1/r0.0")
    assert solo.core.stats.notices_unsent == 1


# ---- rule 2: settle, then start -------------------------------------------------------------------------------


def test_rule_2_only_settled_input_fills_slots() -> None:
    solo = Solo()
    solo.submit("1/u0")
    solo.submit("2/u0")
    solo.wait(1.0)
    assert solo.core.running == 0
    solo.settle()
    assert solo.core.running == 1
    solo.finish("1/u0")
    assert (solo.core.running, solo.core.queue_length) == (0, 1)
    assert "StartWork 2/u0" in solo.settle()


def test_rule_2_after_a_stall_a_replica_first_learns_what_its_peers_did() -> None:
    solo = Solo()
    solo.submit("1/r0.1", tie="ba")
    solo.started("1/r0.0")
    assert solo.settle() == []
    assert solo.state("1/r0.1") == CopyState.DROPPED


def test_all_free_slots_are_filled_oldest_first() -> None:
    solo = Solo(slots=2)
    for number in (1, 2, 3):
        solo.submit(f"{number}/u0")
    assert [line for line in solo.settle() if line.startswith("Start")] == ["StartWork 1/u0", "StartWork 2/u0"]


# ---- rule 3: double starts ------------------------------------------------------------------------------------


def test_a_queued_copy_drops_when_any_partner_has_started() -> None:
    for mine, tie, theirs in (("1/r0.0", "ab", "1/r0.1"), ("1/r0.1", "ba", "1/r0.0")):
        solo = Solo()
        solo.submit(mine, tie=tie)
        assert solo.started(theirs) == [f"SendCaller u Ended {mine} dropped (started)"]


def test_rule_3_the_higher_rank_yields() -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba")
    assert solo.started("1/r0.0") == ["StopWork 1/r0.1 (started)", "SendCaller u Ended 1/r0.1 yielded (started)"]
    assert solo.core.stats.double_starts == 1


def test_rule_3_the_lower_rank_goes_on_and_says_so_again() -> None:
    solo = Solo()
    solo.run("1/r0.0")
    assert solo.started("1/r0.1") == ["SendPeer b Started 1/r0.0"]
    assert solo.state("1/r0.0") == CopyState.RUNNING
    assert solo.core.stats.double_starts == 0, "counted where it is decided"


def test_rule_3_the_answer_ends_a_double_start_whose_notice_was_lost() -> None:
    t = Triangle()
    t.call(Tied(backup=None, stagger=0.0))
    t.deliver("u>a")
    t.deliver("u>b")
    t.settle()
    t.drop("a>b")
    t.flush()
    assert (t.state("a", "1/r0.0"), t.state("b", "1/r0.1")) == (CopyState.RUNNING, CopyState.YIELDED)


def test_rule_3_both_can_not_stop_whatever_the_order_of_the_two_notices() -> None:
    for order in (("a>b", "b>a"), ("b>a", "a>b")):
        t = Triangle()
        t.call(Tied(backup=None, stagger=0.0))
        t.deliver("u>a")
        t.deliver("u>b")
        t.settle()
        for route in order:
            t.deliver(route)
        t.flush()
        assert [t.running(name) for name in "ab"] == [[copy_id("1/r0.0")], []]


def test_rule_3_answering_does_not_go_on_for_ever() -> None:
    """Neither of two copies that never yield answers an answer."""
    t = Triangle()
    t.call(Tied(backup=None, stagger=0.0, yield_=False))
    t.flush()
    assert [len(t.running(name)) for name in "ab"] == [1, 1]


@pytest.mark.parametrize("options", [{"yield_": False}, {"method": "scan"}])
def test_rule_3_a_copy_that_may_not_or_can_not_stop_goes_on(options: dict[str, object]) -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba", **options)
    assert solo.started("1/r0.0") == []
    assert solo.started("1/r0.0") == []
    assert solo.core.stats.double_starts == 1, "once for one tie"


def test_rule_3_with_three_copies_each_yields_to_any_lower_rank() -> None:
    for first in ("1/r0.0", "1/r0.1"):
        solo = Solo()
        solo.run("1/r0.2", tie="bca")
        peer = "b" if first == "1/r0.0" else "c"
        assert solo.started(first, peer)[0] == "StopWork 1/r0.2 (started)"


def test_rule_3_three_copies_started_at_once_leave_the_lowest() -> None:
    t = Triangle("abc")
    t.call(Tied(backup=None, copies=3, stagger=0.0))
    for name in "abc":
        t.deliver(f"u>{name}")
    t.settle()
    t.flush()
    assert [len(t.running(name)) for name in "abc"] == [1, 0, 0]


def test_s9_a_started_of_another_round_touches_nothing() -> None:
    solo = Solo()
    solo.run("1/r1.1", tie="ba")
    assert solo.started("1/r0.0") == []
    assert solo.state("1/r1.1") == CopyState.RUNNING


# ---- rule 4: handlers that can't be stopped -------------------------------------------------------------------


def busy(**options: object) -> Solo:
    """A replica whose slot is taken by a call that has nothing to do with the test."""
    solo = Solo()
    solo.run("9/u0", **options)
    return solo


def test_rule_4_next_is_announced_at_the_head_of_the_queue() -> None:
    solo = busy()
    solo.submit("1/r0.0", method="scan")
    solo.submit("2/r0.0", method="scan")
    assert solo.settle() == ["SendPeer b Next 1/r0.0"]
    assert solo.settle() == [], "once"
    solo.cancel("1/r0.0")
    assert solo.settle() == ["SendPeer b Next 2/r0.0"]


def test_rule_4_nothing_is_announced_for_a_handler_that_can_be_stopped_or_an_untied_copy() -> None:
    solo = busy()
    solo.submit("1/r0.0")
    assert solo.settle() == []
    solo = busy()
    solo.submit("1/u0", method="scan")
    assert solo.settle() == []


def test_rule_4_next_is_not_said_on_the_way_to_an_immediate_start() -> None:
    solo = Solo()
    solo.submit("1/r0.0", method="scan")
    assert solo.settle()[0] == "SendPeer b Started 1/r0.0"


def test_rule_4_a_queued_copy_of_higher_rank_drops() -> None:
    solo = busy()
    solo.submit("1/r0.1", tie="ba", method="scan")
    assert solo.next("1/r0.0") == ["SendCaller u Ended 1/r0.1 dropped (next)"]


def test_rule_4_a_queued_copy_of_lower_rank_stays() -> None:
    solo = busy()
    solo.submit("1/r0.0", method="scan")
    assert solo.next("1/r0.1") == []
    assert solo.state("1/r0.0") == CopyState.QUEUED


def test_rule_4_a_running_copy_answers_next_with_started() -> None:
    for mine, tie, theirs in (("1/r0.0", "ab", "1/r0.1"), ("1/r0.1", "ba", "1/r0.0")):
        solo = Solo()
        solo.run(mine, tie=tie, method="scan")
        assert solo.next(theirs) == [f"SendPeer b Started {mine}"]
        assert solo.state(mine) == CopyState.RUNNING


def test_rule_4_both_at_the_head_the_lower_rank_stays() -> None:
    t = Triangle()
    for name in "ab":
        t.call(at=name, timeout=100.0)
    t.flush()
    t.call(Tied(backup=None, stagger=0.0), method="scan", at="ab")
    t.flush()
    assert (t.state("a", "3/r0.0"), t.state("b", "3/r0.1")) == (CopyState.QUEUED, CopyState.DROPPED)


def test_rule_4_both_started_both_run_to_their_end() -> None:
    t = Triangle()
    call = t.call(Tied(backup=None, stagger=0.0), method="scan")
    t.flush()
    assert [len(t.running(name)) for name in "ab"] == [1, 1]
    t.finish("b", "1/r0.1")
    t.flush()
    assert t.ended(call) is not None
    assert t.nodes["a"].core.running == 1, "it keeps its slot until it returns"
    assert t.running("a") == [], "although it has been told to stop"
    t.finish("a", "1/r0.0")
    assert t.nodes["a"].core.free_slots == 1
    assert t.nodes["a"].core.stats.wasted_seconds == t.nodes["a"].core.stats.busy_seconds


def test_a_thread_that_learns_how_to_be_stopped_yields_then_to_a_start_it_knows_of() -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba", method="scan")
    assert solo.started("1/r0.0") == []
    assert solo.give(StopEnabled(copy_id("1/r0.1"))) == [
        "StopWork 1/r0.1 (started)",
        "SendCaller u Ended 1/r0.1 yielded (started)",
    ]
    assert solo.give(StopEnabled(copy_id("1/r0.1"))) == []


@pytest.mark.parametrize("how", ["lost", "restarted"])
def test_a_thread_that_learns_how_to_be_stopped_goes_on_when_the_other_starter_is_gone(how: str) -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba", method="scan")
    solo.started("1/r0.0")
    if how == "lost":
        solo.give(PeerLost(PEER_LINKS["b"]))
    else:
        solo.connect("b", link=8, incarnation=77)
    assert solo.give(StopEnabled(copy_id("1/r0.1"))) == []
    assert solo.state("1/r0.1") == CopyState.RUNNING


def test_a_thread_that_can_be_stopped_yields_to_a_later_start() -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba", method="scan")
    assert solo.give(StopEnabled(copy_id("1/r0.1"))) == []
    assert solo.started("1/r0.0")[0] == "StopWork 1/r0.1 (started)"


def test_resync_a_new_mesh_link_hears_again_what_runs_and_what_is_next() -> None:
    solo = Solo(slots=1, peers="")
    solo.run("1/r0.0")
    solo.submit("2/r0.0", method="scan")
    solo.settle()
    assert solo.connect("b") == ["SendPeer b Started 1/r0.0", "SendPeer b Next 2/r0.0"]
    assert solo.connect("c") == []


def test_resync_nothing_for_another_incarnation() -> None:
    solo = Solo(peers="")
    solo.run("1/r0.0")
    assert solo.connect("b", link=PEER_LINKS["b"], incarnation=77) == []
