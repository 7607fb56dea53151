"""Interning: parts, what events do to them, letters and checkers, each computed once and known by a number."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

from tests.exhaustive.case import Case
from tests.exhaustive.links import CALLER_SIDE, Connections
from tests.exhaustive.parts import (
    FOREIGN_LINK,
    FORGER_LINK,
    NO_LOAD,
    CallerPart,
    DrainHeard,
    ReplicaPart,
    ToCall,
    ToReplica,
    Watch,
)
from tests.exhaustive.watching import Watching
from tiedreq.core.call import CallCore
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, CancelCopy, GrantCredit, ReplicaCommand, SendCaller, SendCopy, SendPeer
from tiedreq.core.events import (
    CallEvent,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    CopyEnded,
    CopyStarted,
    CreditReceived,
    FailureReceived,
    ItemReceived,
    PeerClaimed,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    ResultReceived,
    SubmitReceived,
    TimePassed,
)
from tiedreq.core.messages import (
    Cancel,
    Claim,
    Credit,
    Denied,
    Draining,
    Ended,
    Failed,
    Granted,
    Item,
    Message,
    Next,
    Result,
    Started,
    Submit,
)
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import Identity, Load
from tiedreq.sim.checkers import CheckerSet, Violation

REMEMBERED = 8_000
"""So many effects are kept in full, for the checkers to look at."""
FREEZE, RESTART = "freeze", "restart"


class Dead(NamedTuple):
    """The place of a replica's process that has ended."""

    name: str
    incarnation: int


class Facts(NamedTuple):
    """What the world has to know of a part."""

    identity: Identity | None = None
    frozen: bool = False
    finished: bool = False
    draining: bool = False
    idle: bool = True
    caller: bool = False
    done: bool = False


class Effect(NamedTuple):
    """What an event did to a part: the part afterwards, the letters that left, and the commands for the record."""

    before: int
    given: Any
    choices: tuple[int, ...]
    after: int
    letters: tuple[int, ...]
    commands: tuple[Any, ...]


class Letter(NamedTuple):
    """A message under way, and what it becomes where it arrives. Processes are numbered, the caller is -1."""

    link: int
    side: int
    sender: int
    to: int
    message: Message
    given: Any


class Step(NamedTuple):
    """A step of one core, as the checkers want to see it."""

    core: Any
    event: Any
    commands: list[Any]
    now: float


class Recorder:
    """Steps cores and writes down what they did."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step_replica(self, core: ReplicaCore, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        """Step a replica's core."""
        commands = core.step(event, now)
        self.steps.append(Step(core, event, list(commands), now))
        return commands

    def step_call(self, core: CallCore, event: CallEvent, now: float) -> list[CallCommand]:
        """Step a call's core."""
        commands = core.step(event, now)
        self.steps.append(Step(core, event, list(commands), now))
        return commands


