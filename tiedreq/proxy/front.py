"""The front: takes plain HTTP, sends it as streams of tied copies to the sidecars, and answers with the winner's.

A request that may run twice is tied. One that may not passes once: whole, where its body is short; through a passage
(``proxy.passage``), where it is long or of unknown length. What went wrong becomes a status: 502 for an upstream that
broke, 503 where no replica is ready, 504 where the answer did not begin in time; once an answer has begun, its
connection is closed.

Not for HTTP itself (``proxy.listener``), nor for which headers are passed on (``proxy.headers``).
"""

from __future__ import annotations

import logging
import math
import secrets
from dataclasses import dataclass, field
from functools import lru_cache

import trio

from tiedreq.core.checks import check_count, check_number
from tiedreq.core.policy import Plain, Policy, Tied
from tiedreq.errors import (
    CallError,
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    RemoteFailure,
    TooLarge,
    Unavailable,
    UsageError,
)
from tiedreq.net.client import Client
from tiedreq.net.stream import Stream
from tiedreq.proxy import headers as fields
from tiedreq.proxy.crossing import Crossing
from tiedreq.proxy.headers import Headers
from tiedreq.proxy.listener import ListenerLimits
from tiedreq.proxy.messages import ONCE, TIED, Ask, BadMessage, Head, unpack_part
from tiedreq.proxy.patience import Patience
from tiedreq.proxy.rules import Rules
from tiedreq.proxy.visit import Aborted, Visit
from tiedreq.proxy.worker import BUSY, UNREACHABLE

logger = logging.getLogger("tiedreq.proxy")

