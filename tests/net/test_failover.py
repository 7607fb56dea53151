"""Which answer wins, what is tried next, and which error is told when nothing is left to try."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, left_in, no_task_left
from tests.net.raw import raw_link, seat
from tiedreq import (
    Backup,
    ClientLimits,
    Failure,
    Hedged,
    OutcomeUnknown,
    Overloaded,
    Plain,
    Policy,
    RemoteFailure,
    ReplicaLimits,
    Tied,
    Unavailable,
)
from tiedreq.testing import LocalCluster

AT_ONCE = Tied(backup=None, stagger=0.0)
HEDGED = Hedged(Backup(after=0.01, since="send"))


class Scripted:
    """A service whose replicas do what a script says: after so many seconds return a value or raise."""

    def __init__(self, **script: tuple[float, Any]) -> None:
        self.script = script
        self.runs: list[str] = []
        self.service = bench_service()
        self.service.method("act", idempotent=True)(self.act)
        self.service.method("act_once")(self.act)

    async def act(self, ctx: tiedreq.Context, args: Any) -> Any:
        self.runs.append(ctx.replica)
        seconds, what = self.script.get(ctx.replica) or self.script["other"]
        await trio.sleep(seconds)
        if isinstance(what, Exception):
            raise what
        return what


BUSY = Failure("busy", "come back later", retryable=True)
WRONG = Failure("bad_argument", "no such thing")


@pytest.mark.parametrize("policy", [AT_ONCE, HEDGED, Tied(backup=None, stagger=0.0, yield_=False)], ids=repr)
async def test_a_retryable_failure_does_not_end_the_race(autojump_clock: MockClock, policy: Policy) -> None:
    """B09: one fails at once, the other answers later."""
    acts = Scripted(r0=(0.001, BUSY), r1=(0.05, "answer"))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        for _ in range(10):
            reply = await client.request("act", policy=policy)
            assert (reply.value, reply.replica) == ("answer", "r1")
        assert client.stats()["failed"] == 0
        await assert_idle(cluster, client)


async def test_an_application_error_does(autojump_clock: MockClock) -> None:
    acts = Scripted(r0=(0.001, WRONG), r1=(0.05, "answer"))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        before = trio.current_time()
        with pytest.raises(RemoteFailure) as caught:
            await client.tied_call("act", policy=AT_ONCE)
        assert caught.value.code == "bad_argument" and trio.current_time() - before < 0.01
        assert sorted(attempt.replica for attempt in caught.value.attempts) == ["r0", "r1"]
        assert client.stats()["failovers"] == 0
        await assert_idle(cluster, client)


async def test_both_fail_for_good_with_different_errors(autojump_clock: MockClock) -> None:
    """The first to arrive is told."""
    acts = Scripted(r0=(0.02, Failure("late", "")), r1=(0.01, Failure("early", "")))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        for _ in range(5):
            with pytest.raises(RemoteFailure) as caught:
                await client.tied_call("act", policy=AT_ONCE)
            assert caught.value.code == "early"
        await assert_idle(cluster, client)


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None), AT_ONCE, HEDGED], ids=repr)
async def test_all_fail_retryably_the_first_failure_is_told(autojump_clock: MockClock, policy: Policy) -> None:
    acts = Scripted(other=(0.01, BUSY))
    cluster = LocalCluster(acts.service, replicas=3)
    async with cluster as client:
        with pytest.raises(RemoteFailure, match="come back later") as caught:
            await client.call("act", policy=policy)
        assert caught.value.code == "busy"
        assert {attempt.replica for attempt in caught.value.attempts} == {"r0", "r1", "r2"}, "each was tried"
        assert client.stats()["failovers"] == 4, "the rounds of one call are bounded"
        await assert_idle(cluster, client)


async def test_rounds_have_a_limit(autojump_clock: MockClock) -> None:
    acts = Scripted(other=(0.01, BUSY))
    cluster = LocalCluster(acts.service, replicas=3, client_limits=ClientLimits(rounds_max=1))
    async with cluster as client:
        with pytest.raises(RemoteFailure):
            await client.call("act")
        assert len(acts.runs) == 1


@asynccontextmanager
async def full(cluster: LocalCluster, name: str) -> AsyncIterator[None]:
    """A cluster with one slot and room for one in each queue: this replica's are taken by somebody else."""
    async with raw_link(seat(cluster, "hog"), cluster.urls[name]) as hog:
        for number in (1, 2):
            hog.send(hog.submit(number, args=1000.0, remaining=1000.0))
            await trio.sleep(0.01)
        yield


