"""Invariants of streams: the items of one copy, in order and within the credit; no copy ends that a user listens to."""

from __future__ import annotations

from tiedreq.core.commands import CallCommand, CancelCopy, DeliverItems, ReplicaCommand, SendCaller, SendCopy
from tiedreq.core.messages import Item
from tiedreq.sim.checker import LOST_TO_A_PARTNER, Checker, ending_of
from tiedreq.sim.history import CallStep, ReplicaStep


class ItemsInOrder(Checker):
    """S14: a replica sends the items of a copy in order, no more than were granted, and none after its end."""

    name = "S14"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if not isinstance(command, SendCaller) or not isinstance(command.message, Item):
            return
        history, item = self.history, command.message
        copy = item.copy
        if copy in history.ended:
            self.broken(copy, f"sends item {item.number} after its end", step.now)
        due = history.items.get(copy, 0)
        if item.number != due:
            self.broken(copy, f"sends item {item.number} where {due} is next", step.now)
        elif item.number >= history.granted_items.get(copy, 0):
            self.broken(copy, f"sends item {item.number}, beyond its credit", step.now)


class CommittedNeverYields(Checker):
    """S12: no notice ends a stream whose caller may have begun to take it."""

    name = "S12"

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        ending = ending_of(command)
        if ending is not None and ending[1] in LOST_TO_A_PARTNER and ending[0] in self.history.committed:
            self.broken(ending[0], f"ends {ending[1].label} after it has sent content", step.now)


class OneStream(Checker):
    """S15: a call's user is given the items of one copy only, and once that has begun nothing more is sent or alive."""

    name = "S15"

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        begun = self.history.delivered.get(step.call)
        if isinstance(command, SendCopy) and begun is not None:
            self.broken(command.submit.copy, f"is sent although the user has items of {begun}", step.now)
        if not isinstance(command, DeliverItems):
            return
        if begun is not None and begun != command.copy:
            self.broken(step.call, f"gives items of {command.copy} after some of {begun}", step.now)
        cancelled = {other.copy for other in step.commands[:index] if isinstance(other, CancelCopy)}
        for sent in step.core.copies.values():
            if sent.alive and sent.id != command.copy and sent.id not in cancelled:
                self.broken(sent.id, f"goes on beside {command.copy}, which the user is given", step.now)