WHOLE_SECONDS = 86_400.0
"""The longest that an answer may take from end to end."""
TRIES_MAX = 3
"""How often a request that passes once is sent, where it certainly did not reach an upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """What a front may be told.

    ``timeout`` is the time, in seconds, until an answer begins, and ``stall`` that between two parts of it.
    ``body_bytes_max`` bounds what is kept of the body of one request; a longer one is streamed, and passes once.
    ``trust_forwarded``: believe what requests say of those before the client (``X-Forwarded-For`` and the like).
    """

    rules: Rules = field(default_factory=Rules)
    policy: Policy = field(default_factory=Tied)
    timeout: float = 60.0
    stall: float = 60.0
    body_bytes_max: int = 1024 * 1024
    trust_forwarded: bool = False
    limits: ListenerLimits = field(default_factory=ListenerLimits)

    def __post_init__(self) -> None:
        check_number("timeout", self.timeout, 0.001, WHOLE_SECONDS, "seconds")
        check_number("stall", self.stall, 0.001, WHOLE_SECONDS, "seconds")
        check_count("body_bytes_max", self.body_bytes_max, 1, 16 * 1024 * 1024)


class _Wait:
    """A request that waits for its answer. Cancelled, its stream ends; once an answer has begun, its connection does.

    It costs far less than a scope, and has what that would have to find: these are the only things to wait for.
    """

    __slots__ = ("_visit", "over", "stream")

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.stream: Stream | None = None
        self.over = False

    def cancel(self) -> None:
        """The time is over."""
        self.over = True
        if self._visit.answered:
            self._visit.cut()
        elif self.stream is not None:
            self.stream.close()


class Front:
    """Answers requests with the help of a client, which may come and go."""

    def __init__(self, options: FrontOptions, crossing: Crossing | None = None) -> None:
        self._options = options
        self._pseudonym = b"tiedreq-" + secrets.token_hex(4).encode()
        self._timeout = Patience(options.timeout)
        self._stall = Patience(options.stall)
        self._crossing = crossing if crossing is not None else Crossing(None)
        self.client: Client | None = None
        self.connected = trio.Event()
        """Set once a client has reached a replica."""

    async def run(self) -> None:
        """Watch the time, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timeout.run)
            nursery.start_soon(self._stall.run)

    async def handle(self, visit: Visit) -> None:
        """Answer one request."""
        method = visit.method
        refused = fields.refusal(method, visit.target, visit.headers, visit.version, self._pseudonym)
        if refused is not None:
            await visit.say(refused.status, f"tiedreq: {refused.text}", _error("refused"))
            return
        if not fields.may_go_on(method, visit.headers):
            await visit.say(405 if method == b"TRACE" else 200, "tiedreq: Max-Forwards ends here")
            return
        target, headers = fields.origin_form(visit.target, visit.headers, method)
        kept = fields.for_upstream(
            method,
            headers,
            version=visit.version,
            peer=visit.peer,
            scheme=visit.scheme,
            pseudonym=self._pseudonym,
            trusted=self._options.trust_forwarded,
        )
        body, whole = await self._body(visit)
        if self.client is None:
            await self._unready(visit)
            return
        ask = Ask(method, target, kept, body)
        if whole:
            wait = _Wait(visit)
            self._timeout.begin(wait, visit.began if visit.bodiless else None)
            try:
                await self._ask(self.client, visit, wait, ask)
            finally:
                self._timeout.end(wait)
                self._stall.end(wait)
            return
        scope = trio.CancelScope()
        with scope:
            self._timeout.begin(scope)
            try:
                await self._cross(self.client, visit, scope, ask)
            finally:
                self._timeout.end(scope)
                self._stall.end(scope)
        if scope.cancelled_caught:
            await self._too_late(visit)

    async def _body(self, visit: Visit) -> tuple[bytes, bool]:
        """The body of a request, and whether it is whole; of a long one what is needed to know that it is long."""
        if visit.bodiless:
            return b"", True
        limit = self._options.body_bytes_max
        if visit.length is not None and visit.length > limit:
            return b"", False
        parts, size = [], 0
        while part := await visit.receive():
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"".join(parts), False
        return b"".join(parts), True

    # ---- whole requests ---------------------------------------------------------------------------------------

    async def _ask(self, client: Client, visit: Visit, wait: _Wait, ask: Ask) -> None:
        tied = self._options.rules.tied(ask.method, ask.target)
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                if tied:
                    stream = client.stream(TIED, ask.pack(), policy=self._options.policy, timeout=WHOLE_SECONDS)
                else:
                    stream = client.stream(ONCE, ask.pack(), policy=Plain(), timeout=WHOLE_SECONDS)
                wait.stream = stream
                try:
                    await stream.enter()
                    await self._relay(stream, visit, wait)
                finally:
                    stream.close()
                return
            except (CallError, UsageError, BadMessage) as error:
                if wait.over:
                    await self._too_late(visit)
                    return
                unreached = isinstance(error, RemoteFailure) and error.code == UNREACHABLE
                if tied or not unreached or not tries_left or visit.answered:
                    await self._failed(visit, error)
                    return

    async def _relay(self, stream: Stream, visit: Visit, wait: _Wait) -> None:
        """Answer with the items of a stream."""
        now = trio.current_time()
        self._timeout.end(wait)
        self._stall.begin(wait, now)
        try:
            item = stream.next_nowait()
        except trio.WouldBlock:
            item = await anext(stream, None)  # None, at an end without an item, is no head
        head = Head.unpack(item)
        kept = fields.for_client(head.status, head.headers, pseudonym=self._pseudonym)
        kept += _story(stream, now - visit.began)
        await visit.respond(head.status, kept, head.part, whole=head.whole)
        if head.whole and stream.over:
            return
        ended: Headers = []
        async for item in stream:
            part = unpack_part(item)
            if isinstance(part, bytes):
                self._stall.begin(wait)
                await visit.send(part)
            else:
                ended = fields.trailers(part)
        await visit.finish(ended)

    # ---- streamed bodies --------------------------------------------------------------------------------------

    async def _cross(self, client: Client, visit: Visit, scope: trio.CancelScope, ask: Ask) -> None:
        waits = self._timeout

        def progress() -> None:
            waits.begin(scope)

        def headers(status: int, given: Headers, replica: str | None) -> Headers:
            nonlocal waits
            self._timeout.end(scope)
            waits = self._stall
            waits.begin(scope)
            kept = fields.for_client(status, given, pseudonym=self._pseudonym)
            return kept + _timing(replica, trio.current_time() - visit.began)

        try:
            await self._crossing.carry(client, self._options.policy, visit, ask, progress, headers)
        except (CallError, UsageError, BadMessage) as error:
            await self._failed(visit, error)

    # ---- what went wrong --------------------------------------------------------------------------------------

    async def _failed(self, visit: Visit, error: Exception) -> None:
        """Answer with what an error means; where an answer has begun, break it off."""
        if visit.answered:
            raise Aborted(str(error)) from error
        if isinstance(error, RemoteFailure) and error.code == BUSY:
            head = Head.unpack(error.details)
            kept = fields.for_client(head.status, head.headers, pseudonym=self._pseudonym)
            replica = error.attempts[-1].replica if error.attempts else None
            await visit.respond(head.status, kept + _replica(replica), head.part, whole=True)
            return
        status, code, extra = _meaning(error)
        logger.info("%s %s answered with %d: %s", visit.method.decode(), code, status, error)
        await visit.say(status, f"tiedreq: {error}", [*_error(code), *extra])

    async def _too_late(self, visit: Visit) -> None:
        if visit.answered:
            raise Aborted(f"no more of the answer came within {self._options.stall:g} s")
        client = self.client
        if client is None or not client.stats()["replicas"]:
            await self._unready(visit)
            return
        text = f"tiedreq: no answer began within {self._options.timeout:g} s"
        await visit.say(504, text, _error("timeout"))

    async def _unready(self, visit: Visit) -> None:
        await visit.say(503, "tiedreq: no replica is ready", [*_error("unready"), (b"retry-after", b"1")])


