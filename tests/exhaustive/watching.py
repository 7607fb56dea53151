"""The checkers of a search. What they know is interned field by field, and what they say of an event is computed once
for all histories that agree in the fields that were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from tests.exhaustive.links import CALLER_SIDE
from tiedreq.core.call import CallCore
from tiedreq.core.replica import ReplicaCore
from tiedreq.sim.checkers import CheckerSet, Violation
from tiedreq.sim.history import FIELDS, LOCAL_FIELDS, History

ValueT = TypeVar("ValueT")
Answer = tuple[tuple[tuple[int, int], ...], tuple[Violation, ...]]
"""The places that change, with what is there then, and what is broken."""


class Numbers(Generic[ValueT]):
    """Values by number, each once: ``key`` says which are the same."""

    def __init__(self) -> None:
        self.values: list[ValueT] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: ValueT) -> int:
        """The number of a value; the first of those that are the same is kept."""
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


class Tracked(History):
    """A history that notes which of its fields are looked at."""

    looked: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name in FIELD_SET:
            object.__getattribute__(self, "looked").add(name)
        return object.__getattribute__(self, name)


FIELD_SET = frozenset(FIELDS)
SHARED_FIELDS = tuple(name for name in FIELDS if name not in LOCAL_FIELDS)
LOCAL = {name: place for place, name in enumerate(LOCAL_FIELDS)}
SHARED = {name: place for place, name in enumerate(SHARED_FIELDS)}


class Watching:
    """What the checkers know, by number: a tuple of the shared fields, then of those of each replica alone."""

    def __init__(self, replicas: int) -> None:
        self.checkers = CheckerSet()
        self._replicas = replicas
        self._known: Numbers[tuple[int, ...]] = Numbers()
        self._values = {name: Numbers[dict[Any, Any]]() for name in FIELDS}
        self._looked: dict[Hashable, list[tuple[int, ...]]] = {}
        self._answers: dict[tuple[Hashable, tuple[int, ...], tuple[int, ...]], Answer] = {}

    def begin(self, history: History) -> int:
        """The number of what is known at first. Every replica gets all local fields; it looks at its own part only."""
        shared = [self._number(history, name) for name in SHARED_FIELDS]
        local = [self._number(history, name) for name in LOCAL_FIELDS]
        known = (*shared, *local * self._replicas)
        return self._known.number(known, known)

    def _number(self, history: History, name: str) -> int:
        return self._values[name].number(history.plain(name), vars(history)[name])

    @staticmethod
    def _place(name: str, who: int) -> int:
        shared = SHARED.get(name)
        return shared if shared is not None else len(SHARED) + max(who, 0) * len(LOCAL) + LOCAL[name]

    def check(
        self, number: int, who: int, key: Hashable, feed: Callable[[CheckerSet], object]
    ) -> tuple[int, tuple[Violation, ...]]:
        """Show the checkers an event at one process: what is known afterwards, and what is broken.

        They look at what is known to all and, for a replica, at what is known of it alone.
        """
        known = self._known.values[number]
        for places in self._looked.get(key, ()):
            answer = self._answers.get((key, places, tuple([known[place] for place in places])))
            if answer is not None:
                break
        else:
            answer = self._ask(known, who, key, feed)
        changes, broken = answer
        if not changes:
            return number, broken
        after = list(known)
        for place, value in changes:
            after[place] = value
        return self._known.number(tuple(after), tuple(after)), broken

    def _ask(self, known: tuple[int, ...], who: int, key: Hashable, feed: Callable[[CheckerSet], object]) -> Answer:
        places = {name: self._place(name, who) for name in FIELDS if who != CALLER_SIDE or name in SHARED}
        fields = {name: self._values[name].values[known[place]] for name, place in places.items()}
        history = Tracked.__new__(Tracked)
        vars(history)["looked"] = set()
        History.__init__(history)
        vars(history).update(fields, _shared=set(FIELDS), looked=set())
        self.checkers.go_on_from(history)
        feed(self.checkers)
        broken = tuple(self.checkers.violations)
        self.checkers.violations.clear()
        looked = tuple(sorted(places[name] for name in vars(history)["looked"] if name in places))
        changes = tuple(
            (place, self._number(history, name))
            for name, place in places.items()
            if name not in vars(history)["_shared"]
        )
        known_sets = self._looked.setdefault(key, [])
        if looked not in known_sets:
            known_sets.append(looked)
        answer = (changes, broken)
        self._answers[key, looked, tuple([known[place] for place in looked])] = answer
        return answer

    def quiescent(self, replicas: list[ReplicaCore], calls: list[CallCore]) -> tuple[Violation, ...]:
        """What the checkers say of an end."""
        self.checkers.on_quiescent(replicas, calls, 0.0)
        broken = tuple(self.checkers.violations)
        self.checkers.violations.clear()
        return broken

    def sizes(self) -> str:
        """How much is known, for the record."""
        return f"{len(self._known.values)} histories, {len(self._answers)} answers of checkers"
