"""Policies: how many copies of a call are sent, where and when. Frozen, self-validating, printable values.

* ``Plain``: one copy.
* ``Hedged``: one copy, and a backup when no answer came in time.
* ``Tied``: copies in the queues of several replicas; the one that starts tells the others, which drop theirs.
  With a ``Backup``, a started copy that takes too long gets one.
* ``Auto``: chooses among these per method, from what the client measures.

Every policy takes ``observe_only=True``: one copy is sent, and what else would have been sent is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from tiedreq.core.checks import Reduced, check_count, check_flag, check_number, reduced
from tiedreq.core.errors import BadOption

COPIES_MAX = 8
BACKUPS_MAX = 8
DELAY_MAX = 3_600.0
CEILING_FACTOR = 10.0
CEILING_MIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """When to send a backup: an untied copy at another replica.

    ``budget`` is the brake: the extra work that backups and double starts may cost, as a share of useful work, in
    busy time of replicas (``core.budget``). None takes the brake off, and with it the governor.
    ``after`` is the delay: ``"auto"`` learns the one that saves most (``core.delay``), a number of seconds fixes it,
    and ``"p95"`` is a quantile of the learned service times; it is at least ``min_after`` seconds. It counts from the
    start of a copy (``since="start"``) or from its sending (``since="send"``). At most ``max_per_call`` backups are
    sent for one call. With ``since="start"`` a ceiling timer of ``max(10 x delay, 0.25 s)`` from the sending covers a
    frozen queue that never starts anything. Where no delay is worth it, a copy that takes ten times as long as any did
    lately, at least 0.25 s, is taken for stuck and gets a backup all the same.
    """

    budget: float | None = 0.05
    after: float | str = "auto"
    min_after: float = 0.001
    since: Literal["start", "send"] = "start"
    max_per_call: int = 2

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", check_number("budget", self.budget, 0.0, 1.0))
        if isinstance(self.after, str):
            _check_after(self.after)
        else:
            object.__setattr__(self, "after", check_number("after", self.after, 0.0, DELAY_MAX, "seconds"))
        object.__setattr__(self, "min_after", check_number("min_after", self.min_after, 0.0, DELAY_MAX, "seconds"))
        if self.since not in ("start", "send"):
            raise BadOption(f"since: {self.since!r} is not 'start' or 'send'")
        check_count("max_per_call", self.max_per_call, 1, BACKUPS_MAX)

    @property
    def delay(self) -> float | None:
        """The delay in seconds where it is fixed; None where it is learned."""
        after = self.after
        if type(after) is float:
            return after if after > self.min_after else self.min_after
        return None if isinstance(after, str) else max(after, self.min_after)

    @property
    def ceiling(self) -> float:
        """Seconds from the sending after which a call that nobody started gets a backup all the same."""
        return ceiling(self.delay)

    @property
    def quantile(self) -> float | None:
        """The quantile that is the delay, between 0 and 1; None where the delay is another."""
        return _quantile(self.after) if isinstance(self.after, str) and self.after != "auto" else None


def ceiling(delay: float | None) -> float:
    """The ceiling that belongs to a delay, in seconds; None: no delay is known."""
    return CEILING_MIN if delay is None else max(CEILING_FACTOR * delay, CEILING_MIN)


def _quantile(text: str) -> float | None:
    try:
        percent = float(text[1:]) if text.startswith("p") else -1.0
    except ValueError:
        return None
    return percent / 100 if 0 < percent < 100 else None


def _check_after(text: str) -> None:
    if text != "auto" and _quantile(text) is None:
        raise BadOption(f"after: {text!r} is not 'auto', a number of seconds, or a percentile such as 'p95'")


def _check_backup(backup: object) -> None:
    if backup is not None and not isinstance(backup, Backup):
        raise BadOption(f"backup: {backup!r} is not a Backup or None")


@dataclass(frozen=True, slots=True)
class Plain:
    """One copy. A method that is not idempotent can be called with this policy only (and with ``Auto``)."""

    observe_only: bool = False

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        check_flag("observe_only", self.observe_only)


@dataclass(frozen=True, slots=True)
class Hedged:
    """One copy, then backups by the clock, which counts from the sending unless ``backup`` says otherwise.

    When an answer is there the other copies are cancelled; with ``cancel_losers=False`` they run to their end, as where
    a service can't stop what it does.
    """

    backup: Backup = field(default_factory=lambda: Backup(since="send"))
    cancel_losers: bool = True
    observe_only: bool = False

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        _check_backup(self.backup)
        if self.backup is None:
            raise BadOption("backup: a hedged call needs a Backup(since='send')")
        check_flag("cancel_losers", self.cancel_losers)
        check_flag("observe_only", self.observe_only)


@dataclass(frozen=True, slots=True)
class Tied:
    """``copies`` tied copies, each in another replica's queue.

    ``stagger`` is how long copy k is held back behind copies 0 … k-1, in seconds, so that they don't start at once;
    ``"auto"`` computes it from measured latencies, and with a backup's budget it is at least as long as all but that
    share of first copies wait in their queues, and until a wait is likely to outlast the news of a start, so that few
    calls can start twice. ``yield_`` makes the copy of higher
    rank stop when two have started. ``backup`` guards a started copy against a replica that stops. With ``exclusive`` a
    copy of higher rank asks the replica of copy 0 before it starts: two copies never start as long as that replica
    lives, at the price of a round trip between the two and of a refusal when it is lost.
    """

    copies: int = 2
    stagger: float | Literal["auto"] = "auto"
    backup: Backup | None = field(default_factory=Backup)
    exclusive: bool = False
    yield_: bool = True
    observe_only: bool = False

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        check_count("copies", self.copies, 2, COPIES_MAX)
        if self.stagger != "auto":
            object.__setattr__(self, "stagger", check_number("stagger", self.stagger, 0.0, DELAY_MAX, "seconds"))
        _check_backup(self.backup)
        check_flag("exclusive", self.exclusive)
        check_flag("yield_", self.yield_)
        check_flag("observe_only", self.observe_only)


@dataclass(frozen=True, slots=True)
class Auto:
    """Per method: a tie with a backup where handlers can be stopped and double starts are cheap, one copy with a backup
    where not, one copy where backups don't help, and always one copy of a method that is not declared idempotent.

    The brake of ``backup`` bounds what all of it may cost, whatever is measured.
    """

    backup: Backup = field(default_factory=Backup)
    observe_only: bool = False

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        _check_backup(self.backup)
        if self.backup is None:
            raise BadOption("backup: Auto needs a Backup(); Plain() sends none")
        check_flag("observe_only", self.observe_only)


Policy = Plain | Hedged | Tied | Auto
POLICIES: frozenset[type[Any]] = frozenset({Plain, Hedged, Tied, Auto})


def shape_of(policy: Policy, idempotent: bool, stoppable: bool) -> tuple[Tied | None, Backup | None]:
    """The tie and the backup that a policy comes to; neither for a call that may not run twice.

    ``Auto`` ties where a copy that started in vain can be stopped: work that can't be is not begun twice by design.
    """
    if not idempotent or isinstance(policy, Plain):
        return None, None
    if isinstance(policy, Tied):
        return policy, policy.backup
    if isinstance(policy, Auto):
        return (_tie(policy.backup) if stoppable else None), policy.backup
    return None, policy.backup


@lru_cache(maxsize=256)
def _tie(backup: Backup) -> Tied:
    return Tied(backup=backup)


def check_policy(policy: object) -> Policy:
    """``policy`` when it is one; ``BadOption`` otherwise (a class instead of an instance is named as such)."""
    if isinstance(policy, Plain | Hedged | Tied | Auto):
        return policy
    if isinstance(policy, type) and issubclass(policy, Plain | Hedged | Tied | Auto):
        raise BadOption(f"policy: write {policy.__name__}(), not {policy.__name__}")
    raise BadOption(f"policy: {policy!r} is not Plain(), Hedged(…), Tied(…) or Auto()")
