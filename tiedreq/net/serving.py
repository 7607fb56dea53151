"""``serve()``: run one replica of a service until it is drained or cancelled, and the handle to it."""

from __future__ import annotations

import secrets
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import trio

from tiedreq.clusterfile import check_url
from tiedreq.core.checks import check_count, check_number
from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.types import Identity
from tiedreq.discovery.find import Where, find_discovery
from tiedreq.discovery.following import follow
from tiedreq.discovery.members import Members
from tiedreq.net.edge import no_groups
from tiedreq.net.network import Network, WebsocketNetwork
from tiedreq.net.server import ReplicaServer
from tiedreq.observe.attach import show_replica, watch_replica
from tiedreq.observe.options import Observe
from tiedreq.observe.snapshot import ReplicaSnapshot
from tiedreq.service import Service
from tiedreq.units import LatencySpec, check_zone
from tiedreq.wire.limits import FRAME_SPLIT_BYTES, NAME_CHARS_MAX, wire_limits

SLOTS_MAX = 4096
OBSERVE_DEFAULT = Observe()
OUTBOX_BYTES_MIN = 2 * FRAME_SPLIT_BYTES
"""The largest result that is sent in one piece, and as much again for what can't wait."""


class ReplicaHandle:
    """A running replica. All methods are synchronous; from Trio's own thread only."""

    def __init__(
        self,
        server: ReplicaServer,
        url: str,
        drain: trio.Event,
        observe_url: str | None = None,
        *,
        discovers: bool = False,
    ) -> None:
        self._server = server
        self._discovers = discovers
        self._drain = drain
        self.name = server.identity.name
        self.url = url
        self.observe_url = observe_url
        """Where health, metrics and the snapshot are shown over HTTP, if they are."""

    def __repr__(self) -> str:
        return f"<Replica {self._server.identity} at {self.url}>"

    @property
    def identity(self) -> Identity:
        """Name and incarnation."""
        return self._server.identity

    def set_peers(self, peers: Mapping[str, str]) -> None:
        """Replace the list of peers (name to URL; this replica's own entry is passed over).

        Raises ``BadOption``, also for a replica that finds its peers itself (``discover``).
        """
        if self._discovers:
            raise BadOption("peers: this replica was started with discover=, which says who they are")
        _set_peers(self._server, _check_peers(peers, self.name))

    def set_mesh_latency(self, spec: LatencySpec) -> None:
        """Change the latency of what this replica sends to its peers; only if it was started with one."""
        self._server.shape().set_latency(spec)

    def set_blocked_peers(self, peers: Iterable[str]) -> None:
        """Let nothing that this replica sends reach these peers, and everything the others; as ``set_mesh_latency``.

        To them it falls silent. What was under way waits and arrives at once when the block ends.
        """
        self._server.shape().set_blocked(frozenset(peers))

    def drain(self) -> None:
        """Begin to drain: refuse new work, finish what runs, then ``serve()`` returns."""
        self._drain.set()

    @property
    def draining(self) -> bool:
        """True once it was told to drain."""
        return self._drain.is_set()

    def status(self) -> dict[str, Any]:
        """Counters, gauges and links as plain values."""
        return self._server.status()

    def snapshot(self) -> ReplicaSnapshot:
        """All that can be seen of this replica, as plain values (docs/operating.md).

        Raises ``BadOption`` with ``observe=None``.
        """
        if self._server.observer is None:
            raise BadOption("observe: this replica was started with observe=None")
        return self._server.observer.snapshot()

    def sizes(self) -> dict[str, int]:
        """The length of every collection that grows with use: all zero but a few when nothing is under way."""
        return {
            **self._server.core.sizes(),
            "tasks": len(self._server.executions),
            "links": len(self._server.links),
        }


def _joining(
    peers: Mapping[str, str], discover: Where, name: str, cluster: str
) -> Callable[[ReplicaServer, trio.Nursery], None]:
    """What makes a replica of this name link to its peers. Raises ``BadOption``."""
    known = _check_peers(peers, name)
    if peers and discover is not None:
        raise BadOption("peers, discover: name one of them")
    discovery = find_discovery(discover) if discover is not None else None

    def join(server: ReplicaServer, nursery: trio.Nursery) -> None:
        if discovery is not None:
            nursery.start_soon(partial(follow, discovery, server.peers.update, cluster=cluster))
        elif known:
            _set_peers(server, known)

    return join


def _set_peers(server: ReplicaServer, peers: Mapping[str, str]) -> None:
    """These are all the others, whatever was known of them before."""
    if peers:
        server.peers.update(Members.named(peers.items()))
    else:
        server.peers.forget_all()


def _check_peers(peers: Mapping[str, str], own: str) -> dict[str, str]:
    return {
        _check_name("peers", name): check_url(f"peers[{name!r}]", url) for name, url in peers.items() if name != own
    }


