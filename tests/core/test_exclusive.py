"""The exclusive tie of design 5: the claimant's side, the arbiter's side, and both together under faults."""

from __future__ import annotations

import pytest

from tests.core.harness import Triangle
from tests.core.parts import ANSWER
from tests.core.solo import CALLER_LINK, IDENTITIES, PEER_LINKS, Solo
from tests.core.telling import copy_id, copy_name
from tiedreq.core import events as e
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Claim, Granted, Submit
from tiedreq.core.policy import Tied
from tiedreq.core.types import CopyState

A, B = IDENTITIES["a"], IDENTITIES["b"]
EXCLUSIVE = Tied(backup=None, stagger=0.0, exclusive=True)
LIMITS = ReplicaLimits(parked_claims_max=2, parked_claim_age_max=0.25)


def claim(
    solo: Solo, copy: str = "1/r0.1", peer: str = "b", *, arbiter: int = A.incarnation, claimant: int | None = None
) -> list[str]:
    known = IDENTITIES[peer].incarnation if claimant is None else claimant
    return solo.give(e.PeerClaimed(PEER_LINKS[peer], copy_id(copy), arbiter, known))


def claiming(**options: object) -> Solo:
    """A replica whose copy 1/r0.1 claims from b."""
    solo = Solo(**options)  # type: ignore[arg-type]
    solo.submit("1/r0.1", tie="ba", exclusive=True)
    assert solo.settle() == ["SendPeer b Claim 1/r0.1"]
    return solo


# ---- the claimant ---------------------------------------------------------------------------------------------


def test_rank_0_starts_freely() -> None:
    solo = Solo()
    solo.submit("1/r0.0", exclusive=True)
    assert "StartWork 1/r0.0" in solo.settle()


def test_a_higher_rank_claims_when_its_turn_comes_and_lets_other_work_pass() -> None:
    solo = Solo()
    solo.submit("1/r0.1", tie="ba", exclusive=True)
    solo.submit("2/u0")
    assert solo.settle() == ["SendPeer b Claim 1/r0.1", "StartWork 2/u0", "SendCaller u Started 2/u0"]
    assert solo.state("1/r0.1") == CopyState.CLAIMING


def test_granted_goes_to_the_head_of_the_queue() -> None:
    solo = claiming()
    solo.run("2/u0")
    solo.submit("3/u0")
    assert solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1"))) == []
    solo.finish("2/u0")
    assert [line for line in solo.settle() if "StartWork" in line] == ["StartWork 1/r0.1"]


def test_granted_is_deaf_to_started() -> None:
    solo = claiming()
    solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1")))
    assert solo.started("1/r0.0") == []
    assert "StartWork 1/r0.1" in solo.settle()
    assert solo.started("1/r0.0") == []
    assert solo.state("1/r0.1") == CopyState.RUNNING


def test_denied_started_drops_and_denied_unknown_refuses() -> None:
    for started, line in ((True, "dropped (started)"), (False, "refused (arbiter lost)")):
        solo = claiming()
        event = e.ClaimDenied(PEER_LINKS["b"], copy_id("1/r0.1"), started)
        assert solo.give(event) == [f"SendCaller u Ended 1/r0.1 {line}"]
        assert solo.held() == {}


def test_started_drops_a_claiming_copy() -> None:
    assert claiming().started("1/r0.0") == ["SendCaller u Ended 1/r0.1 dropped (started)"]


def test_the_arbiters_link_down_at_the_turn_or_lost_while_claiming() -> None:
    solo = Solo(peers="c")
    solo.submit("1/r0.1", tie="ba", exclusive=True)
    assert solo.settle() == ["SendCaller u Ended 1/r0.1 refused (arbiter lost)"]
    solo = claiming()
    assert solo.give(e.PeerLost(PEER_LINKS["c"])) == []
    assert solo.give(e.PeerLost(PEER_LINKS["b"])) == ["SendCaller u Ended 1/r0.1 refused (arbiter lost)"]


