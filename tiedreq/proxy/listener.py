"""Listens for HTTP/1.1 and gives each request to a handler; everything is bounded.

A connection serves one request after another. While a handler works for longer than a moment and the body of its
request has been read, the connection is watched: a client that closes it cancels the handler. Whatever goes wrong ends
one connection and nothing else. ``drain`` accepts no more, closes idle connections and lets the others finish what they
do.

Not for what a request means (``proxy.front``, ``proxy.passage``).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields

import h11
import trio

from tiedreq.core.checks import check_count, check_number
from tiedreq.net.addresses import Address, parse_address
from tiedreq.net.listeners import Acceptor, bound_address, open_listeners
from tiedreq.net.quiet import QuietLog
from tiedreq.proxy.headers import Headers, as_pairs
from tiedreq.proxy.patience import Cancellable, Patience
from tiedreq.proxy.visit import REASONS, Aborted, ClientGone, Visit, Wire

logger = logging.getLogger("tiedreq.proxy")

Handler = Callable[[Visit], Awaitable[None]]

PIPELINED_BYTES_MAX = 64 * 1024
WATCH_SECONDS = 0.02
"""So long a handler works before its client is watched."""
LINGER_SECONDS = 1.0
LINGER_READS = 32
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of one listener: counts, bytes, and seconds.

    The head of a request has ``header_bytes_max`` bytes, ``headers_max`` fields and, from its first byte,
    ``header_seconds``. Between two parts of a body ``body_seconds`` may pass, and as many until a client has taken a
    part of an answer. A connection on which nothing happens is closed after ``idle_seconds``.
    """

    header_bytes_max: int = 32 * 1024
    headers_max: int = 256
    connections_max: int = 1024
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 75.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, int):
                check_count(each.name, value, 1, 1 << 30)
            else:
                object.__setattr__(self, each.name, check_number(each.name, value, 1e-3, 86_400.0, "seconds"))


class _Watch:
    """Watches a connection while a handler works: not at once, as most are done soon."""

    def __init__(self, wire: Wire, visit: Visit, gone: Cancellable, nursery: trio.Nursery) -> None:
        self._wire = wire
        self._visit = visit
        self._gone = gone
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._over: trio.Event | None = None

    def cancel(self) -> None:
        """The handler takes its time: begin to watch."""
        self._scope, self._over = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._run, self._scope, self._over)

    async def _run(self, scope: trio.CancelScope, over: trio.Event) -> None:
        with scope:
            if await _until_gone(self._wire, self._visit):
                self._gone.cancel()
        over.set()

    async def stop(self) -> None:
        """Returns once nobody reads any more."""
        if self._scope is not None and self._over is not None:
            self._scope.cancel()
            await self._over.wait()


