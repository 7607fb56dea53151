"""A small world whose every next move can be asked for: a caller, its replicas, and the connections between them.

Messages under way are a bag: any of them may be the next to arrive, on any connection. They are lost with their
connection only: when it breaks, each side learns of it at a moment of its own, until which messages that were under
way to it may still arrive. A state is a tuple of small numbers (see ``Tables``): the caller, each replica, the
connections, the checkers, the faults that are left, and the letters under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.exhaustive.case import Case
from tests.exhaustive.links import CALLER_SIDE, GONE, NEW, UP, Connections, News
from tests.exhaustive.parts import (
    CALLER,
    FOREVER,
    MARKER_AGE,
    NAMES,
    CallerPart,
    LinkDown,
    LinkUp,
    ReplicaPart,
    ToCall,
    ToReplica,
)
from tests.exhaustive.replica_moves import Local, replica_moves
from tests.exhaustive.tables import FREEZE, RESTART, Letter, Tables
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import SendCopy
from tiedreq.core.events import (
    CallerCancelled,
    CallerConnected,
    CallerLost,
    CallRequested,
    ItemTaken,
    PeerConnected,
    PeerLost,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.messages import Ended, Failed, Item, Result
from tiedreq.core.stream_call import StreamCore
from tiedreq.sim.checkers import CheckerSet, Violation

State = tuple[Any, ...]


class Move(NamedTuple):
    """One step of the world. ``who`` is the process where it happens, ``about`` a letter, an input or a link."""

    to: State
    fault: bool
    what: str
    who: int
    about: Any
    effects: tuple[int, ...]
    broken: tuple[Violation, ...]


class World:
    """The transition system of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.links = Connections(case.replicas)
        self.tables = Tables(case, self.links)
        self._count = case.replicas
        self._conns = case.replicas + 1
        self._reduced = case.reduced and not case.late
        self._freezing = "freeze" in case.kinds
        self._local: dict[int, tuple[Local, ...]] = {}
        self._calls: dict[int, tuple[Local, ...]] = {}
        self._ends: dict[int, tuple[Violation, ...]] = {}

    def begin(self) -> State:
        """Every process runs, all are connected, and no call has been made."""
        checkers = CheckerSet()
        parts = [ReplicaPart.begin(self.case, NAMES[i], 1, checkers) for i in range(self._count)]
        caller = CallerPart.begin(self.case)
        for i, part in enumerate(parts):
            link = self.links.number(i, 0)
            part.step(ToReplica(CallerConnected(link, CALLER)), checkers)
            caller.step(LinkUp(link, part.core.identity, False), checkers)
            for j, other in enumerate(parts):
                if i != j:
                    link = self.links.number(self.links.pair(i, j), 0)
                    part.step(ToReplica(PeerConnected(link, other.core.identity)), checkers)
        assert not checkers.violations, checkers.violations
        ids = [self.tables.keep(part) for part in (caller, *parts)]
        return (*ids, self.links.begin(), self.tables.watch.begin(checkers.history), self.case.faults, ())

    def over(self, state: State) -> bool:
        """True when every call has its outcome, and nothing of any is left but markers and tombstones.

        What may still happen are faults that hit nothing and connections that come back.
        """
        facts = self.tables.facts
        return not state[-1] and facts[state[0]].done and all(facts[part].idle for part in state[1 : self._conns])

    def done(self, state: State) -> bool:
        """True when every call has its outcome."""
        return self.tables.facts[state[0]].done

    def quiescent(self, state: State) -> tuple[Violation, ...]:
        """What is wrong with a state in which nothing is left to happen but faults."""
        return tuple(broken for part in state[: self._conns] for broken in self._left_for_ever(part))

    def _left_for_ever(self, part: int) -> tuple[Violation, ...]:
        known = self._ends.get(part)
        if known is None:
            tables = self.tables
            if tables.facts[part].caller:
                known = tables.watch.quiescent([], tables.caller(part).calls)
            else:
                replica = tables.replica(part)
                if replica is not None:
                    replica.step(ToReplica(TimePassed(), 2 * MARKER_AGE))
                known = tables.watch.quiescent([replica.core] if replica and not replica.frozen else [], [])
            self._ends[part] = known
        return known

    # ---- moves ------------------------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[Move]:
        """Every move that is possible, in an order that depends on nothing but the case."""
        yield from self._deliveries(state)
        for who in range(self._count):
            if not self._stuck(state, who):
                for local in self._moves_inside(state[1 + who]):
                    if state[-2] or not local.fault:
                        yield from self._move(state, who, local.what, local.given, local.given, local.fault)
        endless = self._freezing and self.case.deadline_ends and self._any_frozen(state)
        for local in self._moves_of_caller(state[0]):
            fault = local.fault and not (endless and local.given.event == TimePassed())
            if state[-2] or not fault:
                yield from self._move(state, CALLER_SIDE, local.what, local.given, local.given, fault)
        yield from self._connection_moves(state)
        yield from self._process_moves(state)

    def _stuck(self, state: State, who: int) -> bool:
        """True for a process that does nothing: it has ended, or has stopped for ever."""
        if who == CALLER_SIDE:
            return False
        facts = self.tables.facts[state[1 + who]]
        return facts.identity is None or facts.frozen

    def _any_frozen(self, state: State) -> bool:
        return any(self.tables.facts[part].frozen for part in state[1 : self._conns])

    def _deliveries(self, state: State) -> Iterator[Move]:
        flight = state[-1]
        last = None
        for index, number in enumerate(flight):
            if number == last:
                continue
            last = number
            letter = self.tables.letters[number]
            status = self.links.status(state[self._conns], letter.link, letter.side)
            if status == NEW or self._stuck(state, letter.to):
                continue
            if self.case.stream and not self._in_turn(letter, flight):
                continue
            rest = (*state[:-1], (*flight[:index], *flight[index + 1 :]))
            yield from self._move(rest, letter.to, "hears", number, letter.given, False)
            if state[-2] and "repeat" in self.case.kinds and CALLER_SIDE in (letter.sender, letter.to):
                yield from self._move(state, letter.to, "hears, not for the last time,", number, letter.given, True)
            event = getattr(letter.given, "event", None)
            if state[-2] and "unacceptable" in self.case.kinds and isinstance(event, ResultReceived):
                given = letter.given._replace(event=event._replace(acceptable=False))
                yield from self._move(rest, letter.to, "turns down", given, given, True)

    def _in_turn(self, letter: Letter, flight: tuple[int, ...]) -> bool:
        """What a replica says of one stream arrives in order: its items, and after them the end."""
        message = letter.message
        if not isinstance(message, Item | Result | Failed | Ended):
            return True
        number = message.number if isinstance(message, Item) else FOREVER
        return not any(
            isinstance(other, Item) and other.copy == message.copy and other.number < number
            for other in (self.tables.letters[n].message for n in flight if self.tables.letters[n].link == letter.link)
        )

    def _move(self, state: State, who: int, what: str, key: Any, given: Any, fault: bool) -> Iterator[Move]:
        """The moves in which one event happens at one process: several where the picker has a choice."""
        sends = False
        for effect in self.tables.effects_of(who, state[1 + who], key, given):
            to, broken = self._apply(state, who, effect)
            yield self._as_move(to, fault, what, who, key, (effect,), broken)
            sends = sends or any(isinstance(command, SendCopy) for command in self.tables.effects[effect].commands)
        if sends and "unsent" in self.case.kinds and isinstance(given, ToCall) and state[-2] > fault:
            twin = given._replace(unsent=True)
            for effect in self.tables.effects_of(who, state[1 + who], twin, twin):
                to, broken = self._apply(_charged(state) if fault else state, who, effect)
                yield self._as_move(to, True, f"{what}, its copy can't leave", who, key, (effect,), broken)

    def _as_move(
        self,
        to: State,
        fault: bool,
        what: str,
        who: int,
        about: Any,
        effects: tuple[int, ...] = (),
        broken: tuple[Violation, ...] = (),
    ) -> Move:
        return Move(_charged(to) if fault else to, fault, what, who, about, effects, broken)

    def _apply(self, state: State, who: int, effect: int) -> tuple[State, tuple[Violation, ...]]:
        """The state after an effect on one part, and what it broke."""
        done = self.tables.effects[effect]
        checker, broken = self.tables.check_effect(state[-3], who, effect)
        flight = state[-1]
        if done.letters:
            conns, letters = state[self._conns], self.tables.letters
            sent = [n for n in done.letters if self.links.open(conns, letters[n].link, letters[n].side)]
            if self._freezing:
                sent = [n for n in sent if letters[n].to == CALLER_SIDE or not self._stuck(state, letters[n].to)]
            flight = tuple(sorted((*flight, *sent)))
        slot = 1 + who
        to = (*state[:slot], done.after, *state[slot + 1 : -3], checker, state[-2], flight)
        return (self._without_idle(to) if self._reduced and not broken else to), broken

    def _without_idle(self, state: State) -> State:
        """The state once every letter has arrived that changes nothing where it goes, whenever it arrives."""
        left, checker = [], state[-3]
        for number in state[-1]:
            letter = self.tables.letters[number]
            effect = self.tables.idle(state[1 + letter.to], number) if not self._stuck(state, letter.to) else -1
            if effect >= 0 and self.links.status(state[self._conns], letter.link, letter.side) == UP:
                after, broken = self.tables.check_effect(checker, letter.to, effect)
                if not broken:
                    checker = after
                    continue
            left.append(number)
        return (*state[:-3], checker, state[-2], tuple(left))

    # ---- inside a process -------------------------------------------------------------------------------------

    def _moves_inside(self, part: int) -> tuple[Local, ...]:
        known = self._local.get(part)
        if known is None:
            known = self._local[part] = tuple(replica_moves(self.case, self.tables.look(part)))
        return known

    def _moves_of_caller(self, part: int) -> tuple[Local, ...]:
        known = self._calls.get(part)
        if known is None:
            known = self._calls[part] = tuple(self._caller_moves(self.tables.look(part)))
        return known

    def _caller_moves(self, part: CallerPart) -> Iterator[Local]:
        for call, core in enumerate(part.calls):
            if core.state == CallState.NEW:
                yield Local("makes the call", ToCall(call, CallRequested()), False)  # type: ignore[arg-type]
            elif core.state != CallState.DONE:
                if isinstance(core, StreamCore) and core.winner is not None:
                    lane = core._lanes[core.winner.id]
                    if lane.taken < lane.items:
                        yield Local("the user takes an item", ToCall(call, ItemTaken(1)), False)  # type: ignore[arg-type]
                if core.wake_at < FOREVER:
                    yield Local("a timer fires", ToCall(call, TimePassed(), core.wake_at), False)  # type: ignore[arg-type]
                if "deadline" in self.case.kinds or self.case.deadline_ends:
                    yield Local("the deadline passes", ToCall(call, TimePassed(), FOREVER), True)  # type: ignore[arg-type]
                if "cancel" in self.case.kinds:
                    yield Local("the user cancels", ToCall(call, CallerCancelled()), True)  # type: ignore[arg-type]

    # ---- connections and processes ----------------------------------------------------------------------------

    def _connection_moves(self, state: State) -> Iterator[Move]:
        breaks = state[-2] and "cut" in self.case.kinds
        for news in self.links.news(state[self._conns]):
            kind, link, side, who, conns, _ = news
            if self._stuck(state, who) or (kind == "break" and not breaks):
                continue
            if kind == "up":
                yield from self._learn_up(state, link, (side,))
            elif kind != "dial":
                yield from self._learn_loss(state, news)
            elif not self._stuck(state, self.links.ends(link)[1]):
                to = self._with_conns(state, conns)
                if self.case.whole_links:
                    yield from self._learn_up(to, link, (1, 0))
                else:
                    yield self._as_move(to, False, "dials", who, link)

    def _with_conns(self, state: State, conns: int) -> State:
        """The state with other connections; letters to a side that knows its connection to be gone are lost."""
        flight = state[-1]
        if flight and not self.case.late:
            letters, status = self.tables.letters, self.links.status
            flight = tuple(n for n in flight if status(conns, letters[n].link, letters[n].side) != GONE)
        return (*state[: self._conns], conns, *state[self._conns + 1 : -1], flight)

    def _learn_loss(self, state: State, news: News) -> Iterator[Move]:
        """A side learns of a loss. The first to do so makes it one: before, a message that is lost is a slow one."""
        link, who = news.link, news.who
        given: Any = LinkDown(link, news.drained)
        if who != CALLER_SIDE:
            given = ToReplica(CallerLost(link) if CALLER_SIDE in self.links.ends(link) else PeerLost(link))
        yield from self._learn(
            state, news.kind == "break", "learns that a connection is gone", link, [(who, given, news.to)]
        )

    def _learn_up(self, state: State, link: int, sides: Iterable[int]) -> Iterator[Move]:
        ends, conns = self.links.ends(link), state[self._conns]
        news = []
        for side in sides:
            conns = self.links.know(conns, link, side, UP)
            news.append((ends[side], self._up(state, link, ends[side], ends[1 - side]), conns))
        yield from self._learn(state, False, "a connection is up", link, news)

    def _learn(
        self,
        state: State,
        fault: bool,
        what: str,
        link: int,
        news: list[tuple[int, Any, int]],
        effects: tuple[int, ...] = (),
        broken: tuple[Violation, ...] = (),
    ) -> Iterator[Move]:
        """The moves in which news of a connection reaches one process after the other."""
        (who, given, conns), *rest = news
        state = self._with_conns(state, conns)
        for effect in self.tables.effects_of(who, state[1 + who], given, given):
            to, found = self._apply(state, who, effect)
            if rest:
                yield from self._learn(to, fault, what, link, rest, (*effects, effect), broken + found)
            else:
                yield self._as_move(to, fault, what, who, link, (*effects, effect), broken + found)

    def _up(self, state: State, link: int, who: int, other: int) -> Any:
        facts = self.tables.facts[state[1 + other]]
        if other == CALLER_SIDE:
            return ToReplica(CallerConnected(link, CALLER))
        assert facts.identity is not None
        if who == CALLER_SIDE:
            return LinkUp(link, facts.identity, facts.draining)
        return ToReplica(PeerConnected(link, facts.identity))

    def _single(self, state: State, who: int, given: Any) -> tuple[int, ...]:
        return self.tables.effects_of(who, state[1 + who], given, given)

    def _process_moves(self, state: State) -> Iterator[Move]:
        for who in range(self._count):
            part = state[1 + who]
            facts = self.tables.facts[part]
            if facts.identity is None:
                (effect,) = self._single(state, who, RESTART)
                to, broken = self._apply(state, who, effect)
                yield self._as_move(to, False, "starts again", who, None, (effect,), broken)
                continue
            if facts.finished and all(self.tables.letters[n].sender != who for n in state[-1]):
                yield self._end(state, who, "has drained and ends", fault=False)
            if not state[-2]:
                continue
            if "crash" in self.case.kinds:
                yield self._end(state, who, "crashes", fault=True)
            if "freeze" in self.case.kinds and not facts.frozen:
                # What is under way to it, or will be, never arrives.
                (effect,) = self._single(state, who, FREEZE)
                flight = tuple(n for n in state[-1] if self.tables.letters[n].to != who)
                to, broken = self._apply((*state[:-1], flight), who, effect)
                yield self._as_move(to, True, "stops for ever", who, None, (effect,), broken)

    def _end(self, state: State, who: int, what: str, *, fault: bool) -> Move:
        """A process ends: by a fault, or in order, with everything heard that it had to say."""
        part = state[1 + who]
        checker, broken = self.tables.check_crash(state[-3], who, part)
        flight = tuple(n for n in state[-1] if self.tables.letters[n].to != who)
        slot = 1 + who
        to = (*state[:slot], self.tables.kill(part), *state[slot + 1 : -3], checker, state[-2], flight)
        to = self._with_conns(to, self.links.end(state[self._conns], who, drained=not fault))
        return self._as_move(to, fault, what, who, None, (), broken)


def _charged(state: State) -> State:
    return (*state[:-2], state[-2] - 1, state[-1])
