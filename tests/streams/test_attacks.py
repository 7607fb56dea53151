"""Streams against what can go wrong at the edges: hostile peers, full outboxes, handlers that will not stop, and ends
that come while nothing moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

import tiedreq
from tests.net.bench import assert_idle, until
from tests.streams._play import HEDGED, KEEPS_BOTH, Plays, stream_service, taken
from tiedreq import ClientLimits
from tiedreq.core.messages import Cancel, Credit, Item, Result, Started
from tiedreq.core.types import CopyId, Load
from tiedreq.net.openstream import OpenStream
from tiedreq.net.outbox import Outbox, OutboxLimits
from tiedreq.observe import metrics
from tiedreq.testing import LocalCluster
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import encode_payload

WINDOW = ClientLimits(stream_items_max=4)
COPY = CopyId(1, 2, 0, 0)


def item(copy: CopyId, number: int, value: Any) -> Item:
    return Item(copy, number, encode_payload(value), 0.001, 0.0, None)


def copy_at(client: tiedreq.Client, rank: int) -> CopyId:
    (call,) = client._calls.values()
    (copy,) = [copy for copy in call.core.copies if copy.rank == rank]
    return copy


# ---- hostile replicas and callers --------------------------------------------------------------------------------


@pytest.mark.parametrize("breach", [5, 1])
async def test_what_follows_a_breach_in_its_frame_counts_for_nothing(autojump_clock: MockClock, breach: int) -> None:
    """A replica that numbers its items wrongly loses its link; its next item, in the same frame, wins no race."""
    cluster = LocalCluster(stream_service(), replicas=2)
    script = {"rank 0": [9.0], "rank 1": [0.05, ["item", "good"]]}
    async with cluster as client, trio.open_nursery() as nursery:
        got: list[Any] = []

        async def use() -> None:
            async with client.tied_stream("play", script, policy=KEEPS_BOTH, timeout=5.0) as stream:
                got.extend(await taken(stream))

        nursery.start_soon(use)
        await trio.sleep(0.01)
        bad = copy_at(client, 0)
        (call,) = client._calls.values()
        link = client._links[call.core.copies[bad].link]
        link._hand_on([item(bad, breach, "out of turn"), item(bad, 0, "and then in turn")])
        await until(lambda: got)
        assert got == ["good"]
        await assert_idle(cluster, client)


async def test_a_breach_of_the_winner_is_an_interruption(autojump_clock: MockClock) -> None:
    """Nothing of the frame that broke the rules comes through but what stood before the breach."""
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["item", "a"], 9.0], timeout=20.0) as stream:
            (call,) = client._calls.values()
            (copy,) = call.core.copies
            link = client._links[call.core.copies[copy].link]
            link._hand_on([item(copy, 1, "b"), item(copy, 7, "x"), item(copy, 2, "y")])
            got = []
            with pytest.raises(tiedreq.StreamInterrupted, match="after 2 items"):
                async for value in stream:
                    got.append(value)
            assert got == ["a", "b"]
        await assert_idle(cluster, client)


async def test_items_beyond_the_credit_end_the_link(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1, client_limits=WINDOW)
    async with cluster as client:
        async with client.stream("play", [["items", 4, 0.0], 9.0], timeout=20.0) as stream:
            await trio.sleep(0.01)
            (call,) = client._calls.values()
            (copy,) = call.core.copies
            client._links[call.core.copies[copy].link]._hand_on([item(copy, n, "much") for n in range(4, 100)])
            with pytest.raises(tiedreq.StreamInterrupted, match="after 4 items"):
                await taken(stream)
        await assert_idle(cluster, client)


async def test_credit_of_another_client_opens_no_window(autojump_clock: MockClock) -> None:
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=1, client_limits=WINDOW)
    async with cluster as client, cluster.client(name="other") as other:
        async with client.stream("play", [["items", 100, 0.0]], timeout=20.0) as stream:
            await trio.sleep(0.01)
            (call,) = client._calls.values()
            (copy,) = call.core.copies
            (link,) = other._links.values()
            assert link.send(Credit(copy, 1000, 1 << 40))
            await trio.sleep(0.1)
            assert len(plays.runs[0].yielded) <= 5 and link.up
            assert len(await taken(stream)) == 100
        await assert_idle(cluster, client, other)


# ---- nothing is lost on the way ----------------------------------------------------------------------------------


def test_a_full_outbox_takes_what_is_owed() -> None:
    """A Credit that is lost would leave its stream standing, a lost Cancel its copy running."""
    outbox = Outbox(OutboxLimits(messages_max=2), WireLimits())
    other = Started(COPY, 1.0, Load(0, 0, 0, 0.0))
    assert [outbox.put(other) for _ in range(3)] == [True, True, False]
    assert outbox.put(Credit(COPY, 9, 900)) and outbox.put(Cancel(COPY))
    assert outbox.small_messages == 4 and not outbox.put(other) and not outbox.put(Cancel(COPY)), "within a bound"
    assert outbox.take_frame() is not None and len(outbox) == 0


async def test_the_rule_of_the_caller_is_not_asked_after_the_race(autojump_clock: MockClock) -> None:
    asked: list[Any] = []

    def content(value: Any) -> bool:
        asked.append(value)
        return bool("text" in value)

    cluster = LocalCluster(stream_service(), replicas=1)
    script = [["item", {"role": 1}], ["item", {"text": "a"}], ["item", 3], ["item", None]]
    async with cluster as client:
        async with client.stream("play", script, content=content) as stream:
            assert await taken(stream) == [{"role": 1}, {"text": "a"}, 3, None]
        assert asked == [{"role": 1}, {"text": "a"}]


# ---- ends while a stream is paused -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deadline", "leave", "cut", "drain"])
async def test_a_paused_stream_can_be_ended(autojump_clock: MockClock, how: str) -> None:
    """The producer waits for credit that never comes: whatever ends the stream ends it, and frees the slot."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=1, slots=1, client_limits=WINDOW)
    async with cluster as client, cluster.client(name="other") as other:
        async with other.stream("play", [["items", 1000, 0.0]], timeout=2.0) as stream:
            await trio.sleep(0.5)
            (run,) = plays.runs
            assert len(run.yielded) in (4, 5) and run.end == "cancelled" and run.ended is None
            if how == "deadline":
                await trio.sleep(2.0)
                with pytest.raises(tiedreq.DeadlineExceeded, match="after 0 items"):
                    await stream.__anext__()
            elif how == "cut":
                cluster.network.cut("other", "r0")
                with pytest.raises(tiedreq.StreamInterrupted, match="after 4 items"):
                    await taken(stream)
            elif how == "drain":
                cluster.handles["r0"].drain()
                await trio.sleep(0.5)
                assert len(await taken(stream)) == 1000
        if how == "drain":
            await until(lambda: not cluster.running("r0"))
            return
        await until(lambda: run.ended is not None, patience=5.0)
        assert run.end == "cancelled"
        assert await client.call("echo", 1) == 1
        await assert_idle(cluster, client)


