"""The nouns that events, commands and messages share: identities, kinds, states, load.

All are immutable values. Durations are seconds, ``incarnation`` and ``client`` are random 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

ItemT = TypeVar("ItemT")

UNTIED = -1
"""The rank of a copy that belongs to no tie."""


class RandomSource(Protocol):
    """Random numbers come in as an argument: a ``random.Random``, or anything alike."""

    def random(self) -> float:
        """A number from 0 up to 1."""

    def sample(self, population: Sequence[ItemT], k: int) -> list[ItemT]:
        """``k`` different items."""


class CallId(NamedTuple):
    """One call of one client: the client's random nonce and its counter."""

    client: int
    number: int

    def __str__(self) -> str:
        return f"{self.client:016x}-{self.number}"


class TieId(NamedTuple):
    """The copies of one round of one call that know each other."""

    client: int
    number: int
    round: int


class CopyId(NamedTuple):
    """One request for a call at one replica.

    A tied copy has ``rank`` >= 0 and ``round`` is the number of its tie. An untied copy (a plain first copy, a
    backup, a failover to a single replica) has ``rank`` == ``UNTIED`` and ``round`` is a serial number of its own
    among the call's untied copies, so that no notice, marker or tombstone of a tie can touch it.
    """

    client: int
    number: int
    round: int
    rank: int

    @property
    def call(self) -> CallId:
        """The call that this copy is for."""
        return CallId(self.client, self.number)

    @property
    def tie(self) -> TieId:
        """The tie that this copy belongs to; meaningless for an untied copy."""
        return TieId(self.client, self.number, self.round)

    def __str__(self) -> str:
        lane = f"u{self.round}" if self.rank == UNTIED else f"r{self.round}.{self.rank}"
        return f"{self.client:016x}-{self.number}/{lane}"


class Identity(NamedTuple):
    """A replica: its name, and the random incarnation that it drew when it started."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation & 0xFFFF:04x}"


class CopyKind(IntEnum):
    """Why a copy was sent. ``label`` is what users see."""

    FIRST = 0
    TIE = 1
    BACKUP = 2
    FAILOVER = 3

    @property
    def label(self) -> str:
        """The lower-case name, as in ``Context.kind``."""
        return self.name.lower()


class CopyState(IntEnum):
    """Where a copy is at its replica. ``DONE`` to ``REFUSED`` are terminal."""

    QUEUED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    DROPPED = 4
    YIELDED = 5
    CANCELLED = 6
    EXPIRED = 7
    REFUSED = 8
    CLAIMING = 9  # (exclusive ties) its turn came, and the arbiter is asked

    @property
    def terminal(self) -> bool:
        """True when the copy can never change again."""
        return CopyState.DONE <= self <= CopyState.REFUSED

    @property
    def label(self) -> str:
        """The lower-case name, as in ``Attempt.end``."""
        return self.name.lower()


class Cause(IntEnum):
    """Why a copy ended without an answer."""

    NONE = 0
    STARTED = 1  # a partner started
    NEXT = 2  # a partner of lower rank is next at its replica
    CALLER = 3  # the caller cancelled
    CALLER_LOST = 4  # the caller's link is gone
    DEADLINE = 5
    FULL = 6  # the queue is full
    DRAINING = 7
    UNKNOWN_METHOD = 8
    NOT_IDEMPOTENT = 9  # the method may not run twice
    DUPLICATE = 10  # the replica already holds a copy of this tie, or has seen this very copy
    GRANTED = 11  # (exclusive ties) the arbiter let another copy start
    ARBITER_LOST = 12  # (exclusive ties) whether the arbiter's copy started can't be known
    WRONG_KIND = 13  # a stream asked for as a call, or a call as a stream
    LINK_LOST = 20  # (client side) the link to the replica is gone
    UNSENT = 21  # (client side) the outbox was full, nothing left

    @property
    def label(self) -> str:
        """The words users see."""
        return self.name.lower().replace("_", " ")

    @property
    def retryable(self) -> bool:
        """True when another replica may do what this one would not."""
        return self not in (Cause.UNKNOWN_METHOD, Cause.NOT_IDEMPOTENT, Cause.WRONG_KIND)


class Load(NamedTuple):
    """What every message to a caller says about its replica.

    ``queued`` and ``free`` count copies and slots now, ``received`` the Submits handled on this link so far (so that
    the client knows which of its own copies the report includes), ``pushback`` the seconds for which no backup should
    be sent here.
    """

    queued: int
    free: int
    received: int
    pushback: float


class MethodInfo(NamedTuple):
    """A row of a replica's method table.

    ``stoppable`` is False for handlers that run in threads: they hold their slot until they return. ``stream``: it
    answers with items, one after another.
    """

    name: str
    idempotent: bool
    stoppable: bool
    timeout_max: float
    stream: bool = False


class Window(NamedTuple):
    """How a caller wants a stream: what may be sent before it grants more, in items and in bytes of their payloads.

    An item may be sent while both are above 0, so that the last one may exceed ``bytes``. ``judged``: the caller has a
    rule of its own for what is content, which the replica does not know.
    """

    items: int
    bytes: int
    judged: bool