class HttpListener:
    """Serves ``handler`` at ``listen`` (``HOST:PORT``), with TLS where ``tls`` says how."""

    def __init__(self, handler: Handler, limits: ListenerLimits, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._limits = limits
        self._tls = tls
        self._quiet = QuietLog(logger)
        self._accepting = trio.CancelScope()
        self._idle = Patience(limits.idle_seconds)
        self._sending = Patience(limits.body_seconds)
        self._working = Patience(WATCH_SECONDS)
        self._watching: trio.Nursery | None = None
        self._waiting: set[trio.CancelScope] = set()
        self._draining = False
        self.connections = 0
        self.over = trio.Event()
        """Set once it has drained."""

    async def run(self, listen: str, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, or drained; reports where it listens.

        Raises ``BadOption`` for what is no address, ``OSError`` when it can't listen there.
        """
        try:
            listeners = await open_listeners(parse_address(listen))
        except OSError as error:
            raise OSError(error.errno, error.strerror, listen) from None
        most = self._limits.connections_max
        acceptor = Acceptor(self._accepted, logger, connections_max=most, connections_per_address_max=None)
        try:
            async with trio.open_nursery() as tending:
                await tending.start(self.tend)
                async with trio.open_nursery() as nursery:
                    task_status.started(bound_address(listeners[0]))
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listener in listeners:
                                accepting.start_soon(acceptor.run, listener, nursery)
                    for listener in listeners:
                        listener.socket.close()
                tending.cancel_scope.cancel()
            self.over.set()
        finally:
            for listener in listeners:
                listener.socket.close()

    async def tend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """What ``serve`` needs beside it: watch the time, and clients that leave."""
        async with trio.open_nursery() as nursery:
            self._watching = nursery
            for patience in (self._idle, self._sending, self._working):
                nursery.start_soon(patience.run)
            task_status.started()

    def drain(self) -> None:
        """Accept no more; ``run`` returns once the last answer has been given."""
        self._draining = True
        self._accepting.cancel()
        for scope in list(self._waiting):
            scope.cancel()

    async def _accepted(self, stream: trio.SocketStream, address: Address) -> None:
        if self._tls is None:
            await self.serve(stream, address.host)
            return
        secure = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(self._limits.header_seconds):
                await secure.do_handshake()
        except (*_BROKEN, trio.TooSlowError):
            return
        await self.serve(secure, address.host)

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """One connection from end to end: whatever goes wrong ends here."""
        self.connections += 1
        try:
            with trio.CancelScope() as scope:
                wire = Wire(stream, self._limits.header_bytes_max, scope, self._sending)
                while not self._draining and await self._serve_one(wire, peer, scope):
                    wire.h11.start_next_cycle()
        except (*_BROKEN, ClientGone, Aborted, h11.ProtocolError, OSError):
            logger.debug("a connection from %s ended early", peer, exc_info=True)
        except Exception as error:
            self._quiet.log("failed", logging.ERROR, "a request from %s failed", peer, error=error)
        finally:
            self.connections -= 1
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _serve_one(self, wire: Wire, peer: str, scope: trio.CancelScope) -> bool:
        """Serve one request; True when another may follow on this connection."""
        try:
            request = await self._request(wire, scope)
            if request is None:
                return False
            headers = as_pairs(request)
            wrong = self._wrong(request, headers)
            if wrong is not None:
                await self._refuse(wire, *wrong)
                return False
            scheme = "http" if self._tls is None else "https"
            visit = Visit(wire, request, headers, peer, scheme, self._limits.body_seconds)
        except h11.RemoteProtocolError as error:
            await self._refuse(wire, error.error_status_hint, str(error))
            return False
        except trio.TooSlowError:
            await self._refuse(wire, 408, f"no whole head of a request within {self._limits.header_seconds:g} s")
            return False
        visit.closing = self._draining
        await self._handle(wire, visit, scope)
        visit.settle()
        if visit.closing or wire.h11.our_state is not h11.DONE:
            await _linger(wire, visit)
            return False
        return wire.h11.their_state is h11.DONE

    async def _request(self, wire: Wire, scope: trio.CancelScope) -> h11.Request | None:
        """The next request; None when the connection is over."""
        if not wire.h11.trailing_data[0]:
            self._idle.begin(scope)
            self._waiting.add(scope)
            try:
                data = await wire.pipe.receive()
            finally:
                self._idle.end(scope)
                self._waiting.remove(scope)
            if not data:
                return None
            wire.h11.receive_data(data)
        event = wire.h11.next_event()
        if event is h11.NEED_DATA:
            with trio.fail_after(self._limits.header_seconds):
                event = await wire.next_event()
        return event if isinstance(event, h11.Request) else None

    def _wrong(self, request: h11.Request, headers: Headers) -> tuple[int, str] | None:
        """What h11 lets pass: another version, and a large head that arrives in one piece."""
        if not request.http_version.startswith(b"1."):
            return 505, "only HTTP/1.1 is spoken here"
        limit = self._limits.header_bytes_max
        if len(request.target) + sum([len(name) + len(value) + 4 for name, value in headers]) > limit:
            return 431, f"the head of the request has more than {limit} bytes"
        if len(headers) > self._limits.headers_max:
            return 431, f"the request has more than {self._limits.headers_max} headers"
        return None

    async def _handle(self, wire: Wire, visit: Visit, scope: trio.CancelScope) -> None:
        """Run the handler, watched. A client that leaves cancels everything on its connection."""
        assert self._watching is not None, "tend() does not run"
        watch = _Watch(wire, visit, scope, self._watching)
        self._working.begin(watch, visit.began)
        error: Exception | None = None
        try:
            await self._handler(visit)
        except Exception as raised:
            error = _leading(raised)
        finally:
            self._working.end(watch)
            await watch.stop()
        if error is None:
            return
        if isinstance(error, h11.RemoteProtocolError) and not visit.answered:
            await visit.say(error.error_status_hint, f"the body of this request can't be read: {error}")
        elif not visit.answered and not isinstance(error, ClientGone | Aborted):
            self._quiet.log("failed", logging.ERROR, "a request from %s failed", visit.peer, error=error)
            await visit.say(500, "tiedreq: an error of the front; its log tells more")
        else:
            raise error

    async def _refuse(self, wire: Wire, status: int, text: str) -> None:
        """Answer what is no request, and close."""
        if wire.h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"tiedreq: {text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=REASONS.get(status, b""))
        await wire.send(head, h11.Data(data=body), h11.EndOfMessage())
        await _drained(wire)


def _leading(error: Exception) -> Exception:
    """The error, or of several that tell of a client that has left or breaks the rules one of them."""
    if not isinstance(error, ExceptionGroup):
        return error
    if error.split((ClientGone, Aborted, h11.RemoteProtocolError, *_BROKEN))[1] is not None:
        return error
    first: Exception = error
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


async def _until_gone(wire: Wire, visit: Visit) -> bool:
    """Watch a connection whose request has been read; True when the client closes it.

    What it sends ahead, a next request, is kept up to a limit; beyond that nobody watches.
    """
    await visit.body_end.wait()
    ahead = len(wire.h11.trailing_data[0])
    while ahead < PIPELINED_BYTES_MAX:
        try:
            data = await wire.pipe.receive()
        except _BROKEN:
            return True
        if not data:
            return True
        wire.h11.receive_data(data)
        ahead += len(data)
    return False


async def _linger(wire: Wire, visit: Visit) -> None:
    """Read on a little, so that an answer isn't lost in a reset because of a body that nobody wanted."""
    if visit.finished and not visit.body_over:
        await _drained(wire)


async def _drained(wire: Wire) -> None:
    with trio.move_on_after(LINGER_SECONDS):
        await wire.pipe.send_eof()
        for _ in range(LINGER_READS):
            if not await wire.pipe.receive():
                return