# ---- handlers that will not stop ---------------------------------------------------------------------------------


def stubborn() -> tiedreq.Service:
    service = tiedreq.Service("stubborn")

    @service.stream(idempotent=True)
    async def swallows(ctx: tiedreq.Context, args: Any) -> Any:
        number = 0
        while True:
            with suppress(trio.Cancelled):
                await trio.sleep(0.01)
            yield number
            number += 1

    @service.stream(idempotent=True)
    async def yields_in_finally(ctx: tiedreq.Context, args: Any) -> Any:
        try:
            yield 0
            await trio.sleep(100)
        finally:
            yield "once more"

    @service.stream(idempotent=True)
    def yields_when_closed(ctx: tiedreq.Context, args: Any) -> Iterator[Any]:
        try:
            while True:
                yield 0
        finally:
            yield "once more"

    @service.stream(idempotent=True)
    async def has_a_scope(ctx: tiedreq.Context, args: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            yield 0
            await trio.sleep(100)

    @service.method(idempotent=True)
    async def ping(ctx: tiedreq.Context, args: Any) -> Any:
        return args

    return service


@pytest.mark.parametrize("method", ["swallows", "yields_in_finally", "has_a_scope"])
async def test_handlers_that_resist(autojump_clock: MockClock, method: str) -> None:
    """They end at their next step, by a leaving caller and by the deadline; the only slot is free again."""
    cluster = LocalCluster(stubborn(), replicas=1, slots=1)
    async with cluster as client:
        for timeout in (5.0, 0.5):
            async with client.stream(method, timeout=timeout) as stream:
                assert await stream.__anext__() == 0
                if timeout < 1:
                    with pytest.raises(tiedreq.DeadlineExceeded):
                        await taken(stream)
            assert await client.call("ping", 1, timeout=2.0) == 1
            await assert_idle(cluster, client)


async def test_a_generator_in_a_thread_that_resists() -> None:
    cluster = LocalCluster(stubborn(), replicas=1, slots=1)
    async with cluster as client:
        async with client.stream("yields_when_closed", timeout=20.0) as stream:
            assert await stream.__anext__() == 0
        assert await client.call("ping", 1, timeout=20.0) == 1
        await assert_idle(cluster, client)


# ---- streams in handlers -----------------------------------------------------------------------------------------


async def test_a_stream_inside_a_handler(autojump_clock: MockClock) -> None:
    """It goes plainly, one layer races, and has no more time than the handler; the end of one is the end of both."""
    inner, outer, kinds = Plays(), tiedreq.Service("outer"), []

    async with LocalCluster(stream_service(inner), replicas=2, policy=KEEPS_BOTH) as below:

        @outer.stream(idempotent=True)
        async def relay(ctx: tiedreq.Context, args: Any) -> Any:
            async with below.stream("play", args, timeout=60.0) as stream:
                kinds.append((stream.kind, len(stream.attempts)))
                async for value in stream:
                    yield value

        cluster = LocalCluster(outer, replicas=1)
        async with cluster as client:
            async with client.stream("relay", [["items", 20, 0.001]]) as stream:
                assert len(await taken(stream)) == 20
            assert kinds == [("first", 1)]
            began = trio.current_time()
            with pytest.raises(tiedreq.DeadlineExceeded):
                async with client.stream("relay", [["items", 1000, 0.01]], timeout=0.5) as stream:
                    await taken(stream)
            await until(lambda: inner.runs[-1].ended is not None)
            assert inner.runs[-1].ended == pytest.approx(began + 0.5, abs=0.02)
            async with client.stream("relay", [["items", 1000, 0.01]]) as stream:
                await stream.__anext__()
            await assert_idle(cluster, client)
            assert below.stats()["in_flight"] == 0 and inner.ends()[-2:] == ["cancelled", "cancelled"]


# ---- the books ---------------------------------------------------------------------------------------------------


async def test_outcomes_add_up(autojump_clock: MockClock) -> None:
    """Whatever becomes of streams: each is counted once, here and by outcome; nothing stays out at a replica."""
    cluster = LocalCluster(stream_service(), replicas=2)
    scripts: list[Any] = [
        [["item", 1]],
        [],
        [["item", None]],
        [["item", 1], ["fail", True]],
        [["fail", False]],
        [["fail", True]],
        [["item", 1], 9.0],
        [9.0],
        {"first": [0.1, ["item", 1]], "rank 0": [0.1, ["item", 1]], "else": []},
    ]
    async with cluster as client:
        for policy in (KEEPS_BOTH, HEDGED):
            for script in scripts:
                try:
                    async with client.stream("play", script, policy=policy, timeout=0.2) as stream:
                        await taken(stream)
                except tiedreq.CallError:
                    pass
            async with client.stream("play", [["items", 9, 0.01]], policy=policy) as stream:
                await stream.__anext__()
        await assert_idle(cluster, client)
        stats = client.stats()
        assert client.observer is not None
        rows = client.observer.snapshot()["methods"]
        ended = stats["answered"] + stats["failed"] + stats["cancelled"]
        assert stats["calls"] == ended == sum(sum(row["outcomes"].values()) for row in rows) == 2 * (len(scripts) + 1)
        assert [view["outstanding"] for view in stats["replicas"].values()] == [0, 0]


async def test_wasted_items_are_shown(autojump_clock: MockClock) -> None:
    """B34: items that a loser sent, and one that it yielded too late; in the status, the snapshot and the metrics."""
    cluster = LocalCluster(stream_service(), replicas=2)
    script = {"rank 0": [["item", None]] * 7 + [9.0], "rank 1": [0.05, ["items", 5, 0.01]]}
    async with cluster as client:
        async with client.tied_stream("play", script, policy=KEEPS_BOTH) as stream:
            assert len(await taken(stream)) == 5
            winner = stream.replica
        await assert_idle(cluster, client)
        for name, handle in cluster.handles.items():
            expected = (5, 0) if name == winner else (7, 7)
            status, picture = handle.status(), handle.snapshot()
            assert (status["items"], status["items_wasted"]) == expected
            assert picture is not None
            assert (picture["counters"]["items"], picture["counters"]["items_wasted"]) == expected
            observer = handle._server.observer
            assert observer is not None
            page = metrics.exposition(observer)("")[0].decode()
            found = {
                sample.name: sample.value for each in text_string_to_metric_families(page) for sample in each.samples
            }
            shown = found["tiedreq_replica_items_total"], found["tiedreq_replica_items_wasted_total"]
            assert shown == expected


async def test_what_a_stopped_handler_still_yields_is_counted(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stubborn(), replicas=1, slots=1)
    async with cluster as client:
        async with client.stream("swallows") as stream:
            assert await stream.__anext__() == 0
        await assert_idle(cluster, client)
        status = cluster.handles["r0"].status()
        assert (status["items"], status["items_wasted"]) == (1, 2)


# ---- who holds what ----------------------------------------------------------------------------------------------


async def test_nothing_is_kept_of_a_copy_that_was_given_up(autojump_clock: MockClock) -> None:
    """Its last preamble, which was too much, may have been large."""
    cluster = LocalCluster(stream_service(), replicas=2)
    script = {"rank 0": [["item", {"head": bytes(2 << 20)}], 9.0], "rank 1": [1.0, ["item", {"text": "x"}]]}
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            got: list[Any] = []

            async def use() -> None:
                options = {"policy": KEEPS_BOTH, "content": lambda item: "text" in item}
                async with client.tied_stream("play", script, **options) as stream:
                    got.extend(await taken(stream))

            nursery.start_soon(use)
            await trio.sleep(0.5)
            (call,) = client._calls.values()
            assert isinstance(call, OpenStream)
            assert not call.core.copies[copy_at(client, 0)].alive and not call._kept
        assert got == [{"text": "x"}]
        await assert_idle(cluster, client)


async def test_results_of_copies_that_were_never_sent_are_not_kept(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["item", 1], 0.1]) as stream:
            (call,) = client._calls.values()
            (copy,) = call.core.copies
            link = client._links[call.core.copies[copy].link]
            before = dict(call.answers)
            link._hand_on([Result(copy._replace(round=n), encode_payload(n), 1.0, 1.0, None) for n in range(1, 99)])
            assert call.answers == before and link.up
            assert await taken(stream) == [1]
        await assert_idle(cluster, client)


