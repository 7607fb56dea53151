"""Policies: how many copies of a call are sent, where and when. Frozen, self-validating, printable values.

* ``Plain``: one copy.
* ``Hedged``: one copy, and a backup when no answer came ``after`` seconds.
* ``Tied``: copies in the queues of several replicas; the one that starts tells the others, which drop theirs.
  With a ``Backup``, a started copy that takes too long gets one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tiedreq.core.checks import check_count, check_flag, check_number
from tiedreq.core.errors import BadOption

COPIES_MAX = 8
BACKUPS_MAX = 8
DELAY_MAX = 3_600.0
CEILING_FACTOR = 10.0
CEILING_MIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """When to send a backup: an untied copy at another replica.

    ``after`` (seconds, at least ``min_after``) counts from the start of a copy (``since="start"``) or from its
    sending (``since="send"``). At most ``max_per_call`` backups are sent for one call. With ``since="start"`` a
    ceiling timer of ``max(10 x after, 0.25 s)`` from the sending covers a frozen queue that never starts anything.
    """

    after: float
    min_after: float = 0.001
    since: Literal["start", "send"] = "start"
    max_per_call: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.after, str):
            raise BadOption(f"after: {self.after!r} is not a number of seconds (a learned delay is not available yet)")
        object.__setattr__(self, "after", check_number("after", self.after, 0.0, DELAY_MAX, "seconds"))
        object.__setattr__(self, "min_after", check_number("min_after", self.min_after, 0.0, DELAY_MAX, "seconds"))
        if self.since not in ("start", "send"):
            raise BadOption(f"since: {self.since!r} is not 'start' or 'send'")
        check_count("max_per_call", self.max_per_call, 1, BACKUPS_MAX)

    @property
    def delay(self) -> float:
        """The delay in force, in seconds."""
        return max(self.after, self.min_after)

    @property
    def ceiling(self) -> float:
        """Seconds from the sending after which a call that nobody started gets a backup all the same."""
        return max(CEILING_FACTOR * self.delay, CEILING_MIN)


def _check_backup(backup: object) -> None:
    if backup is not None and not isinstance(backup, Backup):
        raise BadOption(f"backup: {backup!r} is not a Backup or None")


@dataclass(frozen=True, slots=True)
class Plain:
    """One copy. A method that is not idempotent can be called with this policy only."""


@dataclass(frozen=True, slots=True)
class Hedged:
    """One copy, then backups by the clock. ``backup`` is required: ``Hedged(Backup(after=0.03, since="send"))``."""

    backup: Backup

    def __post_init__(self) -> None:
        _check_backup(self.backup)
        if self.backup is None:
            raise BadOption("backup: a hedged call needs a Backup(after=SECONDS, since='send')")


@dataclass(frozen=True, slots=True)
class Tied:
    """``copies`` tied copies, each in another replica's queue.

    ``stagger`` is how long copy k is held back behind copies 0 … k-1, in seconds, so that they don't start at once;
    ``"auto"`` computes it from measured latencies. ``yield_`` makes the copy of higher rank stop when two have
    started. ``backup`` guards a started copy against a replica that stops. With ``exclusive`` a copy of higher rank
    asks the replica of copy 0 before it starts: two copies never start as long as that replica lives, at the price of
    a round trip between the two and of a refusal when it is lost.
    """

    copies: int = 2
    stagger: float | Literal["auto"] = "auto"
    backup: Backup | None = None
    exclusive: bool = False
    yield_: bool = True

    def __post_init__(self) -> None:
        check_count("copies", self.copies, 2, COPIES_MAX)
        if self.stagger != "auto":
            object.__setattr__(self, "stagger", check_number("stagger", self.stagger, 0.0, DELAY_MAX, "seconds"))
        _check_backup(self.backup)
        check_flag("exclusive", self.exclusive)
        check_flag("yield_", self.yield_)


Policy = Plain | Hedged | Tied


def check_policy(policy: object) -> Policy:
    """``policy`` when it is one; ``BadOption`` otherwise (a class instead of an instance is named as such)."""
    if isinstance(policy, Plain | Hedged | Tied):
        return policy
    if isinstance(policy, type) and issubclass(policy, Plain | Hedged | Tied):
        raise BadOption(f"policy: write {policy.__name__}(), not {policy.__name__}")
    raise BadOption(f"policy: {policy!r} is not Plain(), Hedged(…) or Tied(…)")