ONE_EACH: dict[str, Any] = {"replicas": 2, "slots": 1, "limits": ReplicaLimits(queue_length_max=1)}


async def test_a_failure_is_told_before_a_refusal(autojump_clock: MockClock) -> None:
    acts = Scripted(other=(0.01, BUSY))
    cluster = LocalCluster(acts.service, **ONE_EACH)
    async with cluster as client, full(cluster, "r1"):
        for _ in range(2):
            with pytest.raises(RemoteFailure) as caught:
                await client.call("act", policy=Plain())
            assert {attempt.end for attempt in caught.value.attempts} == {"failed", "refused: full"}


async def test_a_refusal_is_told_before_a_loss(autojump_clock: MockClock) -> None:
    acts = Scripted(other=(60, None))
    cluster = LocalCluster(acts.service, **ONE_EACH)

    async def cutting() -> None:
        while True:
            await trio.sleep(0.2)
            cluster.network.cut("client", "r0")

    async with cluster as client, full(cluster, "r1"), trio.open_nursery() as nursery:
        nursery.start_soon(cutting)
        with pytest.raises(Overloaded) as caught:
            await client.call("act")
        assert {attempt.end for attempt in caught.value.attempts} == {"lost: link lost", "refused: full"}
        nursery.cancel_scope.cancel()


async def test_every_replica_is_full(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(queue_length_max=1)
    cluster = LocalCluster(bench_service(), replicas=2, slots=1, limits=limits)
    async with cluster as client, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(partial(client.call, "work", 5.0, policy=Plain()))
            await trio.sleep(0.1)
        for policy in (Plain(), Tied(backup=None), AT_ONCE):
            with pytest.raises(Overloaded, match="every replica asked refused") as caught:
                await client.call("work", policy=policy)
            assert 0 < caught.value.retry_after <= 5 and "come back in" in str(caught.value)
            assert {attempt.end for attempt in caught.value.attempts} == {"refused: full"}


async def test_a_refusal_costs_a_tied_call_nothing(autojump_clock: MockClock) -> None:
    """Copy 0 refused before copy 1 was sent: copy 1 goes at once, in the same round."""
    cluster = LocalCluster(bench_service(), **ONE_EACH)
    async with cluster as client, full(cluster, "r1"):
        found = [await client.request("work", policy=Tied(backup=None, stagger=5.0)) for _ in range(20)]
        assert {reply.replica for reply in found} == {"r0"}
        assert {reply.kind for reply in found} == {"first", "tie"}
        assert all(reply.latency < 0.1 for reply in found) and client.stats()["failovers"] == 0


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None), AT_ONCE, HEDGED], ids=repr)
async def test_a_replica_dies_with_the_call(autojump_clock: MockClock, policy: Policy) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            found: list[tiedreq.Reply] = []

            async def call() -> None:
                found.append(await client.request("work", 1.0, policy=policy))

            nursery.start_soon(call)
            await trio.sleep(0.5)
            victim = journal.running[0].replica
            cluster.stop(victim)
        assert found[0].replica != victim
        await trio.sleep(1)
        del cluster.handles[victim]
        await assert_idle(cluster, client)
        assert not journal.running


async def test_what_may_not_run_twice_is_not_tried_again(autojump_clock: MockClock) -> None:
    """B10: lost while it had the call: it may or may not have run. Nobody else is asked."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def call() -> None:
                found.extend(await gather(partial(client.call, "once", 1.0)))

            nursery.start_soon(call)
            await trio.sleep(0.5)
            cluster.stop(journal.runs[0].replica)
        assert type(found[0]) is OutcomeUnknown and "may or may not have run" in str(found[0])
        assert len(journal) == 1
        await trio.sleep(1)


async def test_what_may_not_run_twice_moves_on_after_a_refusal(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), **ONE_EACH)
    async with cluster as client, full(cluster, "r1"):
        for _ in range(20):
            assert await client.call("once") == "r0"
        assert client.stats()["failovers"] > 0
        assert [run.replica for run in journal.runs[1:]] == ["r0"] * 20


async def test_a_failure_of_what_may_not_run_twice_is_final(autojump_clock: MockClock) -> None:
    acts = Scripted(other=(0.01, BUSY))
    cluster = LocalCluster(acts.service, replicas=3)
    async with cluster as client:
        with pytest.raises(RemoteFailure):
            await client.call("act_once")
        assert len(acts.runs) == 1


async def test_no_replica_left(autojump_clock: MockClock) -> None:
    """None reachable: the call waits, and no round is spent; the first that comes back takes it."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        for name in cluster.names:
            cluster.stop(name)
        await trio.sleep(1)
        with pytest.raises(tiedreq.DeadlineExceeded, match="no copy was sent"):
            await client.tied_call("work", timeout=1)
        async with trio.open_nursery() as nursery:
            found: list[str] = []

            async def call() -> None:
                found.append(await client.tied_call("work", timeout=30))

            nursery.start_soon(call)
            await trio.sleep(5)
            assert not found
            await cluster.start("r1")
        assert found == ["r1"] and client.stats()["failovers"] == 0
        await cluster.start("r0")
        await trio.sleep(3)
        await assert_idle(cluster, client)


