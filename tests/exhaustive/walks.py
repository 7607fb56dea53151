"""Random deep walks, for worlds that are too large to be searched: more calls, more faults, everything at once.

A seed is one walk: for a while any move may come next, faults as well; then faults stop, and the calls must end. Runs
of seeds share a case, and what was computed for it; still a walk is the same when it is made alone.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from tests.exhaustive.case import FAULTS, STAGGERED, TIE, Case
from tests.exhaustive.cases import (
    EXCLUSIVE,
    EXCLUSIVE_OF_THREE,
    GUARDED,
    HEDGED,
    HEDGED_FROM_START,
    THREE,
    THREE_STAGGERED,
)
from tests.exhaustive.story import tell
from tests.exhaustive.world import Move, World
from tiedreq.core.policy import Plain, Policy
from tiedreq.sim.checkers import Violation

SHARED = 100
"""So many seeds in a row have the same case."""
WILD_MAX = 200
CALM_MAX = 5_000
"""Moves without a fault in which the calls have to end. What may happen in any order happens at random."""
FAULT_SHARE = 0.15
REMEMBERED_BITS = 27
POLICIES: tuple[Policy, ...] = (
    TIE,
    STAGGERED,
    THREE,
    THREE_STAGGERED,
    EXCLUSIVE,
    EXCLUSIVE_OF_THREE,
    GUARDED,
    HEDGED,
    HEDGED_FROM_START,
    Plain(),
)


def draw(seed: int) -> Case:
    """The case in which a seed walks."""
    number = seed // SHARED
    rng = Random(f"{number}/case")
    kinds = tuple(kind for kind in FAULTS if rng.random() < 0.5)
    stoppable = rng.random() < 0.7
    return Case(
        f"walks {number * SHARED} to {number * SHARED + SHARED - 1}",
        faults=rng.randint(1, 6),
        kinds=kinds,
        replicas=rng.choice([2, 3, 3]),
        policies=tuple(rng.choice(POLICIES) for _ in range(rng.choice([1, 2, 2, 3]))),
        slots=rng.choice([1, 1, 2]),
        stoppable=stoppable,
        becomes_stoppable=not stoppable and rng.random() < 0.5,
        idempotent=rng.random() < 0.9,
        busy=rng.random() < 0.3,
        rounds_max=rng.choice([2, 3]),
        queue_max=rng.choice([1, 2, 100]),
        markers_max=rng.choice([1, 2, 100]),
        late=rng.random() < 0.3,
        whole_links=rng.random() < 0.5,
        any_choice=True,
        deadline_ends=True,
    )


class Walk(NamedTuple):
    """A walk that was made. ``names`` are its moves as text, ``new`` says how many states no walk had come to yet."""

    seed: int
    case: Case
    names: list[str]
    faults: int
    new: int
    violations: tuple[Violation, ...]
    history: list[str]

    def story(self) -> str:
        """What was broken, how it came about, and how to see it again."""
        replay = f"replay: python -m tests.exhaustive --walk {self.seed}"
        return "\n".join([self.case.describe(), *self.history, *map(str, self.violations), replay])


class Seen:
    """How many states were seen, at least: a bit for each hash, so that memory does not grow."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = bytearray(1 << (REMEMBERED_BITS - 3))

    def add(self, value: int) -> bool:
        """True when no state with this hash has been there."""
        place = value & ((1 << REMEMBERED_BITS) - 1)
        bit = 1 << (place & 7)
        if self._bits[place >> 3] & bit:
            return False
        self._bits[place >> 3] |= bit
        self.count += 1
        return True


class Walker:
    """Makes walks, one seed after the other."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._world: World | None = None
        self._names: dict[tuple[object, ...], str] = {}

    def walk(self, seed: int, *, keep: bool = False) -> Walk:
        """Walk one seed to its end, or to the first thing that breaks. ``keep`` its history even if nothing does."""
        case = draw(seed)
        if self._world is None or self._world.case != case:
            self._world = World(case)
            self._names.clear()
        world = self._world
        rng = Random(f"{seed}/walk")
        wild = rng.randint(1, WILD_MAX)
        state, path, new = world.begin(), list[Move](), 0
        names: list[str] = []
        broken: tuple[Violation, ...] = ()
        while not broken:
            moves = (
                {} if world.over(state) else {self._name(m): m for m in world.moves(state) if m.to != state or m.broken}
            )
            if all(move.fault for move in moves.values()):
                broken = world.quiescent(state)
            name = _choose(rng, moves, faults=len(path) < wild)
            if broken or name is None:
                break
            move = moves[name]
            path.append(move)
            names.append(name)
            broken, state = move.broken, move.to
            new += self.seen.add(hash((seed // SHARED, state)))
            if len(path) > wild + CALM_MAX:
                broken = (Violation("L2", "a call", f"no end within {CALM_MAX} moves", 0.0),)
        faults = sum(move.fault for move in path)
        return Walk(seed, case, names, faults, new, broken, tell(world, path) if broken or keep else [])

    def _name(self, move: Move) -> str:
        """A move's name: by what it is, not by numbers, which depend on what was computed before."""
        assert self._world is not None
        tables = self._world.tables
        choices = tuple(tables.effects[effect].choices for effect in move.effects)
        key = (move.what, move.who, move.about, choices)
        known = self._names.get(key)
        if known is None:
            about: object = move.about
            if move.what.startswith("hears"):
                letter = tables.letters[move.about]
                about = (letter.link, letter.side, letter.message)
            known = self._names[key] = f"{move.who} {move.what} {about!r} {choices if any(choices) else ''}"
        return known


def _choose(rng: Random, moves: dict[str, Move], *, faults: bool) -> str | None:
    """The next move; None when nothing is left to happen but faults that need not."""
    free = sorted(name for name, move in moves.items() if not move.fault)
    bad = sorted(name for name, move in moves.items() if move.fault) if faults else []
    if bad and (not free or rng.random() < FAULT_SHARE):
        return rng.choice(bad)
    return rng.choice(free) if free else None