def test_an_answer_of_anybody_else_is_not_heeded() -> None:
    solo = claiming()
    assert solo.give(e.ClaimGranted(PEER_LINKS["c"], copy_id("1/r0.1"))) == []
    assert solo.give(e.ClaimDenied(PEER_LINKS["c"], copy_id("1/r0.1"), True)) == []
    assert solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.2"))) == []
    assert solo.state("1/r0.1") == CopyState.CLAIMING
    assert solo.core.stats.stale_notices == 3


def test_a_claim_is_repeated_over_a_new_link_to_the_same_arbiter() -> None:
    assert claiming().connect("b", link=8) == ["SendPeer ? Claim 1/r0.1"]


def test_next_is_neither_said_nor_heeded() -> None:
    solo = Solo()
    solo.run("9/u0")
    solo.submit("1/r0.1", tie="ba", exclusive=True, method="scan")
    assert solo.settle() == []
    assert solo.next("1/r0.0") == []
    assert solo.state("1/r0.1") == CopyState.QUEUED


def test_next_before_its_submit_is_not_heeded_either() -> None:
    solo = Solo()
    solo.next("1/r0.0")
    assert solo.submit("1/r0.1", tie="ba", exclusive=True, method="scan") == []


def test_a_claiming_copy_holds_no_place_in_its_methods_lane() -> None:
    solo = Solo(slots=2)
    solo.submit("1/r0.1", tie="ba", exclusive=True, method="lane")
    solo.submit("2/u0", method="lane")
    assert "StartWork 2/u0" in solo.settle()


@pytest.mark.parametrize("how", ["cancel", "deadline", "caller lost", "drain"])
def test_a_claiming_copy_ends_as_a_queued_one_does(how: str) -> None:
    solo = claiming()
    if how == "cancel":
        solo.cancel("1/r0.1")
    elif how == "deadline":
        solo.wait(10.0)
    elif how == "drain":
        solo.give(e.DrainRequested())
    else:
        solo.give(e.CallerLost(CALLER_LINK))
    state = {"deadline": CopyState.EXPIRED, "drain": CopyState.REFUSED}.get(how, CopyState.CANCELLED)
    assert solo.state("1/r0.1") == state
    assert solo.held() == {}
    assert solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1"))) == []
    assert solo.settle() == []


def test_rule_10_a_granted_copy_still_runs_when_its_replica_drains() -> None:
    solo = claiming()
    solo.run("2/u0")
    solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1")))
    assert "FinishDrain" not in solo.give(e.DrainRequested())
    assert "FinishDrain" not in solo.finish("2/u0")
    assert "StartWork 1/r0.1" in solo.settle()
    assert solo.finish("1/r0.1")[-1] == "FinishDrain"


def test_a_granted_copy_that_ends_unstarted_ends_the_drain_when_the_input_has_settled() -> None:
    solo = claiming()
    solo.run("2/u0")
    solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1")))
    solo.give(e.DrainRequested())
    solo.finish("2/u0")
    solo.cancel("1/r0.1")
    assert solo.settle() == ["FinishDrain"]


def test_the_queues_limit_holds_with_copies_that_come_back_from_claiming() -> None:
    solo = claiming(limits=ReplicaLimits(queue_length_max=2))
    solo.run("2/u0")
    solo.submit("3/u0")
    assert "refused (full)" in solo.submit("4/u0")[0]
    solo.give(e.ClaimGranted(PEER_LINKS["b"], copy_id("1/r0.1")))
    assert solo.core.queue_length == 2


# ---- the arbiter ----------------------------------------------------------------------------------------------


def arbiter(**options: object) -> Solo:
    """A replica that holds copy 0 of an exclusive tie, queued behind another call."""
    solo = Solo(**options)  # type: ignore[arg-type]
    solo.run("9/u0")
    solo.submit("1/r0.0", tie="abc", exclusive=True)
    return solo


