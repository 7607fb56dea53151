"""What a client counts over all its calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CallStats:
    """Counters of all calls of one client; each grows at the moment it names."""

    calls: int = 0
    copies_sent: int = 0
    ties: int = 0
    backups_sent: int = 0
    backups_won: int = 0
    backups_without_target: int = 0
    backups_denied: int = 0
    """Backups that a call wanted and that the brake or the governor denied, once per wish."""
    backups_observed: int = 0
    """Backups that ``observe_only`` kept from being sent."""
    ties_observed: int = 0
    ties_withheld: int = 0
    """Calls that went untied because double starts had emptied the budget."""
    failovers_denied: int = 0
    failovers: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def under_way(self) -> int:
        """Calls that were made and have no outcome yet."""
        return self.calls - self.answered - self.failed - self.cancelled
