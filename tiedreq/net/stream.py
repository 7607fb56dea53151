"""A stream at its client: what came of each copy, and the object that its user iterates over.

Data flow: link -> ``OpenStream.arrived`` -> ``StreamCore`` -> ``DeliverItems`` -> ``Stream``. Nothing here runs in a
task of its own: a stream costs no nursery and no cancel scope, so none can be open across a ``yield`` of its user's.

Invariants
* Items are kept apart per copy until the core names the winner; the others' are dropped at that moment.
* What a stream holds is bounded by the credit that its core granted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import trio

from tiedreq.core.commands import OutcomeKind
from tiedreq.core.errors import RemoteViolation, UsageError
from tiedreq.core.events import CallEvent, FailureReceived, ItemReceived, ItemRefused, ItemTaken, ResultReceived
from tiedreq.core.messages import Item, Result
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import CopyId
from tiedreq.errors import CallError, DeadlineExceeded, StreamInterrupted
from tiedreq.net.opencall import Answered, OpenCall
from tiedreq.reply import Attempt
from tiedreq.wire.content import is_content
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits
from tiedreq.wire.payload import decode_payload

Content = Callable[[Any], object]
"""A rule of the user's own: whether an item is content, which decides the race."""


class OpenStream(OpenCall):
    """The driver's record of one stream: an open call whose answer comes in items.

    ``error`` is also what the user's own ``content`` raised.
    """

    __slots__ = ("_kept", "_lot", "content", "first_item", "given", "ready", "stream_core")

    def __init__(
        self,
        core: StreamCore,
        content: Content | None,
        began: float,
        timeout: float,
        surrounding: bool = False,
        limits: WireLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(core, None, began, timeout, surrounding, limits)
        self.stream_core = core
        self.content = content
        self.first_item: float | None = None
        self.given = 0
        self.ready: deque[tuple[Any, int]] = deque()
        """Items for the user, each with the bytes of its payload."""
        self._kept: dict[CopyId, deque[tuple[Any, int]]] = {}
        self._lot = trio.lowlevel.ParkingLot()

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
        self._lot.unpark_all()

    def complete(self, outcome: Any) -> None:
        """See ``OpenCall``: whoever waits goes on."""
        super().complete(outcome)
        self._kept.clear()
        self._lot.unpark_all()

    async def news(self) -> None:
        """Wait until something has been delivered, or the outcome is known."""
        await self._lot.park()

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


class Stream:
    """A stream of items, and its story: ``async with client.stream(…) as stream: async for item in stream: …``.

    The block begins when the race is decided: at the first content, or at the end of a stream without any. It ends
    everything that the stream holds, here at once and at its replica within one item. ``async for`` may be left and
    begun again, and a cancelled step loses no item. One task at a time may iterate.

    Entering the block raises what ``Client.request`` raises. An error in the middle comes after the items before it,
    and ``error.items`` counts those: ``StreamInterrupted`` when the replica is lost, ``RemoteFailure`` when its handler
    fails, ``DeadlineExceeded`` (at once) when the time for the whole stream is over.
    """

    def __init__(
        self,
        begin: Callable[[], OpenStream],
        cancel: Callable[[OpenStream], None],
        took: Callable[[OpenStream, ItemTaken], None],
    ) -> None:
        self._begin: Callable[[], OpenStream] | None = begin
        self._cancel = cancel
        self._took = took
        self._open: OpenStream | None = None
        self._closed = False
        self._busy = False

    def __repr__(self) -> str:
        if self._open is None:
            return "<Stream not begun>"
        state = "closed" if self._closed else "open" if self._open.outcome is None else "ended"
        return f"<Stream {self.call_id} {state}, {self.items} items>"

    async def __aenter__(self) -> Stream:
        if self._begin is None:
            raise UsageError("stream: it was begun before; each has one block")
        begin, self._begin = self._begin, None
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self._open = begin()
        try:
            while call.outcome is None and call.first_item is None:
                await call.news()
            if not call.ready and (error := await self._error(call)) is not None:
                raise error
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _close(self) -> None:
        self._closed = True
        call = self._open
        if call is not None:
            if call.outcome is None:
                self._cancel(call)
            call.ready.clear()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        call = self._opened()
        if self._busy:
            raise trio.BusyResourceError("another task waits for this stream's next item")
        self._busy = True
        try:
            await trio.lowlevel.checkpoint()
            while not call.ready and call.outcome is None and not self._closed:
                await call.news()
        finally:
            self._busy = False
        self._opened()
        late = call.outcome is not None and call.outcome.kind == OutcomeKind.DEADLINE
        if late or not call.ready or call.error is not None:
            error = await self._error(call)
            raise StopAsyncIteration if error is None else error
        value, size = call.ready.popleft()
        call.given += 1
        if call.outcome is None:
            self._took(call, ItemTaken(size))
        return value

    def _opened(self) -> OpenStream:
        if self._open is None or self._closed:
            raise UsageError("stream: it is not open; iterate inside `async with client.stream(...) as stream:`")
        return self._open

    async def _error(self, call: OpenStream) -> BaseException | None:
        outcome = call.outcome
        if outcome is not None and outcome.kind == OutcomeKind.DEADLINE and call.surrounding:
            await trio.lowlevel.checkpoint()  # the scheduler learns only here that the scope's time is over
        return None if outcome is None else call.failure()

    @property
    def waiting(self) -> int:
        """Items that have come and were not handed out yet."""
        return 0 if self._open is None else len(self._open.ready)

    def close(self) -> None:
        """End the stream now, as the end of its block does."""
        self._close()

    # ---- the story --------------------------------------------------------------------------------------------

    def _story(self) -> OpenStream:
        if self._open is None:
            raise UsageError("stream: it has not begun")
        return self._open

    @property
    def call_id(self) -> str:
        """The call's id, as its handlers see it."""
        return str(self._story().core.request.id)

    @property
    def replica(self) -> str | None:
        """The name of the replica whose stream this is; None for a stream without content."""
        winner = self._story().stream_core.winner
        return None if winner is None else winner.replica

    @property
    def kind(self) -> str | None:
        """Why the winning copy was sent: ``"first"``, ``"tie"``, ``"backup"`` or ``"failover"``."""
        winner = self._story().stream_core.winner
        return None if winner is None else winner.kind.label

    @property
    def first_item(self) -> float | None:
        """Seconds from the call to the first content."""
        return self._story().first_item

    @property
    def service_time(self) -> float | None:
        """Seconds that the winner's handler ran until it yielded the first content, as its replica measured them."""
        answer = self._answer()
        return None if answer is None else answer.service_time

    @property
    def queue_wait(self) -> float | None:
        """Seconds that the winning copy waited in its replica's queue, as that measured them."""
        answer = self._answer()
        return None if answer is None else answer.queue_wait

    def _answer(self) -> Answered | None:
        story = self._story()
        winner = story.stream_core.winner
        return None if winner is None else story.answers.get(winner.id)

    @property
    def items(self) -> int:
        """Items that were handed out so far, preambles included."""
        return self._story().given

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What became of each copy so far."""
        return self._story().attempts()
