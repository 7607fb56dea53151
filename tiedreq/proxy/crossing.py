"""The front's side of a passage (``proxy.passage``): asks for a slot, and sends the request there as its body comes."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import trio

from tiedreq.core.policy import Policy
from tiedreq.errors import OutcomeUnknown, Unavailable
from tiedreq.net.client import Client
from tiedreq.net.edge import no_groups
from tiedreq.net.stream import Stream
from tiedreq.proxy.headers import Headers, values
from tiedreq.proxy.messages import PASSAGE, Ask, BadMessage
from tiedreq.proxy.passage import ERROR, TICKET, received
from tiedreq.proxy.relay import relay
from tiedreq.proxy.upstream import Broke, Dial, HttpClient, Response, StreamedBody, Unreachable, dial_tcp
from tiedreq.proxy.visit import Visit

DIAL_SECONDS = 5.0
END_SECONDS = 1.0
WHOLE_SECONDS = 86_400.0

MakeHeaders = Callable[[int, Headers, str | None], Headers]
"""The headers of an answer for the client, from its status, its own headers and the replica's name."""


class Crossing:
    """Carries requests through passages; with TLS where the sidecars listen with it."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def carry(
        self,
        client: Client,
        policy: Policy,
        visit: Visit,
        ask: Ask,
        progress: Callable[[], None],
        headers: MakeHeaders,
    ) -> None:
        """Answer ``visit``. ``ask`` holds what of the body has been read; ``progress`` is called for each part of the
        body and of the answer.

        Raises ``CallError`` where no answer has begun, ``Aborted`` and ``ClientGone`` otherwise.
        """
        async with client.stream(PASSAGE, policy=policy, timeout=WHOLE_SECONDS) as lease:
            dial, ticket = self._read(await _next(lease))
            try:
                await self._exchange(HttpClient(dial), ticket, visit, ask, lease.replica, progress, headers)
            except Unreachable as error:
                raise Unavailable(
                    f"the sidecar {lease.replica} has lent a slot but can't be reached: {error}"
                ) from None
            except Broke as error:
                raise OutcomeUnknown(
                    f"the sidecar {lease.replica} was lost with the request ({error}); it may have been carried out"
                ) from None
            with trio.move_on_after(END_SECONDS):
                await _next(lease)  # its end

    def _read(self, item: Any) -> tuple[Dial, bytes]:
        match item:
            case [str(host), int(port), bytes(ticket)]:
                return (self._dial_tls(host, port) if self._tls else dial_tcp(host, port, DIAL_SECONDS)), ticket
        raise BadMessage("the first item of a passage is no address with a ticket")

    def _dial_tls(self, host: str, port: int) -> Dial:
        async def dial() -> trio.abc.Stream:
            with trio.fail_after(DIAL_SECONDS):
                stream = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=self._tls, https_compatible=True)
                try:
                    await stream.do_handshake()
                except BaseException as error:
                    await trio.aclose_forcefully(stream)
                    if isinstance(error, trio.BrokenResourceError):
                        raise OSError(f"no TLS with {host}:{port}: {error.__cause__ or error}") from error
                    raise
                return stream

        return dial

    async def _exchange(
        self,
        http: HttpClient,
        ticket: bytes,
        visit: Visit,
        ask: Ask,
        replica: str | None,
        progress: Callable[[], None],
        headers: MakeHeaders,
    ) -> None:
        async def parts() -> AsyncGenerator[bytes]:
            async with aclosing(received(visit, ask.body)) as all_:
                async for part in all_:
                    progress()
                    yield part

        length = None if visit.chunked else visit.length or 0
        body = StreamedBody(parts(), length, visit.waits_to_send, visit.go_on)
        try:
            with no_groups():
                async with trio.open_nursery() as nursery:
                    response = await http.stream(
                        ask.method, ask.target, [*ask.headers, (TICKET, ticket)], body, nursery
                    )
                    try:
                        kept = headers(response.status, response.headers, replica)
                        await relay(response, visit, kept + _told(response), progress)
                    finally:
                        await response.aclose()
                    nursery.cancel_scope.cancel()
        finally:
            await http.close_idle()


def _told(response: Response) -> Headers:
    """What the sidecar itself said, and not its upstream."""
    return [(ERROR, value) for value in values(response.headers, ERROR)]


async def _next(lease: Stream) -> Any:
    try:
        return await anext(lease)
    except StopAsyncIteration:
        return None
