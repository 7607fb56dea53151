"""An HTTP/1.1 client of one address: idle connections are kept, and closing a response closes its connection.

A kept connection may be closed by the other side at any moment. One that is seen to be closed is not used. Where the
other side closes it just as a request leaves, nothing has come back and nobody knows whether the request was read: a
request that may be repeated goes again, on a new connection; one that may not goes only on a connection that is new or
was used within ``FRESH_SECONDS``.

Not for what an answer means (``proxy.sidecar``).
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import h11
import trio

from tiedreq.net.edge import no_groups
from tiedreq.proxy.headers import BODILESS, Headers, as_pairs, values
from tiedreq.proxy.pipe import Pipe

FRESH_SECONDS = 1.0
CONTINUE_SECONDS = 1.0
"""How long to wait for ``100 Continue`` before the body is sent all the same [RFC 9110, 10.1.1]."""

AT_ONCE_BYTES = 64 * 1024
"""So much is sent before the answer is read; while more is sent, the answer is awaited."""
EARLY_SECONDS = 1.0
"""How long a request is still sent after it was refused. With another status its body is wanted."""

Dial = Callable[[], Awaitable[trio.abc.Stream]]
END = h11.EndOfMessage()
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class UpstreamError(Exception):
    """The upstream gave no answer."""


class NotHttp(UpstreamError):
    """The request can't be sent: HTTP does not know such a one."""


class Unreachable(UpstreamError):
    """No connection: nothing was sent."""


class Broke(UpstreamError):
    """The connection ended, or what came is not HTTP: the request may have been carried out."""


@dataclass(frozen=True, slots=True)
class StreamedBody:
    """A body that is sent part by part. ``length`` None: in chunks. ``wait``: only once the upstream asks for it.

    ``asked`` is called then.
    """

    parts: AsyncGenerator[bytes]
    length: int | None
    wait: bool = False
    asked: Callable[[], Awaitable[None]] | None = None


def dial_tcp(host: str, port: int, seconds: float) -> Dial:
    """Connects over TCP within ``seconds``."""

    async def dial() -> trio.abc.Stream:
        with trio.fail_after(seconds):
            return await trio.open_tcp_stream(host, port)

    return dial


class _Line:
    """One connection."""

    __slots__ = ("_poll", "h11", "pipe", "stream", "used_at")

    def __init__(self, stream: trio.abc.Stream, header_bytes_max: int) -> None:
        self.stream = stream
        self.pipe = Pipe(stream)
        self.h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=header_bytes_max)
        self.used_at = -1.0
        self._poll: select.poll | None = None
        if isinstance(stream, trio.SocketStream):
            self._poll = select.poll()
            self._poll.register(stream.socket.fileno(), select.POLLIN)

    def quiet(self) -> bool:
        """False when something came, or the end, though nothing was asked. (Not for one that was closed here.)"""
        return self._poll is None or not self._poll.poll(0)