GRANTED = ["SendCaller u Ended 1/r0.0 dropped (granted)", "SendPeer b Granted 1/r0.1"]


def test_a_queued_copy_0_is_granted_away_to_one_only_and_the_answer_stays() -> None:
    solo = arbiter()
    assert claim(solo) == GRANTED
    assert claim(solo) == ["SendPeer b Granted 1/r0.1"]
    assert claim(solo, "1/r0.2", "c") == ["SendPeer c Denied 1/r0.2 (started)"]
    assert solo.settle() == []


def test_a_running_or_run_copy_0_is_denied() -> None:
    solo = Solo()
    solo.submit("1/r0.0", exclusive=True)
    solo.settle()
    assert claim(solo) == ["SendPeer b Denied 1/r0.1 (started)"]
    solo.finish("1/r0.0")
    assert claim(solo) == ["SendPeer b Denied 1/r0.1 (started)"]


@pytest.mark.parametrize("how", ["cancelled", "expired", "refused"])
def test_a_copy_0_that_ended_unstarted_is_granted(how: str) -> None:
    solo = Solo()
    solo.run("9/u0")
    if how == "refused":
        solo.give(e.DrainRequested())
    solo.submit("1/r0.0", exclusive=True, remaining=1.0)
    if how == "cancelled":
        solo.cancel("1/r0.0")
    elif how == "expired":
        solo.wait(1.0)
    assert claim(solo) == ["SendPeer b Granted 1/r0.1"]


def test_a_claim_for_another_incarnation_or_by_another_is_not_granted() -> None:
    solo = arbiter()
    assert claim(solo, arbiter=99) == ["SendPeer b Denied 1/r0.1 (unknown)"]
    assert claim(solo, claimant=99) == []
    assert claim(solo, "1/r0.1", "c") == ["SendPeer c Denied 1/r0.1 (unknown)"]
    assert claim(solo, "1/r0.0") == []
    assert claim(solo, "1/r0.7") == ["SendPeer b Denied 1/r0.7 (unknown)"]
    assert solo.state("1/r0.0") == CopyState.QUEUED


def test_a_claim_in_an_ordinary_tie_is_not_granted() -> None:
    solo = Solo()
    solo.run("9/u0")
    solo.submit("1/r0.0")
    assert claim(solo) == ["SendPeer b Denied 1/r0.1 (unknown)"]
    solo.cancel("1/r0.0")
    assert claim(solo) == ["SendPeer b Denied 1/r0.1 (unknown)"]


def test_a_claim_that_overtakes_its_submit_is_parked_and_answered_then() -> None:
    solo = Solo()
    assert claim(solo) == []
    assert solo.submit("1/r0.0", exclusive=True) == GRANTED
    assert solo.held() == {}


def test_a_parked_claim_is_denied_when_it_ages() -> None:
    solo = Solo(limits=LIMITS)
    claim(solo)
    assert solo.core.wake_at == solo.now + 0.25
    assert solo.wait(0.25) == ["SendPeer b Denied 1/r0.1 (unknown)"]
    assert solo.core.wake_at is None


def test_a_parked_claim_is_denied_when_there_are_too_many() -> None:
    solo = Solo(limits=LIMITS)
    assert [claim(solo, f"{number}/r0.1") for number in (1, 2)] == [[], []]
    assert claim(solo, "3/r0.1") == ["SendPeer b Denied 1/r0.1 (unknown)"]
    assert solo.core.sizes()["parked_claims"] == 2


def test_rule_10_a_draining_arbiter_denies_what_it_does_not_know_and_answers_what_it_does() -> None:
    solo = arbiter()
    claim(solo, "2/r0.1")
    lines = solo.give(e.DrainRequested())
    assert "SendPeer b Denied 2/r0.1 (unknown)" in lines
    assert claim(solo, "3/r0.1") == ["SendPeer b Denied 3/r0.1 (unknown)"]
    assert claim(solo) == ["SendPeer b Granted 1/r0.1"]