async def test_every_link_lost_again_and_again(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:

        async def cutting() -> None:
            while True:
                await trio.sleep(0.2)
                for name in cluster.names:
                    cluster.network.cut("client", name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cutting)
            with pytest.raises(Unavailable, match="were lost") as caught:
                await client.call("work", 10)
            assert isinstance(caught.value, ConnectionError) and len(caught.value.attempts) == 5
            nursery.cancel_scope.cancel()
        await trio.sleep(3)
        await assert_idle(cluster, client)


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None), AT_ONCE, HEDGED], ids=repr)
async def test_a_replica_falls_silent(autojump_clock: MockClock, policy: Policy) -> None:
    """As SIGSTOP does it: nothing arrives, nothing is closed. With deadlines of 2 s no call fails; it comes back."""
    cluster = LocalCluster(bench_service(), replicas=3, mesh_latency=0.001)
    async with cluster as client:
        others = ["client", "r1", "r2"]

        async def caller(found: list[Any]) -> None:
            for _ in range(20):
                found.extend(await gather(partial(client.call, "work", 0.02, policy=policy, timeout=2.0)))
                await trio.sleep(0.1)

        found: list[Any] = []
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(caller, found)
            await trio.sleep(0.51)
            cluster.network.partition(["r0"], others)
        assert len(found) == 100 and not [each for each in found if isinstance(each, Exception)]
        assert "r0" not in client.stats()["replicas"], "it was given up within the heartbeat time"
        cluster.network.heal()
        await trio.sleep(5)
        assert "r0" in client.stats()["replicas"]
        assert {await client.call("work") for _ in range(50)} == {"r0", "r1", "r2"}
        await assert_idle(cluster, client)


