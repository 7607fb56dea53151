"""Handlers share tasks, and none of them notices: each has its own cancel scope, deadline and context variables."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import no_task_left
from tiedreq.net.bell import Bell
from tiedreq.net.current import current_execution
from tiedreq.net.workers import LONG_SECONDS, Workers
from tiedreq.testing import LocalCluster

PLAIN = tiedreq.Plain()
mark: contextvars.ContextVar[int] = contextvars.ContextVar("mark", default=0)


def cluster_of(*methods, slots: int = 8) -> LocalCluster:
    service = tiedreq.Service("workers")
    for method in methods:
        service.method(idempotent=True)(method)
    return LocalCluster(service, replicas=1, slots=slots)


async def test_context_variables_are_each_handlers_own(autojump_clock: MockClock) -> None:
    async def look(ctx: tiedreq.Context, args: int) -> list[object]:
        found = [mark.get(), current_execution.get() is ctx]
        mark.set(args)
        await trio.sleep(args % 2)
        found += [mark.get() == args, current_execution.get() is ctx]
        return found

    async with cluster_of(look) as client:
        for number in range(1, 6):
            assert await client.call("look", number) == [0, True, True, True]


async def test_handlers_that_never_wait_share_a_task_and_need_no_other(autojump_clock: MockClock) -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def quick(ctx: tiedreq.Context, args: object) -> None:
        tasks.append(trio.lowlevel.current_task())

    async with cluster_of(quick) as client, no_task_left():
        for _ in range(20):
            await client.call("quick")
    assert len(set(tasks)) == 1


async def test_handlers_that_wait_run_at_once_and_their_tasks_are_used_again(autojump_clock: MockClock) -> None:
    tasks: set[trio.lowlevel.Task] = set()
    running = 0

    async def meet(ctx: tiedreq.Context, args: object) -> bool:
        nonlocal running
        tasks.add(trio.lowlevel.current_task())
        running += 1
        with trio.move_on_after(1):
            while running < 5:  # noqa: ASYNC110
                await trio.sleep(0.01)
            return True
        return False

    async with cluster_of(meet) as client, no_task_left():
        for _ in range(3):
            running = 0
            found: list[bool] = []

            async def one(found: list[bool] = found) -> None:
                found.append(await client.call("meet"))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(one)
            assert found == [True] * 5
    assert len(tasks) <= 6


async def test_one_that_waits_for_ever_holds_up_nobody(autojump_clock: MockClock) -> None:
    async def work(ctx: tiedreq.Context, args: bool) -> str:
        if args:
            await trio.sleep_forever()
        return "done"

    async with cluster_of(work, slots=3) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "work", True)
        nursery.start_soon(client.call, "work", True)
        await trio.sleep(0.1)
        for _ in range(5):
            assert await client.call("work", False, timeout=1) == "done"
        nursery.cancel_scope.cancel()


async def test_each_has_its_own_deadline_and_a_stop_hits_one(autojump_clock: MockClock) -> None:
    ended: list[tuple[int, str]] = []

    async def wait(ctx: tiedreq.Context, args: int) -> float:
        deadline = trio.current_effective_deadline() - trio.current_time()
        assert deadline == pytest.approx(ctx.remaining())
        try:
            if args:
                await trio.sleep(args)
        except trio.Cancelled:
            ended.append((args, "cancelled"))
            raise
        ended.append((args, "returned"))
        return deadline

    async with cluster_of(wait) as client:
        assert await client.call("wait", 0, timeout=5) == pytest.approx(5)
        assert await client.call("wait", 0, timeout=50) == pytest.approx(50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "wait", 3)
            with pytest.raises(tiedreq.DeadlineExceeded):
                await client.call("wait", 20, timeout=2)
            with trio.move_on_after(0.5):
                await client.call("wait", 30, timeout=40)
        await trio.sleep(1)
        assert await client.call("wait", 0, timeout=6) == pytest.approx(6)
    assert sorted(ended) == [(0, "returned")] * 3 + [(3, "returned"), (20, "cancelled"), (30, "cancelled")]


class Burn:
    """A job that computes for a while and says when it began."""

    def __init__(self, story: list[str], seconds: float) -> None:
        self.name = "burn"
        self.scope: trio.CancelScope | None = None
        self.deadline = float("inf")
        self._story = story
        self._seconds = seconds

    def begin(self) -> tuple[contextvars.Context, Coroutine[Any, Any, None]]:
        return contextvars.copy_context(), self._burn()

    async def _burn(self) -> None:
        self._story.append("began")
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass

    def finish(self, result: None) -> None:
        pass

    def end(self, finished: bool) -> None:
        self._story.append(f"finished {finished}")


async def test_what_was_put_out_before_leaves_before_a_handler_computes_for_long() -> None:
    """A writer is woken when the start is told; it has its turn first, whatever order the scheduler takes."""
    story: list[str] = []
    writer = Bell()

    async def write() -> None:
        while True:
            await writer.wait()
            story.append("written")

    def settled() -> None:
        writer.ring()
        workers.start(Burn(story, 4 * LONG_SECONDS))

    bell = Bell()
    async with trio.open_nursery() as nursery:
        workers: Workers[Burn] = Workers(nursery, bell, settled)
        nursery.start_soon(write)
        nursery.start_soon(workers.run)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
            bell.ring()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert story == ["written", "began", "finished True"] * 10
