"""Passes the response of an upstream on to who waits for it at a listener, part by part."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tiedreq.proxy import headers as rules
from tiedreq.proxy.headers import Headers
from tiedreq.proxy.upstream import Broke, Response
from tiedreq.proxy.visit import Aborted, Visit

HEAD_SECONDS = 0.1
"""So long the head of a response waits for the first part of its body."""


def _nothing() -> None:
    pass


async def relay(response: Response, visit: Visit, fields: Headers, progress: Callable[[], None] = _nothing) -> None:
    """Answer ``visit`` with the response, under these headers; ``progress`` is called for each part that comes.

    Raises ``Aborted`` where it breaks off.
    """
    try:
        parts = Parts(response)
        part = await parts.first()
        await visit.respond(response.status, fields, part, whole=parts.over and not response.trailers)
        while not parts.over:
            part = await parts.next()
            progress()
            if part:
                await visit.send(part)
        await visit.finish(rules.trailers(response.trailers))
    except Broke as error:
        raise Aborted(f"the upstream broke within its answer: {error}") from error


class Parts:
    """The body of a response in parts, each with everything that is there already."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self.over = response.whole

    async def first(self) -> bytes:
        """The first part, if it comes soon; empty otherwise. Raises ``Broke``."""
        part = self._response.ready()
        if part is None:
            with trio.move_on_after(HEAD_SECONDS) as scope:
                part = await self._response.receive()
            if scope.cancelled_caught:
                return b""
        if not part:
            self.over = True
            return b""
        return self.more(part)

    async def next(self) -> bytes:
        """The next part, perhaps empty; with the last one ``over`` is set. Raises ``Broke``."""
        part = await self._response.receive()
        self.over = not part
        if not part:
            return part
        return self.more(part)

    def more(self, part: bytes) -> bytes:
        """``part``, and what has arrived behind it."""
        found = [part]
        while (another := self._response.ready()) is not None:
            if not another:
                self.over = True
                break
            found.append(another)
        return part if len(found) == 1 else b"".join(found)
