"""The timeline of a call: from what a real cluster remembers in virtual time, and from made-up memories."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.ask import Memories
from tiedreq.observe.explain import Timeline, as_perfetto, as_text, timeline
from tiedreq.observe.snapshot import CallView, CopyView
from tiedreq.observe.stories import ReplicaStory, StoryEvent, parse_call_id
from tiedreq.testing import LocalCluster

CALL_ID = "00000000000000ab-7"
BOTH_AT_ONCE = tiedreq.Tied(stagger=0.0, backup=None)


@pytest.fixture(autouse=True)
def virtual_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day passes as fast as virtual time does."""
    monkeypatch.setattr("tiedreq.observe.clock.offset", lambda: 1e6)


async def explained(client: tiedreq.Client, call_id: str) -> Timeline:
    """The timeline as ``tiedreq explain`` would put it together."""
    assert client.observer is not None
    call = parse_call_id(call_id)
    assert call is not None
    stories = await Memories(client, [], token=None, timeout=1.0)._stories(f"call:{call_id}", call_id)
    found = timeline(call_id, client.observer.find(call), stories)
    assert found is not None
    return found


def whats(found: Timeline, where: str) -> list[str]:
    return [moment.what for moment in found.moments if moment.where == where]


async def test_the_queued_copy_hears_that_the_other_started_and_is_dropped(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1, mesh_latency=0.001)
    async with cluster as client, trio.open_nursery() as nursery:
        for seconds in (0.2, 0.3):
            nursery.start_soon(client.call, "nap", seconds)
            await trio.sleep(0.01)
        reply = await client.request("nap", 0.05, policy=BOTH_AT_ONCE)
        await trio.sleep(0.1)
        found = await explained(client, reply.call_id)
    (winner,) = [bar for bar in found.bars if bar.winner]
    (loser,) = [bar for bar in found.bars if not bar.winner]
    assert found.method == "nap" and found.policy == "Tied" and found.outcome == "answered"
    assert winner.replica == reply.replica and winner.end == "done"
    assert winner.arrived is not None and winner.started is not None and winner.ended is not None
    assert winner.started - winner.arrived == pytest.approx(reply.queue_wait)
    assert winner.ended - winner.started == pytest.approx(0.05)
    assert loser.started is None and loser.end == "dropped: started"
    assert whats(found, loser.replica) == [
        f"arrived: {loser.kind}",
        f"hears from {winner.replica}: started",
        "ended: dropped: started",
    ]
    assert f"tells {loser.replica}: started" in whats(found, winner.replica)
    (notice,) = found.notices
    assert (notice.kind, notice.copy, notice.sender) == ("started", winner.copy, winner.replica)
    assert notice.sent == pytest.approx(winner.started) and notice.heard == pytest.approx(loser.ended)
    assert f"hears from {winner.replica}: started" in as_text(found)
    assert loser.ended is not None and loser.ended - winner.started == pytest.approx(0.001, abs=1e-4)
    assert not found.shifts
    assert [moment.at for moment in found.moments] == sorted(moment.at for moment in found.moments)


async def test_a_double_start_yields_and_shows_it(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1, mesh_latency=0.002)
    async with cluster as client:
        reply = await client.request("nap", 0.05, policy=BOTH_AT_ONCE)
        await trio.sleep(0.1)
        found = await explained(client, reply.call_id)
    first, second = sorted(found.bars, key=lambda bar: bar.copy)
    assert first.winner and first.end == "done"
    assert second.started is not None and second.end == "yielded: started"
    text = as_text(found)
    assert f"call {reply.call_id} of 'nap' under Tied: answered by {first.replica} after 50." in text
    assert f"{first.replica} r0.0  first" in text and "done *" in text and "yielded: started" in text


