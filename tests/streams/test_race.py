"""What decides the race for a stream, and what becomes of its losers: B06, B29, B32, B34."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, until
from tests.streams._play import AT_ONCE, HEDGED, KEEPS_BOTH, Plays, stream_service, taken
from tiedreq import Backup, Hedged, Plain, Tied
from tiedreq.testing import LocalCluster

GOOD = [0.05, ["item", "content"], ["item", "more"]]


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param([0.001, ["item", b""], 0.009, ["fail", False]], id="an-empty-chunk-then-an-error"),
        pytest.param([0.001, ["item", ""], 0.009, ["fail", True]], id="then-a-retryable-error"),
        pytest.param([0.001, ["item", {}], 0.009, ["raise"]], id="then-a-crash"),
        pytest.param([["item", None], 0.01] * 500, id="only-keep-alives"),
        pytest.param([0.005], id="an-end-with-no-chunk"),
        pytest.param([["item", []], 0.005], id="an-end-after-a-preamble"),
    ],
)
async def test_only_content_decides(autojump_clock: MockClock, slow: list[Any]) -> None:
    """B32: what A sends at 1 ms is no content, whatever follows; B's content at 50 ms wins."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)
    async with cluster as client:
        script = {"rank 0": slow, "rank 1": GOOD}
        async with client.tied_stream("play", script, policy=KEEPS_BOTH, timeout=2.0) as stream:
            assert await taken(stream) == ["content", "more"]
        assert stream.kind == "tie"
        assert stream.first_item == pytest.approx(0.05, abs=0.01)
        assert plays.by_rank(0).end != "running"
        await assert_idle(cluster, client)


async def test_preambles_are_replayed_in_order(autojump_clock: MockClock) -> None:
    """The winner's come before its content, those of others never, however many there are."""
    cluster = LocalCluster(stream_service(), replicas=2)
    first: list[Any] = [["item", None], ["item", ""]] * 200
    script = {"rank 0": [*first, 0.2, ["item", 1], ["item", None], ["item", 2]], "rank 1": [["item", []], 5.0]}
    async with cluster as client:
        async with client.tied_stream("play", script, policy=KEEPS_BOTH) as stream:
            assert await taken(stream) == [None, ""] * 200 + [1, None, 2]
        await assert_idle(cluster, client)


async def test_a_rule_of_the_callers_own(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    script = {
        "rank 0": [["item", {"status": 200}], 1.0, ["item", {"text": "late"}]],
        "rank 1": [["item", {"status": 200}], 0.01, ["item", {"text": "soon"}]],
    }
    async with cluster as client:
        async with client.tied_stream("play", script, policy=KEEPS_BOTH, content=lambda item: "text" in item) as stream:
            assert await taken(stream) == [{"status": 200}, {"text": "soon"}]
        with pytest.raises(ZeroDivisionError):
            async with client.tied_stream("play", script, content=lambda item: 1 / 0):
                pass
        await assert_idle(cluster, client)


async def test_a_copy_with_too_long_a_preamble_is_given_up(autojump_clock: MockClock) -> None:
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)
    script = {"rank 0": [["item", None]] * 1500 + [100.0], "rank 1": [1.0, ["item", "x"]]}
    async with cluster as client:
        async with client.tied_stream("play", script, policy=KEEPS_BOTH) as stream:
            assert await taken(stream) == ["x"]
        assert [attempt.end for attempt in stream.attempts] == ["failed", "done"]
        await assert_idle(cluster, client)
        assert plays.by_rank(0).end == "cancelled"


async def test_errors_of_all_copies(autojump_clock: MockClock) -> None:
    """A failure that no other try mends is the outcome once nobody can do better; a retryable one is tried again."""
    cluster = LocalCluster(stream_service(), replicas=3)
    async with cluster as client:
        with pytest.raises(tiedreq.RemoteFailure, match="script: as asked") as failed:
            async with client.tied_stream("play", [["item", None], ["fail", False]], policy=KEEPS_BOTH):
                pass
        assert failed.value.code == "script" and failed.value.details == {"at": 1} and failed.value.items == 0
        script = {"failover": GOOD, "else": [["fail", True]]}
        async with client.stream("play", script, policy=Plain()) as stream:
            assert await taken(stream) == ["content", "more"]
        assert stream.kind == "failover"
        await assert_idle(cluster, client)


# ---- the losers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(KEEPS_BOTH, id="tied"),
        pytest.param(AT_ONCE, id="yielding", marks=pytest.mark.soak),
        pytest.param(HEDGED, id="hedged", marks=pytest.mark.soak),
    ],
)
async def test_a_thousand_items_at_a_millisecond(autojump_clock: MockClock, policy: tiedreq.Policy) -> None:
    """B06: cancelling the losers leaves the winner alone, to its last item, and in order."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=3)
    slow = [0.05, ["items", 1000, 0.001]]
    script = {"rank 0": slow, "first": slow, "else": [["items", 1000, 0.001]]}
    async with cluster as client:
        async with client.stream("play", script, policy=policy, timeout=5.0) as stream:
            items = await taken(stream)
        assert items == [[stream.replica, number] for number in range(1000)]
        assert len(plays.runs) == 2
        await assert_idle(cluster, client)
        assert sorted(plays.ends()) == ["cancelled", "returned"]


async def test_the_loser_stops_within_one_item(autojump_clock: MockClock) -> None:
    """B34: one that has yielded nothing stops where it waits; one that yields all the time after one link delay."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2, client_latency=0.01)
    async with cluster as client:
        for loser in ([10.0, ["item", "late"]], [["item", None], 0.001] * 100):
            script = {"rank 0": loser, "rank 1": [0.03, ["item", "soon"], ["items", 100, 0.001]]}
            async with client.tied_stream("play", script, policy=KEEPS_BOTH, timeout=20.0) as stream:
                await stream.__anext__()
                decided = trio.current_time()
                await trio.sleep(0.05)
                lost = plays.by_rank(0)
                assert lost.end == "cancelled" and lost.ended is not None and lost.ended <= decided + 0.0101
                assert not lost.yielded or lost.yielded[-1] <= decided + 0.0101
            await assert_idle(cluster, client)
            plays.runs.clear()


