"""Limits at their edge, broken protocol, pairs that no table lists, alarms, and slots after storms."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.core.solo import CALLER_LINK, IDENTITIES, PEER_LINKS, Solo
from tests.core.telling import NONCE, copy_id
from tiedreq.core import events as e
from tiedreq.core.call_table import CALL_TABLE
from tiedreq.core.copy_table import COPY_TABLE
from tiedreq.core.errors import RemoteViolation, UnknownTransition
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.link_table import ACCEPTOR_TABLE, DIALER_TABLE
from tiedreq.core.messages import Submit
from tiedreq.core.replica import HeldMethod
from tiedreq.core.transitions import Table
from tiedreq.core.types import CopyId, CopyKind, CopyState, Identity, MethodInfo

# ---- limits ---------------------------------------------------------------------------------------------------


def test_queue_length_at_the_edge() -> None:
    solo = Solo(limits=ReplicaLimits(queue_length_max=2))
    solo.run("1/u0")
    assert [solo.submit(f"{number}/u0") for number in (2, 3)] == [[], []]
    assert "refused (full)" in solo.submit("4/u0")[0]
    solo.cancel("2/u0")
    assert solo.submit("5/u0") == []
    assert solo.core.queue_length == 2


def test_copies_per_caller_at_the_edge() -> None:
    """Running copies count, and each connection for itself."""
    solo = Solo(slots=1, limits=ReplicaLimits(copies_per_caller_max=2))
    solo.run("1/u0")
    assert solo.submit("2/u0") == []
    assert "refused (full)" in solo.submit("3/u0")[0]
    solo.give(e.CallerConnected(7, NONCE))
    assert solo.submit("4/u0", link=7) == []
    solo.finish("1/u0")
    assert solo.submit("5/u0") == []


@pytest.mark.parametrize("limit", ["held_bytes_max", "held_bytes_per_caller_max"])
def test_bytes_of_arguments_at_the_edge(limit: str) -> None:
    """Who holds nothing may always add one copy; what has ended makes room, however it ended."""
    solo = Solo(slots=1, limits=ReplicaLimits(**{limit: 10}))
    assert solo.submit("1/u0", payload=bytes(11)) == []
    assert "refused (full)" in solo.submit("2/u0", payload=b"")[0]
    solo.cancel("1/u0")
    solo.run("3/u0", payload=bytes(6))
    assert solo.submit("4/u0", payload=bytes(4)) == []
    assert "refused (full)" in solo.submit("5/u0", payload=b"x")[0]
    solo.give(e.CallerConnected(7, NONCE))
    assert solo.submit("6/u0", link=7, payload=bytes(9)) == [], "another caller's first"
    refused = solo.submit("7/u0", link=7, payload=b"x")
    assert ("refused (full)" in refused[0]) if limit == "held_bytes_max" else (refused == [])
    solo.finish("3/u0")
    solo.give(e.CallerLost(7))
    assert solo.submit("8/u0", payload=bytes(6)) == []
    assert solo.core._held_bytes == 10


def test_slots_of_a_method_at_the_edge() -> None:
    """Copies of other methods pass the ones that wait for their lane."""
    solo = Solo(slots=3)
    solo.submit("1/u0", method="lane")
    solo.submit("2/u0", method="lane")
    solo.submit("3/u0")
    lines = solo.settle()
    assert [line for line in lines if line.startswith("Start")] == ["StartWork 1/u0", "StartWork 3/u0"]
    solo.cancel("1/u0")
    assert solo.settle() == [], "stopped, but not yet ended"
    solo.finish("1/u0", None)
    assert "StartWork 2/u0" in solo.settle()


@pytest.mark.parametrize("ending", ["finish", "fault", "stopped", "expired in the queue"])
def test_a_lane_is_free_again_however_its_copy_ends(ending: str) -> None:
    solo = Solo(slots=2)
    for number in range(1, 20, 2):
        solo.submit(f"{number}/u0", method="lane", remaining=0.5)
        if ending == "expired in the queue":
            solo.now += 0.5
            solo.settle()
        else:
            solo.settle()
            outcome = {"finish": e.Answer(b""), "fault": e.Fault("x", "", b"", False), "stopped": None}[ending]
            solo.finish(f"{number}/u0", outcome)
        solo.run(f"{number + 1}/u0", method="lane")
        assert solo.state(f"{number + 1}/u0") == CopyState.RUNNING
        solo.finish(f"{number + 1}/u0")
    assert solo.load("99/u0").free == 2


def test_two_methods_with_lanes_of_their_own() -> None:
    rows = [HeldMethod(MethodInfo(name, True, True, 60.0), slots) for name, slots in (("x", 1), ("y", 2))]
    solo = Solo(slots=4, methods=rows)
    for number in range(1, 7):
        solo.submit(f"{number}/u0", method="xy"[number % 2])
    assert [line for line in solo.settle() if line.startswith("Start")] == [
        f"StartWork {number}/u0" for number in (1, 2, 3)
    ]


# ---- a caller that breaks the protocol ------------------------------------------------------------------------

A, B, C = (IDENTITIES[name] for name in "abc")


def submit(copy: CopyId, partners: tuple[Identity, ...]) -> e.SubmitReceived:
    return e.SubmitReceived(
        CALLER_LINK, Submit(copy, CopyKind.FIRST, "read", b"", 1.0, partners, True, False, False, None, ())
    )


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (submit(CopyId(0xBAD, 1, 0, -1), ()), "not of this client"),
        (submit(copy_id("1/u0"), (A, B)), "untied copy names partners"),
        (submit(copy_id("1/r0.1"), (A, B)), "rank 1"),
        (submit(copy_id("1/r0.2"), (A, B)), "rank 2"),
        (submit(copy_id("1/r0.0"), ()), "rank 0"),
        (submit(copy_id("1/r0.0"), (A._replace(incarnation=99), B)), "rank 0"),
        (submit(copy_id("1/r0.0")._replace(rank=-2), (A, B)), "rank -2"),
        (submit(copy_id("1/r0.0"), (A, B, B)), "twice"),
        (submit(copy_id("1/r0.0"), (A, B, B._replace(incarnation=99))), "twice"),
        (submit(copy_id("1/r0.0"), (A, A._replace(incarnation=99))), "twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_violation_is_told_and_changes_nothing(event: e.SubmitReceived, told: str) -> None:
    solo = Solo()
    solo.run("7/u0")
    solo.submit("8/r0.0")
    before, load = solo.core.snapshot(), solo.load()
    with pytest.raises(RemoteViolation, match=told):
        solo.give(event)
    assert solo.core.snapshot()[:5] == before[:5]
    assert solo.load("98/u0").received == load.received + 1, "only the probe itself"
    assert solo.settle() == []


def test_a_peer_that_names_a_rank_below_zero_is_not_heeded() -> None:
    solo = Solo()
    solo.submit("1/r0.0", tie="ab")
    assert solo.give(e.PeerStarted(PEER_LINKS["b"], copy_id("1/r0.1")._replace(rank=-2), 1.0)) == []
    assert solo.state("1/r0.0") == CopyState.QUEUED


# ---- tables ---------------------------------------------------------------------------------------------------

TABLES = (COPY_TABLE, CALL_TABLE, DIALER_TABLE, ACCEPTOR_TABLE)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_an_unlisted_pair_is_an_error_that_names_it(table: Table) -> None:  # type: ignore[type-arg]
    for state in type(table.initial):
        for trigger in table.notes:
            if table.allows(state, trigger):
                assert table.next(state, trigger) in type(table.initial)
            else:
                with pytest.raises(UnknownTransition, match=f"{table.name}.*{state.name}.*{trigger.name}"):
                    table.next(state, trigger)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_trigger_is_explained_and_every_state_reached(table: Table) -> None:  # type: ignore[type-arg]
    assert {trigger for _, trigger in table.rows} <= set(table.notes)
    sources = {state for state, _ in table.rows}
    assert table.initial in sources
    assert sources <= {table.initial, *table.rows.values()}


def test_no_transition_leaves_a_terminal_state() -> None:
    assert not [state for state, _ in COPY_TABLE.rows if state.terminal]
    assert {state for state in COPY_TABLE.rows.values() if not state.terminal} == {
        CopyState.QUEUED,
        CopyState.RUNNING,
        CopyState.CLAIMING,
    }


def reach(state: CopyState) -> Solo:
    """A replica whose copy 1/r0.1 is in a state."""
    solo = Solo(slots=1)
    if state != CopyState.REFUSED:
        solo.submit("1/r0.1", tie="ba", exclusive=state == CopyState.CLAIMING, remaining=1.0)
    steps: dict[CopyState, Callable[[], object]] = {
        CopyState.QUEUED: lambda: None,
        CopyState.CLAIMING: solo.settle,
        CopyState.RUNNING: solo.settle,
        CopyState.DONE: lambda: (solo.settle(), solo.finish("1/r0.1")),
        CopyState.FAILED: lambda: (solo.settle(), solo.finish("1/r0.1", e.Fault("x", "", b"", False))),
        CopyState.DROPPED: lambda: solo.started("1/r0.0"),
        CopyState.YIELDED: lambda: (solo.settle(), solo.started("1/r0.0"), solo.finish("1/r0.1", None)),
        CopyState.CANCELLED: lambda: solo.cancel("1/r0.1"),
        CopyState.EXPIRED: lambda: solo.wait(1.0),
        CopyState.REFUSED: lambda: (solo.give(e.DrainRequested()), solo.submit("1/r0.1", tie="ba", remaining=1.0)),
    }
    steps[state]()
    assert solo.state("1/r0.1") == state
    return solo


COPY = copy_id("1/r0.1")
ABOUT_ONE_COPY: tuple[e.ReplicaEvent, ...] = (
    e.CancelReceived(CALLER_LINK, COPY),
    e.PeerStarted(PEER_LINKS["b"], copy_id("1/r0.0"), 1.0),
    e.PeerNext(PEER_LINKS["b"], copy_id("1/r0.0"), 1.0),
    e.PeerClaimed(PEER_LINKS["b"], copy_id("1/r0.0"), A.incarnation, B.incarnation),
    e.ClaimGranted(PEER_LINKS["b"], COPY),
    e.ClaimDenied(PEER_LINKS["b"], COPY, True),
    e.WorkFinished(COPY, None),
    e.StopEnabled(COPY),
    e.TimePassed(),
    e.InputSettled(),
)


@pytest.mark.parametrize("state", [state for state in CopyState if state.terminal], ids=lambda state: state.name)
def test_s5_no_event_moves_a_copy_out_of_a_terminal_state(state: CopyState) -> None:
    for event in ABOUT_ONE_COPY:
        solo = reach(state)
        before = solo.core.snapshot()
        commands = solo.core.step(event, solo.now)
        assert commands == [], event
        assert solo.core.snapshot() == before, event


@pytest.mark.parametrize("state", [CopyState.QUEUED, CopyState.RUNNING], ids=lambda state: state.name)
def test_what_does_not_concern_a_state_changes_nothing_in_it(state: CopyState) -> None:
    for event in ABOUT_ONE_COPY:
        queued = state == CopyState.QUEUED
        if isinstance(event, e.CancelReceived | e.PeerStarted):
            continue
        if isinstance(event, e.PeerNext | e.InputSettled) if queued else isinstance(event, e.WorkFinished | e.PeerNext):
            continue
        solo = reach(state)
        before = solo.core.snapshot()
        assert solo.core.step(event, solo.now) == [], event
        assert solo.core.snapshot() == before, event


# ---- alarms and storms ----------------------------------------------------------------------------------------


def test_wake_at_is_the_first_deadline_of_what_lives() -> None:
    solo = Solo(slots=1)
    for number, remaining in ((1, 3.0), (2, 1.0), (3, 2.0)):
        solo.submit(f"{number}/u0", remaining=remaining)
    assert solo.core.wake_at == 101.0
    solo.cancel("2/u0")
    assert solo.core.wake_at == 102.0
    solo.settle()
    solo.cancel("3/u0")
    assert solo.core.wake_at == 103.0
    solo.finish("1/u0")
    assert solo.core.wake_at is None


def test_deadlines_are_bounded_under_churn() -> None:
    """One long-lived copy in front, twenty thousand behind it that are all cancelled."""
    solo = Solo()
    solo.submit("1/u0", remaining=1.0)
    most = 0
    for number in range(2, 20_000):
        solo.submit(f"{number}/u0")
        solo.cancel(f"{number}/u0")
        assert solo.core.wake_at == 101.0
        most = max(most, solo.core.sizes()["deadlines"])
    assert most <= 70


def test_an_early_or_late_alarm_is_harmless() -> None:
    solo = Solo()
    solo.submit("1/u0", remaining=1.0)
    assert solo.wait(0.5) == []
    assert solo.wait(9.0) == ["SendCaller u Ended 1/u0 expired (deadline)"]
    assert solo.wait(9.0) == []


def test_b03_a_storm_of_cancels_leaves_every_slot() -> None:
    """Concurrency 1; 500 copies cancelled before, at and after their start; then 100 normal ones."""
    solo = Solo(slots=1)
    rng = Random(3)
    for number in range(1, 501):
        steps: list[Callable[[], object]] = [
            lambda copy=f"{number}/u0": solo.submit(copy),  # type: ignore[misc]
            lambda copy=f"{number}/u0": solo.cancel(copy),  # type: ignore[misc]
            solo.settle,
        ]
        rng.shuffle(steps)
        for step in steps:
            step()
        if solo.core.running:
            solo.cancel(f"{number}/u0")
            solo.finish(f"{number}/u0", rng.choice([None, e.Answer(b"")]))
    assert (solo.core.running, solo.core.queue_length, solo.core.free_slots) == (0, 0, 1)
    assert solo.held() == {}
    for number in range(501, 601):
        solo.run(f"{number}/u0")
        assert solo.finish(f"{number}/u0") == [f"SendCaller u Result {number}/u0"]


def test_b47_gauges_come_from_the_queue_itself() -> None:
    solo = Solo(limits=ReplicaLimits(queue_length_max=2000))
    solo.run("1/u0")
    for number in range(2, 1002):
        solo.submit(f"{number}/u0")
    assert solo.load("2000/u0").queued == solo.core.queue_length == 1000
    for number in range(2, 1002):
        solo.cancel(f"{number}/u0")
    assert solo.load("2001/u0").queued == solo.core.queue_length == 0
