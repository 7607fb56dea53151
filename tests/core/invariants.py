"""The invariants of a call, its copies and its replicas, checked after every step of a ``Triangle``.

The names S1 … S12 are those of the design's list of invariants. A ``Watch`` learns only what a driver sees: the events
it gave, the commands it got, and what became of messages and replicas. It never looks into a core for the truth,
except for the gauges, which it compares with its own count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from tests.core.telling import copy_name
from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallCore
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.policy import Hedged
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState, Identity, TieId


class Fate(Enum):
    """What became of a copy that has no terminal state (yet)."""

    OUT = 0
    LOST = 1  # with its link or its replica


class HasLinks(Protocol):
    """A replica and what its driver knows of the other side of each link."""

    core: ReplicaCore
    links: dict[int, str]
    partners: dict[int, Identity]


class InvariantBroken(AssertionError):
    """An invariant does not hold; the message begins with its name."""


def demand(holds: bool, rule: str, told: str) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {told}")


class Watch:
    """Follows every copy from its sending to its end."""

    def __init__(self) -> None:
        self.fates: dict[CopyId, CopyState | Fate] = {}
        self.submits: dict[CopyId, m.Submit] = {}
        self.targets: dict[CopyId, str] = {}
        self.links: dict[CopyId, int] = {}
        self.ties: dict[TieId, list[CopyId]] = defaultdict(list)
        self.by_call: dict[CallId, list[CopyId]] = defaultdict(list)
        self.started: set[CopyId] = set()
        self.ended: set[CopyId] = set()
        self.announced: set[CopyId] = set()
        self.granted: set[CopyId] = set()
        self.outcomes: dict[CallId, c.Outcome] = {}
        self.handlers: dict[Identity, dict[CopyId, bool]] = defaultdict(dict)
        """The handlers that run at a replica, and whether each has been told to stop."""

    # ---- a replica --------------------------------------------------------------------------------------------

    def replica_stepped(self, node: HasLinks, event: e.ReplicaEvent, commands: Sequence[c.ReplicaCommand]) -> None:
        core = node.core
        handlers = self.handlers[core.identity]
        if isinstance(event, e.WorkFinished):
            handlers.pop(event.copy, None)
        if isinstance(event, e.CallerLost):
            self._end_silent(core)
        told_partners: set[CopyId] = set()
        for command in commands:
            match command:
                case c.SendPeer(link, message):
                    demand(link in node.partners, "driver", f"a notice for link {link}, which is not up")
                    self._notice(message, told_partners)
                case c.StartWork(submit):
                    reachable = set(submit.partners) & set(node.partners.values())
                    if reachable:
                        demand(submit.copy in told_partners, "5.1", f"{copy_name(submit.copy)} before its notice")
                    self._start(core, submit.copy, event)
                case c.StopWork(copy):
                    demand(handlers.get(copy) is False, "S5", f"{copy_name(copy)} is stopped twice or does not run")
                    handlers[copy] = True
                case c.SendCaller(link, message):
                    demand(link in node.links, "driver", f"a message for link {link}, which is not up")
                    self._told_caller(message)
                case c.FinishDrain():
                    demand(not handlers, "drain", "drained while a handler runs")
        self._check_gauges(core)

    def _end_silent(self, core: ReplicaCore) -> None:
        """A caller's link is gone: what came over it ends without a word."""
        for copy in self.fates:
            if copy not in self.ended and core.copy_state(copy) == CopyState.CANCELLED:
                self.ended.add(copy)
                self.copy_lost(copy)

    def _notice(self, message: m.Message, told_partners: set[CopyId]) -> None:
        if isinstance(message, m.Started | m.Next):
            demand(message.remaining >= 0, "wire", f"negative time left in {message}")
            demand(message.copy.rank != UNTIED, "S12", f"a notice of {copy_name(message.copy)}, which is not tied")
        if isinstance(message, m.Started):
            told_partners.add(message.copy)
        elif isinstance(message, m.Next):
            self.announced.add(message.copy)
        elif isinstance(message, m.Granted):
            self.granted.add(message.copy)

    def _start(self, core: ReplicaCore, copy: CopyId, event: e.ReplicaEvent) -> None:
        name = copy_name(copy)
        demand(isinstance(event, e.InputSettled), "settle", f"{name} started before the input had settled")
        demand(copy not in self.started, "S5", f"{name} started twice")
        demand(copy not in self.ended, "S5", f"{name} started after its end: {self.fates[copy]}")
        if copy.rank != UNTIED and self.submits[copy].exclusive:
            others = self.started & set(self.ties[copy.tie])
            demand(not others, "S7", f"{name} of an exclusive tie started beside {others}")
        self.started.add(copy)
        self.handlers[core.identity][copy] = False

    def _told_caller(self, message: m.Message) -> None:
        if isinstance(message, m.Result):
            self._end(message.copy, CopyState.DONE)
        elif isinstance(message, m.Failed):
            self._end(message.copy, CopyState.FAILED)
        elif isinstance(message, m.Ended):
            self._check_cause(message)
            self._end(message.copy, message.state)
        elif isinstance(message, m.Started):
            demand(message.remaining >= 0, "wire", f"negative time left in {message}")
            demand(message.copy in self.started, "5.1", f"{copy_name(message.copy)} told as started before StartWork")

    def _end(self, copy: CopyId, state: CopyState) -> None:
        demand(copy not in self.ended, "S2", f"{copy_name(copy)} ended {state.label} after {self.fates[copy]}")
        self.ended.add(copy)
        self.fates[copy] = state
        if copy.rank != UNTIED:
            self._check_tie(copy.tie)

    def _check_cause(self, message: m.Ended) -> None:
        copy, name = message.copy, copy_name(message.copy)
        partners = [other for other in self.ties[copy.tie] if other != copy] if copy.rank != UNTIED else []
        lower = [other for other in partners if other.rank < copy.rank]
        if message.state in (CopyState.DROPPED, CopyState.YIELDED):
            demand(copy.rank != UNTIED, "S12", f"{name} is not tied and was {message.state.label}")
        if message.state == CopyState.DROPPED:
            reasons = {
                Cause.STARTED: (self.started | self.granted) & set(partners),
                Cause.NEXT: self.announced & set(lower),
                Cause.GRANTED: set(partners),
            }
            demand(bool(reasons.get(message.cause)), "S3", f"{name} dropped because of {message.cause.label}")
        if message.state == CopyState.YIELDED:
            demand(any(other in self.started for other in lower), "S3", f"{name} yielded to no lower rank")

    def _check_tie(self, tie: TieId) -> None:
        fates = {self.fates[copy] for copy in self.ties[tie]}
        given_up = fates <= {CopyState.DROPPED, CopyState.YIELDED}
        demand(not given_up, "S4", f"every copy of {tie.number}/r{tie.round} was dropped or yielded")

    def _check_gauges(self, core: ReplicaCore) -> None:
        wake_at = core.wake_at
        demand(wake_at is None or wake_at < float("inf"), "driver", f"{core.identity.name}: wake at {wake_at}")
        running = len(self.handlers[core.identity])
        demand(core.running == running, "S10", f"{core.identity.name}: {running} handlers run, running={core.running}")
        demand(core.free_slots + core.running == core.slots, "S10", f"{core.identity.name}: slots do not add up")
        demand(core.free_slots >= 0, "S10", f"{core.identity.name}: {core.running} of {core.slots} slots taken")
        sizes, limits = core.sizes(), core.limits
        for name, most in limits_of(sizes, limits).items():
            demand(sizes[name] <= most, "S8", f"{core.identity.name}: {sizes[name]} {name}, limit {most}")
        demand(sizes["ties"] <= sizes["copies"], "S8", f"{core.identity.name}: a tie without a copy")
        live = sizes["copies"] - sizes["queue"] - sizes["claiming"]
        demand(0 <= live <= sizes["executions"], "S10", f"{core.identity.name}: copies neither queued nor running")

    # ---- a call -----------------------------------------------------------------------------------------------

    def call_stepped(self, call: CallCore, commands: Sequence[c.CallCommand], links: dict[int, str]) -> None:
        identity = call.request.id
        for command in commands:
            demand(identity not in self.outcomes, "S1", f"call {identity.number}: {command} after its outcome")
            if isinstance(command, c.SendCopy):
                self._sent(command, links)
            elif isinstance(command, c.CompleteCall):
                self.outcomes[identity] = command.outcome
                cancelled = {other.copy for other in commands if isinstance(other, c.CancelCopy)}
                out = {sent.id for sent in call.copies.values() if sent.alive}
                policy = call.request.policy
                if isinstance(policy, Hedged) and not policy.cancel_losers:
                    out = set()  # what it leaves behind runs on, as asked for
                demand(cancelled == out, "S1", f"call {identity.number} ended, cancelled {cancelled} of {out}")

    def _sent(self, command: c.SendCopy, links: dict[int, str]) -> None:
        submit = command.submit
        copy, name = submit.copy, copy_name(submit.copy)
        target = links.get(command.link, "?")
        demand(copy not in self.fates, "S9", f"{name} sent twice")
        demand(submit.remaining > 0, "wire", f"{name} sent with {submit.remaining} s left")
        others = [other for other in self.by_call[copy.call] if self.targets[other] == target]
        waiting = [other for other in others if self.fates[other] is Fate.OUT]
        if copy.rank != UNTIED:
            same = [other for other in others if other.rank != UNTIED and other.tie == copy.tie]
            demand(not same, "6.1", f"{name} and {same} at {target}")
            demand(submit.partners[copy.rank].name == target, "6.1", f"{name} sent to {target}, not its partner")
        if submit.kind == CopyKind.BACKUP:
            demand(copy.rank == UNTIED, "S12", f"backup {name} bears the tie's identity")
            demand(not waiting, "6.3", f"backup {name} at {target}, which has {waiting}")
        self.fates[copy] = Fate.OUT
        self.submits[copy] = submit
        self.targets[copy] = target
        self.links[copy] = command.link
        self.by_call[copy.call].append(copy)
        if copy.rank != UNTIED:
            self.ties[copy.tie].append(copy)

    # ---- faults and rest --------------------------------------------------------------------------------------

    def copy_lost(self, copy: CopyId) -> None:
        """The message that carried the copy, or the replica that held it, is gone."""
        if self.fates.get(copy) is Fate.OUT:
            self.fates[copy] = Fate.LOST

    def link_lost(self, link: int) -> None:
        """The client has lost a link, and with it every copy that went over it."""
        for copy, over in self.links.items():
            if over == link:
                self.copy_lost(copy)

    def replica_lost(self, identity: Identity) -> None:
        self.handlers.pop(identity, None)
        for copy, target in self.targets.items():
            if target == identity.name:
                self.copy_lost(copy)

    def check_quiet(self) -> None:
        """S11: with every notice handled, of each tie's stoppable, yielding copies only the lowest rank runs."""
        for copies in self.ties.values():
            running = [
                copy
                for handlers in self.handlers.values()
                for copy, stopping in handlers.items()
                if copy in copies and not stopping
            ]
            lowest = min((copy.rank for copy in running), default=0)
            for copy in running:
                if copy.rank != lowest:
                    submit = self.submits[copy]
                    excused = not submit.yield_ or submit.method in UNSTOPPABLE
                    demand(excused, "S11", f"{copy_name(copy)} still runs beside rank {lowest}")


UNSTOPPABLE = frozenset({"scan"})


def limits_of(sizes: dict[str, int], limits: ReplicaLimits) -> dict[str, int]:
    """The most that each collection of a replica may hold."""
    return {
        "claiming": sizes["copies"],
        "parked_claims": limits.parked_claims_max,
        "queue": limits.queue_length_max,
        "tombstones": limits.tombstones_max,
        "copies": limits.copies_per_caller_max * max(1, sizes["callers"]),
        "markers": limits.markers_per_peer_max * max(1, sizes["peers"]),
        "cancel_markers": limits.cancel_markers_per_caller_max * max(1, sizes["callers"]),
        "deadlines": 65 + 3 * max(sizes["copies"], 1),
    }
