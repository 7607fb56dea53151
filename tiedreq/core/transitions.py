"""A transition table: the one place that says which trigger takes a state where.

A pair that is not listed is an error and changes nothing. ``docs/states.md`` is generated from the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from tiedreq.core.errors import UnknownTransition

StateT = TypeVar("StateT", bound=Enum)
TriggerT = TypeVar("TriggerT", bound=Enum)


class Table(Generic[StateT, TriggerT]):
    """The transitions of one machine.

    ``notes`` maps a trigger to the sentence that the generated page shows for it.
    """

    def __init__(
        self,
        name: str,
        initial: StateT,
        rows: Mapping[tuple[StateT, TriggerT], StateT],
        notes: Mapping[TriggerT, str],
    ) -> None:
        self.name = name
        self.initial = initial
        self.rows = dict(rows)
        self.notes = dict(notes)

    def next(self, state: StateT, trigger: TriggerT) -> StateT:
        """The state after ``trigger``. Raises ``UnknownTransition`` for a pair that is not listed."""
        try:
            return self.rows[state, trigger]
        except KeyError:
            raise UnknownTransition(f"{self.name}: no transition from {state.name} on {trigger.name}") from None

    def allows(self, state: StateT, trigger: TriggerT) -> bool:
        """True when the pair is listed."""
        return (state, trigger) in self.rows
