"""A stream at its client: the object that its user iterates over.

Data flow: link -> ``OpenStream`` -> ``StreamCore`` -> ``DeliverItems`` -> ``Stream``. Nothing here runs in a task of
its own: a stream costs no nursery and no cancel scope, so none can be open across a ``yield`` of its user's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import trio

from tiedreq.core.commands import OutcomeKind
from tiedreq.core.errors import UsageError
from tiedreq.core.events import ItemTaken
from tiedreq.net.opencall import Answered
from tiedreq.net.openstream import OpenStream
from tiedreq.reply import Attempt


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
        await self.enter()
        return self

    async def enter(self) -> None:
        """As entering the block, for who calls ``close`` in place of leaving it, which is a pass of the scheduler."""
        if self._begin is None:
            raise UsageError("stream: it was begun before; each has one block")
        begin, self._begin = self._begin, None
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self._open = begin()
        try:
            while call.outcome is None and call.first_item is None:
                await call.lot.park()
            if not call.ready and (error := await self._error(call)) is not None:
                raise error
        except BaseException:
            self._close()
            raise

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
                await call.lot.park()
        finally:
            self._busy = False
        self._opened()
        late = call.outcome is not None and call.outcome.kind == OutcomeKind.DEADLINE
        if late or not call.ready or call.error is not None:
            error = await self._error(call)
            raise StopAsyncIteration if error is None else error
        return self._take(call)

    def next_nowait(self) -> Any:
        """The next item, if it is there already. Raises ``trio.WouldBlock``: wait with ``async for`` or ``anext``."""
        call = self._opened()
        late = call.outcome is not None and call.outcome.kind == OutcomeKind.DEADLINE
        if late or not call.ready or call.error is not None or self._busy:
            raise trio.WouldBlock
        return self._take(call)

    def _take(self, call: OpenStream) -> Any:
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
    def over(self) -> bool:
        """True once the stream is known to have ended well, with nothing left to hand out: a next step would say so."""
        call = self._open
        return call is not None and call.outcome is not None and not call.ready and call.failure() is None

    @property
    def waiting(self) -> int:
        """Items that have come and were not handed out yet."""
        return 0 if self._open is None else len(self._open.ready)

    def close(self) -> None:
        """End the stream now, as the end of its block does."""
        self._close()

    # ---- the story --------------------------------------------------------------------------------------------

    def told(self) -> tuple[str | None, float | None, float | None]:
        """``replica``, ``queue_wait`` and ``service_time``."""
        call = self._story()
        winner = call.stream_core.winner
        if winner is None:
            return None, None, None
        answer = call.answers.get(winner.id)
        if answer is None:
            return winner.replica, None, None
        return winner.replica, answer.queue_wait, answer.service_time

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
