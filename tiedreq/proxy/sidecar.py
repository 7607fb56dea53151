"""A sidecar: one replica of the service ``http``, beside one upstream, as long as that can serve.

While the upstream is down nothing is promised on its behalf: the replica drains, so that what waits in its queue moves
to others, and it joins again, as a new incarnation at the same address, when a check has passed. With ``http`` it is a
front as well, to all sidecars, and stays one meanwhile.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import trio

from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ReplicaLimits
from tiedreq.net.addresses import Address, parse_address, parse_url
from tiedreq.net.edge import no_groups
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.observe.options import Observe
from tiedreq.proxy.crossing import Crossing
from tiedreq.proxy.front import Front, FrontOptions
from tiedreq.proxy.health import Health, HealthOptions
from tiedreq.proxy.keeper import Sidecars, keep_client
from tiedreq.proxy.listener import HttpListener, ListenerLimits
from tiedreq.proxy.passage import PassageDesk
from tiedreq.proxy.upstream import HttpClient, dial_tcp
from tiedreq.proxy.worker import Worker, sidecar_service

logger = logging.getLogger("tiedreq.proxy")

DIAL_SECONDS = 2.0
BIND_PAUSE_SECONDS = 0.5
LET_GO_SECONDS = 1.0
"""How long a slot stays taken by a cancelled request, until the upstream closes its side too, or answers after all.

One that stands still does neither: what would be sent to it meanwhile would stand still too.
"""
UPSTREAM_IDLE_SECONDS = 4.0
"""Less than the five seconds for which common servers keep an idle connection."""
PASSAGE_LIMITS = ListenerLimits(header_bytes_max=64 * 1024, headers_max=320)
"""What a front lets in, and the fields that it adds."""


class Upstream(NamedTuple):
    """Where an upstream is."""

    host: str
    port: int

    @classmethod
    def read(cls, url: str) -> Upstream:
        """``http://HOST:PORT``. Raises ``BadOption``."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
            raise BadOption(f"upstream: {url!r} is not http://HOST:PORT, such as http://127.0.0.1:8000")
        return cls(parts.hostname, 80 if port is None else port)

    def __str__(self) -> str:
        return f"http://{Address(self.host, self.port)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarOptions:
    """What a sidecar may be told. Those not named here are the options of ``tiedreq.serve``.

    ``http``: where it is a front, if it is one; ``front`` how. ``passage``: where requests with long bodies come in
    from fronts (None: at the host of ``listen``, any free port). ``discover``: in place of ``peers``, where members are
    found that come and go; this sidecar may be among them. ``let_other_win``: statuses that end no race.
    """

    upstream: Upstream
    name: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    discover: str | None = None
    slots: int = 8
    http: str | None = None
    front: FrontOptions = field(default_factory=FrontOptions)
    passage: str | None = None
    let_other_win: frozenset[int] = frozenset()
    health: HealthOptions = field(default_factory=HealthOptions)
    token: str | None = None
    cluster: str = "tiedreq"
    ssl_context: ssl.SSLContext | None = None
    peer_ssl_context: ssl.SSLContext | None = None
    drain_timeout: float = 10.0
    limits: ReplicaLimits = field(default_factory=ReplicaLimits)
    observe: Observe | None = field(default_factory=Observe)


