"""Streams for those who are not on Trio: what goes on in the client's own thread, and what is carried over.

Items are carried in batches, so that a fast stream does not cost a change of threads for each. They wait in a queue
that both threads may touch: a step that is cancelled loses none.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import trio

from tiedreq.core.errors import UsageError
from tiedreq.net.stream import Stream
from tiedreq.reply import Attempt

BATCH_MAX = 64
"""So many items are carried at once, at most; the window of a stream bounds what is on its way."""


class Carried:
    """A Trio stream and the items of it that are on this side of the bridge. The story is ``tiedreq.Stream``'s."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._given = 0
        self._turn = trio.Lock()
        self._stream: Stream | None = None
        self._error: BaseException | None = None
        self._over = False
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<{type(self).__module__}.Stream {'closed' if self._closed else 'open' if self._stream else 'not begun'}>"
        )

    async def fetch(self) -> None:
        """(client's thread) Wait for an item, and bring what else has come; note the end, and how it came."""
        stream = self._story()
        async with self._turn:  # one that nobody waits for any more may not have ended yet
            if self._items or self._over:
                return
            try:
                self._items.append(await stream.__anext__())
                while stream.waiting and len(self._items) < BATCH_MAX:
                    self._items.append(await stream.__anext__())
            except StopAsyncIteration:
                self._over = True
            except Exception as error:
                self._error, self._over = error, True

    def take(self) -> tuple[bool, Any]:
        """Whether there is an item here, and which. Raises what ended the stream, once all before it are taken."""
        if self._closed or self._stream is None:
            raise UsageError("stream: it is not open; iterate inside the block of client.stream(...)")
        if self._items:
            self._given += 1
            return True, self._items.popleft()
        if self._error is not None:
            raise self._error
        return False, None

    def _story(self) -> Stream:
        if self._stream is None:
            raise UsageError("stream: it has not begun")
        return self._stream

    # ---- the story --------------------------------------------------------------------------------------------

    @property
    def call_id(self) -> str:
        """The call's id, as its handlers see it."""
        return self._story().call_id

    @property
    def replica(self) -> str | None:
        """The name of the replica whose stream this is; None for a stream without content."""
        return self._story().replica

    @property
    def kind(self) -> str | None:
        """Why the winning copy was sent: ``"first"``, ``"tie"``, ``"backup"`` or ``"failover"``."""
        return self._story().kind

    @property
    def first_item(self) -> float | None:
        """Seconds from the call to the first content."""
        return self._story().first_item

    @property
    def items(self) -> int:
        """Items that were handed out so far, preambles included."""
        return self._given

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What became of each copy so far."""
        return self._story().attempts
