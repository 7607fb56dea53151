"""Replicas and callers as drivers of their cores: batches, freezes, stops, timers."""

from __future__ import annotations

import gc
from functools import partial
from random import Random

import pytest

from tiedreq.core.commands import OutcomeKind
from tiedreq.core.policy import Backup, Hedged, Plain, Tied
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import CopyState, MethodInfo
from tiedreq.laws import Constant
from tiedreq.sim.caller_node import STALE_MIN, OpenCall
from tiedreq.sim.clock import Clock
from tiedreq.sim.handlers import Execution
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.watch import Watch
from tiedreq.sim.workload import ClosedLoop, OpenLoop, Pauses, Workload
from tiedreq.sim.world import World, WorldOptions
from tiedreq.slowness import parse_pause
from tiedreq.units import parse_latency

METHODS = (
    HeldMethod(MethodInfo("work", True, True, 3600.0), None),
    HeldMethod(MethodInfo("thread", True, False, 3600.0), None),
)


class Load(Workload):
    """Handlers of 100 ms; the tests change ``stopping``."""

    stopping = 0.0
    enabled: float | None = None

    def stop_seconds(self, node: ReplicaNode, execution: Execution) -> float:
        return self.stopping

    def becomes_stoppable(self, node: ReplicaNode, submit: object) -> float | None:
        return self.enabled


class Small:
    """A world whose mesh takes 1 ms and whose client links take 2 ms, watched by the checkers."""

    def __init__(self, replicas: int = 2, *, slots: int = 1, service: float = 0.1) -> None:
        self.load = Load(Constant(service), Random(1))
        self.watch = Watch(keep=True)
        options = WorldOptions(
            replicas=replicas,
            slots=slots,
            methods=METHODS,
            network=NetworkOptions(mesh=parse_latency("1ms"), client=parse_latency("2ms")),
        )
        self.world = World(options, self.load, seed=1, observer=self.watch)
        self.watch.clock = self.world.clock
        self.world.start()
        self.caller = self.world.callers["c0"]
        self.began = self.world.clock.now

    def call(self, policy: object, method: str = "work", timeout: float = 10.0) -> OpenCall:
        return self.load.make(self.caller, policy, method=method, timeout=timeout)  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        """Let time pass, counted from the start of the test."""
        self.world.clock.run(self.began + seconds)
        assert not self.watch.checkers.violations, "\n".join(self.watch.trace.lines[-40:])

    def running(self) -> list[str]:
        return [name for name, node in self.world.replicas.items() if node.executions]

    def holder(self, call: OpenCall, rank: int = 0) -> ReplicaNode:
        """The replica that got the copy of that rank, or the call's first copy."""
        copies = list(call.core.copies.values())
        return self.world.replicas[copies[rank].replica]


def ended(call: OpenCall) -> OutcomeKind:
    assert call.outcome is not None
    return call.outcome.kind


def test_a_plain_call() -> None:
    small = Small()
    call = small.call(Plain())
    small.run(0.1039)
    assert call.outcome is None
    small.run(0.1041)
    assert ended(call) == OutcomeKind.ANSWERED
    assert small.world.pending() is None


def test_a_frozen_replica_runs_on_when_it_wakes() -> None:
    small = Small()
    call = small.call(Plain())
    small.run(0.05)
    small.world.freeze(small.running()[0], 0.5)
    small.run(0.6039)
    assert call.outcome is None
    small.run(0.6041)
    assert ended(call) == OutcomeKind.ANSWERED


def test_a_longer_freeze_extends_a_shorter_one() -> None:
    small = Small()
    call = small.call(Plain())
    small.run(0.05)
    (name,) = small.running()
    small.world.freeze(name, 0.2)
    small.run(0.10)
    small.world.freeze(name, 0.05)
    small.world.freeze(name, 0.4)  # until 0.5: 0.25 longer
    small.run(0.5539)
    assert call.outcome is None
    small.run(0.5541)
    assert ended(call) == OutcomeKind.ANSWERED


