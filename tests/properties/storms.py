"""Random histories of a ``Triangle``: anything that may happen next, one choice at a time, then calm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.core.calm import calm, mendings
from tests.core.harness import CLIENT, Triangle
from tests.core.invariants import UNSTOPPABLE
from tests.core.parts import ANSWER, BAD_ANSWER, Flight
from tests.core.telling import copy_name
from tiedreq.core.call_table import CallState
from tiedreq.core.events import Fault
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied

TIMEOUTS = (2.0, 500.0)
MARKER_AGE = 0.5
RETRYABLE = Fault("busy", "", b"", True)
FINAL = Fault("bad argument", "", b"", False)
POLICIES: tuple[tuple[Policy, str], ...] = (
    (Tied(backup=None, stagger=0.0), "read"),
    (Tied(backup=None, stagger=0.01), "read"),
    (Tied(stagger=0.01, backup=Backup(after=0.02)), "read"),
    (Tied(stagger=0.0, backup=Backup(after=0.02, max_per_call=1)), "lane"),
    (Tied(backup=None, stagger=0.0), "scan"),
    (Tied(backup=None, copies=3, stagger=0.0), "read"),
    (Tied(copies=3, stagger=0.01, backup=Backup(after=0.02)), "scan"),
    (Tied(backup=None, stagger="auto", yield_=False), "read"),
    (Tied(backup=None, stagger=0.0, exclusive=True), "read"),
    (Tied(copies=3, stagger=0.01, exclusive=True, backup=Backup(after=0.02)), "lane"),
    (Hedged(Backup(after=0.02, since="send")), "read"),
    (Plain(), "read"),
    (Plain(), "charge"),
)
Action = Callable[[], None]


class Storm:
    """One history. ``step(choice)`` takes any whole number."""

    def __init__(self, replicas: str, *, calls_max: int, faults_max: int, slots: int = 1, queue_max: int = 3) -> None:
        limits = ReplicaLimits(
            queue_length_max=queue_max,
            markers_per_peer_max=2,
            marker_age_max=MARKER_AGE,
            cancel_markers_per_caller_max=2,
            parked_claims_max=1,
        )
        self.triangle = Triangle(replicas, slots=slots, limits=limits)
        self.replicas = replicas
        self.calls_left = calls_max
        self.faults_left = faults_max

    def step(self, choice: int) -> None:
        actions = list(self._actions())
        actions[choice % len(actions)]()

    # ---- what may happen next ---------------------------------------------------------------------------------

    def _actions(self) -> Iterator[Action]:
        t = self.triangle
        yield partial(t.advance, 0.005)
        yield partial(t.advance, 0.05)
        yield partial(t.lag, 0.03)
        if self.faults_left:
            yield self._fault(t.lag, TIMEOUTS[0])
        if self.calls_left:
            for number in range(len(POLICIES)):
                yield partial(self._call, number)
        for flight in self._deliverable():
            yield partial(t.arrive, flight)
            yield partial(t.arrive, flight)
        for name, node in t.nodes.items():
            if not node.frozen:
                yield partial(t.settle, name)
                yield partial(t.settle, name)
                yield from self._endings(name)
        if self.faults_left:
            yield from self._faults()
        yield from mendings(t, self.replicas)

    def _deliverable(self) -> Iterator[Flight]:
        """Any message, but of what a replica tells its client about one copy only the oldest."""
        seen = set()
        for flight in self.triangle.flights:
            key = (flight.route, flight.copy)
            if flight.route in self.triangle.held or (flight.route.endswith(CLIENT) and key in seen):
                continue
            seen.add(key)
            yield flight

    def _endings(self, name: str) -> Iterator[Action]:
        t = self.triangle
        node = t.nodes[name]
        for copy, work in node.handlers.items():
            told = copy_name(copy)
            if copy in node.stopping and work.submit.method not in UNSTOPPABLE:
                yield partial(t.finish, name, told, None)
                continue
            for outcome in (ANSWER, ANSWER, ANSWER, BAD_ANSWER, RETRYABLE, FINAL):
                yield partial(t.finish, name, told, outcome)
            yield partial(t.enable_stop, name, told)

    def _faults(self) -> Iterator[Action]:
        t = self.triangle
        everyone = CLIENT + "".join(t.nodes)
        for name, node in t.nodes.items():
            yield self._fault(t.crash, name)
            yield self._fault(partial(t.crash, told=""), name)
            yield self._fault(t.drain, name)
            if not node.frozen:
                yield self._fault(t.freeze, name)
            for other in everyone:
                if other < name and t.connected(name, other):
                    for told in (name + other, name, other, ""):
                        yield self._fault(partial(t.cut, told=told), name, other)
        for number, call in t.calls.items():
            if call.state != CallState.DONE:
                yield self._fault(t.cancel, number)
        for name in t.nodes:
            yield self._fault(self._toggle_outbox, name)

    def _fault(self, act: Callable[..., object], *arguments: object) -> Action:
        def do() -> None:
            self.faults_left -= 1
            act(*arguments)

        return do

    def _toggle_outbox(self, name: str) -> None:
        self.triangle.outbox_full ^= {name}

    def _call(self, number: int) -> None:
        self.calls_left -= 1
        policy, method = POLICIES[number]
        order = self.replicas if self.calls_left % 2 else self.replicas[::-1]
        self.triangle.call(policy, method=method, at=order, timeout=TIMEOUTS[number % 2])

    def calm(self) -> list[str]:
        """Let it all end, and say what is left."""
        return calm(self.triangle, self.replicas)
