"""Streams at a replica: what may leave of one, and when its copy is no longer anybody's to end but its caller's.

A handler's items become ``Item`` messages in order, as long as the caller has granted more; then the handler is paused.
The first item with content *commits* the copy: its caller may have decided the race by it, so from then on no notice
of a partner ends it. Before that it yields as any copy does.

Invariants
* Never more items than granted leave, nor does one once bytes are used up: all that can exceed them is the last item.
* A copy that has ended sends nothing: what its handler still produces is thrown away and counted.
"""

from __future__ import annotations

from tiedreq.core.commands import PauseWork, ResumeWork
from tiedreq.core.copybook import HeldCopy
from tiedreq.core.events import CreditReceived, ItemProduced
from tiedreq.core.exclusive import ExclusiveRules
from tiedreq.core.messages import Item
from tiedreq.core.types import CopyState


class StreamRules(ExclusiveRules):
    """The rules of a stream's copy."""

    @staticmethod
    def _committed(held: HeldCopy) -> bool:
        """True for a copy whose caller may have begun to use its answer."""
        return held.stream is not None and held.stream.committed

    def _item_produced(self, event: ItemProduced, now: float) -> None:
        held = self._copies.get(event.copy)
        if held is None or held.stream is None or held.state != CopyState.RUNNING or not held.stream.may_send:
            self.stats.items_wasted += 1
            return
        stream, load = held.stream, None
        if not stream.committed and (event.content or stream.judged):
            stream.committed = True
            load = self._load(held.link, now)
        number = stream.items
        stream.items += 1
        stream.bytes += len(event.payload)
        self.stats.items += 1
        ran, waited = now - held.started_at, held.started_at - held.arrived_at
        self._send_caller(held.link, Item(held.id, number, event.payload, max(0.0, ran), max(0.0, waited), load))
        if not stream.may_send:
            stream.paused = True
            self._out.append(PauseWork(held.id))

    def _credit_received(self, event: CreditReceived, now: float) -> None:
        """More is granted. Totals only grow, so that neither order nor repetition of credits matters."""
        held = self._copies.get(event.copy)
        if held is None or held.stream is None or held.link != event.link:
            return
        stream = held.stream
        stream.items_granted = max(stream.items_granted, event.items)
        stream.bytes_granted = max(stream.bytes_granted, event.bytes)
        if stream.paused and stream.may_send:
            stream.paused = False
            if held.state == CopyState.RUNNING:
                self._out.append(ResumeWork(held.id))
