"""One request at an HTTP listener, and the answer to it, on top of h11.

The handler reads the request's body with ``receive`` and answers with ``respond``, ``send`` and ``finish``. What h11
refuses, it refuses here too: an answer longer or shorter than its ``Content-Length`` breaks the connection, never the
framing. Not for connections (``proxy.listener``).
"""

from __future__ import annotations

from http import HTTPStatus

import h11
import trio

from tiedreq.proxy.headers import Headers, members
from tiedreq.proxy.patience import Cancellable, Patience
from tiedreq.proxy.pipe import Pipe

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
END = h11.EndOfMessage()


class ClientGone(Exception):
    """The client has closed its connection, or does not read."""


class Aborted(Exception):
    """The answer can't be completed: its connection must be closed, so that the client sees that."""


class Wire:
    """An h11 connection over a stream, from the server's side.

    ``scope`` is everything that happens on the connection; it is cancelled when a part of an answer is not taken in
    time.
    """

    def __init__(self, stream: trio.abc.Stream, header_bytes_max: int, scope: Cancellable, sending: Patience) -> None:
        self.pipe = Pipe(stream)
        self.h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=header_bytes_max)
        self._scope = scope
        self._sending = sending

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        """The next event. Raises ``h11.RemoteProtocolError``, ``trio.BrokenResourceError``."""
        while True:
            event = self.h11.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            self.h11.receive_data(await self.pipe.receive())

    async def send(self, *events: h11.Event) -> None:
        """Send events in one piece. Raises ``ClientGone``."""
        send = self.h11.send
        data = b"".join([send(event) or b"" for event in events])
        if not data:
            return
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            if not self.pipe.write_now(data):
                await self._send_rest(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            raise ClientGone from None  # busy: it does not even take "100 Continue"

    async def _send_rest(self, data: bytes) -> None:
        self._sending.begin(self._scope)
        try:
            await self.pipe.send_rest(data)
        finally:
            self._sending.end(self._scope)

    def cut(self) -> None:
        """End the connection, whatever happens on it."""
        self._scope.cancel()


class Visit:
    """A request and its answer. ``headers`` are the request's, their names in lower case."""

    def __init__(
        self, wire: Wire, request: h11.Request, headers: Headers, peer: str, scheme: str, body_seconds: float
    ) -> None:
        self._wire = wire
        self._body_seconds = body_seconds
        self.method: bytes = request.method
        self.target: bytes = request.target
        self.version: bytes = request.http_version
        self.headers: Headers = headers
        self.peer = peer
        self.scheme = scheme
        self.began = trio.current_time()
        self.answered = False
        """The head of the answer has been sent."""
        self.finished = False
        self.body_end = trio.Event()
        """Set once the body has been read to its end."""
        named = dict(headers)  # h11 lets no two lengths or codings pass
        self.length: int | None = int(named[b"content-length"]) if b"content-length" in named else None
        self.chunked = b"transfer-encoding" in named
        self.waits_to_send = (
            b"expect" in named and b"100-continue" in members(headers, b"expect") and self.version >= b"1.1"
        )
        self._whole = not self.chunked and not self.length
        self.closing = False
        """The connection ends with this answer: ``respond`` says so."""
        if self._whole:
            self.body_end.set()

    def settle(self) -> None:
        """Once it is answered: let h11 see the end of a request that has no body, which took no time before."""
        if self._whole:
            self._wire.h11.next_event()

    def cut(self) -> None:
        """End the connection, and with it whatever waits to answer: for an answer that can't be completed."""
        self._wire.cut()

    @property
    def bodiless(self) -> bool:
        """True when the request declares that it has no body."""
        return self._whole

    @property
    def body_over(self) -> bool:
        """True once the body has been read to its end."""
        return self.body_end.is_set()

    async def go_on(self) -> None:
        """Tell a client that waits with its body to send it. Raises ``ClientGone``."""
        waiting = self._wire.h11.they_are_waiting_for_100_continue
        if self.waits_to_send and not self.answered and not self.body_over and waiting:
            await self._wire.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        self.waits_to_send = False

    async def receive(self) -> bytes:
        """The next part of the request's body; empty at its end. Trailers are dropped.

        Raises ``ClientGone`` where it breaks off or nothing comes in time, ``h11.RemoteProtocolError``.
        """
        if self.body_over:
            return b""
        await self.go_on()
        while True:
            try:
                with trio.fail_after(self._body_seconds):
                    event = await self._wire.next_event()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                raise ClientGone from None
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
                continue
            if isinstance(event, h11.EndOfMessage):
                self.body_end.set()
                return b""
            raise ClientGone

    async def respond(self, status: int, headers: Headers, part: bytes = b"", *, whole: bool = False) -> None:
        """Send the head of the answer with the first part of its body, and its end where that is ``whole``."""
        self.answered = True
        if not self.body_over and not self._whole:
            self.closing = True
        if self.closing:
            headers = [*headers, (b"connection", b"close")]
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers, reason=REASONS.get(status, b""))]
        if part:
            events.append(h11.Data(data=part))
        if whole:
            events.append(END)
        await self._send(*events)
        self.finished = whole

    async def send(self, part: bytes) -> None:
        """Send a part of the answer's body."""
        await self._send(h11.Data(data=part))

    async def finish(self, trailers: Headers | None = None) -> None:
        """End the answer; trailers reach only a client to which the body goes in chunks."""
        if self.finished:
            return
        try:
            await self._send(h11.EndOfMessage(headers=trailers) if trailers else END)
        except Aborted:
            if not trailers:
                raise
            await self._send(END)
        self.finished = True

    async def _send(self, *events: h11.Event) -> None:
        try:
            await self._wire.send(*events)
        except h11.LocalProtocolError as error:
            raise Aborted(f"the answer breaks the rules of HTTP: {error}") from None

    async def say(self, status: int, text: str, headers: Headers | None = None) -> None:
        """Answer with one line of text."""
        body = f"{text}\n".encode()
        fields = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            *(headers or []),
        ]
        await self.respond(status, fields, b"" if self.method == b"HEAD" else body, whole=True)