class HttpClient:
    """Sends requests to one address. At most ``idle_max`` idle connections are kept, each ``idle_seconds``.

    Closing a response that has not begun waits, for up to ``let_go_seconds``, for a sign of life: the other side closes
    too, or answers after all. Then it has let go of the request.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        idle_max: int = 8,
        idle_seconds: float = 4.0,
        header_bytes_max: int = 64 * 1024,
        let_go_seconds: float = 0.0,
    ) -> None:
        self.let_go_seconds = let_go_seconds
        self._dial = dial
        self._idle: deque[_Line] = deque()
        self._idle_max = idle_max
        self._idle_seconds = idle_seconds
        self._header_bytes_max = header_bytes_max
        self.open = 0
        """Connections on which a request is under way."""

    @property
    def idle(self) -> int:
        """Idle connections."""
        return len(self._idle)

    async def send(self, method: bytes, target: bytes, headers: Headers, body: bytes, *, repeat: bool) -> Response:
        """Send a request with a whole body; the response, once its head is there.

        ``headers`` don't tell the length of the body. ``repeat``: the request may be sent twice. The response is to be
        closed. Raises ``NotHttp`` and ``Unreachable`` when nothing was sent, ``Broke`` otherwise.
        """
        if body or method in (b"POST", b"PUT", b"PATCH"):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        try:
            request = h11.Request(method=method, target=target, headers=headers)
        except h11.LocalProtocolError as error:
            raise NotHttp(str(error)) from None
        line = await self._kept(self._idle_seconds if repeat else FRESH_SECONDS)
        if line is not None:
            response = Response(self, line, method)
            try:
                await response.begin(request, body)
            except Broke:
                await response.aclose()
                if not repeat or response.heard:
                    raise
            except BaseException:
                await response.aclose()
                raise
            else:
                return response
        response = Response(self, await self._new_line(), method)
        try:
            await response.begin(request, body)
        except BaseException:
            await response.aclose()
            raise
        return response

    async def stream(
        self, method: bytes, target: bytes, headers: Headers, body: StreamedBody, nursery: trio.Nursery
    ) -> Response:
        """Send a request whose body is sent, in ``nursery``, while the response is awaited; as ``send``.

        An error of ``body.parts`` goes up through the nursery.
        """
        if body.length is None:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        else:
            headers = [*headers, (b"content-length", b"%d" % body.length)]
        if body.wait:
            headers = [*headers, (b"expect", b"100-continue")]
        response = Response(self, await self._new_line(), method)
        try:
            await response.begin_stream(h11.Request(method=method, target=target, headers=headers), body, nursery)
        except BaseException:
            await response.aclose()
            raise
        return response

    async def _new_line(self) -> _Line:
        self.open += 1
        try:
            return _Line(await self._dial(), self._header_bytes_max)
        except (OSError, trio.TooSlowError) as error:
            self.open -= 1
            raise Unreachable(str(error) or "no connection in time") from error
        except BaseException:
            self.open -= 1
            raise

    async def _kept(self, seconds: float) -> _Line | None:
        now = trio.current_time()
        while self._idle:
            line = self._idle.pop()
            if now - line.used_at <= seconds and line.quiet():
                self.open += 1
                return line
            if now - line.used_at <= self._idle_seconds and line.quiet():
                self._idle.append(line)
                return None
            await _kill(line)
        return None

    def _give_back(self, line: _Line) -> bool:
        if len(self._idle) >= self._idle_max:
            return False
        self.open -= 1
        line.used_at = trio.current_time()
        self._idle.append(line)
        return True

    async def close_idle(self, *, older_than: float = 0.0) -> None:
        """Close connections that have been idle for so many seconds."""
        limit = trio.current_time() - older_than
        while self._idle and self._idle[0].used_at <= limit:
            await _kill(self._idle.popleft())

    async def tidy(self) -> None:
        """Close what has been idle for too long, until cancelled; then everything idle."""
        try:
            while True:
                await trio.sleep(self._idle_seconds / 2)
                await self.close_idle(older_than=self._idle_seconds)
        finally:
            await self.close_idle()


async def _kill(line: _Line) -> None:
    """Close a connection at once."""
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(line.stream)


async def _let_go(pipe: Pipe) -> None:
    """Say that nothing more comes, and wait until the other side says anything, or the same."""
    with suppress(*_BROKEN, trio.BusyResourceError):
        if await pipe.send_eof():
            await pipe.receive()


class Response:
    """A response: its head, and its body part by part. ``aclose`` is always to be called."""

    def __init__(self, client: HttpClient, line: _Line, method: bytes) -> None:
        self._client = client
        self._line: _Line | None = line
        self._method = method
        self._sending = False
        self._broken = False
        self._put_back = b""
        self.status = 0
        self.headers: Headers = []
        self.trailers: Headers = []
        self.heard = False
        """Something came back."""
        self.whole = False
        """The body has been read to its end."""

    @property
    def length(self) -> int | None:
        """The length of the body where it is known."""
        if self._method == b"HEAD" or self.status in BODILESS:
            return 0
        lengths = values(self.headers, b"content-length")
        return int(lengths[0]) if lengths else None

    async def begin(self, request: h11.Request, body: bytes) -> None:
        """Send all and wait for the head. Raises ``Broke``."""
        line = self._open_line()
        data = line.h11.send(request) or b""
        if body:
            data += line.h11.send(h11.Data(data=body)) or b""
        data += line.h11.send(END) or b""
        self._sending = True
        if len(data) <= AT_ONCE_BYTES:
            await self._send_whole(line, data)
            await self._head(line)
            return
        with no_groups():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_whole, line, data)
                await self._head(line)
                if self.status >= 400:
                    nursery.cancel_scope.deadline = trio.current_time() + EARLY_SECONDS

    async def _send_whole(self, line: _Line, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            if not line.pipe.write_now(data):
                await line.pipe.send_rest(data)
        except _BROKEN:
            return  # it may have answered, and closed before it read the body
        self._sending = False

    async def begin_stream(self, request: h11.Request, body: StreamedBody, nursery: trio.Nursery) -> None:
        """Send the head, begin to send the body, and wait for the head of the response. Raises ``Broke``."""
        line = self._open_line()
        self._sending = True
        go_on = trio.Event()
        try:
            await line.pipe.send(line.h11.send(request) or b"")
        except _BROKEN as error:
            raise self._broke("the connection was closed") from error
        scope = trio.CancelScope()
        nursery.start_soon(self._send_body, line, body, go_on, scope)
        if not body.wait:
            go_on.set()
        try:
            await self._head(line, go_on)
        finally:
            if self.status and not go_on.is_set():
                scope.cancel()  # answered before it asked for the body

    async def _send_body(self, line: _Line, body: StreamedBody, go_on: trio.Event, scope: trio.CancelScope) -> None:
        with scope:
            with trio.move_on_after(CONTINUE_SECONDS):
                await go_on.wait()
            go_on.set()
            if body.asked is not None:
                await body.asked()
            try:
                async with aclosing(body.parts) as parts:
                    async for part in parts:
                        await line.pipe.send(line.h11.send(h11.Data(data=part)) or b"")
                await line.pipe.send(line.h11.send(END) or b"")
            except (*_BROKEN, h11.LocalProtocolError):
                return  # who waits for the response sees what became of it
            self._sending = False

    async def _head(self, line: _Line, go_on: trio.Event | None = None) -> None:
        while True:
            event = await self._event(line)
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    raise self._broke("it switches protocols, though nobody asked")
                if event.status_code == 100 and go_on is not None:
                    go_on.set()
            elif isinstance(event, h11.Response):
                self.status = event.status_code
                self.headers = as_pairs(event)
                if values(self.headers, b"transfer-encoding"):  # then the length counts for nothing [RFC 9112, 6.3]
                    self.headers = [field for field in self.headers if field[0] != b"content-length"]
                return
            else:
                raise self._broke("it closed the connection without an answer")

    async def receive(self) -> bytes:
        """The next part of the body; empty at its end. Raises ``Broke``."""
        while True:
            part = self.ready()
            if part is not None:
                return part
            line = self._open_line()
            try:
                data = await line.pipe.receive()
                line.h11.receive_data(data)
            except _BROKEN as error:
                raise self._broke("the connection broke") from error

    def put_back(self, part: bytes) -> None:
        """Let ``part``, which has been received, be received again."""
        self._put_back = part

    def ready(self) -> bytes | None:
        """As ``receive``, if it has arrived already; None otherwise. Raises ``Broke``."""
        if self._put_back:
            part, self._put_back = self._put_back, b""
            return part
        if self.whole:
            return b""
        line = self._line
        assert line is not None
        while True:
            try:
                event = line.h11.next_event()
            except h11.RemoteProtocolError as error:
                raise self._broke(f"what came is no answer: {error}") from error
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.whole = True
                if event.headers:
                    self.trailers = as_pairs(event)
                self._release(line)
                return b""
            else:
                raise self._broke("it closed the connection within its answer")

    async def _event(self, line: _Line) -> h11.Event | type[h11.PAUSED]:
        ended = False
        try:
            while (event := line.h11.next_event()) is h11.NEED_DATA:
                data = await line.pipe.receive()
                ended = not data
                self.heard = self.heard or bool(data)
                line.h11.receive_data(data)
        except _BROKEN as error:
            raise self._broke("the connection broke") from error
        except h11.RemoteProtocolError as error:
            if ended:
                raise self._broke("it closed the connection without an answer") from error
            raise self._broke(f"what came is no answer: {error}") from error
        return event  # type: ignore[return-value]

    def _broke(self, text: str) -> Broke:
        self._broken = True
        return Broke(text)

    def _open_line(self) -> _Line:
        assert self._line is not None
        return self._line

    def _release(self, line: _Line) -> None:
        """Keep the connection of a response that has been read, if it may be kept."""
        if self._sending or line.h11.our_state is not h11.DONE or line.h11.their_state is not h11.DONE:
            return
        if line.h11.trailing_data[0]:
            return  # more than an answer: nothing that a next request may be answered with
        line.h11.start_next_cycle()
        if self._client._give_back(line):
            self._line = None

    async def aclose(self) -> None:
        """Close the connection, unless the response has been read to its end. See ``HttpClient`` for how long."""
        line, self._line = self._line, None
        if line is None:
            return
        try:
            if not self.heard and not self._broken and self._client.let_go_seconds:
                with trio.move_on_after(self._client.let_go_seconds, shield=True):
                    await _let_go(line.pipe)
        finally:
            self._client.open -= 1
            await _kill(line)