@pytest.mark.parametrize("policy", [tiedreq.Auto(), KEEPS_BOTH, HEDGED], ids=["auto", "tied", "hedged"])
async def test_a_stream_that_may_not_run_twice(autojump_clock: MockClock, policy: tiedreq.Policy) -> None:
    """One copy, whatever the client's own policy is; once it may have run nothing is sent again."""
    plays = Plays()
    cluster = LocalCluster(stream_service(plays), replicas=3, policy=policy)
    async with cluster as client:
        async with client.stream("once", [0.5, ["item", 1]]) as stream:
            assert await taken(stream) == [1] and len(stream.attempts) == 1
        with pytest.raises(tiedreq.RemoteFailure):
            async with client.stream("once", [["item", None], ["fail", True]]):
                pass
        assert len(plays.runs) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lose, cluster, plays)
            with pytest.raises(tiedreq.OutcomeUnknown):
                async with client.stream("once", [["item", None], 9.0], timeout=5.0):
                    pass
        assert len(plays.runs) == 3
        await assert_idle(cluster, client)


async def _lose(cluster: LocalCluster, plays: Plays) -> None:
    await trio.sleep(0.1)
    cluster.stop(plays.runs[-1].replica)


async def test_closed_by_another_task(autojump_clock: MockClock) -> None:
    """Who waits for the next item hears at once that the stream is closed."""
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["item", 1], 9.0]) as stream, trio.open_nursery() as nursery:
            assert await stream.__anext__() == 1

            async def close() -> None:
                await trio.sleep(0.1)
                stream.close()

            nursery.start_soon(close)
            with pytest.raises(tiedreq.UsageError, match="not open"):
                await stream.__anext__()
            assert client.stats()["in_flight"] == 0
        await assert_idle(cluster, client)


async def test_useful_seconds_are_those_of_the_whole_stream(autojump_clock: MockClock) -> None:
    """The race is measured by the first content, the work by all of it."""
    cluster = LocalCluster(stream_service(), replicas=1)
    async with cluster as client:
        async with client.stream("play", [["items", 10, 0.1]]) as stream:
            await taken(stream)
        assert stream.service_time == pytest.approx(0.1)
        assert client.observer is not None
        (row,) = client.observer.snapshot()["methods"]
        assert (row["useful_seconds"], row["wasted_seconds"]) == (pytest.approx(1.0), 0.0)
