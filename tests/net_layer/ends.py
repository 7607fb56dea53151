"""What the tests of this folder share: an owner that remembers, links at both ends, and worlds to connect them in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import Cancel, Message, Result, Started, Welcome
from tiedreq.core.types import CopyId, Load
from tiedreq.errors import ConnectError
from tiedreq.net.link import Link, LinkDown, LinkOptions, LinkOwner, LinkUp
from tiedreq.net.link_ends import accepted_link, dialed_link
from tiedreq.net.memory import MemoryNetwork
from tiedreq.net.transport import Transport
from tiedreq.net.websocket import dial_websocket, serve_websockets
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.proof import TokenAuthenticator

CLIENT = LinkSide("shop", "client", "", 7)
REPLICA_A = LinkSide("shop", "replica", "a", 11)
REPLICA_B = LinkSide("shop", "replica", "b", 12)
WELCOME = Welcome(slots=4, draining=False, payload_bytes_max=10_000_000, methods=())
TOKEN = TokenAuthenticator(b"a token of sixteen bytes")
LIMITS = WireLimits()
LOAD = Load(0, 4, 1, 0.0)

Handler = Callable[[Transport], Awaitable[None]]


def copy(number: int) -> CopyId:
    return CopyId(7, number, 0, 0)


def notice(number: int) -> Started:
    return Started(copy(number), 1.0, None)


def reply(number: int, size: int) -> Result:
    return Result(copy(number), bytes(size), 0.001, 0.0, LOAD)


def cancel(number: int) -> Cancel:
    return Cancel(copy(number))


class Recorder(LinkOwner):
    """Remembers what it hears; ``until`` waits for it. ``respond`` may answer what arrives."""

    def __init__(self, respond: Callable[[Link, Message], None] | None = None) -> None:
        self.ups: list[LinkUp] = []
        self.downs: list[LinkDown] = []
        self.failures: list[ConnectError] = []
        self.messages: list[Message] = []
        self.bytes_by_then: list[int] = []
        """For each message: how many bytes the link had received when it was delivered."""
        self.links: list[Link] = []
        self._respond = respond

    def on_up(self, link: Link, up: LinkUp) -> None:
        assert link.up and link.id == up.link_id
        self.links.append(link)
        self.ups.append(up)

    def on_down(self, link: Link, down: LinkDown) -> None:
        assert not link.up
        self.downs.append(down)

    def on_failure(self, link: Link, error: ConnectError) -> None:
        self.failures.append(error)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        assert messages
        self.messages += messages
        self.bytes_by_then += [link.statistics.bytes_received] * len(messages)
        if self._respond is not None:
            for message in messages:
                self._respond(link, message)

    async def until(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        with trio.fail_after(seconds):
            await trio.lowlevel.checkpoint()
            while not condition():  # noqa: ASYNC110 - not every condition comes with an event
                await trio.sleep(0.001)


class World:
    """Somewhere to serve and to dial."""

    name = ""

    async def serve(self, nursery: trio.Nursery, handler: Handler, **options) -> None:
        raise NotImplementedError

    def dial(self) -> AbstractAsyncContextManager[Transport]:
        raise NotImplementedError


class InMemory(World):
    name = "memory"

    def __init__(self) -> None:
        self.network = MemoryNetwork()

    async def serve(self, nursery: trio.Nursery, handler: Handler, **options) -> None:
        await nursery.start(self.network.serve, "a", handler)

    def dial(self) -> AbstractAsyncContextManager[Transport]:
        return self.network.dial("c", "a")


class OverWebsockets(World):
    name = "websocket"

    def __init__(self) -> None:
        self.url = ""
        self.port = 0

    async def serve(self, nursery: trio.Nursery, handler: Handler, **options) -> None:
        serve = partial(serve_websockets, "127.0.0.1:0", handler, limits=options.pop("limits", LIMITS), **options)
        (address,) = await nursery.start(serve)
        self.port = address.port
        self.url = f"ws://{address}"

    def dial(self) -> AbstractAsyncContextManager[Transport]:
        return dial_websocket(self.url, limits=LIMITS, timeout=5.0)


def acceptor(
    owner: LinkOwner, side: LinkSide = REPLICA_A, token: TokenAuthenticator = TOKEN, **options
) -> tuple[Handler, list[Link]]:
    """A handler that runs an accepted link, and the links it made."""
    links: list[Link] = []

    async def handle(transport: Transport) -> None:
        link = accepted_link(side, owner, token, welcome=lambda: WELCOME, label=transport.peer, **options)
        links.append(link)
        await link.run_accepted(transport)

    return handle, links


def dialer(owner: LinkOwner, side: LinkSide = CLIENT, token: TokenAuthenticator = TOKEN, **options) -> Link:
    welcome = (lambda: WELCOME) if side.role == "replica" else None
    return dialed_link(side, owner, token, label="a", welcome=welcome, **options)


class Connected:
    """A dialed and an accepted link that are up, and their owners."""

    def __init__(self, ours: Recorder, theirs: Recorder, link: Link, accepted: list[Link]) -> None:
        self.ours = ours
        self.theirs = theirs
        self.link = link
        self._accepted = accepted

    @property
    def accepted(self) -> Link:
        return self._accepted[-1]


@asynccontextmanager
async def connected(
    world: World,
    *,
    side: LinkSide = CLIENT,
    options: LinkOptions | None = None,
    accepted_options: LinkOptions | None = None,
    respond: Callable[[Link, Message], None] | None = None,
) -> AsyncIterator[Connected]:
    """Both ends of one link in ``world``; at the end both are closed and nothing may be left."""
    ours, theirs = Recorder(), Recorder(respond)
    handle, links = acceptor(theirs, REPLICA_B, options=accepted_options or options or LinkOptions())
    async with trio.open_nursery() as nursery:
        await world.serve(nursery, handle)
        link = dialer(ours, side, options=options or LinkOptions())
        nursery.start_soon(link.run_dialer, world.dial)
        await ours.until(lambda: ours.ups)
        await theirs.until(lambda: theirs.ups)
        yield Connected(ours, theirs, link, links)
        link.close()
        with trio.fail_after(5):
            await theirs.until(lambda: len(theirs.downs) == len(theirs.ups))
            nursery.cancel_scope.cancel()
