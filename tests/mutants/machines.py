"""The stateful machine over broken cores, narrowed: few policies each, and a few troubles that no honest network makes.

A narrow machine finds in a few dozen histories what the wide one finds in thousands. Examples are derandomised.
"""

from __future__ import annotations

import sys
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import Constants
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.mutants.guard import guarded, guarded_call
from tests.mutants.link_world import LinkMachine
from tests.properties import test_stateful_world as wide
from tests.properties.test_brake import BrakeMachine, LinkLostMachine
from tests.properties.test_governor import GovernorMachine
from tiedreq.core.call import CallCore
from tiedreq.core.events import PeerStarted, PushbackRequested
from tiedreq.core.link import LinkCore
from tiedreq.core.messages import Ended, Next, Started, Submit
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

EXCLUSIVE_WITH_BACKUP = len(wide.POLICIES) - 1
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

    def teardown(self) -> None:
        """See ``WorldMachine``; not after something went wrong, which is to be told itself."""
        if sys.exc_info()[0] is None:
            super().teardown()

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


class ShuffledMachine(NarrowMachine):
    """Notices of one copy overtake each other."""

    def _overtaken(self) -> list[tuple[Any, int, int]]:
        """Where a Started is under way behind the Next of its own copy."""
        found = []
        for direction in self._waiting():
            said = {message.copy: at for at, message in enumerate(direction.waiting or ()) if isinstance(message, Next)}
            for at, message in enumerate(direction.waiting or ()):
                if isinstance(message, Started) and at > said.get(message.copy, at):
                    found.append((direction, said[message.copy], at))
        return found

    @precondition(lambda self: self._overtaken())
    @rule(which=which)
    def overtake(self, which: int) -> None:
        """Started arrives, and then the Next that was sent before it."""
        found = self._overtaken()
        direction, earlier, later = found[which % len(found)]
        direction.deliver(later)
        direction.deliver(earlier)
        self.world.clock.settle()


class PushedBackMachine(NarrowMachine):
    """Handlers want no backups."""

    @rule(which=which)
    def push_back(self, which: int) -> None:
        """A handler wants no backups for a while."""
        nodes = [node for node in self.world.replicas.values() if node.alive and not node.frozen]
        if nodes:
            nodes[which % len(nodes)].step(PushbackRequested(5.0))
            self.world.clock.settle()


class CarelessMachine(NarrowMachine):
    """Calls of what may not run twice, with policies that would run it twice."""

    @precondition(lambda self: len(self.calls) < wide.CALLS_MAX)
    @rule(which=which)
    def submit_without_care(self, which: int) -> None:
        """A caller ties what may not run twice, as a client does that does not check."""
        node = next(iter(self.world.callers.values()))
        if node.alive and not node.frozen:
            policy = wide.POLICIES[self.policies[which % len(self.policies)]]
            self.calls.append((node, self.hand.make(node, policy, method="once", timeout=1_000.0, idempotent=True)))
            self.world.clock.settle()

    @precondition(lambda self: len(self.calls) < wide.CALLS_MAX)
    @rule(which=which)
    def submit_with_any_policy(self, which: int) -> None:
        """A call that may not run twice and is known as such, with a policy that would tie it."""
        node = next(iter(self.world.callers.values()))
        if node.alive and not node.frozen:
            policy = wide.POLICIES[self.policies[which % len(self.policies)]]
            self.calls.append((node, self.hand.make(node, policy, method="once", timeout=1_000.0, idempotent=False)))
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
    "pushed back": {"used_policies": (2, 3), "replicas": 3, "troubles_max": 1},
    "may not run twice": {"used_policies": (0,), "troubles_max": 2},
    "braked": {"used_policies": (2, 3), "replicas": 3, "troubles_max": 1, "learns": True},
    "braked, lost links": {"used_policies": (2,), "replicas": 3, "troubles_max": 0, "breaks_max": 6, "learns": True},
    "braked, little room": {"used_policies": (2,), "replicas": 3, "limits": 1, "troubles_max": 0, "learns": True},
    "threads, three": {"used_methods": ("thread",), "used_policies": (0, 3), "replicas": 3, "troubles_max": 1},
    "threads, shuffled": {"used_methods": ("thread",), "troubles_max": 0},
    "crowd": {"used_policies": (0, 6), "used_methods": ("work", "lane"), "limits": 2, "replicas": 3},
    "staggered, little room": {"used_policies": (1,), "limits": 1, "replicas": 3, "troubles_max": 0},
    "staggered, lost links": {"used_policies": (1,), "replicas": 3, "troubles_max": 2, "breaks_max": 4},
    "exclusive with backup": {"used_policies": (EXCLUSIVE_WITH_BACKUP,), "replicas": 3, "troubles_max": 0},
    "liars": {"replicas": 3, "liars": True, "troubles_max": 0},
}


KINDS: dict[str, type[NarrowMachine]] = {
    "pushed back": PushedBackMachine,
    "may not run twice": CarelessMachine,
    "threads, shuffled": ShuffledMachine,
}
"""Machines with rules of their own: a rule that others don't need would change what is drawn for them."""
OTHERS: dict[str, Any] = {
    "links": LinkMachine,
    "bucket of work": BrakeMachine,
    "bucket of lost links": LinkLostMachine,
    "governor": GovernorMachine,
}
"""Machines over something else than a world of replicas and callers."""


def run_machine(
    name: str,
    replica_core: type[ReplicaCore] = ReplicaCore,
    call_core: type[CallCore] = CallCore,
    link_core: type[LinkCore] = LinkCore,
    *,
    broken: bool = False,
) -> str | None:
    """Run a machine over these cores: what was broken, or None. Cores that are ``broken`` get more histories."""
    cores: dict[str, Any] = {
        "replica_core": staticmethod(guarded(replica_core)),
        "call_core": staticmethod(guarded_call(call_core)),
    }
    machine: Any
    if name in OTHERS:
        machine = type("NarrowMachineOverParts", (OTHERS[name],), {"link_core": link_core})
    else:
        machine = type("NarrowMachineOverCores", (KINDS.get(name, NarrowMachine),), {**MACHINES[name], **cores})
    examples = EXAMPLES_OF_BROKEN if broken else EXAMPLES
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