def _check_name(field: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise BadOption(f"{field}: {name!r} is not a printable text of 1 to {NAME_CHARS_MAX} characters")
    return name


def _check_limits(limits: object) -> ReplicaLimits:
    if limits is None:
        return ReplicaLimits()
    if not isinstance(limits, ReplicaLimits):
        raise BadOption(f"limits: {limits!r} is not ReplicaLimits(…)")
    check_count("outbox_bytes_max", limits.outbox_bytes_max, OUTBOX_BYTES_MIN, sys.maxsize)
    return limits


def _check(
    service: object, name: object, cluster: object, zone: str, slots: int, drain_timeout: float, advertise: str | None
) -> None:
    """Raises ``BadOption``."""
    if not isinstance(service, Service):
        raise BadOption(f"service: {service!r} is not a tiedreq.Service")
    _check_name("name", name)
    _check_name("cluster", cluster)
    check_zone(zone)
    check_count("slots", slots, 1, SLOTS_MAX)
    check_number("drain_timeout", drain_timeout, 0.0, 86_400.0, "seconds")
    if advertise is not None:
        check_url("advertise", advertise)


def _websockets(limits: ReplicaLimits, own: ssl.SSLContext | None, peers: ssl.SSLContext | None) -> Network:
    return WebsocketNetwork(
        wire_limits(limits.payload_bytes_max),
        server_tls=own,
        client_tls=peers,
        connections_max=limits.connections_max,
        connections_per_address_max=limits.connections_per_address_max,
        handshake_timeout=limits.handshake_timeout,
    )


async def serve(
    service: Service,
    *,
    name: str,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    peers: Mapping[str, str] | None = None,
    discover: Where = None,
    slots: int = 8,
    limits: ReplicaLimits | None = None,
    token: str | None = None,
    cluster: str = "tiedreq",
    ssl_context: ssl.SSLContext | None = None,
    peer_ssl_context: ssl.SSLContext | None = None,
    drain_timeout: float = 10.0,
    mesh_latency: LatencySpec | None = None,
    debug: bool = False,
    network: Network | None = None,
    observe: Observe | None = OBSERVE_DEFAULT,
    zone: str = "",
    task_status: trio.TaskStatus[ReplicaHandle] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run one replica of ``service``; reports a ``ReplicaHandle`` once it accepts calls, returns when drained.

    ``name`` is unique in the cluster. ``listen`` is ``HOST:PORT`` (port 0: any free one), ``advertise`` the URL that
    others use if it differs. ``peers`` maps names to URLs of the other replicas; of two the one with the lower name
    dials. In its place ``discover`` says where members are found while it runs: ``dns://NAME:PORT``, the path of a
    cluster file or of a plain list, or a ``discovery.Discovery``; this replica may be among them (docs/membership.md).
    ``slots`` handlers run at once. ``token`` is the cluster's shared secret, ``ssl_context`` makes it listen with TLS,
    ``peer_ssl_context`` is used to dial ``wss://`` peers. A drain waits at most ``drain_timeout`` seconds for what
    runs. ``mesh_latency`` adds latency to what this replica sends to its peers; given, if only as 0, it can be changed
    while it runs. With ``debug`` the text of an unexpected exception reaches the caller. ``observe`` is what is
    remembered and shown (docs/operating.md); None: nothing. ``zone`` is what may fail together with this replica,
    ``eu-west-1a``: clients tie over zones (docs/scale.md). Cancelling stops at once.

    Raises ``BadOption``, ``OSError`` when it can't listen, and what the service's lifespan raises.
    """
    _check(service, name, cluster, zone, slots, drain_timeout, advertise)
    limits = _check_limits(limits)
    drain, join = trio.Event(), _joining(peers or {}, discover, name, cluster)
    network = network if network is not None else _websockets(limits, ssl_context, peer_ssl_context)
    with no_groups():
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(service.lifespan()) if service.lifespan is not None else None
            stack.enter_context(no_groups())  # the lifespan, too, is to see a single cause as it is
            async with trio.open_nursery() as nursery:
                server = ReplicaServer(
                    service,
                    Identity(name, secrets.randbits(64)),
                    cluster=cluster,
                    token=token,
                    slots=slots,
                    limits=limits,
                    network=network,
                    mesh_latency=mesh_latency,
                    nursery=nursery,
                    state=state,
                    debug=debug,
                    zone=zone,
                )
                watch_replica(server, service, cluster, observe, nursery)
                url = await server.begin(listen)
                observe_url = await show_replica(server, observe, token, nursery)
                join(server, nursery)
                handle = ReplicaHandle(server, advertise or url, drain, observe_url, discovers=discover is not None)
                task_status.started(handle)
                await drain.wait()
                await server.drain(drain_timeout)
                nursery.cancel_scope.cancel()
