"""One budget of time for a whole call, wherever its copies are: B27, B28, B29."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather
from tests.net.raw import raw_link, seat
from tiedreq import Backup, DeadlineExceeded, Failure, Hedged, Plain, Policy, Tied
from tiedreq.core.messages import Ended
from tiedreq.core.types import CopyState
from tiedreq.testing import LocalCluster

AT_ONCE = Tied(backup=None, stagger=0.0)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_the_wall_clock_is_nobodys_business(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """B27: it steps in the middle of calls, and at replicas only; deadlines are remaining time on a monotonic clock."""
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall)
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def call(policy: Policy, seconds: float) -> None:
                found.extend(await gather(partial(client.call, "work", seconds, policy=policy, timeout=2.0)))

            for policy in (Plain(), Tied(backup=None), AT_ONCE):
                nursery.start_soon(call, policy, 1.0)
                nursery.start_soon(call, policy, 5.0)
            await trio.sleep(0.5)
            monkeypatch.setattr(time, "time", lambda: wall + step)
        assert sorted(type(each).__name__ for each in found) == ["DeadlineExceeded"] * 3 + ["str"] * 3
        await assert_idle(cluster, client)


@pytest.mark.parametrize("policy", [Plain(), AT_ONCE, Tied(backup=None)], ids=repr)
async def test_expired_work_does_not_run(autojump_clock: MockClock, policy: Policy) -> None:
    """B28: one slot, 100 ms of work, 200 calls with 500 ms each: what is answered is nearly all that could be."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1, mesh_latency=0.0005)
    async with cluster as client:
        calls = [partial(client.call, "work", 0.1, policy=policy, timeout=0.5)] * 200
        found = await gather(*calls)
        answered = [each for each in found if isinstance(each, str)]
        assert {type(each) for each in found} == {str, DeadlineExceeded}
        assert len(answered) >= 8, "of 10 that two slots can do in 500 ms"
        await assert_idle(cluster, client)
        late = [run for run in journal.runs if run.began > 0.5 + min(run.began for run in journal.runs)]
        assert not late
        expired = sum(handle.status()["expired"] for handle in cluster.handles.values())
        cancelled = sum(handle.status()["cancelled"] for handle in cluster.handles.values())
        dropped = sum(handle.status()["dropped_by_peer"] for handle in cluster.handles.values())
        assert expired + cancelled + dropped > 150


async def test_abandoned_work_does_not_run(autojump_clock: MockClock) -> None:
    """B28: clients that go away while their calls are queued."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            async with cluster.client(name="second") as second:
                for _ in range(100):
                    nursery.start_soon(gather, partial(second.tied_call, "work", 0.1, policy=AT_ONCE, timeout=60))
                await trio.sleep(0.25)
            gone = trio.current_time()
        await trio.sleep(1)
        assert not journal.running
        assert all(run.began <= gone for run in journal.runs) and len(journal) < 15
        await assert_idle(cluster, client)


async def test_a_replica_ends_expired_copies_by_itself(autojump_clock: MockClock) -> None:
    """Nobody cancels here: a queued copy and a running one end at their time, in that order of a crowded queue."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=1, slots=1)
    async with cluster as client:
        async with raw_link(seat(cluster), cluster.urls["r0"]) as raw:
            raw.send(*[raw.submit(number, args=50.0, remaining=1.0 + number / 10) for number in range(10)])
            await trio.sleep(0.95)
            assert not raw.of(Ended)
            await trio.sleep(1.1)
            ends = raw.of(Ended)
            assert [message.copy.number for message in ends] == list(range(10))
            assert {message.state for message in ends} == {CopyState.EXPIRED}
            assert len(journal) == 10, "each started when the one before it had ended, and was stopped at its time"
        await assert_idle(cluster, client)


async def test_the_budget_covers_all_attempts(autojump_clock: MockClock) -> None:
    """B29: a deadline of 1 s and attempts of 400 ms that fail: five would take 2 s."""
    service = bench_service()
    attempts: list[float] = []

    @service.method(idempotent=True)
    async def fail(ctx: tiedreq.Context, args: Any) -> None:
        attempts.append(ctx.remaining())
        await trio.sleep(0.4)
        raise Failure("busy", "", retryable=True)

    cluster = LocalCluster(service, replicas=3)
    async with cluster as client:
        before = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await client.call("fail", timeout=1.0)
        assert trio.current_time() - before == pytest.approx(1.0)
        assert attempts == pytest.approx([1.0, 0.6, 0.2], abs=0.01), "later copies know that less is left"
        await assert_idle(cluster, client)


async def test_a_call_without_time_says_so(autojump_clock: MockClock) -> None:
    """And not that no replica was there."""
    async with LocalCluster(bench_service(), replicas=2) as client:
        with pytest.raises(DeadlineExceeded, match=r"its time was over when it was made"):
            await client.call("work", 1, timeout=0.0)
        assert client.stats()["copies_sent"] == 0


async def test_a_hedge_delay_beyond_the_deadline(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        for policy in (
            Hedged(Backup(after=5, since="send")),
            Tied(backup=None, stagger=5.0),
            Tied(backup=None, stagger=5.0, exclusive=True),
        ):
            before = trio.current_time()
            with pytest.raises(DeadlineExceeded):
                await client.call("work", 60, policy=policy, timeout=1.0)
            assert trio.current_time() - before == pytest.approx(1.0)
        assert client.stats()["copies_sent"] == 3
        await assert_idle(cluster, client)


async def test_waiting_for_a_link_eats_the_budget(autojump_clock: MockClock) -> None:
    """B29: the time until a replica can be reached counts, and the copy that then leaves knows what is left."""
    remaining: list[float] = []
    service = bench_service()

    @service.method(idempotent=True)
    async def look(ctx: tiedreq.Context, args: Any) -> None:
        remaining.append(ctx.remaining())

    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        cluster.stop("r0")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.call, "look", timeout=10.0))
            await trio.sleep(4.0)
            await cluster.start("r0")
        assert len(remaining) == 1 and 3.0 < remaining[0] < 6.0


async def test_latency_of_the_link_is_not_given_to_the_replica(autojump_clock: MockClock) -> None:
    """Remaining time is counted anew on arrival, so a copy outlives its call by the latency: the caller ends it."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, client_latency=0.2)
    async with cluster as client:
        with pytest.raises(DeadlineExceeded):
            await client.call("work", 60, timeout=1.0)
        await trio.sleep(0.201)
        assert journal.ends() == ["cancelled"]
        await assert_idle(cluster, client)


async def test_the_partner_of_an_expired_copy_knows_too(autojump_clock: MockClock) -> None:
    """Both copies of a tie carry the same time; when it is over neither starts."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(partial(client.call, "work", 3.0))
                await trio.sleep(0.01)
            with pytest.raises(DeadlineExceeded):
                await client.tied_call("work", 0.1, policy=AT_ONCE, timeout=1.0)
            assert all(handle.sizes()["queue"] == 0 for handle in cluster.handles.values())
        assert len(journal) == 2
        await assert_idle(cluster, client)


async def test_very_short_and_very_long_times(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2, client_latency=0.001)
    async with cluster as client:
        for policy in (Plain(), Tied(backup=None), AT_ONCE, Hedged(Backup(after=0.001, since="send"))):
            for timeout in (1e-9, 1e-6, 0.0005, 0.001, 0.002):
                with pytest.raises(DeadlineExceeded):
                    await client.call("work", 1, policy=policy, timeout=timeout)
            assert await client.call("work", 0.001, policy=policy, timeout=86_400) in cluster.names
        await assert_idle(cluster, client)
