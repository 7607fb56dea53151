"""The policies that are compared, by name: what each is in words, and as the library's value for a cell.

Not for what a policy does (``tiedreq.core.policy``, ``tiedreq.core.call``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cluster.compare.cell import Cell
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied

__all__ = ["POLICIES", "NamedPolicy", "check_policy_names", "policy_of"]


class NamedPolicy(NamedTuple):
    """What a name stands for. ``uses_mesh``: whether the latency between replicas can make a difference."""

    words: str
    make: Callable[[Cell], Policy] | None
    uses_mesh: bool


def _after(cell: Cell) -> float:
    return cell.fixed_after if cell.backup_after == "auto" else cell.backup_after


def _backup(cell: Cell) -> Backup:
    return Backup(after=_after(cell), since="start", max_per_call=cell.backups)


def _plain(cell: Cell) -> Policy:
    return Plain()


def _hedged(cell: Cell) -> Policy:
    return Hedged(Backup(after=_after(cell), since="send", max_per_call=cell.backups))


def _hedged_fixed(cell: Cell) -> Policy:
    return Hedged(Backup(after=_after(cell), since="send", max_per_call=1))


def _backup_alone(cell: Cell) -> Policy:
    return Hedged(_backup(cell))


def _tied_classic(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, yield_=False, backup=None)


def _tied_nobackup(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, backup=None)


def _tied(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, backup=_backup(cell))


def _tied_exclusive(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, exclusive=True, backup=_backup(cell))


POLICIES: dict[str, NamedPolicy] = {
    "plain": NamedPolicy("one copy", _plain, False),
    "hedged": NamedPolicy("a backup counted from the sending, learned delay, budget, losers cancelled", _hedged, False),
    "hedged-fixed": NamedPolicy("a backup a fixed delay after the sending, losers cancelled", _hedged_fixed, False),
    "hedged-uncancelled": NamedPolicy("the same, losers run to their end", None, False),
    "doubled": NamedPolicy("two untied copies at once, losers run to their end", None, False),
    "backup": NamedPolicy("one copy, a backup counted from its start, no tie", _backup_alone, False),
    "tied-classic": NamedPolicy("a tie as first published: no yield, no backup", _tied_classic, True),
    "tied-nobackup": NamedPolicy("a tie whose copies yield, no backup", _tied_nobackup, True),
    "tied": NamedPolicy("a tie whose copies yield, and a backup counted from the start", _tied, True),
    "tied-exclusive": NamedPolicy("a tie whose second copy asks before it starts, and a backup", _tied_exclusive, True),
    "auto": NamedPolicy("chooses by itself from what it measures", None, True),
}


def check_policy_names(names: list[str]) -> tuple[str, ...]:
    """The names when all are known and none is there twice. Raises ``BadOption``."""
    for name in names:
        if name not in POLICIES:
            raise BadOption(f"policies: {name!r} is not one of {', '.join(POLICIES)}")
        if names.count(name) > 1:
            raise BadOption(f"policies: {name!r} is there twice")
    return tuple(names)


def policy_of(cell: Cell) -> Policy:
    """The library's policy for a cell. Raises ``BadOption`` for what this version has not."""
    known = POLICIES.get(cell.policy)
    if known is None:
        raise BadOption(f"policy: {cell.policy!r} is not one of {', '.join(POLICIES)}")
    if known.make is None:
        raise BadOption(f"policy: this version has no {cell.policy!r} yet")
    return known.make(cell)