def _meaning(error: Exception) -> tuple[int, str, Headers]:
    """The status of an error, its code, and further headers."""
    match error:
        case Overloaded():
            pause = max(1, math.ceil(error.retry_after))
            return 503, "overloaded", [(b"retry-after", b"%d" % pause)]
        case DeadlineExceeded():
            return 504, "timeout", []
        case OutcomeUnknown():
            return 502, "unknown", []
        case Unavailable():
            return 503, "unavailable", [(b"retry-after", b"1")]
        case RemoteFailure():
            return 502, error.code.replace("_", "-"), []
        case TooLarge():
            return 413, "too-large", []
        case UsageError():
            return 503, "unready", [(b"retry-after", b"1")]
    return 502, "broke", []


def _error(code: str) -> Headers:
    return [(b"tiedreq-error", code.encode("ascii", "replace"))]


def _replica(name: str | None) -> Headers:
    """Who answered. A name that a header can't hold is left out."""
    if name is None or not name.isascii():
        return []
    return [(b"tiedreq-replica", name.encode())]


@lru_cache(maxsize=256)
def _named(name: str | None) -> tuple[Headers, bytes]:
    """Who answered, and how ``Server-Timing`` begins."""
    text = (name or "?").encode("ascii", "replace").replace(b"\\", b"?").replace(b'"', b"?")
    return _replica(name), b'tiedreq;desc="%b";dur=' % text


def _timing(replica: str | None, seconds: float) -> Headers:
    named, begins = _named(replica)
    return [*named, (b"server-timing", b"%b%.1f" % (begins, 1000 * seconds))]


def _story(stream: Stream, seconds: float) -> Headers:
    """Which replica answered, and where the time went, which was so many seconds here."""
    replica, queue_wait, service_time = stream.told()
    if queue_wait is None or service_time is None:
        return _timing(replica, seconds)
    named, begins = _named(replica)
    times = (begins, 1000 * seconds, 1000 * queue_wait, 1000 * service_time)
    return [*named, (b"server-timing", b"%b%.1f, queue;dur=%.1f, upstream;dur=%.1f" % times)]
