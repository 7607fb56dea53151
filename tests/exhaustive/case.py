"""What one exhaustive search walks through: who takes part, which faults may happen, and how many."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tiedreq.core.policy import Policy, Tied

FAULTS: dict[str, str] = {
    "crash": "a replica ends at once; it comes back later with a new incarnation",
    "cut": "a connection breaks; each side learns of it later, and it is dialed again",
    "drain": "a replica is told to leave; when it has gone it comes back with a new incarnation",
    "raise": "a handler raises, retryable",
    "unacceptable": "the caller's accept turns an answer down",
    "fill": "another client's copy takes the replica's last place in the queue",
    "evict": "another tie's notice arrives at a replica that has room for one marker",
    "age": "a replica's markers reach their age",
    "expire": "the deadline passes at a replica",
    "deadline": "the deadline passes at the caller",
    "cancel": "the user cancels the call",
    "unsent": "the outbox of a link takes no copy",
    "freeze": "a replica stops for ever, and nobody notices (a shorter stop is a slow message, so it is always there)",
    "forge": "a peer that is no partner says that a copy started",
    "repeat": "a message between caller and replica arrives twice",
}

TIE = Tied(stagger=0.0, backup=None)
STAGGERED = Tied(stagger=1.0, backup=None)


@dataclass(frozen=True)
class Case:
    """One search. ``faults`` of the ``kinds`` may happen, in any mixture, at any time.

    ``late`` also delivers messages of a connection that the receiver knows to be lost. With ``whole_links`` both sides
    learn at once that a connection is up. ``any_choice`` follows every choice of the picker, else the first is taken.
    With ``deadline_ends`` a call's deadline passes sooner or later, at no cost, once a replica has stopped for ever:
    with two replicas nothing else may be left to end the call. Where it is off, the call must end without.
    ``stream``: the answer is a stream of at most so many items, the first of which may be a preamble; its caller grants
    one at a time, and its user takes them at any time. Only what a replica says of one copy of it keeps its order.
    ``busy`` replicas begin with a handler of another client in their slot. A ``reduced`` search delivers at once what
    changes nothing where it arrives, whenever that is. ``floor`` is the number of distinct states that the search has
    to reach at least.
    """

    name: str
    faults: int = 0
    kinds: tuple[str, ...] = ()
    replicas: int = 2
    policies: tuple[Policy, ...] = (TIE,)
    slots: int = 1
    stoppable: bool = True
    becomes_stoppable: bool = False
    idempotent: bool = True
    busy: bool = False
    stream: int = 0
    rounds_max: int = 2
    queue_max: int = 100
    markers_max: int = 100
    late: bool = False
    whole_links: bool = True
    any_choice: bool = False
    deadline_ends: bool = False
    reduced: bool = True
    floor: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(FAULTS)
        if unknown:
            raise ValueError(f"{self.name}: unknown faults {sorted(unknown)}")

    def describe(self) -> str:
        """What differs from the plainest case, in one line."""
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in ("name", "floor") and getattr(self, field.name) != field.default
        ]
        return f"{self.name}: {', '.join(told)}"
