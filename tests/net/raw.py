"""A link to a replica by hand: what it is told, every message that comes back, and the transport below it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.net.bench import until
from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import Cancel, Message, Submit, Welcome
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity
from tiedreq.errors import ConnectError
from tiedreq.net.link import Link
from tiedreq.net.link_ends import dialed_link
from tiedreq.net.link_owner import LinkDown, LinkOptions, LinkOwner, LinkUp
from tiedreq.net.network import Network
from tiedreq.net.transport import Transport
from tiedreq.testing import LocalCluster, _Seat
from tiedreq.wire.layout import LAYOUTS
from tiedreq.wire.packing import packers
from tiedreq.wire.payload import encode_payload
from tiedreq.wire.proof import TokenAuthenticator

NONCE = 4711
CODES = {layout.message: layout.code for layout in LAYOUTS}


class RawLink(LinkOwner):
    """The owner of a link that is driven by a test."""

    def __init__(self, nonce: int = NONCE) -> None:
        self.nonce = nonce
        self.messages: list[Message] = []
        self.ups: list[LinkUp] = []
        self.downs: list[LinkDown] = []
        self.failures: list[ConnectError] = []
        self.transport: Transport | None = None
        self.link: Link | None = None

    def on_up(self, link: Link, up: LinkUp) -> None:
        self.ups.append(up)

    def on_down(self, link: Link, down: LinkDown) -> None:
        self.downs.append(down)

    def on_failure(self, link: Link, error: ConnectError) -> None:
        self.failures.append(error)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        self.messages += messages

    def send(self, *messages: Message) -> None:
        """Let messages leave, in order."""
        assert self.link is not None
        for message in messages:
            assert self.link.send(message)

    async def send_unchecked(self, *messages: Message) -> None:
        """Let messages leave that no honest side would let out."""
        assert self.transport is not None
        await self.transport.send_frame(packers.pack([(CODES[type(message)], *message) for message in messages]))

    def copy(self, number: int, round_: int = 0, rank: int = UNTIED) -> CopyId:
        """The identity of a copy of this caller."""
        return CopyId(self.nonce, number, round_, rank)

    def submit(self, number: int, method: str = "work", args: Any = None, **fields: Any) -> Submit:
        """A Submit of this caller, untied unless ``partners`` and ``copy`` say otherwise."""
        standard: dict[str, Any] = {
            "copy": self.copy(number),
            "kind": CopyKind.FIRST,
            "method": method,
            "payload": encode_payload(args),
            "remaining": 30.0,
            "partners": (),
            "yield_": True,
            "exclusive": False,
            "layered": False,
            "key": None,
            "metadata": (),
        }
        return Submit(**{**standard, **fields})

    def tied(self, number: int, rank: int, partners: tuple[Identity, ...], **fields: Any) -> Submit:
        """A tied Submit."""
        return self.submit(number, copy=self.copy(number, 0, rank), partners=partners, **fields)

    def cancel(self, number: int) -> Cancel:
        """The Cancel of ``submit(number)``."""
        return Cancel(self.copy(number))

    def of(self, kind: type[Message], number: int | None = None) -> list[Any]:
        """The messages of a kind that came, of one call if its number is given."""
        found: list[Any] = [message for message in self.messages if type(message) is kind]
        return found if number is None else [message for message in found if message.copy.number == number]


@asynccontextmanager
async def raw_link(
    network: Network,
    url: str,
    *,
    side: LinkSide | None = None,
    token: str | None = None,
    options: LinkOptions | None = None,
    wait: bool = True,
) -> AsyncIterator[RawLink]:
    """A link to the replica at ``url`` as a client, or whatever ``side`` says, for as long as the block runs."""
    side = side or LinkSide("tiedreq", "client", "raw", NONCE)
    owner = RawLink(side.incarnation)

    @asynccontextmanager
    async def dial() -> AsyncIterator[Transport]:
        async with network.dial(url, timeout=5.0) as transport:
            owner.transport = transport
            yield transport

    welcome = (lambda: Welcome(1, False, 1 << 20, ())) if side.role == "replica" else None
    authenticator = TokenAuthenticator(None if token is None else token.encode())
    link = owner.link = dialed_link(
        side, owner, authenticator, label=url, retry_refused=False, welcome=welcome, options=options or LinkOptions()
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run_dialer, dial)
        if wait:
            await until(lambda: owner.ups or owner.failures)
        yield owner
        link.close()
        nursery.cancel_scope.cancel()


def seat(cluster: LocalCluster, name: str = "raw") -> Network:
    """A place of its own in the memory network of ``cluster``."""
    return _Seat(cluster.network, name, 0.0)


def identities(cluster: LocalCluster, *names: str) -> tuple[Identity, ...]:
    """The identities of replicas, as a Submit names them."""
    return tuple(cluster.handles[name].identity for name in names)
