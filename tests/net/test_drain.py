"""A replica that drains: nothing is lost, nothing starts twice, and it ends (B43)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, until
from tests.net.raw import raw_link, seat
from tiedreq import Backup, Hedged, OutcomeUnknown, Plain, Policy, Tied
from tiedreq.core.messages import Draining, Ended, Result
from tiedreq.core.types import Cause
from tiedreq.testing import LocalCluster

AT_ONCE = Tied(backup=None, stagger=0.0)
KINDS: dict[str, tuple[str, Policy]] = {
    "plain": ("work", Plain()),
    "may not run twice": ("once", Plain()),
    "tied": ("work", Tied(backup=None)),
    "tied at once": ("work", AT_ONCE),
    "exclusive": ("work", Tied(backup=None, stagger=0.0, exclusive=True)),
    "hedged": ("work", Hedged(Backup(after=0.02, since="send"))),
    "tied with backup": ("work", Tied(backup=Backup(after=0.02))),
}


async def restart_each(cluster: LocalCluster, every: float) -> None:
    for name in cluster.names:
        cluster.handles[name].drain()
        await until(lambda name=name: not cluster.running(name))  # type: ignore[misc]
        await cluster.start(name)
        await trio.sleep(every)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rolling_restart_fails_no_call(autojump_clock: MockClock, kind: str) -> None:
    """Four replicas, one after the other, 500 calls a second, with Submits under way at every drain."""
    method, policy = KINDS[kind]
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=4, slots=2, mesh_latency=0.001, client_latency=0.005)
    found: list[Any] = []

    async with cluster as client:

        async def call() -> None:
            found.extend(await gather(partial(client.call, method, 0.005, policy=policy, timeout=5)))

        async def load() -> None:
            for _ in range(600):
                nursery.start_soon(call)
                await trio.sleep(0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            nursery.start_soon(restart_each, cluster, 0.25)
        assert len(found) == 600
        assert not [each for each in found if isinstance(each, Exception)]
        if method == "once":
            assert journal.doubled == 0
        await assert_idle(cluster, client)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_waits_moves_and_what_runs_ends(autojump_clock: MockClock, kind: str) -> None:
    method, policy = KINDS[kind]
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1)
    async with cluster as client:
        found: list[Any] = []

        async def call() -> None:
            found.extend(await gather(partial(client.call, method, 0.5, policy=policy, timeout=60)))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)
            await trio.sleep(0.1)
            cluster.handles["r0"].drain()
            drained = trio.current_time()
            await trio.sleep(0.1)
            assert cluster.running("r0"), "one still runs there"
            core = cluster.handles["r0"]._server.core
            assert all(held.granted for held in core._queue), "only what an arbiter let start still waits"
            await until(lambda: not cluster.running("r0"))
            ended = trio.current_time()
        assert len(found) == 10 and not [each for each in found if isinstance(each, Exception)]
        there = [run for run in journal.runs if run.replica == "r0"]
        assert kind == "exclusive" or all(run.began < drained for run in there)
        assert ended == pytest.approx(there[-1].ended, abs=0.05), "then it ends at once"


async def test_a_copy_under_way_to_a_replica_that_ends_was_never_started(autojump_clock: MockClock) -> None:
    """Its last Goodbye says so: a call that may not run twice goes elsewhere instead of ending unknown."""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, client_latency=0.05)
    async with cluster as client:
        for name in ("r0", "r1"):
            while True:
                before = client.stats()["replicas"][name]["sent"]
                async with trio.open_nursery() as nursery:
                    found: list[tiedreq.Reply] = []

                    async def call(found: list[tiedreq.Reply] = found) -> None:
                        found.append(await client.request("once"))

                    nursery.start_soon(call)
                    await trio.sleep(0.01)
                    sent_there = client.stats()["replicas"][name]["sent"] > before
                    if sent_there:
                        cluster.handles[name].drain()
                if sent_there:
                    break
            assert [attempt.end for attempt in found[0].attempts] == ["refused: draining", "done"]
            await cluster.start(name)
            await trio.sleep(3)
        assert journal.doubled == 0 and client.stats()["failed"] == 0
        await assert_idle(cluster, client)


@pytest.mark.parametrize("together", [True, False])
async def test_both_replicas_of_a_pair_drain(autojump_clock: MockClock, together: bool) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, slots=1, mesh_latency=0.002)
    async with cluster as client:
        calls = [partial(client.tied_call, "work", 0.2, policy=AT_ONCE, timeout=60)] * 30
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def all_calls() -> None:
                found.extend(await gather(*calls))

            nursery.start_soon(all_calls)
            await trio.sleep(0.1)
            cluster.handles["r0"].drain()
            if not together:
                await trio.sleep(0.003)
            cluster.handles["r1"].drain()
        assert not [each for each in found if isinstance(each, Exception)]
        assert found.count("r2") >= 26


async def test_all_drain_and_one_comes_back(autojump_clock: MockClock) -> None:
    """A call that finds nobody waits, within its deadline, for one that takes work."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        for handle in cluster.handles.values():
            handle.drain()
        await trio.sleep(0.1)
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.tied_call("work", timeout=1)
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def call() -> None:
                found.append(await client.tied_call("work", timeout=30))

            nursery.start_soon(call)
            await trio.sleep(1)
            await cluster.start("r0")
        assert found == ["r0"]


