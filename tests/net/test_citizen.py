"""A call is an ordinary Trio operation: cancelled and timed out by its caller's scopes, as anything else is."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, no_task_left
from tiedreq import Backup, DeadlineExceeded, Hedged, Plain, Policy, Tied
from tiedreq.testing import LocalCluster

POLICIES: dict[str, Policy] = {
    "plain": Plain(),
    "tied": Tied(backup=None),
    "tied at once": Tied(backup=None, stagger=0.0),
    "tied with backup": Tied(backup=Backup(after=0.1)),
    "hedged": Hedged(Backup(after=0.1, since="send")),
}
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@policies
async def test_cancelling_the_caller_stops_every_handler_within_one_message(
    autojump_clock: MockClock, policy: Policy
) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, client_latency=0.02, mesh_latency=0.5)
    async with cluster as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.call("work", 60, policy=policy))
                await trio.sleep(0.3)
                assert journal.running
                scope.cancel()
        at = trio.current_time()
        assert scope.cancelled_caught
        assert client.stats()["in_flight"] == 0, "the call is over at once, whatever becomes of its copies"
        await trio.sleep(0.021)
        assert not journal.running
        assert all(run.ended == pytest.approx(at + 0.02) for run in journal.runs if run.rank != 1)
        await assert_idle(cluster, client)


@policies
async def test_a_surrounding_deadline_reaches_the_handler_and_stays_the_callers(
    autojump_clock: MockClock, policy: Policy
) -> None:
    seen: list[float] = []

    async def handler(ctx: tiedreq.Context, args: Any) -> None:
        seen.append(trio.current_effective_deadline())
        seen.append(trio.current_time() + ctx.remaining())
        await trio.sleep_forever()

    service = bench_service()
    service.method(idempotent=True)(handler)
    cluster = LocalCluster(service, replicas=3)
    async with cluster as client:
        deadline = trio.current_time() + 1.25
        with pytest.raises(trio.TooSlowError):
            with trio.fail_at(deadline):
                await client.call("handler", policy=policy, timeout=30)
        assert trio.current_time() == pytest.approx(deadline)
        assert seen and seen == pytest.approx([deadline] * len(seen), abs=1e-3)
        await assert_idle(cluster, client)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1 / 3, 1e-3, 1e-9, 2.0000001])
@pytest.mark.parametrize("start", [0.0, 0.1, 1 / 3, 1e6 + 0.1])
async def test_who_set_the_deadline_decides_the_error(autojump_clock: MockClock, start: float, seconds: float) -> None:
    """Whatever the floats: a scope's deadline comes out as the scope's, the call's own as the call's."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        autojump_clock.jump(start)
        for _ in range(5):
            with trio.move_on_after(seconds) as scope:
                await client.tied_call("work", 60)
            assert scope.cancelled_caught
            with pytest.raises(DeadlineExceeded):
                await client.tied_call("work", 60, timeout=seconds)
            with pytest.raises(DeadlineExceeded):
                with trio.fail_after(2 * seconds):
                    await client.tied_call("work", 60, timeout=seconds)
        await assert_idle(cluster, client)


@pytest.mark.parametrize("seed", range(3))
async def test_a_scope_whose_deadline_is_no_sum_of_floats(autojump_clock: MockClock, seed: int) -> None:
    """Time left, added to now, need not give the deadline again: the call must not end a hair's breadth before it."""
    rng = random.Random(seed)
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        now = deadline = 0.0
        while now + (deadline - now) >= deadline:
            await trio.sleep(rng.random() * 1e-3)
            now, deadline = trio.current_time(), 2 + 2 * rng.random()
        with trio.move_on_at(deadline) as scope:
            await client.tied_call("work", 60)
        assert scope.cancelled_caught


