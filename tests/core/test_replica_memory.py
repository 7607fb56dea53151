"""Design 5, rules 5 and 7: what a replica remembers beyond live copies, and that late news changes nothing."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.solo import CALLER_LINK, PEER_LINKS, Solo
from tests.core.telling import copy_id
from tiedreq.core.copybook import SWEEP_INTERVAL
from tiedreq.core.events import CallerConnected, CallerLost, CancelReceived, PeerConnected, PeerLost, PeerStarted
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Cancel, Submit
from tiedreq.core.policy import Tied
from tiedreq.core.types import CopyState, Identity

AGE = 0.5
LIMITS = ReplicaLimits(markers_per_peer_max=3, marker_age_max=AGE, cancel_markers_per_caller_max=3, tombstones_max=3)
DROPPED = ["SendCaller u Ended 1/r0.1 dropped (started)"]


# ---- markers --------------------------------------------------------------------------------------------------


def test_rule_5_started_overtakes_submit() -> None:
    solo = Solo()
    assert solo.started("1/r0.0") == []
    assert solo.submit("1/r0.1", tie="ba") == DROPPED
    assert solo.settle() == []
    assert solo.held() == {}


def test_rule_5_next_overtakes_submit_and_drops_a_higher_rank_only() -> None:
    solo = Solo()
    solo.next("1/r0.0")
    assert solo.submit("1/r0.1", tie="ba", method="scan") == ["SendCaller u Ended 1/r0.1 dropped (next)"]
    solo.next("2/r0.1")
    assert solo.submit("2/r0.0", method="scan") == []


def test_rule_5_a_started_marker_of_a_higher_rank_drops_too() -> None:
    solo = Solo()
    solo.started("1/r0.1")
    assert solo.submit("1/r0.0") == ["SendCaller u Ended 1/r0.0 dropped (started)"]


@pytest.mark.parametrize("first", ["started", "next"])
def test_rule_5_a_start_outweighs_next_in_any_order(first: str) -> None:
    solo = Solo()
    for notice in ("started", "next") if first == "started" else ("next", "started"):
        getattr(solo, notice)("1/r0.0")
    assert solo.submit("1/r0.1", tie="ba") == DROPPED


def test_rule_5_a_start_of_one_partner_outweighs_next_of_another() -> None:
    solo = Solo()
    solo.started("1/r0.0", "b")
    solo.next("1/r0.1", "c")
    line = "SendCaller u Ended 1/r0.2 dropped (started)"
    assert solo.submit("1/r0.2", tie="bca", method="scan") == [line]


def test_rule_5_the_oldest_marker_goes_first_and_costs_a_double_start_only() -> None:
    solo = Solo(limits=LIMITS)
    for number in range(1, 5):
        solo.started(f"{number}/r0.0")
    assert solo.core.sizes()["markers"] == 3
    assert solo.core.markers_evicted == 1
    assert solo.submit("2/r0.1", tie="ba") == ["SendCaller u Ended 2/r0.1 dropped (started)"]
    solo.run("1/r0.1", tie="ba")


def test_rule_5_each_peer_has_its_own_share() -> None:
    solo = Solo(limits=LIMITS)
    solo.started("1/r0.0", "c")
    for number in range(2, 9):
        solo.started(f"{number}/r0.0", "b")
    assert solo.submit("1/r0.1", tie="ca") == DROPPED


def test_rule_5_a_marker_expires() -> None:
    solo = Solo(limits=LIMITS)
    solo.started("1/r0.0")
    assert solo.core.wake_at == solo.now + AGE
    solo.wait(AGE)
    assert solo.held() == {}
    assert solo.core.wake_at is None
    assert solo.submit("1/r0.1", tie="ba") == []


def test_rule_5_a_marker_lives_no_longer_than_its_call() -> None:
    solo = Solo(limits=LIMITS)
    solo.started("1/r0.0", remaining=0.2)
    solo.now += 0.2
    assert solo.submit("1/r0.1", tie="ba") == []
    solo.started("2/r0.0", remaining=0.0)
    assert solo.core.sizes()["markers"] == 0


def test_rule_5_a_renewed_marker_does_not_keep_younger_ones_alive() -> None:
    """Next at 0, then Started of the same copy shortly before its age: what came between must still expire in time."""
    solo = Solo(limits=LIMITS)
    solo.next("1/r0.0")
    solo.now += 0.1
    solo.started("2/r0.0")
    solo.now += 0.3
    solo.started("1/r0.0")
    sweep = 100.75
    assert sweep % SWEEP_INTERVAL == 0 and sweep - SWEEP_INTERVAL < 100.0 + 0.1 + AGE < sweep
    assert solo.core.wake_at == sweep
    solo.wait(sweep - solo.now)
    assert solo.core.sizes()["markers"] == 1
    assert solo.submit("1/r0.1", tie="ba") == DROPPED


def test_rule_5_a_marker_past_its_age_does_nothing_before_it_is_swept_away() -> None:
    solo = Solo(limits=LIMITS)
    for copy in ("1/r0.0", "2/r0.0", "3/r0.0"):
        solo.started(copy)
    solo.now += AGE
    assert solo.core.sizes()["markers"] == 3, "nobody has woken the replica yet"
    solo.started("3/r0.0")
    solo.started("4/r0.0")
    assert solo.core.sizes()["markers"] == 2 and solo.core.markers_evicted == 0, "what is past its age makes room"
    assert solo.submit("1/r0.1", tie="ba") == []
    assert solo.submit("3/r0.1", tie="ba") == ["SendCaller u Ended 3/r0.1 dropped (started)"]


def test_rule_5_only_the_named_partner_is_believed() -> None:
    """B42: a peer that guesses an id can drop nothing, before the Submit or after it."""
    solo = Solo()
    solo.started("1/r0.0", "c")
    solo.submit("1/r0.1", tie="ba")
    assert solo.started("1/r0.0", "c") == []
    assert solo.started("1/r0.1", "b") == [], "nobody else speaks of this replica's rank"
    assert solo.started("1/r0.2", "b") == [], "no such rank"
    assert solo.started("1/u0", "b") == [], "no untied copy has partners"
    assert solo.state("1/r0.1") == CopyState.QUEUED
    assert solo.core.stats.stale_notices == 4


def test_rule_5_markers_die_with_the_incarnation_that_left_them() -> None:
    for restart in (False, True):
        solo = Solo()
        solo.started("1/r0.0")
        if restart:
            solo.connect("b", link=8, incarnation=77)
        else:
            solo.give(PeerLost(PEER_LINKS["b"]))
        assert solo.core.sizes()["markers"] == 0
        assert solo.submit("1/r0.1", tie="ba") == []


def test_rule_5_every_link_of_the_old_incarnation_is_forgotten() -> None:
    """Two links to one incarnation were up when the next one came: news over either changes nothing any more."""
    solo = Solo()
    solo.connect("b", link=8)
    solo.connect("b", link=9, incarnation=77)
    for link in (PEER_LINKS["b"], 8):
        solo.give(PeerStarted(link, copy_id("1/r0.0"), 10.0))
    assert solo.core.sizes()["markers"] == 0
    assert solo.core.sizes()["peers"] == 2
    assert solo.core.stats.stale_notices == 2


def test_s9_a_marker_of_one_incarnation_is_not_one_of_the_next() -> None:
    solo = Solo(peers="")
    solo.give(PeerConnected(8, Identity("b", 77)))
    solo.give(PeerStarted(8, copy_id("1/r0.0"), 10.0))
    assert solo.submit("1/r0.1", tie="ba") == [], "the Submit names another incarnation of b"


def test_s9_the_late_loss_of_an_old_mesh_link_keeps_what_came_over_the_new_one() -> None:
    solo = Solo()
    solo.connect("b", link=8)
    solo.give(PeerStarted(8, copy_id("1/r0.0"), 10.0))
    assert solo.give(PeerLost(PEER_LINKS["b"])) == []
    assert solo.submit("1/r0.1", tie="ba") == DROPPED
    solo.run("2/r0.0")
    assert solo.core.stats.notices_unsent == 0


def test_s9_news_over_a_lost_link_changes_nothing() -> None:
    solo = Solo()
    solo.submit("1/r0.1", tie="ba")
    solo.give(PeerLost(PEER_LINKS["b"]))
    assert solo.started("1/r0.0") == []
    assert solo.next("1/r0.0") == []
    assert solo.state("1/r0.1") == CopyState.QUEUED


def test_b02_a_hundred_thousand_early_notices_cost_their_limit() -> None:
    solo = Solo(limits=ReplicaLimits(markers_per_peer_max=100))
    for number in range(100_000):
        solo.core.step(PeerStarted(PEER_LINKS["b"], copy_id("1/r0.0")._replace(number=number), 10.0), solo.now)
    assert solo.core.sizes()["markers"] == 100
    solo.give(PeerLost(PEER_LINKS["b"]))
    assert solo.held() == {}


# ---- cancels before their Submit ------------------------------------------------------------------------------


def test_b02_cancel_overtakes_submit() -> None:
    t = Triangle()
    call = t.call(Tied(backup=None, stagger=0.0))
    t.cancel(call)
    for kind in (Cancel, Submit):
        t.deliver("u>a", kind)
    t.settle()
    assert t.state("a", "1/r0.0") == CopyState.CANCELLED
    t.flush()
    assert all(not node.handlers for node in t.nodes.values())


def test_cancel_markers_are_bounded_in_number_oldest_out_first() -> None:
    solo = Solo(limits=LIMITS)
    for number in range(1, 5):
        solo.cancel(f"{number}/u0")
    assert solo.core.sizes()["cancel_markers"] == 3
    assert solo.submit("1/u0") == []
    assert solo.submit("4/u0") == ["SendCaller u Ended 4/u0 cancelled (caller)"]


def test_cancel_markers_are_bounded_in_age() -> None:
    solo = Solo(limits=LIMITS)
    solo.cancel("1/u0")
    solo.now += AGE / 2
    solo.cancel("2/u0")
    assert solo.core.wake_at == 100.0 + AGE
    solo.wait(AGE / 2)
    assert solo.core.sizes()["cancel_markers"] == 1
    solo.wait(AGE / 2)
    assert solo.held() == {}
    assert solo.core.wake_at is None


def test_cancel_markers_go_with_their_link_and_leave_no_alarm_that_does_nothing() -> None:
    solo = Solo(limits=LIMITS)
    solo.cancel("1/u0")
    solo.give(CallerLost(CALLER_LINK))
    assert solo.core.sizes()["cancel_markers"] == 0
    at = solo.core.wake_at
    if at is not None:
        solo.wait(at - solo.now)
    assert solo.core.wake_at is None


def test_a_cancel_touches_only_what_came_over_its_link() -> None:
    solo = Solo()
    solo.give(CallerConnected(7, 0xD))
    solo.submit("1/u0")
    assert solo.give(CancelReceived(7, copy_id("1/u0"))) == []
    assert solo.state("1/u0") == CopyState.QUEUED


# ---- tombstones -----------------------------------------------------------------------------------------------


def test_rule_7_a_late_duplicate_of_a_submit_is_ignored_in_every_state() -> None:
    solo = Solo()
    solo.submit("1/u0")
    assert solo.submit("1/u0") == []
    solo.settle()
    assert solo.submit("1/u0") == []
    solo.finish("1/u0")
    assert solo.submit("1/u0") == []
    assert solo.settle() == []
    assert solo.core.stats.duplicate_submits == 3


def test_rule_7_refusals_leave_a_tombstone_too() -> None:
    solo = Solo(limits=ReplicaLimits(queue_length_max=1))
    solo.submit("1/u0")
    assert "refused (full)" in solo.submit("2/u0")[0]
    solo.settle()
    assert solo.submit("2/u0") == []
    assert solo.state("2/u0") == CopyState.REFUSED


def test_rule_7_a_duplicate_does_not_start_a_second_time_while_its_handler_still_ends() -> None:
    """Its tombstone has been pushed out, but the handler that can't be stopped is there to see."""
    solo = Solo(slots=2, limits=LIMITS)
    solo.run("1/u0", method="scan")
    solo.cancel("1/u0")
    for number in range(2, 6):
        solo.cancel(f"{number}/u0")
        solo.submit(f"{number}/u0")
    assert solo.state("1/u0") is None
    assert solo.submit("1/u0", method="scan") == []
    assert solo.settle() == []
    solo.finish("1/u0")
    assert solo.core.free_slots == 2


