"""For how long the event loop looks at nothing new. The time is the test's, and passes while something blocks."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import tiedreq
from tiedreq.observe.pauses import WATCHED_SECONDS, WINDOW_SECONDS, LoopPauses
from tiedreq.testing import LocalCluster


class Time:
    """Stands still but for what the test adds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def blocked(self, seconds: float) -> None:
        """The loop blocks for so long, and then looks at its sockets."""
        await trio.lowlevel.checkpoint()
        self.now += seconds
        await trio.lowlevel.checkpoint()


async def test_what_blocks_the_loop_is_a_pause() -> None:
    clock = Time()
    pauses = LoopPauses(clock)
    assert pauses.view() == {"count": 0, "p99": None, "p999": None, "max": None}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.run)
        await wait_all_tasks_blocked()
        pauses.view()
        await clock.blocked(0.0)
        idle = pauses.view()
        assert idle["count"] > 0 and idle["max"] == 0
        await clock.blocked(0.2)
        found = pauses.view()
        assert found["max"] == pytest.approx(0.2) == found["p999"]
        assert found["count"] > idle["count"]
        nursery.cancel_scope.cancel()
    count = pauses.view()["count"]
    await clock.blocked(0.2)
    assert pauses.view()["count"] == count


async def test_a_pause_is_told_of_for_one_window_or_two() -> None:
    clock = Time()
    pauses = LoopPauses(clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.run)
        await wait_all_tasks_blocked()
        pauses.view()
        await clock.blocked(0.5)
        for wait, longest in ((WINDOW_SECONDS, 0.5), (0.0, 0.5), (WINDOW_SECONDS, 0.0)):
            pauses.before_io_wait(0.0)
            clock.now += wait  # nothing blocks: the time passes while the loop waits
            pauses.after_io_wait(0.0)
            await clock.blocked(0.0)
            assert pauses.view()["max"] == pytest.approx(longest)
        nursery.cancel_scope.cancel()


async def test_percentiles_of_many_short_pauses_and_a_long_one() -> None:
    clock = Time()
    pauses = LoopPauses(clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.run)
        await wait_all_tasks_blocked()
        pauses.view()
        for number in range(300):
            await clock.blocked(0.5 if number == 150 else 0.0009)
        found = pauses.view()
        nursery.cancel_scope.cancel()
    assert found["max"] == pytest.approx(0.5)
    assert found["p99"] is not None and found["p99"] <= 0.001
    assert found["p999"] is not None and 0.001 < found["p999"] <= 0.5


async def test_a_replica_shows_them() -> None:
    service = tiedreq.Service("blocking")

    @service.method(idempotent=True)
    async def block(context: tiedreq.Context, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 -- the loop is to block

    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        assert cluster.handles["r0"].snapshot()["loop_pauses"]["max"] is None, "nobody had looked"
        await client.call("block", 0.05)
        await trio.sleep(0.01)
        longest = cluster.handles["r0"].snapshot()["loop_pauses"]["max"]
        assert longest is not None and longest >= 0.05


async def test_replicas_on_one_loop_measure_it_once() -> None:
    assert LoopPauses.of_this_loop() is LoopPauses.of_this_loop()
    clock = Time()
    pauses = LoopPauses(clock)
    async with trio.open_nursery() as nursery:
        first, second = trio.CancelScope(), trio.CancelScope()

        async def run(scope: trio.CancelScope) -> None:
            with scope:
                await pauses.run()

        for scope in (first, second):
            nursery.start_soon(run, scope)
        await wait_all_tasks_blocked()
        pauses.view()
        await clock.blocked(0.0)
        first.cancel()
        await wait_all_tasks_blocked()
        before = pauses.view()["count"]
        await clock.blocked(0.2)
        assert pauses.view()["max"] == pytest.approx(0.2), "the second one still measures"
        assert before < pauses.view()["count"]
        second.cancel()
        await wait_all_tasks_blocked()
        count = pauses.view()["count"]
        await clock.blocked(0.3)
        assert pauses.view()["count"] == count


async def test_it_is_measured_while_somebody_looks() -> None:
    """Once nobody has looked for long, Trio has nobody to tell; who looks again sees nothing of before."""
    clock = Time()
    pauses = LoopPauses(clock)

    def measured() -> bool:
        try:
            trio.lowlevel.remove_instrument(pauses)
        except KeyError:
            return False
        trio.lowlevel.add_instrument(pauses)
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.run)
        await wait_all_tasks_blocked()
        assert not measured()
        for _ in range(2):
            pauses.view()
            for _ in range(10):
                await clock.blocked(WATCHED_SECONDS / 10 - 1)
                assert measured()
            assert pauses.view()["max"] == pytest.approx(WATCHED_SECONDS / 10 - 1)
            for _ in range(11):
                await clock.blocked(WATCHED_SECONDS / 10)
            assert not measured()
            assert pauses.view()["count"] == 0
        nursery.cancel_scope.cancel()
    assert not measured()