class Tables:
    """All that is interned in one search."""

    def __init__(self, case: Case, links: Connections) -> None:
        self.case = case
        self.effects: list[Effect] = []
        self.letters: list[Letter] = []
        self.facts: list[Facts] = []
        self._links = links
        self._letter_ids: dict[tuple[int, int, Message], int] = {}
        self._parts: list[bytes | Dead] = []
        self._part_ids: dict[Hashable, int] = {}
        self._effect_ids: dict[tuple[int, Any], tuple[int, ...]] = {}
        self.watch = Watching(case.replicas)
        self._idle: dict[tuple[int, int], int] = {}
        # Not bound to self: a search that is over has to go at once, and a cycle would keep it.
        itself = weakref.proxy(self)
        self._steps = lru_cache(REMEMBERED)(partial(Tables._replay, itself))
        self._seen = lru_cache(REMEMBERED)(partial(Tables._look, itself))

    # ---- parts ------------------------------------------------------------------------------------------------

    def keep(self, part: ReplicaPart | CallerPart | Dead) -> int:
        """The number of a part's state."""
        key: Hashable = part if isinstance(part, Dead) else part.key()
        known = self._part_ids.get(key)
        if known is None:
            known = self._part_ids[key] = len(self._parts)
            self._parts.append(part if isinstance(part, Dead) else part.freeze())
            self.facts.append(_facts(part))
        return known

    def replica(self, part: int) -> ReplicaPart | None:
        """A replica's process, as a copy to look at; None when it has ended."""
        data = self._parts[part]
        return None if isinstance(data, Dead) else ReplicaPart.thaw(data)

    def caller(self, part: int) -> CallerPart:
        """The caller's process, as a copy to look at."""
        data = self._parts[part]
        assert isinstance(data, bytes)
        return CallerPart.thaw(self.case, data)

    def look(self, part: int) -> Any:
        """A part to look at only: the caller's or a replica's process; None for one that has ended."""
        return self._seen(part)

    def busy_states(self) -> set[Hashable]:
        """Every state in which a replica's process was seen while it held something."""
        return {key for key, part in self._part_ids.items() if not self.facts[part].idle}

    def kill(self, part: int) -> int:
        """The place of a replica's process after its end."""
        identity = self.facts[part].identity
        assert identity is not None
        return self.keep(Dead(*identity))

    # ---- effects ----------------------------------------------------------------------------------------------

    def effects_of(self, who: int, part: int, key: Hashable, given: Any) -> tuple[int, ...]:
        """The effects that an event can have on a part: several where the picker has a choice."""
        known = self._effect_ids.get((part, key))
        if known is None:
            known = self._effect_ids[part, key] = tuple(self._compute(who, part, given))
        return known

    def idle(self, part: int, number: int) -> int:
        """The effect of a letter that changes nothing where it is going, now or later; -1 for any other letter.

        Such a letter is about a copy that is a tombstone there, or a call that has ended, and was tried.
        """
        known = self._idle.get((part, number))
        if known is None:
            known = -1
            letter = self.letters[number]
            effects = self.effects_of(letter.to, part, number, letter.given)
            effect = self.effects[effects[0]]
            if len(effects) == 1 and effect.after == part and not effect.letters:
                receiver = self.look(part)
                copy = getattr(letter.message, "copy", None)
                if receiver is not None and (copy is None or receiver.settled(copy)):
                    known = effects[0]
            self._idle[part, number] = known
        return known

    def _compute(self, who: int, part: int, given: Any) -> Iterator[int]:
        scripts: list[tuple[int, ...]] = [()]
        while scripts:
            script = scripts.pop()
            after, commands, asked = self._run(part, given, script, None)
            for turn in range(len(script), len(asked)) if self.case.any_choice else ():
                taken = (*script, *(0,) * (turn - len(script)))
                scripts += [(*taken, other) for other in range(1, asked[turn])]
            sent = tuple(letter for command in commands if (letter := self._letter(who, command)) is not None)
            self.effects.append(Effect(part, given, script, self.keep(after), sent, tuple(commands)))
            yield len(self.effects) - 1

    def _run(
        self, part: int, given: Any, script: tuple[int, ...], watch: Watch | None
    ) -> tuple[ReplicaPart | CallerPart, list[Any], list[int]]:
        data = self._parts[part]
        if isinstance(data, Dead):
            return ReplicaPart.begin(self.case, data.name, data.incarnation + 1, watch), [], []
        if given == FREEZE:
            replica = ReplicaPart.thaw(data)
            replica.frozen = True
            return replica, [], []
        if isinstance(given, ToReplica):
            replica = ReplicaPart.thaw(data)
            return replica, list(replica.step(given, watch)), []
        caller = CallerPart.thaw(self.case, data)
        caller.table.script = script
        return caller, list(caller.step(given, watch)), caller.table.asked

    def _letter(self, who: int, command: Any) -> int | None:
        """The message that a command sends, as the number of a letter."""
        if isinstance(command, SendCopy):
            message: Message = command.submit
        elif isinstance(command, CancelCopy):
            message = Cancel(command.copy)
        elif isinstance(command, GrantCredit):
            message = Credit(command.copy, command.items, command.bytes)
        elif isinstance(command, SendCaller | SendPeer) and command.link not in (FOREIGN_LINK, FORGER_LINK):
            message = _without_load(command.message)
        else:
            return None
        ends = self._links.ends(command.link)
        side = 1 - ends.index(who)
        key = (command.link, side, message)
        known = self._letter_ids.get(key)
        if known is None:
            given = _arrival(command.link, ends[side], message)
            if given is None:
                return None
            known = self._letter_ids[key] = len(self.letters)
            self.letters.append(Letter(command.link, side, who, ends[side], message, given))
        return known

    # ---- checkers ---------------------------------------------------------------------------------------------

    def check_effect(self, known: int, who: int, effect: int) -> tuple[int, tuple[Violation, ...]]:
        """Let the checkers watch an effect: what is known afterwards, and what is broken."""
        return self.watch.check(known, who, effect, lambda checkers: self._show(checkers, effect))

    def check_crash(self, known: int, who: int, part: int) -> tuple[int, tuple[Violation, ...]]:
        """Tell the checkers that a process has ended."""
        identity = self.facts[part].identity
        assert identity is not None
        return self.watch.check(known, who, ("crash", part), lambda checkers: checkers.on_crash(identity, 0.0))

    def _show(self, watch: CheckerSet, effect: int) -> None:
        """Show the checkers what an effect was, in the steps of its cores."""
        done = self.effects[effect]
        if isinstance(done.given, ToCall) and done.given.unsent:
            self._run(done.before, done.given, done.choices, watch)
            return
        before = self.look(done.before)
        for core, event, commands, now in self._steps(effect):
            if isinstance(core, ReplicaCore):
                name = core.identity.name
                watch.before_replica_step(name, event, before.core if before is not None else core, now)
                watch.on_replica_step(name, event, commands, core, now)
                if isinstance(event, TimePassed):
                    watch.history.expire(core.identity, now)
            else:
                call = core.request.id
                watch.before_call_step(call, event, before.calls[call.number - 1], now)
                watch.on_call_step(call, event, commands, core, now)

    def _replay(self, effect: int) -> list[Step]:
        done, recorder = self.effects[effect], Recorder()
        self._run(done.before, done.given, done.choices, recorder)
        return recorder.steps

    def _look(self, part: int) -> Any:
        return self.caller(part) if self.facts[part].caller else self.replica(part)

    def sizes(self) -> str:
        """How much was interned, for the record."""
        return f"{len(self._parts)} parts, {len(self.effects)} effects, {self.watch.sizes()}"