def test_after_a_stall_input_is_handled_before_slots_are_filled() -> None:
    """The partner's start waits in the frozen replica's inbox, behind the copy: it is dropped, not started."""
    small = Small()
    for name in small.world.replicas:
        small.world.freeze(name, 0.010)
    call = small.call(Tied(backup=None, stagger=0.0))
    second = small.holder(call, 1)
    small.world.freeze(second.name, 0.500)
    small.run(0.2)
    assert ended(call) == OutcomeKind.ANSWERED
    small.run(0.6)
    copy = list(call.core.copies.values())[1].id
    assert second.core.copy_state(copy) == CopyState.DROPPED
    assert second.core.stats.started == 0
    assert small.load.counts.executions == 1


def test_a_stopped_handler_frees_its_slot_at_once_or_after_its_clean_up() -> None:
    for stopping, freed_at in [(0.0, 0.0521), (0.03, 0.0821)]:
        small = Small(1)
        small.load.stopping = stopping
        call = small.call(Plain())
        small.run(0.05)
        small.caller.cancel(call)
        assert ended(call) == OutcomeKind.CANCELLED
        small.run(freed_at - 0.0002)
        assert small.running() == ["r0"]
        small.run(freed_at)
        assert small.running() == []


def test_a_thread_runs_to_its_end_unless_it_has_said_how_it_can_be_stopped() -> None:
    for enabled, free_at in [(None, 0.1021), (0.01, 0.0521), (0.07, 0.0721)]:
        small = Small(1)
        small.load.enabled = enabled
        call = small.call(Plain(), "thread")
        small.run(0.05)
        small.caller.cancel(call)
        small.run(free_at - 0.0002)
        assert small.running() == ["r0"]
        small.run(free_at)
        assert small.running() == []


def test_a_thread_does_not_yield_to_a_partner_that_is_lost() -> None:
    """Both copies run in threads. The lower one dies; then the higher one says how it can be stopped, and runs on."""
    small = Small()
    call = small.call(Tied(backup=None, stagger=0.0), "thread")
    small.run(0.01)
    first, second = small.holder(call, 0), small.holder(call, 1)
    assert small.running() == ["r0", "r1"]
    small.world.crash(first.name)
    small.run(0.07)
    (execution,) = second.executions.values()
    second.enable_stop(execution)
    small.run(0.1041)
    assert ended(call) == OutcomeKind.ANSWERED
    assert small.load.counts.executions == 2


def test_a_deadline_ends_call_and_handler() -> None:
    small = Small(1)
    call = small.call(Plain(), timeout=0.05)
    small.run(0.0499)
    assert call.outcome is None
    small.run(0.053)
    assert ended(call) == OutcomeKind.DEADLINE
    assert small.running() == [] and small.load.counts.busy_seconds == pytest.approx(0.05)


def test_a_crashed_replica_takes_its_handlers_along_and_its_calls_fail_over() -> None:
    small = Small()
    call = small.call(Plain())
    small.run(0.05)
    (name,) = small.running()
    small.world.crash(name)
    assert small.running() == []
    small.run(1.0)
    assert ended(call) == OutcomeKind.ANSWERED
    before = small.world.replicas[name].identity
    small.world.restart(name)
    small.run(3.0)
    assert small.world.replicas[name].identity != before
    assert small.world.pending() is None


def test_a_drained_replica_leaves_when_its_handler_is_done() -> None:
    small = Small()
    calls = [small.call(Plain()) for _ in range(4)]
    small.run(0.05)
    small.world.drain("r0")
    small.run(1.0)
    assert not small.world.replicas["r0"].alive
    assert [ended(call) for call in calls] == [OutcomeKind.ANSWERED] * 4
    assert small.world.pending() == "r0 is down"


def test_a_crashed_caller_leaves_nothing_behind() -> None:
    small = Small()
    calls = [small.call(Tied(backup=None, stagger=0.0)) for _ in range(3)]
    small.run(0.05)
    assert small.world.crash_caller("c0") == calls
    small.run(1.0)
    assert small.running() == []
    small.world.restart("c0")
    small.run(8.0)
    assert small.world.pending() is None


def test_the_calls_of_a_crashed_caller_never_have_an_outcome() -> None:
    """Their timers are still on the clock, and wake nobody."""
    small = Small()
    call = small.caller.call("work", Plain(), 0.08, idempotent=True)
    small.run(0.05)
    small.world.crash_caller("c0")
    small.run(1.0)
    assert call.outcome is None


def test_nothing_is_left_of_a_call_that_has_ended_though_its_timer_is_still_to_come() -> None:
    small = Small()
    call = small.call(Plain())
    small.run(0.5)
    assert ended(call) == OutcomeKind.ANSWERED
    assert small.world.clock.entries, "its timeout"
    core = call.core
    del call
    assert not [owner for owner in gc.get_referrers(core) if isinstance(owner, OpenCall)]