async def test_a_replica_restarts_under_the_same_name(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client:
        before = client.stats()["replicas"]["r0"]["incarnation"]
        for _ in range(3):
            cluster.stop("r0")
            await cluster.start("r0")
            found = await gather(*[partial(client.tied_call, "work", 0.01)] * 20)
            assert set(found) <= {"r0", "r1"}
            await trio.sleep(3)
        after = client.stats()["replicas"]["r0"]
        assert after["incarnation"] != before
        assert after["sent"] < 21, "what is known belongs to the connection"
        assert len(journal) == 60
        await assert_idle(cluster, client)


async def test_two_clients(autojump_clock: MockClock) -> None:
    """One goes away in the middle; the other's calls and notices are its own, though their numbers are the same."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1, mesh_latency=0.001)
    async with cluster as client, trio.open_nursery() as nursery:
        found: list[Any] = []
        async with cluster.client(name="second") as second:
            for _ in range(20):
                nursery.start_soon(gather, partial(second.tied_call, "work", 0.2, timeout=60))
            await trio.sleep(0.01)

            async def call() -> None:
                found.append(await client.tied_call("work", 0.2, timeout=60))

            for _ in range(20):
                nursery.start_soon(call)
            await trio.sleep(1)
        assert len(found) < 20
        await trio.sleep(10)
        assert len(found) == 20
        await assert_idle(cluster, client, second)
        assert not left_in(second) and journal.doubled == 0


async def test_a_client_is_closed_with_open_calls(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client:
        async with no_task_left(), trio.open_nursery() as nursery:
            found: list[Any] = []

            async def call(second: tiedreq.Client, policy: Policy) -> None:
                found.extend(await gather(partial(second.call, "work", 60, policy=policy, timeout=100)))

            async with cluster.client(name="second") as second:
                for policy in (Plain(), Tied(backup=None), AT_ONCE):
                    nursery.start_soon(call, second, policy)
                await trio.sleep(0.5)
                assert len(journal.running) == 3
            await trio.sleep(0.1)
            assert [type(each) for each in found] == [Unavailable] * 3
            assert all("closed" in str(each) for each in found)
            assert not journal.running
        await assert_idle(cluster, client, second)


async def test_one_replica_alone_gets_one_copy(autojump_clock: MockClock) -> None:
    """B19: nowhere to tie or to hedge to: one copy that runs to its deadline, never two at one replica."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=1)
    async with cluster as client:
        assert await client.tied_call("work", 0.005, policy=AT_ONCE) == "r0"
        policy = Hedged(Backup(after=0.002, since="send"))
        assert await client.hedged_call("work", 0.005, policy=policy, timeout=0.01) == "r0"
        assert len(journal) == 2 and client.stats()["backups_without_target"] > 0
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.hedged_call("work", 5, policy=policy, timeout=0.01)
        assert len(journal) == 3
        await assert_idle(cluster, client)


async def test_two_addresses_of_one_replica_are_one(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster:
        urls = [cluster.urls["r0"], "ws://r0:7001", "ws://r0:7002"]
        async with tiedreq.connect(urls, network=seat(cluster, "third")) as client:
            assert list(client.stats()["replicas"]) == ["r0"]
            for _ in range(5):
                await client.tied_call("work", 0.1, policy=AT_ONCE)
            assert len(journal) == 5 and {run.rank for run in journal.runs} == {None}
            # The link in use breaks: another one takes its place.
            cluster.network.cut("third", "r0")
            assert await client.call("work", timeout=5) == "r0"


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None), AT_ONCE, HEDGED], ids=repr)
async def test_accept_chooses_among_answers(autojump_clock: MockClock, policy: Policy) -> None:
    acts = Scripted(r0=(0.001, "stale"), r1=(0.05, "fresh"))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        for _ in range(5):
            assert await client.call("act", policy=policy, accept=lambda value: value == "fresh") == "fresh"
        with pytest.raises(RemoteFailure) as caught:
            await client.call("act", policy=policy, accept=lambda value: False)
        assert caught.value.code == "unacceptable"
        await assert_idle(cluster, client)


@pytest.mark.parametrize("error", [ValueError, tiedreq.RemoteFailure, trio.TooSlowError])
async def test_accept_raises(autojump_clock: MockClock, error: type[Exception]) -> None:
    """What it raises is the caller's, and the copies are cancelled."""
    acts = Scripted(r0=(0.001, "stale"), r1=(60, "fresh"))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    raised = error("of accept") if error is not RemoteFailure else RemoteFailure("of accept", code="x")

    def accept(value: Any) -> bool:
        raise raised

    async with cluster as client:
        with pytest.raises(error) as caught:
            await client.tied_call("act", policy=AT_ONCE, accept=accept)
        assert caught.value is raised
        await assert_idle(cluster, client)
        assert len({link.statistics.times_up for link in client._links.values()} - {1}) == 0
        assert await client.call("work") in cluster.names


