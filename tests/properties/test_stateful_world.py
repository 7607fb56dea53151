"""Anything may happen next: cores, network and checkers, driven rule by rule by Hypothesis.

Every message waits until a rule delivers it, handlers run until a rule ends them, and the end of each rule is the end
of a batch of input. At the end everything is mended and must drain. ``search`` runs it over any cores; a failure shows
the rules that lead to it as a program, and the transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tiedreq.core.call import CallCore
from tiedreq.core.events import Answer, Fault
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.messages import Goodbye, Result, Submit
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import MethodInfo
from tiedreq.laws import Constant
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.handlers import Execution
from tiedreq.sim.links import Connection, Direction, NetworkOptions, Opening
from tiedreq.sim.replica_node import ReplicaNode
from tiedreq.sim.watch import Watch
from tiedreq.sim.workload import ANSWER, Workload
from tiedreq.sim.world import World, WorldOptions, stream

CALLS_MAX = 8
TROUBLES_MAX = 4
FAR = 1e6
METHODS = (
    HeldMethod(MethodInfo("work", True, True, 3600.0), None),
    HeldMethod(MethodInfo("lane", True, True, 3600.0), 1),
    HeldMethod(MethodInfo("thread", True, False, 3600.0), None),
    HeldMethod(MethodInfo("once", False, True, 3600.0), None),
)
AGAIN = Fault("busy", "", b"", True)
FINAL = Fault("bad argument", "", b"", False)
BACKUP = Backup(after=0.02)
POLICIES: tuple[Policy, ...] = (
    Tied(backup=None, stagger=0.0),
    Tied(backup=None, stagger=0.01),
    Tied(stagger=0.0, backup=BACKUP),
    Tied(stagger=0.01, backup=BACKUP, copies=3),
    Tied(backup=None, stagger=0.0, exclusive=True),
    Tied(backup=None, stagger=0.0, exclusive=True, copies=3),
    Tied(backup=None, stagger=0.0, yield_=False),
    Tied(backup=None),
    Hedged(Backup(after=0.02, since="send")),
    Plain(),
    Tied(stagger=0.0, exclusive=True, backup=BACKUP),
)
LIMITS = (
    ReplicaLimits(marker_age_max=0.5),
    ReplicaLimits(marker_age_max=0.5, queue_length_max=1, markers_per_peer_max=1, parked_claims_max=1),
    ReplicaLimits(marker_age_max=0.05, queue_length_max=2, tombstones_max=1, cancel_markers_per_caller_max=1),
)

which = st.integers(0, 30)


class Hand(Workload):
    """Handlers that run until they are ended, with the outcome that was said then."""

    def __init__(self) -> None:
        super().__init__(Constant(FAR / 1000), stream(0, "unused"))
        self.outcome: Answer | Fault = ANSWER
        self.acceptance = True

    def end(self, node: ReplicaNode, execution: Execution) -> Answer | Fault:
        super().end(node, execution)
        return self.outcome

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        return self.acceptance


class WorldMachine(RuleBasedStateMachine):
    """The rules. A subclass puts other cores in."""

    replica_core: Callable[..., ReplicaCore] = ReplicaCore
    call_core: Callable[..., CallCore] = CallCore
    learns = False

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.hand = Hand()
        self.watch = Watch(keep=True)
        self.calls: list[tuple[CallerNode, OpenCall]] = []
        self.half_known: list[tuple[Connection, str]] = []
        self.troubles = 0

    @initialize(
        replicas=st.integers(2, 4),
        slots=st.sampled_from([1, 1, 2]),
        callers=st.integers(1, 2),
        limits=st.integers(0, len(LIMITS) - 1),
        rounds=st.integers(1, 3),
        seed=st.integers(0, 7),
        policies=st.lists(st.integers(0, len(POLICIES) - 1), min_size=1, max_size=3),
        methods=st.lists(st.sampled_from([method.info.name for method in METHODS]), min_size=1, max_size=2),
    )
    def start(
        self,
        replicas: int,
        slots: int,
        callers: int,
        limits: int,
        rounds: int,
        seed: int,
        policies: list[int],
        methods: list[str],
    ) -> None:
        """A world; ``policies`` and ``methods`` are those that are used in it."""
        self.policies, self.methods = policies, methods
        options = WorldOptions(
            replicas=replicas,
            slots=slots,
            callers=callers,
            methods=METHODS,
            network=NetworkOptions(silence=1.0, notice_max=0.0, reconnect_min=0.02, reconnect_max=0.02),
            replica_limits=LIMITS[limits],
            client_limits=ClientLimits(rounds_max=rounds),
            measure_interval=86_400.0,
            warm_up=1,
            learns=type(self).learns,
        )
        cls = type(self)
        self.world = World(
            options,
            self.hand,
            seed=seed,
            observer=self.watch,
            replica_core=cls.replica_core,
            call_core=cls.call_core,
        )
        self.watch.clock = self.world.clock
        self.world.start()
        self.world.clock.run(0.01)
        for first, second in self.world.network.pairs():
            self.world.network.hold(first, second)
            self.world.network.hold(second, first)

    # ---- messages -------------------------------------------------------------------------------------------------

    def _waiting(self) -> list[Direction]:
        return [direction for direction in self.world.network.directions() if direction.waiting]

    @precondition(lambda self: self._waiting())
    @rule(which=which, nth=st.sampled_from([0, 0, 0, 1, 2]), batch=st.sampled_from([1, 1, 2, 5]))
    def deliver(self, which: int, nth: int, batch: int) -> None:
        """A message arrives, or several in one batch; a Submit or Result that is sent in chunks may be overtaken."""
        for number in range(batch):
            waiting = self._waiting()
            if not waiting:
                break
            direction = waiting[(which + number) % len(waiting)]
            direction.deliver(self._overtaking(direction, nth))
        self.world.clock.settle()

    @staticmethod
    def _overtaking(direction: Direction, nth: int) -> int:
        queue = direction.waiting
        assert queue is not None
        if nth >= len(queue) or isinstance(queue[nth], Goodbye):
            return 0
        overtaken = list(queue)[:nth]
        return 0 if any(isinstance(message, Opening) for message in overtaken) else nth

    @precondition(lambda self: self._waiting())
    @rule()
    def deliver_submits(self) -> None:
        """Every copy that is under way arrives, before anything else does."""
        for direction in self._waiting():
            while direction.waiting and isinstance(direction.waiting[0], Submit):
                direction.deliver()
        self.world.clock.settle()

    @precondition(lambda self: self._waiting())
    @rule()
    def deliver_everything(self) -> None:
        """All that waits arrives, in turn, until nothing waits."""
        for _ in range(500):
            waiting = self._waiting()
            if not waiting:
                break
            for direction in waiting:
                if direction.waiting:
                    direction.deliver()
            self.world.clock.settle()

    # ---- users and handlers ---------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.calls) < CALLS_MAX)
    @rule(
        caller=which,
        method=which,
        policy=which,
        timeout=st.sampled_from([1_000.0, 1_000.0, 5.0, 0.1]),
        count=st.sampled_from([1, 1, 2, 3]),
    )
    def submit(self, caller: int, method: int, policy: int, timeout: float, count: int) -> None:
        """A user makes a call, or a few of a kind."""
        alive = [node for node in self.world.callers.values() if node.alive and not node.frozen]
        if alive:
            node = alive[caller % len(alive)]
            name = self.methods[method % len(self.methods)]
            chosen = POLICIES[self.policies[policy % len(self.policies)]] if name != "once" else Plain()
            for _ in range(count):
                call = self.hand.make(node, chosen, method=name, timeout=timeout, idempotent=name != "once")
                self.calls.append((node, call))
            self.world.clock.settle()

    @precondition(lambda self: any(call.outcome is None for _, call in self.calls))
    @rule(which=which)
    def cancel(self, which: int) -> None:
        """A user no longer wants a call."""
        is_open = [(node, call) for node, call in self.calls if call.outcome is None and node.alive]
        if is_open:
            node, call = is_open[which % len(is_open)]
            node.cancel(call)
            self.world.clock.settle()

    def _executions(self) -> list[tuple[ReplicaNode, Execution]]:
        replicas = self.world.replicas.values()
        return [(node, execution) for node in replicas for execution in node.executions.values()]

    @precondition(lambda self: self._executions())
    @rule(which=which, outcome=st.sampled_from([ANSWER, ANSWER, AGAIN, FINAL]), accepted=st.booleans())
    def finish_work(self, which: int, outcome: Answer | Fault, accepted: bool) -> None:
        """A handler ends; ``accepted`` is the verdict on answers that arrive from now on."""
        executions = self._executions()
        node, execution = executions[which % len(executions)]
        self.hand.outcome, self.hand.acceptance = outcome, accepted
        node.finish(execution)
        self.world.clock.settle()

    @precondition(lambda self: any(not execution.stoppable for _, execution in self._executions()))
    @rule(which=which)
    def enable_stop(self, which: int) -> None:
        """A handler in a thread says how it can be stopped."""
        threads = [(node, execution) for node, execution in self._executions() if not execution.stoppable]
        node, execution = threads[which % len(threads)]
        node.enable_stop(execution)
        self.world.clock.settle()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.03, 0.5]))
    def pass_time(self, seconds: float) -> None:
        """Time goes on: timers, dialing, the end of stalls."""
        self.world.clock.run(self.world.clock.now + seconds)

    # ---- faults ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.troubles < TROUBLES_MAX)
    @rule(
        kind=st.sampled_from(["lose_link", "lose_link", "crash", "freeze", "drain"]), which=which, other=st.booleans()
    )
    def trouble(self, kind: str, which: int, other: bool) -> None:
        """Something goes wrong."""
        self.troubles += 1
        getattr(self, f"_{kind}")(which, other)
        self.world.clock.settle()

    def _lose_link(self, which: int, other: bool) -> None:
        """A connection breaks: one end knows at once, the other one when ``notice_loss`` says so."""
        network = self.world.network
        known = [connection for connection, _ in self.half_known]
        connections = [c for pair in network.pairs() for c in network.connections(*pair) if c not in known]
        if connections:
            connection = connections[which % len(connections)]
            ends = [connection.dialer.node.name, connection.acceptor.node.name]
            network.cut_now(connection, ends[other])
            self.half_known.append((connection, ends[not other]))

    def _alive(self) -> list[str]:
        return [name for name in [*self.world.replicas, *self.world.callers] if self.world.node(name).alive]

    def _crash(self, which: int, other: bool) -> None:
        alive = self._alive()
        if alive:
            name = alive[which % len(alive)]
            if name in self.world.replicas:
                self.world.crash(name)
            else:
                self.world.crash_caller(name)
                self.calls = [(node, call) for node, call in self.calls if node.name != name]

    def _drain(self, which: int, other: bool) -> None:
        names = [name for name, node in self.world.replicas.items() if node.alive and not node.leaving]
        if names:
            self.world.drain(names[which % len(names)])

    def _freeze(self, which: int, other: bool) -> None:
        alive = self._alive()
        if alive:
            self.world.freeze(alive[which % len(alive)], 0.3 if other else 0.01)

    @precondition(lambda self: self.half_known)
    @rule(which=which)
    def notice_loss(self, which: int) -> None:
        """The other end of a broken connection learns of it, perhaps long after the new one is up."""
        connection, name = self.half_known.pop(which % len(self.half_known))
        self.world.network.notice(connection, name)
        self.world.clock.settle()

    @precondition(lambda self: len(self._alive()) < len(self.world.replicas) + len(self.world.callers))
    @rule(which=which)
    def restart(self, which: int) -> None:
        """What is down starts again, as a new incarnation."""
        names = [*self.world.replicas, *self.world.callers]
        down = [name for name in names if not self.world.node(name).alive]
        self.world.restart(down[which % len(down)])
        self.world.clock.settle()

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        violations = self.watch.checkers.violations
        assert not violations, "\n".join([*map(str, violations), *self.watch.trace.lines[-200:]])

    def teardown(self) -> None:
        """Mend everything; then it must drain."""
        if not hasattr(self, "world") or self.watch.checkers.violations:
            return
        world = self.world
        for connection, name in self.half_known:
            world.network.notice(connection, name)
        world.network.heal_all()
        self.hand.outcome, self.hand.acceptance = ANSWER, True
        pending: str | None = "not looked at"
        for _ in range(100):
            for name in [*world.replicas, *world.callers]:
                if not world.node(name).alive:
                    world.restart(name)
            for node, execution in self._executions():
                node.finish(execution)
            world.clock.run(world.clock.now + 0.1)
            pending = world.pending()
            if pending is None or self.watch.checkers.violations:
                break
        self.nothing_is_broken()
        assert pending is None, "\n".join([f"does not drain: {pending}", *self.watch.trace.lines[-200:]])
        self.watch.checkers.on_quiescent([node.core for node in world.replicas.values()], [], world.clock.now)
        self.nothing_is_broken()


def search(
    *,
    replica_core: Callable[..., ReplicaCore] = ReplicaCore,
    call_core: Callable[..., CallCore] = CallCore,
    settings: hypothesis.settings | None = None,
) -> None:
    """Run the machine over these cores. Raises what Hypothesis raises when an invariant is broken."""
    cores = {"replica_core": staticmethod(replica_core), "call_core": staticmethod(call_core)}
    machine: Any = type("WorldMachineOverCores", (WorldMachine,), cores)
    run_state_machine_as_test(machine, settings=settings)


TestWorld = WorldMachine.TestCase
TestWorld.settings = hypothesis.settings(stateful_step_count=60)