def test_worlds_with_one_clock_go_on_together_and_each_as_it_would_alone() -> None:
    def world(seed: int, clock: Clock | None) -> tuple[World, Workload]:
        load = Workload(Constant(0.01), Random(seed))
        made = World(WorldOptions(replicas=3), load, seed=seed, clock=clock)
        made.start()
        make = partial(load.make, policy=Tied(backup=None), timeout=1.0)
        OpenLoop(made, make, made.random("arrivals"), rate=300.0, calls=200).start()
        return made, load

    clock = Clock()
    (first, one), (second, other) = world(1, clock), world(2, clock)
    clock.run(clock.now + 5.0)
    alone = [world(1, None), world(2, None)]
    for made, _ in alone:
        made.clock.run(made.clock.now + 5.0)
    assert first.clock is second.clock
    assert [load.counts.answered for load in (one, other)] == [200, 200]
    assert [load.counts.executions for load in (one, other)] == [load.counts.executions for _, load in alone]


def test_a_frozen_caller_takes_its_input_before_its_timers() -> None:
    """The answer waits in the inbox when the backup's time has passed: no backup is sent."""
    small = Small()
    call = small.call(Hedged(Backup(after=0.15, since="send")))
    small.run(0.05)
    small.world.freeze("c0", 0.3)
    small.run(1.0)
    assert ended(call) == OutcomeKind.ANSWERED
    assert small.caller.stats.backups_sent == 0


def test_a_frozen_caller_cancels_when_it_wakes() -> None:
    small = Small()
    call = small.call(Plain())
    small.world.freeze("c0", 0.05)
    small.caller.cancel(call)
    assert call.outcome is None
    small.run(0.06)
    assert ended(call) == OutcomeKind.CANCELLED


def test_latencies_are_measured() -> None:
    small = Small(3)
    small.run(2.0)
    for view in small.caller.table.views():
        assert view.round_trip == pytest.approx(0.004)
        others = {name for name in small.world.replicas if name != view.name}
        assert view.notice_latencies == pytest.approx(dict.fromkeys(others, 0.001))


def test_memory_does_not_grow_with_the_number_of_calls() -> None:
    load = Workload(Constant(0.001), Random(1))
    world = World(WorldOptions(replicas=2), load, seed=1)
    world.start()
    loop = OpenLoop(
        world,
        lambda c: load.make(c, Tied(backup=None, stagger=0.0), timeout=600.0),
        world.random("a"),
        rate=500.0,
        calls=20_000,
    )
    loop.start()
    most = 0
    while not loop.idle:
        world.clock.run(world.clock.now + 1.0)
        most = max(most, len(world.clock))
    assert load.counts.answered > 19_000
    assert most < 3 * STALE_MIN


def test_closed_loop_has_as_many_calls_open_as_workers() -> None:
    load = Workload(Constant(0.01), Random(1))
    world = World(WorldOptions(replicas=2, slots=4, callers=2), load, seed=1)
    world.start()
    loop = ClosedLoop(world, load, lambda c: load.make(c, Plain()), workers=4, calls=200)
    loop.start()
    world.clock.run(world.clock.now + 0.1)
    assert sum(len(caller.calls) for caller in world.callers.values()) == 4
    world.clock.run(world.clock.now + 60)
    assert loop.idle and load.counts.answered == 200


def test_pauses_stop_all_work() -> None:
    load = Workload(Constant(0.010), Random(1))
    latencies: list[float] = []
    load.listeners.append(lambda call, latency: latencies.append(latency))
    world = World(WorldOptions(replicas=1, slots=50), load, seed=1)
    world.start()
    Pauses(world, parse_pause("200ms@1s"), world.random("pauses")).start()
    OpenLoop(world, lambda c: load.make(c, Plain()), world.random("a"), rate=100.0, calls=3_000).start()
    world.clock.run(world.clock.now + 40)
    assert len(latencies) == 3_000
    slow = sum(latency > 0.011 for latency in latencies) / 3_000
    assert 0.10 < slow < 0.26  # 210 ms of 1,200 ms, on average
    assert max(latencies) == pytest.approx(0.210, abs=0.001)