async def test_a_late_loser_is_not_asked_of_accept(autojump_clock: MockClock) -> None:
    asked: list[Any] = []

    def accept(value: Any) -> bool:
        asked.append(value)
        return True

    acts = Scripted(r0=(0.1, "r0"), r1=(0.1, "r1"))
    cluster = LocalCluster(acts.service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        for _ in range(20):
            await client.tied_call("act", policy=AT_ONCE, accept=accept)
        assert len(asked) == 20
        await assert_idle(cluster, client)


async def test_every_copy_carries_the_same_key(autojump_clock: MockClock) -> None:
    """B10: handlers de-duplicate by it."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, mesh_latency=1.0)
    async with cluster as client:
        policy = Tied(stagger=0.0, yield_=False, backup=Backup(after=0.05))
        await client.tied_call("work", 0.2, policy=policy, key="order 7", metadata={"trace": "t1"})
        contexts = [run.context for run in journal.runs]
        assert len(contexts) >= 3
        assert {ctx.key for ctx in contexts} == {"order 7"}
        assert {ctx.call_id for ctx in contexts} == {contexts[0].call_id}
        assert {ctx.metadata["trace"] for ctx in contexts} == {"t1"}
        assert {(ctx.kind, ctx.rank) for ctx in contexts} == {("first", 0), ("tie", 1), ("backup", None)}
        await assert_idle(cluster, client)


async def test_push_back_keeps_backups_away(autojump_clock: MockClock) -> None:
    service = bench_service()

    @service.method(idempotent=True)
    async def full(ctx: tiedreq.Context, args: Any) -> None:
        ctx.pushback(30)

    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        while len([view for view in client._replicas.views() if view.pushback_until > 0]) < 2:
            await client.call("full")
            await client.call("work", 0.001)
        await client.hedged_call("work", 0.1, policy=HEDGED)
        assert client.stats()["backups_sent"] == 0 and client.stats()["backups_without_target"] > 0
        await trio.sleep(31)
        await client.hedged_call("work", 0.1, policy=HEDGED)
        assert client.stats()["backups_sent"] == 1
        await assert_idle(cluster, client)


STORIES: dict[str, tuple[Callable[[], Scripted], Policy, set[str | None]]] = {
    "done": (lambda: Scripted(other=(0.01, "answer")), Plain(), {"done"}),
    "yielded": (lambda: Scripted(other=(0.5, "answer")), AT_ONCE, {"done", "yielded: started"}),
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_reply_tells_its_story(autojump_clock: MockClock, story: str) -> None:
    make, policy, expected = STORIES[story]
    cluster = LocalCluster(make().service, replicas=2, mesh_latency=0.01)
    async with cluster as client:
        reply = await client.request("act", policy=policy)
        assert {attempt.end for attempt in reply.attempts} == expected
        (winner,) = [attempt for attempt in reply.attempts if attempt.end == "done"]
        assert winner.replica == reply.replica and winner.kind == reply.kind
        assert winner.started is not None and winner.ended is not None
        assert 0 <= winner.sent <= winner.started <= winner.ended <= reply.latency
        assert reply.service_time == pytest.approx(winner.ended - winner.started)
        assert reply.call_id.startswith(f"{client.nonce:016x}-")


async def test_a_pair_of_which_one_drains(autojump_clock: MockClock) -> None:
    """B19: the one that is left gets one copy, whatever the policy; nothing waits for the other."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "work", 1.0)
        nursery.start_soon(client.call, "work", 1.0)
        await trio.sleep(0.1)
        cluster.handles["r1"].drain()
        await trio.sleep(0.1)
        before = len(journal)
        reply = await client.request("work", 0.01, policy=AT_ONCE)
        assert reply.replica == "r0" and len(reply.attempts) == 1 and reply.latency < 0.05
        policy = Hedged(Backup(after=0.002, since="send"))
        assert await client.hedged_call("work", 0.01, policy=policy) == "r0"
        assert len(journal) == before + 2 and client.stats()["backups_without_target"] == 1


async def test_what_may_not_run_twice_is_sent_again_if_it_never_left(autojump_clock: MockClock) -> None:
    """Its link is lost while its Submit waits behind others, or has left in part: it certainly did not run."""
    service, ran = tiedreq.Service("s"), list[str]()

    @service.method()
    async def charge(ctx: tiedreq.Context, args: Any) -> str:
        ran.append(args[0])
        await trio.sleep(1.0)
        return str(args[0])

    cluster = LocalCluster(service, replicas=1, slots=8)
    async with cluster as client:
        outcomes: dict[str, object] = {}

        async def call(name: str, size: int = 0) -> None:
            try:
                outcomes[name] = await client.call("charge", [name, bytes(size)], timeout=30)
            except tiedreq.CallError as error:
                outcomes[name] = type(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "runs")
            await trio.sleep(0.1)
            cluster.network.hold("client", "r0")
            nursery.start_soon(call, "left")
            await trio.sleep(0.1)
            nursery.start_soon(call, "left in part", 2_000_000)
            await trio.sleep(0.1)
            nursery.start_soon(call, "waits")
            await trio.sleep(0.1)
            cluster.network.cut("client", "r0")
            cluster.network.heal()
        assert outcomes.pop("runs") == outcomes.pop("left") == tiedreq.OutcomeUnknown
        assert outcomes == {"left in part": "left in part", "waits": "waits"}
        assert sorted(ran) == ["left in part", "runs", "waits"], "and each ran once"
