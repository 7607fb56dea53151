"""Runs requests at the upstream: the handlers of a sidecar's service.

Each execution is one HTTP request. Cancelling it closes its connection, which is how an HTTP server learns that nobody
waits any more; its slot is free when the server has shown that it is alive. The first item is sent when the head and
the first part of the body are there; a body that is slow to begin does not hold its head back for long
(``proxy.relay``), so that an answer of a few bytes is one item.

An upstream that can't be reached, breaks, or answers 503 with ``Retry-After`` lets the other copy win; where there is
none, that answer is the answer. Every other answer counts, whatever its status, unless ``let_other_win`` names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from tiedreq.proxy import headers as rules
from tiedreq.proxy.messages import ONCE, PASSAGE, TIED, Ask, BadMessage, Head, pack_trailers
from tiedreq.proxy.passage import PassageDesk
from tiedreq.proxy.relay import Parts
from tiedreq.proxy.upstream import Broke, HttpClient, NotHttp, Response, Unreachable
from tiedreq.service import TIMEOUT_MAX_SECONDS, Context, Failure, Service

BUSY_BYTES_MAX = 64 * 1024
"""The longest body of an answer that another copy may better."""
PUSHBACK_SECONDS_MAX = 5.0

UNREACHABLE = "upstream_unreachable"
"""The code of the failure of a request that was certainly not sent."""
BROKE = "upstream_broke"
BUSY = "upstream_busy"
"""The code of the failure that carries an answer which another copy may better."""


class Worker:
    """What executions need. ``refused`` is told when the upstream can't be reached."""

    def __init__(
        self,
        upstream: HttpClient,
        refused: Callable[[Unreachable], None],
        let_other_win: frozenset[int] = frozenset(),
    ) -> None:
        self._upstream = upstream
        self._refused = refused
        self._let_other_win = let_other_win

    async def run(self, repeat: bool, ctx: Context, args: Any) -> AsyncIterator[Any]:
        """The items of one response. ``repeat``: the request may be sent twice. Raises ``Failure``."""
        try:
            ask = Ask.unpack(args)
        except BadMessage as error:
            raise Failure("bad_request", str(error)) from None
        response = await self._begin(ask, repeat)
        try:
            if repeat and (response.status == 503 or response.status in self._let_other_win):
                await self._unless_busy(response, ctx.pushback)
            parts = Parts(response)
            part = await parts.first()
            yield Head(response.status, response.headers, part, parts.over and not response.trailers).pack()
            while not parts.over:
                part = await parts.next()
                if part:
                    yield part
            if response.trailers and (kept := rules.trailers(response.trailers)):
                yield pack_trailers(kept)
        except Broke as error:
            raise _broke(error, repeat) from None
        finally:
            await response.aclose()

    async def _begin(self, ask: Ask, repeat: bool) -> Response:
        try:
            return await self._upstream.send(ask.method, ask.target, ask.headers, ask.body, repeat=repeat)
        except NotHttp as error:
            raise Failure("bad_request", f"no HTTP request: {error}") from None
        except Unreachable as error:
            self._refused(error)
            raise Failure(UNREACHABLE, f"no connection to the upstream: {error}", retryable=True) from None
        except Broke as error:
            raise _broke(error, repeat) from None

    async def _unless_busy(self, response: Response, pushback: Callable[[float], None]) -> None:
        """Raises ``Failure`` for an answer that another copy may better, if its body is short."""
        status, pause = response.status, rules.retry_after(response.status, response.headers)
        if pause is None and status not in self._let_other_win:
            return
        if response.length is not None and response.length > BUSY_BYTES_MAX:
            return
        body = b""
        while part := await response.receive():
            body += part
            if len(body) > BUSY_BYTES_MAX:
                response.put_back(body)
                return
        if pause:
            pushback(min(pause, PUSHBACK_SECONDS_MAX))
        answer = Head(status, response.headers, body, True)
        raise Failure(BUSY, f"the upstream answered {status}", answer.pack(), retryable=True)


def _broke(error: Broke, repeat: bool) -> Failure:
    return Failure(BROKE, str(error) if repeat else f"{error}; it may have been carried out", retryable=repeat)


def sidecar_service(worker: Worker, desk: PassageDesk) -> Service:
    """The service that a sidecar serves."""
    service = Service("http")
    for name, repeat in ((TIED, True), (ONCE, False)):
        declare = service.stream(name, idempotent=repeat, timeout_max=TIMEOUT_MAX_SECONDS)
        declare(partial(worker.run, repeat))
    service.stream(PASSAGE, idempotent=True, timeout_max=TIMEOUT_MAX_SECONDS)(desk.lend)
    return service