async def test_a_limit_shorter_than_the_handler(autojump_clock: MockClock) -> None:
    """What still runs at the limit is stopped: an idempotent call moves, another one's outcome is unknown."""
    journal = Journal()
    service = bench_service(journal)
    async with trio.open_nursery() as nursery:
        cluster = LocalCluster(service, replicas=2)
        async with cluster as client:
            for method, expected in (("work", str), ("once", OutcomeUnknown)):
                async with trio.open_nursery() as calls:
                    found: list[Any] = []

                    async def call(method: str = method, found: list[Any] = found) -> None:
                        found.extend(await gather(partial(client.call, method, 15.0, timeout=60)))

                    calls.start_soon(call)
                    await trio.sleep(0.1)
                    victim = journal.running[0].replica
                    cluster.handles[victim].drain()
                    await trio.sleep(9)
                    assert cluster.running(victim)
                    await trio.sleep(3)
                    assert not cluster.running(victim), "10 s are the limit"
                assert isinstance(found[0], expected)
                await cluster.start(victim)
                await trio.sleep(3)
            await assert_idle(cluster, client)
        nursery.cancel_scope.cancel()


async def test_a_thread_that_cannot_be_stopped_outlives_the_limit() -> None:
    """serve() waits for it: its lifespan must not end under a running handler."""
    import threading

    opened, began = threading.Event(), threading.Event()
    service = bench_service()

    @service.method(idempotent=True)
    def deaf(ctx: tiedreq.Context, args: Any) -> None:
        began.set()
        opened.wait(20)

    ended = trio.Event()

    async def run(*, task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
        await tiedreq.serve(service, name="a", drain_timeout=0.05, task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        handle: tiedreq.ReplicaHandle = await nursery.start(run)
        async with tiedreq.connect(handle.url) as client, trio.open_nursery() as calls:
            calls.start_soon(gather, partial(client.call, "deaf"))
            await until(began.is_set)
            handle.drain()
            await trio.sleep(0.3)
            assert not ended.is_set()
            opened.set()
            with trio.fail_after(10):
                await ended.wait()
            calls.cancel_scope.cancel()


async def test_draining_is_said_to_who_comes_late(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client, trio.open_nursery() as nursery:
        nursery.start_soon(gather, partial(client.call, "work", {"r0": 5.0, "r1": 5.0}))
        await trio.sleep(0.1)
        busy = journal.running[0].replica
        handle = cluster.handles[busy]
        handle.drain()
        handle.drain()
        await trio.sleep(0.1)
        assert handle.draining and handle.status()["draining"]
        assert client.stats()["replicas"][busy]["draining"]
        async with cluster.client(name="late") as late:
            assert late.stats()["replicas"][busy]["draining"]
            for _ in range(10):
                assert await late.tied_call("work") != busy
        async with raw_link(seat(cluster), cluster.urls[busy]) as raw:
            raw.send(raw.submit(1))
            await trio.sleep(0.1)
            assert raw.of(Draining) or (raw.ups[0].welcome is not None and raw.ups[0].welcome.draining)
            (ended,) = raw.of(Ended)
            assert ended.cause is Cause.DRAINING and ended.retry_after > 0
        await trio.sleep(6)
        assert not cluster.running(busy)


async def test_results_reach_their_callers_before_the_links_close(autojump_clock: MockClock) -> None:
    """Large results of the last handlers are flushed."""
    cluster = LocalCluster(bench_service(), replicas=1, slots=8)
    async with cluster as client:
        found: list[Any] = []

        async def all_calls() -> None:
            found.extend(await gather(*[partial(client.call, "blob", 5_000_000)] * 8))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_calls)
            await trio.lowlevel.checkpoint()
            await until(lambda: cluster.handles["r0"].status()["started"] == 8, every=1e-6)
            cluster.handles["r0"].drain()
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert [len(each) for each in found if isinstance(each, bytes)] == [5_000_000] * 8


async def test_a_caller_that_does_not_read_does_not_hold_up_the_drain(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=1)
    async with cluster as client, raw_link(seat(cluster, "deaf"), cluster.urls["r0"]) as raw:
        cluster.network.hold("r0", "deaf")
        raw.send(*[raw.submit(number, "blob", 1_000_000) for number in range(8)])
        await trio.sleep(0.1)
        cluster.handles["r0"].drain()
        await trio.sleep(13)
        assert not cluster.running("r0")
        cluster.network.heal()
        assert not raw.of(Result) or len(raw.of(Result)) < 8
        assert client.stats()["in_flight"] == 0


async def test_a_peer_that_drains_is_linked_again(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=3)
    async with cluster as client:
        for name in cluster.names:
            cluster.handles[name].drain()
            await cluster.start(name)
            await trio.sleep(5)
            links: Callable[[], list[bool]] = lambda: [  # noqa: E731
                link["up"] for handle in cluster.handles.values() for link in handle.status()["links"].values()
            ]
            assert links() == [True] * 6
        for _ in range(20):
            await client.tied_call("work", 0.1, policy=AT_ONCE)
        assert sum(handle.status()["double_starts"] for handle in cluster.handles.values()) == 20
        await assert_idle(cluster, client)