async def test_a_double_start_has_a_notice_each_way(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1, mesh_latency=0.002)
    async with cluster as client:
        reply = await client.request("nap", 0.05, policy=BOTH_AT_ONCE)
        await trio.sleep(0.1)
        found = await explained(client, reply.call_id)
    first, second = sorted(found.bars, key=lambda bar: bar.copy)
    told = [(notice.copy, notice.sender, notice.receiver) for notice in found.notices]
    assert (first.copy, first.replica, second.replica) in told and (second.copy, second.replica, first.replica) in told
    for notice in found.notices:
        assert notice.sent is not None and notice.heard == pytest.approx(notice.sent + 0.002, abs=1e-4)


async def test_a_notice_that_is_lost_was_sent_and_not_heard(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1, mesh_latency=0.001)
    async with cluster as client:
        cluster.network.hold("r0", "r1")
        cluster.network.hold("r1", "r0")
        reply = await client.request("nap", 0.05, policy=BOTH_AT_ONCE)
        await trio.sleep(0.1)
        found = await explained(client, reply.call_id)
    assert {(notice.sender, notice.heard) for notice in found.notices} == {("r0", None), ("r1", None)}
    assert all(notice.sent is not None for notice in found.notices)


async def test_an_exclusive_tie_shows_the_claim_and_its_answer(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1, mesh_latency=0.001)
    exclusive = tiedreq.Tied(stagger=0.0, backup=None, exclusive=True)
    async with cluster as client, trio.open_nursery() as nursery:
        replies: list[tiedreq.Reply] = []

        async def request(seconds: float) -> None:
            replies.append(await client.request("nap", seconds, policy=exclusive))

        for number in range(12):
            nursery.start_soon(request, 0.02 + 0.01 * (number % 3))
        await trio.sleep(1)
        found = [await explained(client, reply.call_id) for reply in replies]
    kinds = {notice.kind for one in found for notice in one.notices}
    assert "claim" in kinds and kinds & {"granted", "denied"}
    told = [(notice.sender, notice.receiver) for one in found for notice in one.notices if notice.kind == "claim"]
    answers = [(n.receiver, n.sender) for one in found for n in one.notices if n.kind in ("granted", "denied")]
    assert sorted(told) == sorted(answers)


