"""The stateful machine over broken cores, narrowed: few policies each, and a few troubles that no honest network makes.

A narrow machine finds in a few dozen histories what the wide one finds in thousands. Examples are derandomised.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import Constants
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.mutants.guard import guarded, guarded_call
from tests.properties import test_stateful_world as wide
from tiedreq.core.call import CallCore
from tiedreq.core.events import PeerStarted
from tiedreq.core.messages import Ended, Started, Submit
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import Cause, CopyId, CopyState, Load
from tiedreq.sim.links import Opening

EXAMPLES = 60
EXAMPLES_OF_BROKEN = 300
"""A broken core may take this many before it is noticed; most are within the first dozen."""
STEPS = 40
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
    report_multiple_bugs=False,
    print_blob=False,
)

NO_LOAD = Load(0, 1, 0, 0.0)
OLD_LINK = 1_000_000
which = st.integers(0, 30)


class NarrowMachine(wide.WorldMachine):
    """One slot at each replica, no limits, and what a subclass says of the rest."""

    replicas = 2
    slots = 1
    callers = 1
    limits = 0
    rounds = 3
    used_policies: tuple[int, ...] = (0,)
    used_methods: tuple[str, ...] = ("work",)
    troubles_max = wide.TROUBLES_MAX
    breaks_max = 0
    liars = False
    late_news = False

    @initialize(seed=st.integers(0, 7))
    def start(self, seed: int) -> None:
        """A world of that kind."""
        wide.WorldMachine.start(
            self,
            replicas=self.replicas,
            slots=self.slots,
            callers=self.callers,
            limits=self.limits,
            rounds=self.rounds,
            seed=seed,
            policies=list(self.used_policies),
            methods=list(self.used_methods),
        )
        self.troubles = wide.TROUBLES_MAX - self.troubles_max

    @precondition(lambda self: self.breaks_max > len(self.half_known) and self.calls)
    @rule(which=which, other=st.booleans())
    def break_link(self, which: int, other: bool) -> None:
        """A connection breaks; the next one is up before the other end of this one knows."""
        self._lose_link(which, other)
        self.world.clock.run(self.world.clock.now + 0.03)
        for direction in self._waiting():
            while direction.waiting and isinstance(direction.waiting[0], Opening):
                direction.deliver()
        self.world.clock.settle()

    @precondition(lambda self: self.liars and any(isinstance(m, Submit) for d in self._waiting() for m in d.waiting))
    @rule(which=which)
    def repeat(self, which: int) -> None:
        """A copy that is under way arrives, and arrives again later."""
        found = [(d, m) for d in self._waiting() for m in d.waiting or () if isinstance(m, Submit)]
        direction, submit = found[which % len(found)]
        assert direction.waiting is not None
        direction.waiting.append(submit)

    @precondition(lambda self: self.liars and self.calls and len(self.world.replicas) > 2)
    @rule(which=which, rank=st.integers(0, 1), victim=which)
    def forge(self, which: int, rank: int, victim: int) -> None:
        """A peer says of a copy that is not its own that it started."""
        _, call = self.calls[which % len(self.calls)]
        nodes = list(self.world.replicas.values())
        node = nodes[victim % len(nodes)]
        identity = call.core.request.id
        copy = CopyId(identity.client, identity.number, 0, rank)
        sent = call.core._partners
        links = [link for link, name in node.peers.items() if name not in {partner.name for partner in sent}]
        if node.alive and not node.frozen and links:
            node.step(PeerStarted(links[0], copy, 1.0))
            self.world.clock.settle()

    @precondition(lambda self: self.late_news and self.calls)
    @rule(which=which, started=st.booleans(), at_caller=st.booleans())
    def arrive_late(self, which: int, started: bool, at_caller: bool) -> None:
        """News of a copy comes over a connection that the receiver does not have any more."""
        caller, call = self.calls[which % len(self.calls)]
        for copy, sent in list(call.core.copies.items()):
            if at_caller and caller.alive:
                ended = Ended(copy, CopyState.FAILED, Cause.NONE, 0.0, 0.0, NO_LOAD)
                caller.receive(OLD_LINK, Started(copy, 1.0, NO_LOAD) if started else ended)
            else:
                others = [name for name in self.world.replicas if name != sent.replica]
                self.world.replicas[others[which % len(others)]].step(PeerStarted(OLD_LINK, copy, 1.0))
        self.world.clock.settle()


MACHINES: dict[str, dict[str, Any]] = {
    "tied": {},
    "tied, no faults": {"troubles_max": 0},
    "three copies": {"replicas": 3, "used_policies": (3, 0), "troubles_max": 0},
    "threads": {"used_methods": ("thread",), "troubles_max": 1},
    "staggered": {"used_policies": (1,), "troubles_max": 0},
    "little room": {"limits": 1, "replicas": 3},
    "lost links": {"troubles_max": 0, "breaks_max": 6},
    "backups": {"used_policies": (2, 3), "replicas": 3, "troubles_max": 2},
    "exclusive": {"used_policies": (4,), "troubles_max": 1},
    "exclusive, three": {"used_policies": (5,), "replicas": 3, "troubles_max": 1},
    "exclusive, little memory": {"used_policies": (4, 5), "replicas": 3, "limits": 2, "troubles_max": 1},
    "late news": {"late_news": True, "troubles_max": 0},
    "liars": {"replicas": 3, "liars": True, "troubles_max": 0},
}


def run_machine(
    name: str,
    *,
    replica_core: type[ReplicaCore] = ReplicaCore,
    call_core: type[CallCore] = CallCore,
    examples: int | None = None,
) -> str | None:
    """Run a machine over these cores: what was broken, or None."""
    right = (replica_core, call_core) == (ReplicaCore, CallCore)
    examples = examples or (EXAMPLES if right else EXAMPLES_OF_BROKEN)
    cores: dict[str, Any] = {
        "replica_core": staticmethod(guarded(replica_core)),
        "call_core": staticmethod(guarded_call(call_core)),
    }
    machine: Any = type("NarrowMachineOverCores", (NarrowMachine,), {**MACHINES[name], **cores})
    with pytest.MonkeyPatch.context() as patch:
        # Hypothesis draws constants that it finds in all modules loaded so far: without this, each run would depend
        # on which other tests are collected with it.
        patch.setattr("hypothesis.internal.conjecture.providers._get_local_constants", _no_constants)
        try:
            run_state_machine_as_test(machine, settings=hypothesis.settings(SETTINGS, max_examples=examples))
        except Exception as error:
            return str(error).partition("\n")[0] or repr(error)
    return None


def _no_constants() -> Constants:
    return Constants()
