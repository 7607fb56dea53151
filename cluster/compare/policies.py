"""The policies that are compared, by name: what each is in words, and as the library's value for a cell.

Those with a learned delay take the budget of the cell, or the library's own; those with a fixed one have no budget
unless the cell has one, as in the publications that they come from.

Not for what a policy does (``tiedreq.core.policy``, ``tiedreq.core.call``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from cluster.compare.cell import Cell
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied, shape_of

__all__ = ["POLICIES", "NamedPolicy", "check_policy_names", "policy_of", "twin_of", "uses_mesh"]

BUDGET_DEFAULT = 0.05


class NamedPolicy(NamedTuple):
    """What a name stands for. ``uses_mesh``: whether the latency between replicas can make a difference."""

    words: str
    make: Callable[[Cell], Policy]
    uses_mesh: bool


def _learned(cell: Cell, since: Literal["start", "send"]) -> Backup:
    budget = BUDGET_DEFAULT if cell.backup_budget is None else cell.backup_budget
    return Backup(budget=budget, after=cell.backup_after, since=since, max_per_call=cell.backups)


def _fixed(cell: Cell, after: float) -> Backup:
    return Backup(budget=cell.backup_budget, after=after, min_after=0.0, since="send", max_per_call=1)


def _plain(cell: Cell) -> Policy:
    return Plain()


def _hedged(cell: Cell) -> Policy:
    return Hedged(_learned(cell, "send"))


def _hedged_fixed(cell: Cell) -> Policy:
    return Hedged(_fixed(cell, cell.fixed_after))


def _hedged_uncancelled(cell: Cell) -> Policy:
    return Hedged(_fixed(cell, cell.fixed_after), cancel_losers=False)


def _doubled(cell: Cell) -> Policy:
    return Hedged(_fixed(cell, 0.0), cancel_losers=False)


def _backup(cell: Cell) -> Policy:
    return Hedged(_learned(cell, "start"))


def _tied_classic(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, yield_=False, backup=None)


def _tied_nobackup(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, backup=None)


def _tied(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, backup=_learned(cell, "start"))


def _tied_exclusive(cell: Cell) -> Policy:
    return Tied(copies=cell.copies, stagger=cell.stagger, exclusive=True, backup=_learned(cell, "start"))


def _auto(cell: Cell) -> Policy:
    return Auto(_learned(cell, "start"))


POLICIES: dict[str, NamedPolicy] = {
    "plain": NamedPolicy("one copy", _plain, False),
    "hedged": NamedPolicy("a backup counted from the sending, learned delay, budget, losers cancelled", _hedged, False),
    "hedged-fixed": NamedPolicy("a backup a fixed delay after the sending, losers cancelled", _hedged_fixed, False),
    "hedged-uncancelled": NamedPolicy("the same, losers run to their end", _hedged_uncancelled, False),
    "doubled": NamedPolicy("two untied copies at once, losers run to their end", _doubled, False),
    "backup": NamedPolicy("one copy, a backup counted from its start, no tie", _backup, False),
    "tied-classic": NamedPolicy("a tie as first published: no yield, no backup", _tied_classic, True),
    "tied-nobackup": NamedPolicy("a tie whose copies yield, no backup", _tied_nobackup, True),
    "tied": NamedPolicy("a tie whose copies yield, and a backup counted from the start", _tied, True),
    "tied-exclusive": NamedPolicy("a tie whose second copy asks before it starts, and a backup", _tied_exclusive, True),
    "auto": NamedPolicy("chooses by itself from what it measures", _auto, True),
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
    """The library's policy for a cell. Raises ``BadOption`` for a name that is not known."""
    known = POLICIES.get(cell.policy)
    if known is None:
        raise BadOption(f"policy: {cell.policy!r} is not one of {', '.join(POLICIES)}")
    return known.make(cell)


def twin_of(cell: Cell) -> str:
    """The policy that sends the very same copies in this cell, or the cell's own: ``auto`` is one of two others.

    Which one the library says itself: the shape of a policy is all that a call knows of it.
    """
    if cell.policy != "auto":
        return cell.policy
    stoppable = cell.handlers == "cancellable"
    ours = shape_of(policy_of(cell), True, stoppable)
    for name in ("tied", "backup"):
        if shape_of(policy_of(cell.but(policy=name)), True, stoppable) == ours:
            return name
    return cell.policy


def uses_mesh(cell: Cell) -> bool:
    """Whether the latency between replicas can make a difference to the cell's policy."""
    return POLICIES[twin_of(cell)].uses_mesh