async def test_peers_beyond_the_limit_share_a_name(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiedreq.observe.replica.PEERS_MAX", 1)
    cluster = LocalCluster(make_service(), replicas=3, slots=1)
    async with cluster as client:
        for _ in range(30):
            await client.request("nap", 0.01, policy=BOTH_AT_ONCE)
        observer = cluster.handles["r0"]._server.observer
        assert observer is not None and len(observer._peers) == 2 and "(others)" in observer._peers


async def test_what_nobody_waited_for_is_told(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1, slots=1)
    async with cluster as client, trio.open_nursery() as nursery:
        async with cluster.client(name="other") as other:
            nursery.start_soon(client.call, "nap", 1.0)
            await trio.sleep(0.01)
            assert other.observer is not None
            with trio.move_on_after(0.1):
                cluster.network.hold("r0", "other")
                await other.request("nap", 0.05, timeout=9.0)
            number = f"{other.nonce:016x}-1"
        await trio.sleep(5)
        answer = (await client.inquire(f"call:{number}"))["r0"]
    assert [(event["what"], event["detail"]) for event in answer["events"]] == [
        ("arrived", "first"),
        ("ended", "expired: deadline"),
    ]


async def test_whoever_observes_nothing_says_so(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1)
    async with cluster as client:
        cluster.handles["r0"]._server.observer = None
        memories = Memories(client, [], token=None, timeout=1.0)
        assert await memories.explain(CALL_ID) is None
    assert memories.told == ["r0 remembers no calls: it was started without observation"]


async def test_the_snapshot_is_told_over_the_wire_and_nonsense_is_the_status(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=2)
    async with cluster as client:
        pictures = await client.inquire("snapshot")
        assert set(pictures) == {"r0", "r1"} and pictures["r1"]["kind"] == "replica"
        for about in ("call:nonsense", "anything", "call:"):
            assert "about" not in (await client.inquire(about))["r0"]


# ---- made-up memories ---------------------------------------------------------------------------------------------


def copy_view(replica: str, rank: int, **values: Any) -> CopyView:
    view: dict[str, Any] = {
        "copy": f"{CALL_ID}/r0.{rank}",
        "replica": replica,
        "kind": "tie" if rank else "first",
        "rank": rank,
        "round": 1,
        "sent": 0.0,
        "started": None,
        "ended": None,
        "end": "lost the race",
        "winner": False,
        "queue_wait": None,
        "service_time": None,
        **values,
    }
    return CopyView(**view)  # type: ignore[typeddict-item]


def call_view(*copies: CopyView, began: float = 1000.0) -> CallView:
    return CallView(
        call_id=CALL_ID,
        method="nap",
        policy="Tied",
        began=began,
        latency=0.030,
        outcome="answered",
        code="",
        replica="a",
        copies=list(copies),
    )


def story(name: str, *events: tuple[float, int, str, str]) -> ReplicaStory:
    told = [
        StoryEvent(at=at, copy=f"{CALL_ID}/r0.{rank}", what=what, detail=detail, queue_wait=None, service_time=None)
        for at, rank, what, detail in events
    ]
    return ReplicaStory(name=name, since=0.0, method="nap", events=told)


WON = copy_view("a", 0, started=0.010, ended=0.030, end="done", winner=True)


@pytest.mark.parametrize("skew", [0.0, 0.001, -0.001])
def test_clocks_that_agree_are_left_alone(skew: float) -> None:
    told = story("a", (1000.002 + skew, 0, "arrived", "first"), (1000.008 + skew, 0, "started", ""))
    found = timeline(CALL_ID, call_view(WON), [told])
    assert found is not None and not found.shifts
    assert found.bars[0].arrived == pytest.approx(0.002 + skew)


@pytest.mark.parametrize("skew", [5.0, -5.0, 3600.0])
def test_clocks_that_differ_are_moved_as_little_as_makes_sense(skew: float) -> None:
    told = story(
        "a",
        (1000.002 + skew, 0, "arrived", "first"),
        (1000.008 + skew, 0, "started", ""),
        (1000.029 + skew, 0, "done", ""),
    )
    found = timeline(CALL_ID, call_view(WON), [told])
    assert found is not None
    (bar,) = found.bars
    assert bar.sent is not None and bar.arrived is not None and bar.started is not None and bar.ended is not None
    assert bar.sent <= bar.arrived + 1e-6 and bar.started <= 0.010 + 1e-6 and bar.ended <= 0.030 + 1e-6
    assert found.shifts["a"] == pytest.approx(-skew, abs=0.003)
    assert "times of a moved by" in as_text(found)


def test_without_the_client_the_replicas_tell_what_they_can() -> None:
    found = timeline(
        CALL_ID,
        None,
        [
            story(
                "a", (5.000, 0, "arrived", "first, tied over a, b"), (5.010, 0, "started", ""), (5.02, 0, "done", "")
            ),
            story("b", (5.001, 1, "arrived", "tie, tied over a, b"), (5.011, 1, "ended", "dropped: started")),
        ],
    )
    assert found is not None and found.began == 5.0 and found.latency is None
    assert [(bar.replica, bar.end) for bar in found.bars] == [("a", "done"), ("b", "dropped: started")]
    assert "the client's own record is missing" in as_text(found)


def test_nobody_remembers() -> None:
    assert timeline(CALL_ID, None, []) is None
    assert timeline(CALL_ID, None, [story("a")]) is None


def test_text_of_a_call_that_took_no_time() -> None:
    view = call_view(copy_view("a", 0))
    view["latency"] = 0.0
    found = timeline(CALL_ID, view, [])
    assert found is not None and "lost the race" in as_text(found)


def test_perfetto_has_a_slice_for_each_part() -> None:
    told = [
        story("a", (1000.001, 0, "arrived", ""), (1000.008, 0, "started", ""), (1000.029, 0, "done", "")),
        story("b", (1000.001, 1, "arrived", ""), (1000.009, 1, "ended", "dropped")),
    ]
    found = timeline(CALL_ID, call_view(WON, copy_view("b", 1)), told)
    assert found is not None
    trace = json.loads(json.dumps(as_perfetto(found)))
    slices = {(event["pid"], event["name"]): event for event in trace["traceEvents"] if event["ph"] == "X"}
    assert slices[1, "nap"]["dur"] == 30_000
    assert slices[2, "queued"]["ts"] == pytest.approx(1000, abs=1) and slices[2, "queued"]["dur"] == pytest.approx(7000)
    assert slices[2, "runs"]["dur"] == pytest.approx(21_000)
    assert slices[3, "queued"]["dur"] == pytest.approx(8000) and (3, "runs") not in slices
    assert not [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {1: "client", 2: "a", 3: "b"}
    assert all(event["ts"] >= 0 and event["pid"] in names for event in trace["traceEvents"] if event["ph"] != "M")


def test_perfetto_has_an_arrow_for_each_notice() -> None:
    """From a slice in the lane of the copy that started to one in the lane of the copy that is dropped."""
    a = story("a", (1000.001, 0, "arrived", ""), (1000.008, 0, "started", ""), (1000.008, 0, "notice sent", "started"))
    b = story("b", (1000.001, 1, "arrived", ""), (1000.009, 0, "notice heard", "started"), (1000.009, 1, "ended", ""))
    for told, peer in ((a, "b"), (b, "a")):
        for event in told["events"]:
            if event["what"].startswith("notice"):
                event["peer"] = peer
    found = timeline(CALL_ID, call_view(WON, copy_view("b", 1)), [a, b])
    assert found is not None and len(found.bars) == 2
    events = json.loads(json.dumps(as_perfetto(found)))["traceEvents"]
    begin, end = (next(event for event in events if event["ph"] == phase) for phase in "sf")
    assert begin["id"] == end["id"] and end["bp"] == "e" and end["ts"] - begin["ts"] == pytest.approx(1000)
    for arrow, words in ((begin, "tells b: r0.0 started"), (end, "hears from a: r0.0 started")):
        (short,) = [event for event in events if event["ph"] == "X" and event["name"] == words]
        assert (short["pid"], short["tid"], short["ts"]) == (arrow["pid"], arrow["tid"], arrow["ts"])
        lane = (arrow["pid"], arrow["tid"])
        assert any(e["ph"] == "X" and e["name"] == "queued" and (e["pid"], e["tid"]) == lane for e in events)
    assert not [event for event in events if event["ph"] == "i" and "tells" in event["name"]]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (CALL_ID, True),
        (f" {CALL_ID}/r0.1 ", True),
        (f"{CALL_ID}/u0", True),
        ("ab-7", False),
        ("00000000000000AB-7", False),
        (f"{CALL_ID}8" * 3, False),
        ("00000000000000ab-99999999999999999999", False),
        ("", False),
    ],
)
def test_call_ids(text: str, known: bool) -> None:
    call = parse_call_id(text)
    assert (call is not None) == known
    assert call is None or str(call) == CALL_ID


async def test_what_waits_and_runs_is_told_too(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1, slots=1)
    async with cluster as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "nap", 1.0)
        await trio.sleep(0.1)
        nursery.start_soon(client.call, "nap", 1.0)
        await trio.sleep(0.1)
        told = [(await client.inquire(f"call:{client.nonce:016x}-{number}"))["r0"] for number in (1, 2)]
        nursery.cancel_scope.cancel()
    assert [[event["what"] for event in story["events"]] for story in told] == [["arrived", "started"], ["arrived"]]
    assert told[1]["method"] == "nap"
