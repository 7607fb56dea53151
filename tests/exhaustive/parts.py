"""The moving parts of a small world: a replica's process and the caller's, each around production cores.

A part can be frozen into bytes and thawed again, which is how the search clones it; ``key`` is all that its future
depends on. Time stands still at 0. A timer fires by a step at its own time, after which all is as if the clock had been
set back, so states that differ by the hour alone are one state. Deadlines are at infinity.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple, Protocol

from tests.exhaustive.case import Case
from tiedreq.core.call import CallCore, CallRequest, CallStats
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, FinishDrain, ReplicaCommand, SendCopy, StartWork, StopWork
from tiedreq.core.events import (
    CallerConnected,
    CallEvent,
    CopyUnsent,
    InputSettled,
    LinkLost,
    PeerConnected,
    ReplicaAvailable,
    ReplicaEvent,
    SubmitReceived,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.memory import Tombstone
from tiedreq.core.messages import Submit, Welcome
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import UNTIED, CallId, CopyId, CopyKind, Identity, Load, MethodInfo, Window

FOREVER = float("inf")
NAMES = "abcd"
METHOD = "work"
CALLER = 0xCA
FOREIGN = 0xF0
FOREIGN_LINK = 9_000
FORGER_LINK = 9_001
FORGER = Identity("z", 1)
MARKER_AGE = 5.0
NO_LOAD = Load(0, 0, 0, 0.0)
WINDOW = Window(1, 100, False)


class Watch(Protocol):
    """Who steps a part's cores: checkers, or whoever writes down what they did."""

    def step_replica(self, core: ReplicaCore, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Step a replica's core."""

    def step_call(self, core: CallCore, event: CallEvent, now: float) -> list[CallCommand]:
        """Step a call's core."""


class ToReplica(NamedTuple):
    """Something that happens to a replica, and when on its clock."""

    event: ReplicaEvent
    now: float = 0.0


class ToCall(NamedTuple):
    """Something that happens to one call. ``unsent``: the outbox does not take the first copy that the call sends."""

    call: int
    event: CallEvent
    now: float = 0.0
    unsent: bool = False


class LinkUp(NamedTuple):
    """The caller has a connection to a replica."""

    link: int
    replica: Identity
    draining: bool


class LinkDown(NamedTuple):
    """The caller has learned that a connection is gone; ``drained`` by the last word of a replica that has drained."""

    link: int
    drained: bool = False


class DrainHeard(NamedTuple):
    """A replica told the caller that it drains."""

    link: int


CallerInput = ToCall | LinkUp | LinkDown | DrainHeard
Commands = list[Any]


def method_of(case: Case) -> MethodInfo:
    """The one method that every replica serves."""
    return MethodInfo(METHOD, case.idempotent, case.stoppable, FOREVER, case.stream > 0)


def foreign_copy(replica: str, number: int) -> CopyId:
    """A copy of another client's call, at this replica alone."""
    return CopyId(FOREIGN, 100 * ord(replica) + number, 0, UNTIED)


def foreign_submit(case: Case, replica: str, number: int) -> Submit:
    """What another client sends to a replica."""
    copy, window = foreign_copy(replica, number), WINDOW if case.stream else None
    return Submit(copy, CopyKind.FIRST, METHOD, b"", FOREVER, (), False, False, False, None, (), window)


class ReplicaPart:
    """A replica's process: its core, the handlers that run in it (stopped or not), and whether it may leave."""

    def __init__(self, core: ReplicaCore) -> None:
        self.core = core
        self.handlers: dict[CopyId, bool] = {}
        self.finished = False
        self.frozen = False

    @classmethod
    def begin(cls, case: Case, name: str, incarnation: int, watch: Watch | None) -> ReplicaPart:
        """A process that has just started, connected with a foreign client and with a peer that may lie."""
        limits = ReplicaLimits(
            queue_length_max=case.queue_max, markers_per_peer_max=case.markers_max, marker_age_max=MARKER_AGE
        )
        methods = [HeldMethod(method_of(case), None)]
        part = cls(ReplicaCore(Identity(name, incarnation), methods, slots=case.slots, limits=limits))
        part.step(ToReplica(CallerConnected(FOREIGN_LINK, FOREIGN)), watch)
        if "forge" in case.kinds:
            part.step(ToReplica(PeerConnected(FORGER_LINK, FORGER)), watch)
        if case.busy and incarnation == 1:
            for number in range(case.slots):
                part.step(ToReplica(SubmitReceived(FOREIGN_LINK, foreign_submit(case, name, number))), watch)
            part.step(ToReplica(InputSettled()), watch)
        return part

    def step(self, given: ToReplica, watch: Watch | None = None) -> list[ReplicaCommand]:
        """Let the core decide, and run the handlers as it says."""
        event = given.event
        if isinstance(event, WorkFinished):
            del self.handlers[event.copy]
        if watch is None:
            commands = self.core.step(event, given.now)
        else:
            commands = watch.step_replica(self.core, event, given.now)
        for command in commands:
            if isinstance(command, StartWork):
                self.handlers[command.submit.copy] = False
            elif isinstance(command, StopWork) and command.copy in self.handlers:
                self.handlers[command.copy] = True
            elif isinstance(command, FinishDrain):
                self.finished = True
        return commands

    def key(self) -> Hashable:
        """All that the future depends on: of one that has stopped for ever, who it was."""
        if self.frozen:
            return ("frozen", self.core.identity, self.core.draining)
        core = tuple(_as_set(value) for value in self.core.snapshot())
        return (core, frozenset(self.handlers.items()), self.finished, self.frozen)

    def settled(self, copy: CopyId) -> bool:
        """True when what is still said about a copy here changes nothing any more."""
        return self.core._tombstones.get(copy) is not None

    def freeze(self) -> bytes:
        """The part as bytes."""
        return pickle.dumps((_state(self.core), self.handlers, self.finished, self.frozen), -1)

    @classmethod
    def thaw(cls, data: bytes) -> ReplicaPart:
        """A part that was frozen, as an independent copy."""
        state, handlers, finished, frozen = pickle.loads(data)
        part = cls(_revive(ReplicaCore, state))
        part.handlers, part.finished, part.frozen = handlers, finished, frozen
        return part


_steps_of: dict[type, dict[type, str]] = {}


def _state(core: Any) -> dict[str, Any]:
    """A core's attributes without its table of bound methods, whose names are noted."""
    state = _attributes(core)
    steps = state.pop("_steps", {})
    if type(core) not in _steps_of:
        _steps_of[type(core)] = {event: method.__name__ for event, method in steps.items()}
    return state


def _revive(kind: type, state: dict[str, Any]) -> Any:
    core = kind.__new__(kind)
    _put(core, state)
    if _steps_of[kind]:
        core._steps = {event: getattr(core, name) for event, name in _steps_of[kind].items()}
    return core


def _attributes(thing: Any) -> dict[str, Any]:
    state = {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}
    state.update(getattr(thing, "__dict__", {}))
    return state


def _put(thing: Any, state: dict[str, Any]) -> None:
    if _slots(type(thing)):
        for name, value in state.items():
            object.__setattr__(thing, name, value)
    else:
        vars(thing).update(state)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes of a class that its instances keep in slots."""
    return tuple(name for base in kind.__mro__ for name in vars(base).get("__slots__", ()))


def _as_set(value: Any) -> Any:
    """Tombstones in no order: it matters only when there are too many, which is never the case here."""
    return frozenset(value) if isinstance(value, tuple) and value and isinstance(value[0], Tombstone) else value


class Choosing(ReplicaTable):
    """A table of replicas whose choices are told in advance: ``script`` has an index for each choice among several.

    ``asked`` collects how many there were to choose from. Without a script the first is taken.
    """

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.script: Sequence[int] = ()
        self.asked: list[int] = []

    def choose(self, candidates: list[ReplicaView], now: float) -> ReplicaView | None:
        """The choice that the script tells."""
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        turn = len(self.asked)
        self.asked.append(len(candidates))
        return candidates[self.script[turn] if turn < len(self.script) else 0]


def _call_kind(case: Case) -> type[CallCore]:
    """Looked up when it is needed: a broken core may stand in for the right one."""
    return StreamCore if case.stream else CallCore


def _window(case: Case) -> Window | None:
    return WINDOW if case.stream else None


class CallerPart:
    """The caller's process: the table of replicas and the calls."""

    def __init__(self, case: Case, table: Choosing, stats: CallStats, calls: list[CallCore]) -> None:
        self.case = case
        self.table = table
        self.stats = stats
        self.calls = calls

    @classmethod
    def begin(cls, case: Case) -> CallerPart:
        """A process whose calls are yet to be made."""
        table, stats = Choosing(), CallStats()
        calls = [
            _call_kind(case)(
                CallRequest(
                    CallId(CALLER, number), METHOD, case.idempotent, b"", policy, FOREVER, window=_window(case)
                ),
                table,
                stats,
                rounds_max=case.rounds_max,
            )
            for number, policy in enumerate(case.policies, 1)
        ]
        return cls(case, table, stats, calls)

    def step(self, given: CallerInput, watch: Watch | None = None) -> list[CallCommand]:
        """Do what a client's driver does with a piece of news."""
        match given:
            case ToCall(call, event, now, unsent):
                return self._call(self.calls[call], event, now, watch, unsent)
            case DrainHeard(link):
                view = self.table.get(link)
                if view is not None:
                    view.draining = True
                return []
            case LinkUp(link, replica, draining):
                method = method_of(self.case)
                self.table.add(ReplicaView(link, replica, Welcome(self.case.slots, draining, 1, (method,))))
                return self._all(ReplicaAvailable(), watch)
            case LinkDown(link, drained):
                self.table.remove(link)
                return self._all(LinkLost(link, drained), watch)

    def _all(self, event: CallEvent, watch: Watch | None) -> list[CallCommand]:
        return [
            command
            for core in self.calls
            if core.state != CallState.NEW
            for command in self._call(core, event, 0.0, watch, False)
        ]

    def _call(
        self, core: CallCore, event: CallEvent, now: float, watch: Watch | None, unsent: bool
    ) -> list[CallCommand]:
        view = self.table.get(getattr(event, "link", -1))
        if view is not None:
            view.take_load(NO_LOAD, 0.0)
        commands = core.step(event, now) if watch is None else watch.step_call(core, event, now)
        if isinstance(event, TimePassed) and now < FOREVER:
            _set_back(core, now)
        if self._starts_are_nothing(core):
            for copy in core.copies.values():
                copy.started_at = None
        sent = next((c for c in commands if isinstance(c, SendCopy)), None)
        if unsent and sent is not None:
            commands.remove(sent)
            commands += self._call(core, CopyUnsent(sent.submit.copy), 0.0, watch, False)
        return commands

    def key(self) -> Hashable:
        """All that the future depends on."""
        if all(core.state == CallState.DONE for core in self.calls):
            return "all calls have ended"
        views = tuple((v.link, v.identity, v.draining, v.suspected_until > 0) for v in self.table.views())
        calls = tuple(core.request.id if core.state == CallState.DONE else core.snapshot() for core in self.calls)
        return (views, calls)

    def settled(self, copy: CopyId) -> bool:
        """True when what is still said about a copy here changes nothing any more."""
        core = self.calls[copy.number - 1]
        sent = core.copies.get(copy)
        return core.state == CallState.DONE or sent is None or not sent.alive or self._starts_are_nothing(core)

    def _starts_are_nothing(self, core: CallCore) -> bool:
        """True when it makes no difference to a call whether it has heard of a start."""
        return self.case.reduced and core._backup is None and not core._unsent

    def freeze(self) -> bytes:
        """The part as bytes."""
        table = {
            name: value for name, value in _attributes(self.table).items() if name not in ("_rng", "asked", "script")
        }
        calls = [_state(core) for core in self.calls]
        for state in calls:
            del state["_replicas"], state["_stats"]
        return pickle.dumps((table, self.stats, calls), -1)

    @classmethod
    def thaw(cls, case: Case, data: bytes) -> CallerPart:
        """A part that was frozen, as an independent copy."""
        state, stats, calls = pickle.loads(data)
        table = Choosing()
        _put(table, state)
        cores = []
        for attributes in calls:
            attributes["_replicas"], attributes["_stats"] = table, stats
            cores.append(_revive(_call_kind(case), attributes))
        return cls(case, table, stats, cores)


def _set_back(core: CallCore, now: float) -> None:
    """Set a call's clock back to 0: its timers keep their distance, and a search for a target backs off once only."""
    core._backup_at -= now
    core._ceiling_at -= now
    core._unsent = [(at - now, rank, view) for at, rank, view in core._unsent]
    core._untargeted = min(core._untargeted, 1)