async def test_timeout_is_a_timeout_error_that_tells_the_story(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        with pytest.raises(TimeoutError) as caught:
            await client.tied_call("work", 60, timeout=0.5)
        error = caught.value
        assert type(error) is DeadlineExceeded
        assert error.call_id in str(error) and "'work'" in str(error) and "0.5 s" in str(error)
        assert [attempt.end for attempt in error.attempts] == [None]
        assert error.attempts[0].started is not None


async def test_the_clients_own_timeout_holds_when_none_is_given(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2, timeout=1.5)
    async with cluster as client:
        before = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await client.call("work", 60)
        assert trio.current_time() == pytest.approx(before + 1.5)


async def test_the_methods_limit_holds_over_any_timeout(autojump_clock: MockClock) -> None:
    service = tiedreq.Service("s")

    @service.method(idempotent=True, timeout_max=0.5)
    async def short(ctx: tiedreq.Context, args: Any) -> None:
        await trio.sleep_forever()

    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        before = trio.current_time()
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
            await client.tied_call("short", timeout=60)
        assert trio.current_time() == pytest.approx(before + 0.5)
        await assert_idle(cluster, client)


@pytest.mark.parametrize("timeout", [-1, -1e-9, float("inf"), float("nan"), "1", True, 1e9])
async def test_no_such_timeout(autojump_clock: MockClock, timeout: Any) -> None:
    cluster = LocalCluster(bench_service(), replicas=1)
    async with cluster as client:
        with pytest.raises(tiedreq.BadOption, match="timeout"):
            await client.call("work", timeout=timeout)
        assert client.stats()["calls"] == 0


async def test_expired_on_entry_sends_nothing(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client:
        with pytest.raises(DeadlineExceeded):
            await client.tied_call("work", timeout=0)
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(0):
                await client.tied_call("work")
        with trio.move_on_at(trio.current_time() - 5) as scope:
            await client.tied_call("work")
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.tied_call("work")
        assert scope.cancelled_caught
        await assert_idle(cluster, client)
        assert client.stats()["copies_sent"] == len(journal) == 0


async def test_a_scope_that_expired_unseen_stays_the_callers(autojump_clock: MockClock) -> None:
    """Time has passed without a checkpoint: Trio does not know yet that the scope is over; no call may tell."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        with trio.move_on_after(1) as scope:
            autojump_clock.jump(2)
            await client.tied_call("work")
        assert scope.cancelled_caught
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(1):
                autojump_clock.jump(1)
                await client.call("work", timeout=5)
        await assert_idle(cluster, client)
        assert client.stats()["copies_sent"] == 0


async def test_bad_options_of_a_cancelled_caller(autojump_clock: MockClock) -> None:
    """A cancelled caller is cancelled, not told off."""
    cluster = LocalCluster(bench_service(), replicas=1)
    async with cluster as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.call("no such method")
        assert scope.cancelled_caught


async def test_no_backup_is_armed_past_the_deadline(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=3)
    async with cluster as client:
        for policy in (Hedged(Backup(after=2, since="send")), Tied(backup=Backup(after=2))):
            with pytest.raises(DeadlineExceeded):
                await client.call("work", 60, policy=policy, timeout=1)
        await assert_idle(cluster, client)
        assert client.stats()["backups_sent"] == 0


@pytest.mark.parametrize("own", [True, False], ids=["own timeout", "scope"])
async def test_cancel_and_expiry_in_the_same_tick(autojump_clock: MockClock, own: bool) -> None:
    """Either may win; nothing else comes out, and nothing is left."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client:
        for _ in range(20):
            at = trio.current_time() + 0.25
            expired = False
            with trio.CancelScope(deadline=at) as outer:
                try:
                    with trio.move_on_at(100 if own else at):
                        await client.tied_call("work", 60, timeout=0.25 if own else 60)
                except DeadlineExceeded:
                    expired = True
            assert expired <= own
            assert expired or outer.cancel_called
        await assert_idle(cluster, client)
        assert not journal.running


async def test_an_answer_that_arrives_with_the_deadline(autojump_clock: MockClock) -> None:
    """Answer, expiry and cancel at one instant: one of the three comes out."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        for _ in range(30):
            outcome = "cancelled"
            with trio.move_on_after(0.5):
                try:
                    outcome = await client.tied_call("work", 0.5, timeout=0.5)
                except DeadlineExceeded:
                    outcome = "expired"
            assert outcome in ("cancelled", "expired", "r0", "r1")
        await assert_idle(cluster, client)


async def test_a_cancel_after_the_outcome_does_not_lose_it(autojump_clock: MockClock) -> None:
    """The call has ended when the scope is cancelled in the same pass: a value or the cancel, and the sums hold."""
    cluster = LocalCluster(bench_service(), replicas=2)
    values: list[str] = []
    async with cluster as client:

        async def call() -> None:
            values.append(await client.tied_call("work", 0.5))

        for number in range(30):
            came = len(values)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.sleep(0.5 if number < 20 else 0.5 + (number - 25) * 1e-9)
                    scope.cancel()
            assert scope.cancelled_caught == (len(values) == came), "a value or the cancel"
        await assert_idle(cluster, client)
        stats = client.stats()
        assert (stats["calls"], stats["failed"], stats["answered"] + stats["cancelled"]) == (30, 0, 30)
        assert 0 < len(values) <= stats["answered"] and stats["cancelled"] > 0


async def test_a_scope_whose_deadline_moves(autojump_clock: MockClock) -> None:
    """The deadline on the wire is the one of the moment of the call; the scope's own, moved, still counts."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        with trio.CancelScope(deadline=trio.current_time() + 5) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.tied_call, "work", 60)
                await trio.sleep(0.5)
                scope.deadline = trio.current_time() + 0.5
        assert scope.cancelled_caught
        with pytest.raises(DeadlineExceeded), trio.CancelScope(deadline=trio.current_time() + 1) as scope:

            async def extend() -> None:
                await trio.sleep(0.5)
                scope.deadline += 60

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(extend)
                    await client.tied_call("work", 60)
            except* DeadlineExceeded as group:
                raise group.exceptions[0] from None
        await assert_idle(cluster, client)


async def test_calls_of_a_shielded_clean_up(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        with trio.move_on_after(0.1):
            try:
                await client.tied_call("work", 60)
            finally:
                with trio.CancelScope(shield=True):
                    assert await client.tied_call("work", 0.5) in cluster.names
        await assert_idle(cluster, client)


async def test_a_call_is_a_checkpoint(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=1)
    async with cluster as client:
        turns: list[int] = []

        async def count() -> None:
            while True:
                turns.append(1)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await client.call("work")
            assert len(turns) > 1
            nursery.cancel_scope.cancel()


async def test_the_losing_copy_is_never_seen_by_its_caller(autojump_clock: MockClock) -> None:
    """One copy wins while the other still runs (its cancel takes a while): the caller goes on with a clean scope."""
    journal = Journal()
    service = bench_service(journal)
    cluster = LocalCluster(service, replicas=2, client_latency=0.05, mesh_latency=5.0)
    async with cluster as client:
        for _ in range(20):
            with trio.CancelScope() as scope:
                await client.tied_call("work", {"r0": 0.2, "r1": 0.3}, policy=Tied(backup=None, stagger=0.0))
                await trio.sleep(0.2)
            assert not scope.cancelled_caught
        await assert_idle(cluster, client)
        assert set(journal.ends()) == {"returned", "cancelled"}


async def test_no_task_of_a_call_is_left(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=3, mesh_latency=0.01)
    async with cluster as client, no_task_left():
        for policy in POLICIES.values():
            await client.call("work", 0.2, policy=policy)
            with trio.move_on_after(0.1):
                await client.call("work", 60, policy=policy)
            with pytest.raises(DeadlineExceeded):
                await client.call("work", 60, policy=policy, timeout=0.1)
        await assert_idle(cluster, client)
    async with no_task_left():
        cluster = LocalCluster(bench_service(), replicas=3)
        async with cluster as client:
            await gather(*[lambda: client.tied_call("work", 0.1)] * 20)