def _facts(part: ReplicaPart | CallerPart | Dead) -> Facts:
    if isinstance(part, ReplicaPart):
        if part.frozen:
            return Facts(part.core.identity, frozen=True, draining=part.core.draining)
        idle = not part.handlers and not part.core.sizes()["copies"]
        return Facts(part.core.identity, False, part.finished, part.core.draining, idle)
    if isinstance(part, CallerPart):
        return Facts(caller=True, done=all(core.state == CallState.DONE for core in part.calls))
    return Facts()


def _without_load(message: Message) -> Message:
    """A replica's message without what nothing here depends on: load, times, hints."""
    match message:
        case Started(_, _, Load()):
            return message._replace(load=NO_LOAD)
        case Item():
            return message._replace(load=None, service_time=0.0, queue_wait=0.0)
        case Result() | Failed():
            return message._replace(load=NO_LOAD, service_time=0.0, queue_wait=0.0)
        case Ended():
            return message._replace(load=NO_LOAD, service_time=0.0, retry_after=0.0)
    return message


def _arrival(link: int, to: int, message: Message) -> Any:
    """What a message becomes where it arrives; None for one that no core is told of."""
    if to != CALLER_SIDE:
        match message:
            case Submit():
                return ToReplica(SubmitReceived(link, message))
            case Cancel(copy):
                return ToReplica(CancelReceived(link, copy))
            case Credit(copy, items, size):
                return ToReplica(CreditReceived(link, copy, items, size))
            case Started(copy, remaining):
                return ToReplica(PeerStarted(link, copy, remaining))
            case Next(copy, remaining):
                return ToReplica(PeerNext(link, copy, remaining))
            case Claim(copy, arbiter, claimant):
                return ToReplica(PeerClaimed(link, copy, arbiter, claimant))
            case Granted(copy):
                return ToReplica(ClaimGranted(link, copy))
            case Denied(copy, started):
                return ToReplica(ClaimDenied(link, copy, started))
        return None
    match message:
        case Draining():
            return DrainHeard(link)
        case Started(copy):
            return ToCall(copy.number - 1, CopyStarted(link, copy))
        case Item(copy, number, payload):
            return ToCall(copy.number - 1, ItemReceived(link, copy, number, len(payload), bool(payload)))
        case Result(copy):
            return ToCall(copy.number - 1, ResultReceived(link, copy, True))
        case Failed(copy, code, text, details, retryable):
            return ToCall(copy.number - 1, FailureReceived(link, copy, code, text, details, retryable))
        case Ended(copy, state, cause, retry_after):
            return ToCall(copy.number - 1, CopyEnded(link, copy, state, cause, retry_after))
    return None
