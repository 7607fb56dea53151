"""Storms over the real drivers: a ``LocalCluster`` in virtual time, with broken cores in place of the right ones.

What is looked at: whether every call has one outcome in time, whether handlers of one tie run side by side for longer
than a notice takes, whether one starts when its time is up, whether client and replicas are at baseline afterwards,
and what the checkers of the simulator say of each step that the drivers let the cores take.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

import tiedreq
from tests.driver.points import Trigger
from tests.driver.points import run as run_in_virtual_time
from tests.driver.test_every_point import TRANSIENT
from tests.mutants.guard import guarded, guarded_call
from tests.mutants.link_rules import ruled_link
from tiedreq.core.call import CallCore
from tiedreq.core.commands import CallCommand, ReplicaCommand
from tiedreq.core.events import CallEvent, ReplicaEvent
from tiedreq.core.link import LinkCore
from tiedreq.core.replica import ReplicaCore
from tiedreq.sim.checkers import CheckerSet
from tiedreq.testing import LocalCluster

LATENCY = 0.002
OVERLAP_MAX = 3 * LATENCY + 0.001
"""Seconds for which two copies of a tie may run side by side: a notice, its answer, and the stop."""
LATE_MAX = 0.05
HANG = 60.0
WAIT = 1.5


@dataclass(frozen=True)
class Storm:
    """Calls of these policies at random moments. ``troubles`` happen in turn, ``cancelled`` of the calls are given up,
    ``failing`` of the handlers ask for another replica, ``disliked`` of the answers are turned down, ``stuck`` of the
    handlers take long, ``pushback`` of them want no backups for a while.
    """

    policies: tuple[tiedreq.Policy, ...]
    replicas: int = 2
    slots: int = 1
    latency: float = LATENCY
    calls: int = 60
    every: float = 0.008
    work: float = 0.01
    timeouts: tuple[float, ...] = (30.0,)
    troubles: tuple[str, ...] = ()
    cancelled: float = 0.0
    failing: float = 0.0
    disliked: float = 0.0
    stuck: float = 0.0
    pushback: float = 0.0
    limits: tiedreq.ReplicaLimits = field(default_factory=lambda: tiedreq.ReplicaLimits(marker_age_max=1.0))


AT_ONCE = tiedreq.Tied(stagger=0.0, backup=None)
BACKUP = tiedreq.Backup(after=0.02, min_after=1e-5)
TIGHT = tiedreq.Backup(after=0.02, min_after=1e-5, budget=0.01)
EXCLUSIVE = tiedreq.Tied(stagger=0.0, exclusive=True, backup=None)
EXCLUSIVE_THREE = tiedreq.Tied(stagger=0.0, exclusive=True, copies=3, backup=None)
STORMS: dict[str, Storm] = {
    "tied": Storm((AT_ONCE,)),
    "tied, given up": Storm((AT_ONCE,), cancelled=0.4, timeouts=(0.03, 30.0)),
    "tied, failing": Storm((AT_ONCE,), replicas=3, failing=0.3, disliked=0.2),
    "tied, links cut": Storm((AT_ONCE,), troubles=("mesh", "client", "mesh")),
    "deadlines, cancels late": Storm((AT_ONCE,), troubles=("hold",) * 6, timeouts=(0.02, 0.03), every=0.004),
    "tied, copies late": Storm((AT_ONCE,), troubles=("hold",) * 4),
    "markers evicted": Storm(
        (AT_ONCE,),
        troubles=("hold",) * 4,
        every=0.004,
        work=0.05,
        slots=8,
        limits=tiedreq.ReplicaLimits(marker_age_max=1.0, markers_per_peer_max=1),
    ),
    "tied, drains": Storm((AT_ONCE,), replicas=3, troubles=("drain",), every=0.005),
    "all drain": Storm((AT_ONCE,), troubles=("drain",) * 4, calls=150, every=0.005),
    "little room": Storm((AT_ONCE,), every=0.003, limits=tiedreq.ReplicaLimits(queue_length_max=2)),
    "staggered": Storm((tiedreq.Tied(stagger=0.006, backup=None),), every=0.015),
    "with backup": Storm((tiedreq.Tied(stagger=0.0, backup=BACKUP),), replicas=3, stuck=0.2, every=0.02),
    "with backup, many": Storm(
        (tiedreq.Tied(stagger=0.0, backup=dataclasses.replace(BACKUP, max_per_call=1, budget=1.0)),),
        replicas=5,
        stuck=0.7,
        every=0.05,
        calls=30,
    ),
    "with backup, crashes": Storm(
        (tiedreq.Tied(stagger=0.0, backup=BACKUP),), replicas=3, stuck=0.2, every=0.02, troubles=("crash",)
    ),
    "many crashes": Storm(
        (tiedreq.Tied(stagger=0.0, backup=BACKUP),), replicas=3, stuck=0.6, every=0.03, troubles=("crash",) * 6
    ),
    "with backup, links cut": Storm(
        (tiedreq.Tied(stagger=0.0, backup=BACKUP),), replicas=3, stuck=0.2, every=0.02, troubles=("mesh", "client")
    ),
    "with backup, pushed back": Storm(
        (tiedreq.Tied(stagger=0.0, backup=BACKUP),), replicas=3, stuck=0.3, every=0.02, pushback=0.3
    ),
    "braked": Storm((tiedreq.Tied(stagger=0.0, backup=TIGHT),), replicas=4, stuck=0.3, every=0.004, slots=2),
    "braked, links cut": Storm(
        (tiedreq.Tied(stagger=0.0, backup=TIGHT),), replicas=3, stuck=0.2, every=0.01, troubles=("client",) * 4
    ),
    "braked, little room": Storm(
        (tiedreq.Tied(stagger=0.0, backup=TIGHT),),
        replicas=4,
        stuck=0.2,
        every=0.003,
        limits=tiedreq.ReplicaLimits(queue_length_max=1),
    ),
    "braked, double starts": Storm(
        (tiedreq.Tied(stagger=0.0, backup=TIGHT),), slots=4, work=0.015, latency=0.01, every=0.004, calls=150
    ),
    "links": Storm((AT_ONCE,), calls=40, every=0.05, troubles=("mesh", "crash", "client", "mesh", "drain")),
    "links, silence": Storm((AT_ONCE,), calls=40, every=0.1, troubles=("silence", "mesh")),
    "exclusive": Storm((EXCLUSIVE,), every=0.006),
    "exclusive, drains": Storm((EXCLUSIVE,), replicas=3, troubles=("drain",) * 6, every=0.004, calls=150),
    "exclusive, three": Storm(
        (tiedreq.Tied(stagger=0.0, exclusive=True, copies=3, backup=None),), replicas=3, every=0.005
    ),
    "exclusive, far": Storm((EXCLUSIVE,), replicas=3, troubles=("crash", "mesh"), every=0.006, latency=0.03),
    "exclusive, losses": Storm((EXCLUSIVE,), replicas=3, troubles=("mesh", "crash", "drain"), every=0.006),
}


@dataclass
class Run:
    """One execution: when it began and ended."""

    began: float
    ended: float | None = None


class Bench:
    """One storm under way. ``problems`` is what was wrong."""

    def __init__(self, storm: Storm, seed: int) -> None:
        self.storm = storm
        self.rng = random.Random(f"{seed}/storm")
        self.problems: list[str] = []
        self.checkers = CheckerSet()
        self.cores: dict[str, Any] = {}
        self.answers = 0
        self.disliked: set[str] = set()
        self.handlers: dict[str, list[Run]] = {}
        self.cluster = LocalCluster(
            self._service(),
            replicas=storm.replicas,
            slots=storm.slots,
            mesh_latency=storm.latency,
            client_latency=LATENCY / 2,
            limits=storm.limits,
        )

    def _service(self) -> tiedreq.Service:
        service = tiedreq.Service("storm")

        @service.method(idempotent=True)
        async def work(ctx: tiedreq.Context, args: float) -> str:
            execution = Run(trio.current_time())
            self.handlers.setdefault(ctx.call_id, []).append(execution)
            if self.rng.random() < self.storm.pushback:
                ctx.pushback(0.1)
            try:
                await trio.sleep(args if self.rng.random() >= self.storm.stuck else 0.2)
                if self.rng.random() < self.storm.failing:
                    raise tiedreq.Failure("busy", "another replica may do it", retryable=True)
            finally:
                execution.ended = trio.current_time()
            self.answers += 1
            return f"{ctx.replica}, answer {self.answers}"

        return service

    def _accept(self, answer: str) -> bool:
        """Turns some answers down, each for good."""
        if self.rng.random() < self.storm.disliked:
            self.disliked.add(answer)
        return answer not in self.disliked

    # ---- the storm --------------------------------------------------------------------------------------------

    async def blow(self, trigger: Trigger) -> None:
        """All of it, and then a look at what is left."""
        with trio.move_on_after(HANG) as scope:
            async with self.cluster as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._trouble)
                    for _ in range(self.storm.calls):
                        nursery.start_soon(self._call, client)
                        await trio.sleep(self.rng.expovariate(1 / self.storm.every))
                await trio.sleep(WAIT)
                self._baseline(client)
        if scope.cancelled_caught:
            self.problems.append(f"something is still under way after {HANG:g} s")
        self._side_by_side()
        self.problems += map(str, self.checkers.violations)

    async def _call(self, client: tiedreq.Client) -> None:
        rng, storm = self.rng, self.storm
        policy, timeout = rng.choice(storm.policies), rng.choice(storm.timeouts)
        patience = rng.random() * 0.03 if rng.random() < storm.cancelled else timeout + 1
        began = trio.current_time()
        try:
            with trio.move_on_after(patience):
                answer = await client.call("work", storm.work, policy=policy, timeout=timeout, accept=self._accept)
                if answer in self.disliked:
                    self.problems.append(f"{answer} wins, an answer that was turned down")
        except tiedreq.CallError:
            pass
        took = trio.current_time() - began
        if took > min(patience, timeout) + LATE_MAX or took > 10:
            self.problems.append(f"a call with {timeout:g} s took {took:.3f} s")

    async def _trouble(self) -> None:
        for kind in self.storm.troubles * 2:
            await trio.sleep(0.06)
            first, second = self.rng.sample(self.cluster.names, 2)
            if kind == "mesh":
                self.cluster.network.cut(first, second)
            elif kind == "client":
                self.cluster.network.cut("client", first)
            elif kind == "hold":
                self.cluster.network.hold("client", first)
                await trio.sleep(0.04)
                self.cluster.network.heal()
            elif kind == "silence":
                self.cluster.network.hold(first, second)
                await trio.sleep(1.6)
                self.cluster.network.heal()
            else:
                await self._restart(first, kind)

    async def _restart(self, name: str, kind: str) -> None:
        if kind == "drain":
            self.cluster.handles[name].drain()
        else:
            self._gone(name)
            self.cluster.stop(name)
        with trio.move_on_after(3):
            for _ in iter(lambda: self.cluster.running(name), False):
                await trio.sleep(0.005)
        if self.cluster.running(name):
            self.problems.append(f"{name} does not end its drain")
            return
        self._gone(name)
        await self.cluster.start(name)

    def _gone(self, name: str) -> None:
        core = self.cores.pop(name, None)
        if core is not None:
            core.dead = True
            self.checkers.on_crash(core.identity, trio.current_time())

    # ---- the verdict ------------------------------------------------------------------------------------------

    def _baseline(self, client: tiedreq.Client) -> None:
        if client.stats()["in_flight"]:
            self.problems.append(f"{client.stats()['in_flight']} calls in flight")
        if any(run.ended is None for runs in self.handlers.values() for run in runs):
            self.problems.append("a handler of an ended call runs on")
        for name, handle in self.cluster.handles.items():
            sizes, status = handle.sizes(), handle.status()
            left = {key: sizes[key] for key in (*TRANSIENT, "markers", "cancel_markers") if sizes[key]}
            if left or status["free"] != status["slots"]:
                self.problems.append(f"{name} keeps {left}, {status['free']} of {status['slots']} slots are free")

    def _side_by_side(self) -> None:
        """Handlers of one call that run side by side for long, though no backup is in it and no link was lost."""
        policies = self.storm.policies
        if self.storm.troubles or any(policy.backup for policy in policies if isinstance(policy, tiedreq.Tied)):
            return
        for call, runs in self.handlers.items():
            for first in runs:
                for second in runs:
                    if first is not second and first.began <= second.began and first.ended and second.ended:
                        overlap = min(first.ended, second.ended) - second.began
                        if overlap > OVERLAP_MAX:
                            self.problems.append(f"two handlers of {call} ran side by side for {overlap:.4f} s")

    # ---- the cores --------------------------------------------------------------------------------------------

    def watched_replica(self, kind: type[ReplicaCore]) -> Callable[..., ReplicaCore]:
        """That core, with the checkers looking on."""
        bench = self

        class Watched(guarded(kind)):  # type: ignore[misc]  # a class that is made at run time
            dead = False

            def broken(self, error: AssertionError) -> None:
                bench.problems.append(str(error))

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                bench.cores[self.identity.name] = self

            def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
                if self.dead:
                    return []
                bench.checkers.before_replica_step(self.identity.name, event, self, now)
                commands: list[ReplicaCommand] = super().step(event, now)
                bench.checkers.on_replica_step(self.identity.name, event, commands, self, now)
                return commands

        return Watched

    def watched_call(self, kind: type[CallCore]) -> Callable[..., CallCore]:
        """That core, with the checkers looking on."""
        bench = self

        class Watched(guarded_call(kind)):  # type: ignore[misc]  # a class that is made at run time
            def broken(self, error: AssertionError) -> None:
                bench.problems.append(str(error))

            def step(self, event: CallEvent, now: float) -> list[CallCommand]:
                bench.checkers.before_call_step(self.request.id, event, self, now)
                commands: list[CallCommand] = super().step(event, now)
                bench.checkers.on_call_step(self.request.id, event, commands, self, now)
                return commands

        return Watched

    def watched_link(self, kind: type[LinkCore]) -> Callable[..., LinkCore]:
        """That core, with its rules looking on. What they find is kept: raised, it would end a task of the driver."""
        bench = self

        class Watched(ruled_link(kind)):  # type: ignore[misc]  # a class that is made at run time
            def broken(self, error: AssertionError) -> None:
                bench.problems.append(str(error))

        return Watched


@contextmanager
def in_the_drivers(
    replica_core: Callable[..., ReplicaCore], call_core: Callable[..., CallCore], link_core: Callable[..., LinkCore]
) -> Iterator[None]:
    """Let the drivers use these cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiedreq.net.server.ReplicaCore", replica_core)
        patch.setattr("tiedreq.net.desk.CallCore", call_core)
        patch.setattr("tiedreq.net.link_ends.LinkCore", link_core)
        yield


def blow(
    storm: Storm,
    seed: int,
    replica_core: type[ReplicaCore] = ReplicaCore,
    call_core: type[CallCore] = CallCore,
    link_core: type[LinkCore] = LinkCore,
) -> list[str]:
    """Run one storm; what was wrong, in words."""
    with pytest.MonkeyPatch.context() as patch:
        # Real randomness would make each run another one.
        patch.setattr("secrets.SystemRandom", lambda: random.Random(seed))
        patch.setattr("tiedreq.net.link_ends.SystemRandom", lambda: random.Random(seed))
        bench = Bench(storm, seed)
        cores = (bench.watched_replica(replica_core), bench.watched_call(call_core), bench.watched_link(link_core))
        with in_the_drivers(*cores):
            try:
                run_in_virtual_time(bench.blow, seed)
            except BaseExceptionGroup as group:
                bench.problems.append(f"raised: {group!r}")
            except Exception as error:
                bench.problems.append(f"raised: {error!r}")
    return bench.problems + [str(v) for v in bench.checkers.violations if str(v) not in bench.problems]
