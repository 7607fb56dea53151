"""Broken brakes: the bucket of work, the governor, and what a call tells them (design section 6.4).

Each stands in for the right class of its base wherever that is used.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiedreq.core.budget import LinkLostBudget, Ticket, WorkBudget
from tiedreq.core.governor import Governor, GovernorState
from tiedreq.core.lessons import CallAccount
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import CopyState


class NothingIsWithdrawn(WorkBudget):
    """6.4: a backup leaves and takes nothing from the bucket."""

    def try_spend(self, expected: float, now: float, most: float = 0.0) -> Ticket | None:
        ticket = super().try_spend(expected, now, most)
        if ticket is not None:
            self.balance += ticket.taken
            self.taken -= ticket.taken
        return ticket


class WithdrawnTwice(WorkBudget):
    """6.4: a backup takes its expected work twice."""

    def try_spend(self, expected: float, now: float, most: float = 0.0) -> Ticket | None:
        ticket = super().try_spend(expected, now, most)
        if ticket is not None:
            self.balance -= ticket.taken
            self.taken += ticket.taken
        return ticket


class NeverCorrected(WorkBudget):
    """6.4: what a backup took when it left is not corrected when it ends."""

    def settle(self, ticket: Ticket, busy: float, now: float) -> None:
        ticket.open = False


class EmptyBucketPays(WorkBudget):
    """6.4: backups leave although the bucket is empty."""

    def try_spend(self, expected: float, now: float, most: float = 0.0) -> Ticket | None:
        ticket = super().try_spend(expected, now, most)
        if ticket is None and self._share > 0:
            self.denied -= 1
            self.balance += round(expected * 1e9)
            ticket = super().try_spend(expected, now)
        return ticket


class NothingIsEarned(WorkBudget):
    """6.4: useful work is no deposit: the bucket never fills again."""

    def earn(self, useful: float, now: float) -> None:
        pass


class WholeWorkIsEarned(WorkBudget):
    """6.4: the bucket is given all useful work, not the share of it that is the budget."""

    def earn(self, useful: float, now: float) -> None:
        share, self._share = self._share, 1.0 if self._share > 0 else 0.0
        super().earn(useful, now)
        self._share = share


class DoubleStartsAreFree(WorkBudget):
    """6.4: work lost to double starts is not withdrawn."""

    def lose(self, busy: float, now: float) -> None:
        pass

    def regain(self, saved: float, now: float) -> None:
        pass


class TiesInDebt(WorkBudget):
    """6.4: ties go on when double starts have emptied the bucket."""

    def ties_allowed(self, now: float) -> bool:
        return True


class LostLinksAreFree(LinkLostBudget):
    """6.4: failovers after a lost link draw on nothing."""

    def try_spend(self, now: float, under_way: int) -> bool:
        return True


class NoGovernor(Governor):
    """6.4: backups that never win leave on."""

    def backup_wanted(self, now: float, *, again: bool = False) -> bool:
        held = self.held
        super().backup_wanted(now, again=again)
        self.held = held
        return self._off is None


class GovernorStaysLow(Governor):
    """6.4: a budget that was lowered never comes back."""

    def _recover(self, now: float) -> None:
        pass


class GovernorWithoutReason(Governor):
    """6.4: slowness of a call is told as slowness of everyone."""

    def _enter(self, state: GovernorState, reason: str, now: float) -> None:
        super()._enter(GovernorState.SATURATED if state == GovernorState.USELESS else state, reason, now)


class RefusalsAreFree(CallAccount):
    """6.4: a failover after a refusal draws on no bucket."""

    __slots__ = ()

    def try_failover(self, gone: Iterable[SentCopy], now: float, under_way: int) -> bool:
        causes = list(gone)
        if causes and all(copy.state == CopyState.REFUSED for copy in causes):
            return True
        return super().try_failover(causes, now, under_way)


class YieldedWorkIsForgotten(CallAccount):
    """6.4: what a copy worked before it yielded is not told to the bucket."""

    __slots__ = ()

    def _double(self, busy: float) -> None:
        pass