class Sidecar:
    """One sidecar. ``run`` runs it; ``drain`` ends it."""

    def __init__(self, options: SidecarOptions) -> None:
        self.options = options
        upstream = options.upstream
        dial = dial_tcp(upstream.host, upstream.port, DIAL_SECONDS)
        host = str(Address(upstream.host, upstream.port)).encode()
        self.upstream = HttpClient(
            dial, idle_max=options.slots, idle_seconds=UPSTREAM_IDLE_SECONDS, let_go_seconds=LET_GO_SECONDS
        )
        self.health = Health(dial, str(upstream), host, options.health)
        worker = Worker(self.upstream, self.health.refused, options.let_other_win)
        self.desk = PassageDesk(self.upstream, self.health.refused, PASSAGE_LIMITS, options.ssl_context)
        self.front = Front(options.front, Crossing(options.peer_ssl_context))
        self.handle: ReplicaHandle | None = None
        self.http_url: str | None = None
        self.ready = trio.Event()
        """Set when it serves for the first time."""
        self._service = sidecar_service(worker, self.desk)
        self._listener = HttpListener(self.front.handle, options.front.limits)
        self._drain = trio.Event()
        self._listen = options.listen

    def drain(self) -> None:
        """Begin to drain: accept no more, finish what runs, then ``run`` returns."""
        self._drain.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until drained, or cancelled; reports once all it listens at but the mesh is open.

        Raises ``BadOption``, and ``OSError`` where it can't listen.
        """
        options = self.options
        with no_groups():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.upstream.tidy)
                nursery.start_soon(self.health.run)
                passage = options.passage or f"{Address(parse_address(options.listen).host, 0)}"
                bound: Address = await nursery.start(self.desk.listener.run, passage)
                self.desk.port = bound.port
                over = trio.Event()
                if options.http is not None:
                    await nursery.start(self._be_front, options.http, over, nursery)
                else:
                    over.set()
                task_status.started()
                await self._live()
                await over.wait()
                nursery.cancel_scope.cancel()

    # ---- the replica ------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """One life after another, until it is to drain."""
        while not self._drain.is_set():
            async with trio.open_nursery() as nursery:

                async def ended() -> None:
                    await self._drain.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(ended)
                await self.health.until(up=True)
                nursery.cancel_scope.cancel()
            if self._drain.is_set():
                return
            try:
                with no_groups():
                    await self._life()
            except OSError as error:
                if self.handle is None:
                    raise
                logger.warning("can't listen at %s again: %s", self._listen, error)
                await trio.sleep(BIND_PAUSE_SECONDS)

    async def _life(self) -> None:
        """Serve until the upstream is down, or it is to drain."""
        options = self.options
        async with trio.open_nursery() as nursery:

            async def replica(task_status: trio.TaskStatus[ReplicaHandle]) -> None:
                await serve(
                    self._service,
                    name=options.name,
                    listen=self._listen,
                    advertise=options.advertise,
                    peers=options.peers,
                    discover=options.discover,
                    slots=options.slots,
                    limits=options.limits,
                    token=options.token,
                    cluster=options.cluster,
                    ssl_context=options.ssl_context,
                    peer_ssl_context=options.peer_ssl_context,
                    drain_timeout=options.drain_timeout,
                    observe=options.observe,
                    task_status=task_status,
                )
                nursery.cancel_scope.cancel()

            handle: ReplicaHandle = await nursery.start(replica)
            self.handle = handle
            address = parse_url(handle.url).address
            self.desk.host = address.host
            if options.advertise is None:  # the same port in the next life
                self._listen = str(Address(parse_address(self._listen).host, address.port))
            self.ready.set()

            async def drain() -> None:
                await self._drain.wait()
                handle.drain()

            nursery.start_soon(drain)
            await self.health.until(up=False)
            handle.drain()

    # ---- the front --------------------------------------------------------------------------------------------

    async def _be_front(
        self,
        listen: str,
        over: trio.Event,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        bound: Address = await nursery.start(self._listener.run, listen)
        self.http_url = http_url(bound)
        nursery.start_soon(self.front.run)
        nursery.start_soon(self._connect)
        task_status.started()
        await self._drain.wait()
        self._listener.drain()
        with trio.move_on_after(self.options.drain_timeout):
            await self._listener.over.wait()
        over.set()

    async def _connect(self) -> None:
        options = self.options
        own, listen = options.advertise, parse_address(options.listen)
        if own is None and listen.port:
            scheme = "ws" if options.ssl_context is None else "wss"
            own = f"{scheme}://{Address(listen.host or '127.0.0.1', listen.port)}"
        elif own is None:
            await self.ready.wait()
            assert self.handle is not None
            own = self.handle.url
        urls = [own, *(url for name, url in options.peers.items() if name != options.name)]
        replicas = urls if options.discover is None else options.discover
        where = Sidecars(
            replicas=replicas, token=options.token, cluster=options.cluster, tls=options.peer_ssl_context, observe=None
        )
        await keep_client(self.front, where, patient=True)


def http_url(bound: Address) -> str:
    """The URL at which a listener is reached from this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound.host, bound.host)
    return f"http://{Address(host, bound.port)}"
