"""Something happens at every scheduling point of a call; afterwards client and replicas are at baseline.

Everything is real but the network and the clock. A call that was cancelled ends as cancelled or with its answer, and no
copy of it is worked on any more; a call that was not cancelled has exactly one outcome, its answer; and the next call
works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio

import tiedreq
from tests.driver.points import Trigger, run
from tiedreq.testing import LocalCluster

SEEDS = [1, 2]
POINTS_MAX = 2000
TRANSIENT = ("queue", "copies", "executions", "ties", "claiming", "parked_claims", "deadlines", "tasks")

POLICIES = {
    "plain": tiedreq.Plain(),
    "tied at once": tiedreq.Tied(stagger=0.0),
    "tied": tiedreq.Tied(),
    "tied with backup": tiedreq.Tied(stagger=0.0, backup=tiedreq.Backup(after=0.004)),
    "exclusive": tiedreq.Tied(stagger=0.0, exclusive=True),
    "hedged": tiedreq.Hedged(tiedreq.Backup(after=0.003, since="send")),
}


SECONDS = 0.005
"""What the call takes that something happens to; other calls take less."""


def make_service(running: Counter[str], ended: list[float] | None = None) -> tiedreq.Service:
    """``ended`` takes the times at which handlers of the call came to their end."""
    service = tiedreq.Service("points")

    @service.method(idempotent=True)
    async def work(ctx: tiedreq.Context, args: float) -> str:
        running[ctx.call_id] += 1
        try:
            await trio.sleep(args)
            if args == SECONDS and ended is not None:
                ended.append(trio.current_time())
        finally:
            running[ctx.call_id] -= 1
        return ctx.replica

    return service


async def at_baseline(cluster: LocalCluster, client: tiedreq.Client, running: Counter[str]) -> None:
    """Let what is under way end, then look at every collection that a call may leave something in."""
    await trio.sleep(0.5)
    assert client.stats()["in_flight"] == 0
    assert not +running
    for name, handle in cluster.handles.items():
        sizes, status = handle.sizes(), handle.status()
        assert {key: sizes[key] for key in TRANSIENT if sizes[key]} == {}, name
        assert status["free"] == status["slots"], name


async def busy(client: tiedreq.Client, nursery: trio.Nursery, calls: int) -> None:
    """Other work, so that copies wait in queues."""
    for _ in range(calls):
        nursery.start_soon(client.call, "work", 0.003)
    await trio.sleep(0.001)


Disturb = Callable[[LocalCluster, trio.CancelScope], object]


async def at_point(
    cluster: LocalCluster,
    client: tiedreq.Client,
    trigger: Trigger,
    policy: tiedreq.Policy,
    point: int,
    disturb: Disturb,
) -> str | None:
    """One call that is disturbed at one point; its answer, or None when it was cancelled."""
    answer: str | None = None
    async with trio.open_nursery() as nursery:
        await busy(client, nursery, 3)
        with trio.CancelScope() as scope:
            trigger.arm(point, lambda: disturb(cluster, scope))
            answer = await client.call("work", SECONDS, policy=policy, timeout=5.0)
        trigger.disarm()
        assert (answer is None) == scope.cancelled_caught
    return answer


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_cancelled_at_every_point(policy: tiedreq.Policy, seed: int) -> None:
    async def main(trigger: Trigger) -> None:
        running: Counter[str] = Counter()
        ended: list[float] = []
        cluster = LocalCluster(make_service(running, ended), replicas=3, slots=1, mesh_latency=0.001)
        cancelled, given_up_at = 0, 0.0

        def give_up(_: LocalCluster, scope: trio.CancelScope) -> None:
            nonlocal given_up_at
            given_up_at = trio.current_time()
            scope.cancel()

        async with cluster as client:
            for point in range(1, POINTS_MAX):
                answer = await at_point(cluster, client, trigger, policy, point, give_up)
                await at_baseline(cluster, client, running)
                assert answer is not None or max(ended, default=0.0) <= given_up_at, "work for nobody goes on"
                cancelled += answer is None
                if not trigger.fired:
                    break
            assert not trigger.fired, "the call has more points than were tried"
            assert cancelled >= 20
            assert await client.call("work", 0.0, policy=policy) in cluster.names
        print(f"{point} points, cancelled at {cancelled}")

    run(main, seed)


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time until ``condition`` holds."""
    with trio.fail_after(30):
        for _ in iter(condition, True):
            await trio.sleep(0.05)


async def whole_again(cluster: LocalCluster, client: tiedreq.Client, name: str) -> None:
    """Start a replica anew if it ends, and wait until everybody knows it."""

    def staying_or_gone() -> bool:
        return not cluster.running(name) or not cluster.handles[name].status()["draining"]

    def all_linked() -> bool:
        links = [link for handle in cluster.handles.values() for link in handle.status()["links"].values()]
        return len(client.stats()["replicas"]) == len(cluster.names) and all(link["up"] for link in links)

    await trio.sleep(0.01)
    await until(staying_or_gone)
    if not cluster.running(name):
        await cluster.start(name)
    await until(all_linked)


DISTURBANCES: dict[str, Disturb] = {
    "crash": lambda cluster, _: cluster.stop("r0"),
    "drain": lambda cluster, _: cluster.handles["r0"].drain(),
    "client link cut": lambda cluster, _: cluster.network.cut("client", "r0"),
    "mesh link cut": lambda cluster, _: cluster.network.cut("r0", "r1"),
}


@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("policy", [POLICIES["tied at once"], POLICIES["tied with backup"], POLICIES["exclusive"]])
def test_disturbed_at_every_point(policy: tiedreq.Policy, kind: str) -> None:
    async def main(trigger: Trigger) -> None:
        running: Counter[str] = Counter()
        limits = tiedreq.ReplicaLimits(heartbeat_interval=0.05, report_interval=0.05)
        service = make_service(running)
        cluster = LocalCluster(service, replicas=2, slots=1, mesh_latency=0.001, limits=limits)
        async with cluster as client:
            for point in range(1, POINTS_MAX, 5):
                answer = await at_point(cluster, client, trigger, policy, point, DISTURBANCES[kind])
                assert answer in cluster.names
                await whole_again(cluster, client, "r0")
                await at_baseline(cluster, client, running)
                if not trigger.fired:
                    break
            assert not trigger.fired, "the call has more points than were tried"
        print(f"{point} points")

    run(main, seed=1)
