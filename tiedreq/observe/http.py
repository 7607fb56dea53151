"""A small HTTP server for looking: GET and HEAD, one request per connection, everything bounded.

The parsing is h11's. A request has ``REQUEST_SECONDS`` to arrive and ``HEAD_BYTES_MAX`` for its head, an answer has
``ANSWER_SECONDS`` to leave; beyond ``CONNECTIONS_MAX`` connections are closed unread. Whatever goes wrong ends one
connection and nothing else. Routes are synchronous functions: what they show is of one moment.

A request that names a host other than this one's loopback, or that comes from a web page, is refused where the
listener is on loopback: so no page that a browser shows can read what is here. Not for what the routes show.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

from tiedreq.net.addresses import Address, is_loopback, parse_address
from tiedreq.net.listeners import Acceptor, bound_address, open_listeners
from tiedreq.net.quiet import QuietLog

HEAD_BYTES_MAX = 8 * 1024
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
CONNECTIONS_MAX = 32
RECEIVE_BYTES = 4096
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

logger = logging.getLogger("tiedreq.observe")


class Request(NamedTuple):
    """A request, decoded. Header names are in lower case; of a repeated header the last one counts."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, status: int, text: str) -> Response:
        """A line of text."""
        return cls(status, f"{text}\n".encode())


Answer = Callable[[Request], Response]


class Guard:
    """Who may see what needs the token. Compares in constant time and never quotes it."""

    def __init__(self, token: str | None) -> None:
        self._digest = None if token is None else _digest(token.encode("utf-8", "surrogatepass"))

    def refusal(self, request: Request) -> Response | None:
        """None when the request carries the token, or there is none."""
        if self._digest is None:
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(self._digest, _digest(given.strip().encode("utf-8", "surrogatepass")))
        if scheme.lower() == "bearer" and same:
            return None
        text = b"this needs the cluster's token: Authorization: Bearer TOKEN\n"
        return Response(401, text, headers={"WWW-Authenticate": "Bearer"})


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


async def serve_http(
    listen: str, answer: Answer, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer requests at ``listen`` (``HOST:PORT``; port 0: any free one) until cancelled; reports the URL.

    Raises ``BadOption`` for what is no address, ``OSError`` when it can't listen there.
    """
    try:
        listeners = await open_listeners(parse_address(listen))
    except OSError as error:
        raise OSError(error.errno, error.strerror, listen) from None
    loopback = all(is_loopback(bound_address(listener).host) for listener in listeners)
    server = _Server(answer, check_host=loopback)
    acceptor = Acceptor(
        server.connection, logger, connections_max=CONNECTIONS_MAX, connections_per_address_max=CONNECTIONS_MAX
    )
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(acceptor.run, listener, nursery)
            task_status.started(_url(bound_address(listeners[0])))
    finally:
        for listener in listeners:
            listener.socket.close()


def _url(address: Address) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{address.port}"


class _Server:
    """What every accepted connection goes through."""

    def __init__(self, answer: Answer, *, check_host: bool) -> None:
        self._answer = answer
        self._check_host = check_host
        self._quiet = QuietLog(logger)

    async def connection(self, stream: trio.SocketStream, address: Address) -> None:
        """One connection from end to end: whatever goes wrong ends here."""
        try:
            await self._exchange(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError, OSError):
            logger.debug("connection from %s ended early", address)
        except Exception as error:
            self._quiet.log("failed", logging.ERROR, "a request from %s failed", address, error=error)

    async def _exchange(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        response, head = Response.text(408, f"no request within {REQUEST_SECONDS:g} s"), False
        with trio.move_on_after(REQUEST_SECONDS):
            try:
                request = await _read(stream, connection)
                if request is None:
                    return
                head = request.method == b"HEAD"
                response = self._respond(request)
            except h11.RemoteProtocolError as error:
                response = Response.text(error.error_status_hint, f"not a request that is served here: {error}")
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **response.headers,
        }
        out = connection.send(h11.Response(status_code=response.status, headers=list(headers.items())))
        with trio.move_on_after(ANSWER_SECONDS):
            await stream.send_all((out or b"") + (b"" if head else response.body))
            await stream.send_eof()
            await _drain(stream)

    def _respond(self, request: h11.Request) -> Response:
        method = request.method.decode("ascii", "replace")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        if method not in ("GET", "HEAD"):
            return Response(405, b"GET and HEAD only\n", headers={"Allow": "GET, HEAD"})
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Response.text(403, "no other web page has any business here")
        if self._check_host and not is_loopback(_host(headers.get("host", ""))):
            return Response.text(403, "the Host header names another host than this one")
        try:
            target = urlsplit(request.target.decode("ascii"))
            query = dict(parse_qsl(target.query, max_num_fields=16))
        except ValueError:
            return Response.text(400, "the address of this request can't be read")
        return self._answer(Request(method, unquote(target.path), query, headers))


def _host(header: str) -> str:
    """The host of a Host header, without its port and the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


async def _read(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | None:
    """The head of a request; None when the other side closes before one is complete. Its body is never read."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


async def _drain(stream: trio.SocketStream) -> None:
    """Read on a little, so that the answer isn't lost in a reset because of bytes that nobody wanted."""
    with trio.move_on_after(0.5):
        for _ in range(16):
            if not await stream.receive_some(RECEIVE_BYTES):
                return