def test_parked_claims_go_with_their_claimant() -> None:
    solo = Solo()
    claim(solo)
    assert solo.give(e.PeerLost(PEER_LINKS["b"])) == []
    assert solo.held() == {}


# ---- both together --------------------------------------------------------------------------------------------


def busy_pair() -> tuple[Triangle, int]:
    """Both replicas busy, an exclusive tie in both queues."""
    t = Triangle("abc")
    for name in "ab":
        t.call(at=name, timeout=100.0)
    t.flush()
    call = t.call(EXCLUSIVE, at="ab", timeout=50.0)
    t.flush()
    return t, call


def test_s7_the_claim_wins_when_its_replica_is_free_first() -> None:
    t, call = busy_pair()
    t.finish("b", "2/u0")
    t.flush()
    assert [copy_name(copy) for copy in t.running("b")] == [f"{call}/r0.1"]
    t.finish("a", "1/u0")
    t.flush()
    assert t.running("a") == []
    t.finish("b", f"{call}/r0.1")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_s7_claim_and_start_cross() -> None:
    t, call = busy_pair()
    t.finish("b", "2/u0")
    t.settle("b")
    t.finish("a", "1/u0")
    t.settle("a")
    t.flush()
    assert ([copy_name(copy) for copy in t.running("a")], t.running("b")) == ([f"{call}/r0.0"], [])


def test_s7_idle_replicas_never_start_both() -> None:
    t = Triangle("ab")
    t.call(EXCLUSIVE)
    t.flush()
    assert [len(t.running(name)) for name in "ab"] == [1, 0]


def test_the_claim_overtakes_the_arbiters_submit() -> None:
    t = Triangle("ab")
    call = t.call(EXCLUSIVE)
    t.deliver("u>b", Submit)
    t.settle("b")
    t.deliver("b>a", Claim)
    t.deliver("u>a", Submit)
    t.settle("a")
    t.deliver("a>b", Granted)
    t.flush()
    assert (t.running("a"), [copy_name(copy) for copy in t.running("b")]) == ([], [f"{call}/r0.1"])


def test_the_arbiter_dies_the_caller_moves_on() -> None:
    t, call = busy_pair()
    t.hold("a>b")
    t.finish("b", "2/u0")
    t.flush()
    t.crash("a")
    t.flush()
    assert [copy_name(copy) for copy in t.running("c")] == [f"{call}/r1.0"]


def test_a_lost_mesh_link_with_a_living_arbiter_costs_a_refusal_and_a_suspicion() -> None:
    t, call = busy_pair()
    t.hold("b>a")
    t.finish("b", "2/u0")
    t.flush()
    t.cut("a", "b")
    t.flush()
    assert t.view("a").suspected_until > t.now
    assert t.ended(call) is None
    t.finish("a", "1/u0")
    t.flush()
    t.finish("a", f"{call}/r0.0")
    t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_granted_and_lost_with_the_link_the_call_goes_on_in_a_new_round() -> None:
    t, call = busy_pair()
    t.finish("b", "2/u0")
    t.settle("b")
    t.deliver("b>a", Claim)
    assert t.under_way("a>b") == ["Granted"]
    t.cut("a", "b")
    t.flush()
    assert t.ended(call) is None
    for _ in range(5):
        for name in t.nodes:
            for copy in t.running(name):
                t.finish(name, copy_name(copy), ANSWER)
        t.flush()
    assert t.ended(call) == OutcomeKind.ANSWERED


def test_a_denial_for_an_unknown_copy_ends_the_claim() -> None:
    """The arbiter restarted: it has never heard of the tie."""
    t, call = busy_pair()
    t.finish("b", "2/u0")
    t.settle("b")
    t.deliver("b>a", Claim)
    t.drop("a>b", Granted)
    t.restart("a")
    t.flush()
    assert t.ended(call) is None