@pytest.mark.parametrize("how", ["break", "cancel", "killed", "stopped client"])
async def test_a_consumer_that_leaves_early(autojump_clock: MockClock, how: str) -> None:
    """B34: a stream of 10 s that nobody wants any more, or nobody can want, stops; nothing is kept."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)
    async with cluster as client:
        with trio.CancelScope() as scope:
            async with (
                cluster.client(name="other") as other,
                other.tied_stream("play", [["items", 1000, 0.01]]) as stream,
            ):
                assert await stream.__anext__() == [stream.replica, 0]
                if how == "cancel":
                    scope.cancel()
                    await trio.sleep(1.0)
                elif how == "killed":
                    for name in cluster.names:
                        cluster.network.cut("other", name)
                    with pytest.raises(tiedreq.StreamInterrupted, match="broke off after 1 items"):
                        await taken(stream)
                elif how == "stopped client":
                    await other.close(list(other._links.values()))
                    with pytest.raises(tiedreq.Unavailable, match="client was closed"):
                        await taken(stream)
        left = trio.current_time()
        await assert_idle(cluster, client)
        (run,) = plays.runs
        assert run.end == "cancelled" and run.ended is not None and run.ended <= left + 0.02


# ---- after the first content there is no way back ----------------------------------------------------------------


async def test_the_winners_loss_is_an_interruption(autojump_clock: MockClock) -> None:
    """No failover: the user has a part of the answer. What had come before is still given away."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=3)
    async with cluster as client:
        async with client.tied_stream("play", [["items", 1000, 0.01]], timeout=30.0) as stream:
            assert await stream.__anext__() == [stream.replica, 0]
            await trio.sleep(0.105)
            assert stream.replica is not None
            cluster.stop(stream.replica)
            await trio.sleep(0.1)
            with pytest.raises(tiedreq.StreamInterrupted, match="broke off after 11 items") as broken:
                while True:
                    await stream.__anext__()
            assert broken.value.items == 11 == stream.items
            assert [a.end for a in broken.value.attempts if a.replica == stream.replica] == ["lost: link lost"]
            with pytest.raises(tiedreq.StreamInterrupted):
                await stream.__anext__()
        assert len(plays.runs) == 1


async def test_a_failure_in_the_middle(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=3)
    async with cluster as client:
        for retryable in (False, True):
            script = [["items", 5, 0.001], ["fail", retryable]]
            async with client.tied_stream("play", script) as stream:
                with pytest.raises(tiedreq.RemoteFailure, match="script: as asked") as failed:
                    await taken(stream)
            assert failed.value.items == 5 and failed.value.details == {"at": 5}
        await assert_idle(cluster, client)
        assert client.stats()["copies_sent"] == 2


@pytest.mark.parametrize("policy", [Plain(), Tied(), HEDGED], ids=["plain", "tied", "hedged"])
async def test_time_that_runs_out_in_the_middle(autojump_clock: MockClock, policy: tiedreq.Policy) -> None:
    """B29: expiry after the first chunk is expiry, with the count; the deadline is the whole stream's."""
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        began = trio.current_time()
        async with client.stream("play", [["items", 1000, 0.03]], policy=policy, timeout=0.1) as stream:
            with pytest.raises(tiedreq.DeadlineExceeded, match="3 items") as late:
                await taken(stream)
        assert trio.current_time() - began == pytest.approx(0.1, abs=0.001)
        assert late.value.items == 3 and isinstance(late.value, TimeoutError)
        await assert_idle(cluster, client)


async def test_time_that_is_over_before_the_first_content(autojump_clock: MockClock) -> None:
    """B29: a backup delay beyond the deadline is never armed; on entry nothing is sent."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=2)
    async with cluster as client:
        late = Hedged(Backup(after=5.0, since="send"))
        with pytest.raises(tiedreq.DeadlineExceeded, match="no answer within") as expired:
            async with client.stream("play", [["item", None], 9.0], policy=late, timeout=0.1):
                pass
        assert expired.value.items == 0 and len(plays.runs) == 1
        with pytest.raises(tiedreq.DeadlineExceeded):
            async with client.stream("play", GOOD, timeout=0.0):
                pass
        assert len(plays.runs) == 1
        await assert_idle(cluster, client)


async def test_a_scope_around_the_stream_is_its_deadline(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        got = []
        with trio.move_on_after(0.1) as scope:
            async with client.tied_stream("play", [["items", 1000, 0.03]]) as stream:
                async for item in stream:
                    got.append(item)
        assert scope.cancelled_caught and len(got) == 3
        with trio.CancelScope() as before:
            before.cancel()
            async with client.tied_stream("play", GOOD):
                raise AssertionError("it began")
        assert client.stats()["calls"] == 1
        await assert_idle(cluster, client)


async def test_drain_lets_a_stream_end(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=2)
    async with cluster as client:
        async with client.tied_stream("play", [["items", 100, 0.01]]) as stream:
            await stream.__anext__()
            assert stream.replica is not None
            cluster.handles[stream.replica].drain()
            assert len(await taken(stream)) == 99
        await until(lambda: len(cluster.handles) - len([name for name in cluster.names if cluster.running(name)]) == 1)
