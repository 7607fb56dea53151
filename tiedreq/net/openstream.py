"""The driver's record of one stream: items kept per copy until the race is decided, then handed to the user.

Synchronous; ``net.stream`` has the object that the user iterates over.

Invariants
* Items are kept apart per copy until the core names the winner; the others' are dropped at that moment.
* What a stream holds is bounded by the credit that its core granted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from tiedreq.core.commands import Outcome, OutcomeKind
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import CallEvent, FailureReceived, ItemReceived, ItemRefused, ResultReceived
from tiedreq.core.messages import Item, Result
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import CopyId
from tiedreq.errors import CallError, DeadlineExceeded, StreamInterrupted
from tiedreq.net.opencall import Answered, OpenCall
from tiedreq.wire.content import is_content
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits
from tiedreq.wire.payload import decode_payload

Content = Callable[[Any], object]
"""A rule of the user's own: whether an item is content, which decides the race."""


class OpenStream(OpenCall):
    """The driver's record of one stream: an open call whose answer comes in items.

    ``error`` is also what the user's own ``content`` raised.
    """

    __slots__ = ("_kept", "content", "first_item", "given", "lot", "ready", "stream_core")

    def __init__(
        self,
        core: StreamCore,
        content: Content | None,
        began: float,
        timeout: float,
        surrounding: bool = False,
        limits: WireLimits = DEFAULT_LIMITS,
        cancelled: Callable[[OpenCall], object] | None = None,
    ) -> None:
        super().__init__(core, None, began, timeout, surrounding, limits, cancelled)
        self.stream_core = core
        self.content = content
        self.first_item: float | None = None
        self.given = 0
        self.ready: deque[tuple[Any, int]] = deque()
        """Items for the user, each with the bytes of its payload."""
        self._kept: dict[CopyId, deque[tuple[Any, int]]] = {}
        self.lot = trio.lowlevel.ParkingLot()
        """Who waits for items, or the outcome."""

    # ---- what comes in ----------------------------------------------------------------------------------------

    def event(self, link: int, message: Item) -> CallEvent | None:
        """An item has arrived: what to tell the core. None when nobody wants it, or the user's rule has failed."""
        sent = self.core.copies.get(message.copy)
        if sent is None or not sent.alive or sent.link != link:
            return None
        copy, payload = message.copy, message.payload
        limit = self._limits.payload_bytes_max
        if len(payload) > limit:
            text = f"item {message.number} has {len(payload)} bytes, over the client's payload_bytes_max of {limit}"
            return ItemRefused(link, copy, "too_large", text, message.service_time)
        try:
            value = decode_payload(payload, self._limits)
        except RemoteViolation as error:
            text = f"item {message.number} can't be decoded: {error}"
            return ItemRefused(link, copy, "bad_payload", text, message.service_time)
        content = True
        if self.stream_core.winner is None:  # the rule is for the race, and is not asked after it
            try:
                content = is_content(payload) if self.content is None else bool(self.content(value))
            except Exception as error:
                self.error = error
                return None
        self._kept.setdefault(copy, deque()).append((value, len(payload)))
        service_time, queue_wait = message.service_time, message.queue_wait
        if content and copy not in self.answers:
            self.answers[copy] = Answered(None, service_time, queue_wait)
        return ItemReceived(link, copy, message.number, len(payload), content, service_time, queue_wait)

    def answer(self, link: int, message: Result) -> CallEvent:
        """The end of a stream, which names the number of its items."""
        copy = message.copy
        first = self.answers.get(copy)
        event = super().answer(link, message)
        if isinstance(event, ResultReceived) and copy in self.answers:
            told, came = self.answers[copy].value, self.stream_core.received(copy)
            if first is not None:
                self.answers[copy] = first  # which measured the race
                first.busy = message.service_time
            if told != came:
                text = f"the stream ended after {told!r} items, of which {came} came"
                return FailureReceived(link, copy, "incomplete", text, b"", True, message.service_time)
        return event

    def forget(self, copy: CopyId) -> None:
        """Keep no preambles of a copy that was given up: its last item may be large."""
        if self._kept and not self.core.copies[copy].alive:
            self._kept.pop(copy, None)

    def deliver(self, copy: CopyId, now: float) -> None:
        """All that is kept of this copy is the user's; what is kept of others goes."""
        if self.first_item is None and self.stream_core.winner is not None:
            self.first_item = now - self.began
        kept = self._kept.pop(copy, None)
        self._kept.clear()
        if kept is not None:
            self.ready.extend(kept)
        self.lot.unpark_all()

    def complete(self, outcome: Outcome) -> None:
        """See ``OpenCall``: whoever waits goes on."""
        super().complete(outcome)
        self._kept.clear()
        self.lot.unpark_all()

    def failure(self) -> BaseException | None:
        """What the outcome raises, with the number of items that the user was given; None for an answer."""
        try:
            self.check()
        except CallError as error:
            error.items = self.given
            return error
        except Exception as error:
            return error
        return None

    def _failure(self) -> Exception:
        assert self.outcome is not None
        kind, winner = self.outcome.kind, self.stream_core.winner
        if winner is None or kind not in (OutcomeKind.INTERRUPTED, OutcomeKind.DEADLINE):
            return super()._failure()
        request, attempts = self.core.request, self.attempts()
        call_id = str(request.id)
        name = f"stream {call_id} of {request.method!r} from {winner.replica}"
        if kind == OutcomeKind.DEADLINE:
            text = f"{name}: its {self.timeout:.4g} s were over after {self.given} items"
            return DeadlineExceeded(text, call_id=call_id, attempts=attempts)
        text = f"{name} broke off after {self.given} items ({self.outcome.cause.label}); nothing is sent again"
        return StreamInterrupted(text, items=self.given, call_id=call_id, attempts=attempts)
