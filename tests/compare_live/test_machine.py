"""Punctual timers, priority, and the sentences of a run that measured the machine."""

from __future__ import annotations

import os
import re
import sys
import threading

import pytest
import trio
from trio.testing import MockClock

from cluster.compare.live import LATE_MAX, self_check
from cluster.compare.live_priority import before_others
from cluster.compare.live_sleep import Sleepers, sleepers
from cluster.compare.live_timer import BUSY_MAX, WINDOW, Load, punctual_timers
from cluster.compare.tally import Distribution

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own timers are Linux's")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@linux
async def test_timers_go_off_in_order_and_nothing_is_left() -> None:
    rung: list[int] = []

    async def sleeper(number: int) -> None:
        await trio.sleep(0.0007 * number)
        rung.append(number)

    before = descriptors()
    async with punctual_timers() as punctual:
        assert punctual and len(descriptors() - before) == 1
        async with trio.open_nursery() as nursery:
            for number in (3, 1, 2):
                nursery.start_soon(sleeper, number)
        began = trio.current_time()
        with trio.move_on_after(0.002) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught and trio.current_time() - began >= 0.002
        assert await trio.to_thread.run_sync(lambda: 5) == 5, "what wakes Trio otherwise still does"
    assert rung == [1, 2, 3] and len(descriptors()) == len(before)


async def test_where_there_are_none_trios_own_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    async with punctual_timers() as punctual:
        assert not punctual
        await trio.sleep(0.001)
    with before_others() as first:
        assert not first


@linux
def test_priority_is_given_back() -> None:
    before = os.sched_getscheduler(0)
    inside: list[int] = []
    with before_others() as first:
        thread = threading.Thread(target=lambda: inside.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
        assert inside == [os.sched_getscheduler(0)] == [os.SCHED_RR if first else before]
    assert os.sched_getscheduler(0) == before


@linux
def test_where_the_system_does_not_allow_it_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before = os.sched_getscheduler(0)
    with before_others() as first:
        assert not first and os.sched_getscheduler(0) == before


def lateness(*seconds: float) -> Distribution:
    found = Distribution()
    for one in seconds:
        found.add(one)
    return found


def test_a_run_says_who_did_not_keep_up() -> None:
    in_time = lateness(*[0.0001] * 995, *[0.5] * 5)
    assert self_check(lateness(), {}) == self_check(in_time, {"r0": 0.001, "r1": LATE_MAX}) == []
    notes = self_check(lateness(*[0.0001] * 985, *[0.02] * 15), {"r0": 0.001, "r1": 0.006, "r2": 0.030})
    assert len(notes) == 2
    assert re.fullmatch(
        r"the client did not keep up: 1 % of calls were sent (19\.9|20\.0|20\.1) ms or more after their time "
        r"\(the latest 20 ms\)",
        notes[0],
    )
    assert notes[1] == (
        "2 of 3 replicas did not keep up: 1 % of the executions at r2 took 30.0 ms or more longer than they should have"
    )


def test_a_loop_is_busy_when_it_had_something_to_do_for_more_than_its_share_of_the_time() -> None:
    load, now = Load(0.0), 0.0

    def go_on(windows: float, share: float) -> None:
        nonlocal now
        until = now + windows * WINDOW
        while now < until:
            load.wakes(now)
            load.rests(now + share * WINDOW / 10)
            now += WINDOW / 10

    go_on(3.0, BUSY_MAX - 0.1)
    assert not load.high
    go_on(3.0, BUSY_MAX + 0.1)
    assert load.high
    go_on(3.0, BUSY_MAX - 0.1)
    assert not load.high


async def test_sleepers_wake_in_order_at_their_times_and_when_they_are_told_to(autojump_clock: MockClock) -> None:
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float, shared: Sleepers) -> None:
        await shared.sleep(seconds)
        woken.append((name, trio.current_time() - began))

    async with sleepers() as shared, sleepers() as again:
        assert shared is again
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
                nursery.start_soon(sleep, name, seconds, shared)
            with trio.move_on_after(1.5) as scope:
                await shared.sleep(2.5)
            assert scope.cancelled_caught
            nursery.start_soon(sleep, "d", 0.0, shared)
    assert woken == [("a", 1.0), ("d", 1.5), ("b", 2.0), ("c", 3.0)]
    await shared.sleep(1.0)
    assert trio.current_time() - began == pytest.approx(4.0), "what sleeps after the end sleeps by itself"


async def test_who_sleeps_when_all_ends_is_woken(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        async with sleepers() as shared:
            nursery.start_soon(shared.sleep, 1000.0)
            await trio.sleep(1.0)
        with trio.fail_after(1.0):
            while nursery.child_tasks:  # noqa: ASYNC110 -- virtual time
                await trio.sleep(0.1)
        assert trio.current_time() - began < 2.0
