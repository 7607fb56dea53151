"""Transports over WebSocket, dialed and accepted: the only importer of trio_websocket.

What this module is here to contain: the library's reader task may raise (it runs in a slot of ours that keeps the
error), a dial may hang or be refused (time limits and one ``ConnectError``), a close may hang (a limit, then the socket
is torn down), a send may be interrupted in the middle of a frame (the connection is aborted), and anything may come
from an accepted connection (it ends that connection and nothing else). The usual frames pass by the library, through
``net.shortcut``; it opens, closes and judges.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

import trio
import trio_websocket
from wsproto.utilities import LocalProtocolError

from tiedreq.core.errors import BadOption
from tiedreq.errors import AuthRefused, ConnectError
from tiedreq.net.addresses import Address, Target, parse_address, parse_url
from tiedreq.net.edge import no_groups, single_cause
from tiedreq.net.listeners import Acceptor, bound_address, open_listeners, peer_address
from tiedreq.net.quiet import QuietLog
from tiedreq.net.shortcut import ShortcutStream
from tiedreq.net.tls import accept_tls, certificate_refusal
from tiedreq.net.transport import CLOSE_SECONDS, Transport, TransportClosed
from tiedreq.wire.limits import WireLimits

QUEUED_FRAMES_MAX = 64
RECEIVE_BUFFER_BYTES = 64 * 1024
_TEXT_REFUSED = 1003

logger = logging.getLogger("tiedreq.websocket")
_library_logger = logging.getLogger("trio-websocket")
if _library_logger.level == logging.NOTSET:
    _library_logger.setLevel(logging.WARNING)  # at DEBUG it formats a line for every frame

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Handler = Callable[[Transport], Awaitable[None]]


class _ReaderSlot:
    """Takes the place of the nursery that the library starts its reader task in.

    Remembers how the reader ended instead of letting it take the surrounding nursery down.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.finished = trio.Event()
        self.error: Exception | None = None
        self._nursery = nursery

    def start_soon(self, task: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """As ``trio.Nursery.start_soon``."""
        self._nursery.start_soon(self._run, task, arguments)

    async def _run(self, task: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        try:
            await task(*arguments)
        except Exception as error:
            self.error = error
        finally:
            self.finished.set()

    def as_nursery(self) -> trio.Nursery:
        """Itself, for the library's signatures."""
        return cast(trio.Nursery, self)

    async def unless_finished(self, operation: Callable[[], Awaitable[None]]) -> None:
        """Run ``operation``, but not beyond the end of the reader."""
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await operation()
                nursery.cancel_scope.cancel()

            nursery.start_soon(run)
            await self.finished.wait()
            nursery.cancel_scope.cancel()


class WebsocketTransport:
    """One open WebSocket. Made by ``dial_websocket`` and ``serve_websockets`` only."""

    def __init__(
        self,
        connection: trio_websocket.WebSocketConnection,
        stream: Stream,
        shortcut: ShortcutStream,
        reader: _ReaderSlot,
        peer: str,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._shortcut = shortcut
        self._reader = reader
        self._peer = peer
        self._closed_because = ""
        self._torn = False
        self._sending = False

    @property
    def peer(self) -> str:
        """The other side's address."""
        return self._peer

    @property
    def closed_because(self) -> str:
        """Why nothing more is received."""
        return self._closed_because

    async def send_frame(self, frame: bytes) -> None:
        """See ``Transport.send_frame``."""
        if self._torn:
            raise TransportClosed("the connection is torn down")
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this transport")
        if self._connection.closed is not None:
            raise TransportClosed(self._end_in_words(trio_websocket.ConnectionClosed(self._connection.closed)))
        self._sending = True
        try:
            await self._shortcut.send_frame(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed(self._end_in_words(error)) from None
        except BaseException:
            self.abort()
            raise
        finally:
            self._sending = False

    async def receive_frame(self) -> bytes | None:
        """See ``Transport.receive_frame``."""
        frame = await self._shortcut.next_frame()
        if frame is not None:
            return frame
        try:
            message = await self._connection.get_message()
        except trio_websocket.ConnectionClosed as error:
            self._closed_because = self._closed_because or self._end_in_words(error)
            return None
        if isinstance(message, str):
            self._closed_because = "a text frame arrived"
            await self.aclose(_TEXT_REFUSED, "binary frames only")
            return None
        return message

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """See ``Transport.aclose``."""
        self._shortcut.give_to_library()
        try:
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_SECONDS, shield=True):
                if not self._torn:  # without a reader nobody would see the other side's close
                    await self._reader.unless_finished(lambda: self._connection.aclose(code, reason))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, LocalProtocolError):
            pass  # it is closed, which is all we want
        finally:
            self.abort()
            await trio.aclose_forcefully(self._stream)

    def abort(self) -> None:
        """See ``Transport.abort``."""
        self._torn = True
        _tcp(self._stream).socket.close()

    def _end_in_words(self, error: Exception) -> str:
        if self._torn:
            return "the connection was torn down here"
        if self._reader.error is not None:
            return f"broken: {self._reader.error}"
        reason = error.reason if isinstance(error, trio_websocket.ConnectionClosed) else None
        if reason is None or reason.code == 1006:
            return "the connection broke"
        return f"closed with code {reason.code}" + (f": {reason.reason}" if reason.reason else "")


def _tcp(stream: Stream) -> trio.SocketStream:
    return stream.transport_stream if isinstance(stream, trio.SSLStream) else stream


# ---- dialing


@cache
def _default_ssl_context() -> ssl.SSLContext:
    return ssl.create_default_context()


@asynccontextmanager
async def dial_websocket(
    url: str, *, ssl_context: ssl.SSLContext | None = None, timeout: float = 5.0, limits: WireLimits
) -> AsyncIterator[Transport]:
    """A transport to ``url`` for as long as the block runs; at its end nothing of it is left.

    ``timeout`` (seconds) covers name look-up, TCP, TLS and the WebSocket handshake. ``wss://`` without a context uses
    the system's authorities. Raises ``ConnectError``, ``BadOption`` for a bad URL; what the block raises comes out as
    it is, not in a group.
    """
    target = parse_url(url)
    if ssl_context is not None and not target.secure:
        raise BadOption(f"url {url!r} is not wss:// but an ssl_context is given")
    if target.secure and ssl_context is None:
        ssl_context = _default_ssl_context()
    with no_groups():
        async with trio.open_nursery() as nursery:
            transport = await _dial(nursery, target, ssl_context, timeout, limits)
            try:
                yield transport
            finally:
                await transport.aclose()
                nursery.cancel_scope.cancel()


async def _dial(
    nursery: trio.Nursery, target: Target, ssl_context: ssl.SSLContext | None, timeout: float, limits: WireLimits
) -> WebsocketTransport:
    stream: Stream | None = None
    done = False
    try:
        with trio.fail_after(timeout):
            stream = await _open_stream(target, ssl_context)
            transport = await _client_handshake(nursery, stream, target, limits)
            done = True
            return transport
    except trio.TooSlowError:
        raise ConnectError(f"{target.url}: no connection within {timeout:g} s") from None
    except (OSError, ValueError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        if isinstance(error, ConnectError):
            raise
        raise _dial_error(target, error) from None
    finally:
        if stream is not None and not done:
            _tcp(stream).socket.close()


async def _open_stream(target: Target, ssl_context: ssl.SSLContext | None) -> Stream:
    tcp = await trio.open_tcp_stream(target.address.host, target.address.port)
    if ssl_context is None:
        return tcp
    try:
        secure = trio.SSLStream(tcp, ssl_context, server_hostname=target.certified, https_compatible=True)
        await secure.do_handshake()
    except BaseException:
        tcp.socket.close()
        raise
    return secure


async def _client_handshake(
    nursery: trio.Nursery, stream: Stream, target: Target, limits: WireLimits
) -> WebsocketTransport:
    reader = _ReaderSlot(nursery)
    shortcut = ShortcutStream(stream, client=True, frame_bytes_max=limits.frame_bytes_max)
    opened: list[trio_websocket.WebSocketConnection] = []

    async def shake_hands() -> None:
        opened.append(
            await trio_websocket.wrap_client_stream(
                reader.as_nursery(),
                cast(Stream, shortcut),
                str(target.address),
                target.resource,
                message_queue_size=QUEUED_FRAMES_MAX,
                max_message_size=limits.frame_bytes_max,
                receive_buffer_size=RECEIVE_BUFFER_BYTES,
            )
        )

    await reader.unless_finished(shake_hands)
    if not opened:
        if shortcut.end is not None and _tls_error(shortcut.end) is not None:
            raise _dial_error(target, shortcut.end)
        raise ConnectError(f"{target.url}: {_refusal(reader.error, target.secure)}")
    return WebsocketTransport(opened[0], stream, shortcut, reader, str(peer_address(_tcp(stream))))


def _refusal(error: Exception | None, secure: bool) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected):
        return f"the server refused the WebSocket handshake with status {error.status_code}"
    why = "; one that asks for certificates does so where it trusts none that it was shown" if secure else ""
    return f"the connection was closed during the WebSocket handshake{why}"


def _dial_error(target: Target, error: BaseException) -> ConnectError:
    """What became of a dial. Certificates that are not trusted, on either side, are ``AuthRefused``."""
    tls = _tls_error(error)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return AuthRefused(f"{target.url}: its certificate is not trusted: {tls.verify_message}")
    if tls is not None and (refusal := certificate_refusal(tls)) is not None:
        return AuthRefused(f"{target.url}: {refusal}")
    return ConnectError(f"{target.url}: {_in_words(error)}")


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS said, if it was TLS."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__
    return error


def _in_words(error: BaseException) -> str:
    """The innermost causes, each once: what the operating system or TLS said."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_in_words, error.exceptions)))
    if error.__cause__ is not None:
        return _in_words(error.__cause__)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return error.strerror
    return str(error) or type(error).__name__


# ---- accepting


async def serve_websockets(
    listen: str | Sequence[trio.SocketListener],
    handler: Handler,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: WireLimits,
    connections_max: int = 1024,
    connections_per_address_max: int | None = None,
    handshake_timeout: float = 5.0,
    task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept WebSockets until cancelled; ``handler`` gets each one's transport, which ends when it returns.

    ``listen`` is ``host:port`` or listeners that are already open (they are closed at the end). Reports the bound
    addresses when it accepts. ``handshake_timeout`` (seconds) covers TLS and the WebSocket handshake. Connections
    beyond ``connections_max``, or ``connections_per_address_max`` from one address, are closed unread. An exception of
    ``handler`` is logged and ends its connection only. Raises ``BadOption``, ``OSError`` when it can't listen.
    """
    listeners = await open_listeners(parse_address(listen)) if isinstance(listen, str) else list(listen)
    server = _Server(handler, ssl_context, limits, handshake_timeout)
    acceptor = Acceptor(
        server.connection,
        logger,
        connections_max=connections_max,
        connections_per_address_max=connections_per_address_max,
    )
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(acceptor.run, listener, nursery)
            task_status.started(tuple(bound_address(listener) for listener in listeners))
    finally:
        for listener in listeners:
            listener.socket.close()


class _Server:
    """What every accepted connection goes through."""

    def __init__(
        self, handler: Handler, ssl_context: ssl.SSLContext | None, limits: WireLimits, handshake_timeout: float
    ) -> None:
        self._handler = handler
        self._ssl_context = ssl_context
        self._limits = limits
        self._handshake_timeout = handshake_timeout
        self._quiet = QuietLog(logger)

    async def connection(self, tcp: trio.SocketStream, address: Address) -> None:
        """One connection from end to end: whatever goes wrong ends here."""
        try:
            async with trio.open_nursery() as nursery:
                transport = await self._handshake(nursery, tcp, address)
                if transport is not None:
                    try:
                        await self._handler(transport)
                    finally:
                        await transport.aclose()
                nursery.cancel_scope.cancel()
        except* Exception as group:
            cause = single_cause(group)
            self._quiet.log("handler", logging.ERROR, "connection from %s failed", address, error=cause)

    async def _handshake(
        self, nursery: trio.Nursery, tcp: trio.SocketStream, address: Address
    ) -> WebsocketTransport | None:
        reader = _ReaderSlot(nursery)
        opened: list[WebsocketTransport] = []

        async def shake_hands(stream: Stream) -> None:
            shortcut = ShortcutStream(stream, client=False, frame_bytes_max=self._limits.frame_bytes_max)
            request = await trio_websocket.wrap_server_stream(
                reader.as_nursery(), shortcut, QUEUED_FRAMES_MAX, self._limits.frame_bytes_max, RECEIVE_BUFFER_BYTES
            )
            if any(name.lower() == b"origin" for name, _ in request.headers):
                await request.reject(403)  # a browser: no web page has any business here
                return
            opened.append(WebsocketTransport(await request.accept(), stream, shortcut, reader, str(address)))

        why = "it closed or broke the handshake"
        with trio.move_on_after(self._handshake_timeout) as scope:
            try:
                stream: Stream = tcp
                if self._ssl_context is not None:
                    stream = await accept_tls(tcp, self._ssl_context)
                await reader.unless_finished(lambda: shake_hands(stream))
            except* (trio.BrokenResourceError, trio.ClosedResourceError, trio_websocket.ConnectionClosed) as group:
                why = _in_words(single_cause(group))
        if opened:
            return opened[0]
        if scope.cancelled_caught:
            why = f"no handshake within {self._handshake_timeout:g} s"
        self._quiet.log("handshake", logging.INFO, "connection from %s is no WebSocket of ours: %s", address, why)
        return None