def test_rule_7_tombstones_are_bounded() -> None:
    solo = Solo(limits=LIMITS)
    for number in range(1, 9):
        solo.run(f"{number}/u0")
        solo.finish(f"{number}/u0")
    assert solo.core.sizes()["tombstones"] == 3
    assert solo.state("8/u0") == CopyState.DONE
    assert solo.state("5/u0") is None


def test_rule_7_late_notices_and_cancels_of_an_ended_copy_leave_nothing_behind() -> None:
    solo = Solo()
    solo.run("1/r0.1", tie="ba")
    solo.finish("1/r0.1")
    before = solo.core.snapshot()
    assert solo.started("1/r0.0") == []
    assert solo.next("1/r0.0") == []
    assert solo.cancel("1/r0.1") == []
    assert solo.finish("1/r0.1") == []
    assert solo.core.snapshot() == before
    assert solo.core.stats.late_notices == 1


def test_6_1_a_second_copy_of_one_tie_is_refused_and_the_first_is_none_the_worse() -> None:
    solo = Solo()
    solo.submit("1/r0.0")
    assert solo.submit("1/r0.1", tie="ba") == ["SendCaller u Ended 1/r0.1 refused (duplicate)"]
    assert solo.state("1/r0.0") == CopyState.QUEUED
    assert "StartWork 1/r0.0" in solo.settle()
    solo.finish("1/r0.0")
    assert solo.submit("2/r0.0") == []


def test_6_1_nor_may_it_come_after_the_first_has_ended() -> None:
    solo = Solo()
    solo.run("1/r0.0")
    solo.finish("1/r0.0")
    assert solo.submit("1/r0.1", tie="ba") == ["SendCaller u Ended 1/r0.1 refused (duplicate)"]
    assert solo.state("1/r0.0") == CopyState.DONE, "its tombstone is still that of the first"


def test_another_round_and_an_untied_copy_of_the_same_call_are_other_copies() -> None:
    solo = Solo(slots=3)
    solo.submit("1/r0.0")
    solo.submit("1/r1.0")
    solo.submit("1/u0")
    solo.settle()
    assert solo.core.running == 3
