"""How a request with a streamed body passes: once, through a slot that it has waited for.

A front asks for a passage with a call like any other, which is tied like any other: it waits in the queues of two
sidecars. The one whose slot comes first answers with its address and a ticket, and holds the slot. The front sends the
request there over HTTP, with the ticket, which is good for one request. So the request itself runs once, whatever
became of the calls; and when the front goes away its call is cancelled, and the request with it.

The ticket is random and travels over the authenticated link, so who has it was given it. Whoever comes without one is
refused before anything is read.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import trio

from tiedreq.net.edge import no_groups
from tiedreq.proxy.headers import HOP_BY_HOP, OURS, Headers, values
from tiedreq.proxy.listener import HttpListener, ListenerLimits
from tiedreq.proxy.relay import relay
from tiedreq.proxy.upstream import Broke, HttpClient, StreamedBody, Unreachable
from tiedreq.proxy.visit import Visit
from tiedreq.service import Context

logger = logging.getLogger("tiedreq.proxy")

TICKET = b"tiedreq-ticket"
ERROR = b"tiedreq-error"
CLAIM_SECONDS = 5.0
"""How long a slot waits for the request that it was lent to."""


class _Passage:
    """A slot that was lent."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.claimed = trio.Event()
        self.over = trio.Event()


class PassageDesk:
    """Lends slots, and lets in who holds a ticket. ``refused`` is told when the upstream can't be reached."""

    def __init__(
        self,
        upstream: HttpClient,
        refused: Callable[[Unreachable], None],
        limits: ListenerLimits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._upstream = upstream
        self._refused = refused
        self._open: dict[bytes, _Passage] = {}
        self.listener = HttpListener(self._handle, limits, tls=tls)
        self.host = ""
        self.port = 0

    def __len__(self) -> int:
        return len(self._open)

    async def lend(self, ctx: Context, args: Any) -> AsyncIterator[Any]:
        """The items of a passage: where to go, and the ticket. Ends when the request has been answered."""
        ticket = secrets.token_hex(16).encode()
        passage = self._open[ticket] = _Passage()
        try:
            yield [self.host, self.port, ticket]
            await self._wait(passage)
        finally:
            self._open.pop(ticket, None)
            passage.scope.cancel()
            if passage.claimed.is_set():  # the slot is free when the upstream has let go
                with trio.CancelScope(shield=True):
                    await passage.over.wait()

    async def _wait(self, passage: _Passage) -> None:
        with trio.move_on_after(CLAIM_SECONDS):
            await passage.claimed.wait()
        if passage.claimed.is_set():
            await passage.over.wait()

    async def _handle(self, visit: Visit) -> None:
        """One request at the desk."""
        tickets = values(visit.headers, TICKET)
        passage = self._open.pop(tickets[0], None) if len(tickets) == 1 else None
        if passage is None:
            await visit.say(403, "tiedreq: this address is for fronts, which show a ticket")
            return
        passage.claimed.set()
        try:
            with passage.scope:
                await self._pass(visit)
        finally:
            passage.over.set()

    async def _pass(self, visit: Visit) -> None:
        length = None if visit.chunked else visit.length or 0
        body = StreamedBody(received(visit), length, visit.waits_to_send, visit.go_on)
        try:
            with no_groups():
                async with trio.open_nursery() as nursery:
                    response = await self._upstream.stream(
                        visit.method, visit.target, _of_one_hop_less(visit.headers), body, nursery
                    )
                    try:
                        await relay(response, visit, _of_one_hop_less(response.headers, answer=True))
                    finally:
                        await response.aclose()
                    nursery.cancel_scope.cancel()
        except Unreachable as error:
            self._refused(error)
            await visit.say(502, f"tiedreq: the upstream can't be reached: {error}", [(ERROR, b"upstream-unreachable")])
        except Broke as error:
            text = f"tiedreq: the upstream broke: {error}; the request may have been carried out"
            await visit.say(502, text, [(ERROR, b"upstream-broke")])


def _of_one_hop_less(headers: Headers, *, answer: bool = False) -> Headers:
    """Headers between a front and its upstream, which the front has set already."""
    return [
        (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP and name not in OURS and (answer or name not in (b"content-length", b"expect"))
    ]


async def received(visit: Visit, before: bytes = b"") -> AsyncGenerator[bytes]:
    """The parts of a request's body; ``before`` has been read already."""
    if before:
        yield before
    while part := await visit.receive():
        yield part
