"""``connect()``: find the cluster, link to its replicas, and yield the client."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ClientLimits
from tiedreq.core.link_options import LinkSide
from tiedreq.core.link_table import LinkState
from tiedreq.core.policy import Auto, Policy
from tiedreq.discovery.find import Replicas, Source, find_source
from tiedreq.discovery.following import follow
from tiedreq.discovery.members import Members, StaticMembers
from tiedreq.errors import AuthRefused, ConnectError
from tiedreq.net.client import Client
from tiedreq.net.edge import UserBlock
from tiedreq.net.link import Link
from tiedreq.net.link_ends import dialed_link
from tiedreq.net.link_owner import LinkOptions, link_options
from tiedreq.net.membership import ClientMembers
from tiedreq.net.network import Network, WebsocketNetwork
from tiedreq.net.transport import Transport
from tiedreq.observe.attach import watch_client
from tiedreq.observe.options import Observe
from tiedreq.units import check_zone
from tiedreq.wire.limits import wire_limits
from tiedreq.wire.proof import TokenAuthenticator

logger = logging.getLogger("tiedreq.client")

GATHER_SECONDS = 0.5
"""Once the first replica is reached, how long to wait for the others."""
OBSERVE_DEFAULT = Observe()
CLOSE_SECONDS = 2.0
"""How long the links may take to close."""


@asynccontextmanager
async def connect(
    replicas: Replicas = None,
    *,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    policy: Policy | None = None,
    timeout: float = 10.0,
    limits: ClientLimits | None = None,
    cluster: str | None = None,
    picker: str = "adaptive",
    network: Network | None = None,
    observe: Observe | None = OBSERVE_DEFAULT,
    zone: str = "",
) -> AsyncIterator[Client]:
    """Connect to a cluster's replicas: ``async with tiedreq.connect() as client: …``.

    ``replicas``: a list of URLs, a comma-separated text of them, ``dns://NAME:PORT``, the path of a cluster file or
    of a plain list, a ``discovery.Discovery``, or None for ``$TIEDREQ_CLUSTER`` or ``./.tiedreq/cluster.json``. Files
    and names are looked at again and again, so replicas may join, leave and move meanwhile (docs/membership.md).
    ``token`` and ``cluster`` (its name) are read from the cluster file when not given. ``policy`` is used by ``call``
    and ``request`` (default ``Auto()``), ``timeout`` (seconds) by every call that names none; it also bounds how long
    to wait for the first replica. ``picker`` is how a replica is chosen: ``adaptive``, ``two-choices``,
    ``least-outstanding`` or ``random`` (``core.picker``). ``observe`` is what is remembered of calls for
    ``client.observer`` (docs/operating.md); None: nothing. ``zone`` is where this client is, if replicas say in which
    zone they are: first copies stay there (docs/scale.md).

    Raises ``ConnectError`` when no replica can be reached, ``AuthRefused``, ``VersionMismatch``, ``BadOption``.
    """
    source, limits = _checked(replicas, limits)
    address = source.address
    wire = wire_limits(limits.payload_bytes_max)
    client = Client(policy if policy is not None else Auto(), timeout, limits, wire, picker, check_zone(zone))
    token = token if token is not None else address.token
    side = LinkSide(cluster or address.cluster or "tiedreq", "client", f"client-{os.getpid()}", client.nonce)
    if network is None:
        network = WebsocketNetwork(wire, client_tls=ssl_context)
    authenticator = TokenAuthenticator.of(token)
    options = link_options(limits, wire, "refuse")
    block = UserBlock()
    with block.outside():
        async with trio.open_nursery() as nursery:
            timers = trio.CancelScope()
            nursery.start_soon(_timers, client, timers)
            if observe is not None:
                await nursery.start(watch_client, client, observe, token)
            members = ClientMembers(
                client,
                nursery,
                partial(_link, side, client, authenticator, options),
                partial(_run, network, limits.handshake_timeout),
            )
            client.members = members.view
            if address.replicas:
                members.update(Members(address.replicas))
            following = trio.CancelScope()
            if not address.replicas or not isinstance(source.discovery, StaticMembers):
                nursery.start_soon(_follow, source, members, following)
            with block:
                await _gather(client, members, source)
                yield client
            following.cancel()
            await client.close(members.all_links)
            timers.cancel()
            if client.observer is not None:
                client.observer.scope.cancel()
            nursery.cancel_scope.deadline = trio.current_time() + CLOSE_SECONDS


def _checked(replicas: Replicas, limits: ClientLimits | None) -> tuple[Source, ClientLimits]:
    """Where the replicas are, and the limits. Raises ``BadOption``."""
    if not trio.lowlevel.in_trio_run():
        raise BadOption("connect: Trio does not run here; on asyncio use tiedreq.aio.connect")
    source = find_source(replicas)
    limits = limits if limits is not None else ClientLimits()
    if not isinstance(limits, ClientLimits):
        raise BadOption(f"limits: {limits!r} is not ClientLimits(…)")
    count = len(source.address.replicas)
    if count > limits.replicas_max:
        raise BadOption(f"replicas: {count} are named, over the limit replicas_max of {limits.replicas_max}")
    return source, limits


async def _timers(client: Client, scope: trio.CancelScope) -> None:
    with scope:
        await client.run_timers()


async def _follow(source: Source, members: ClientMembers, scope: trio.CancelScope) -> None:
    with scope:
        await follow(source.discovery, members.update, cluster=source.address.cluster)


def _link(
    side: LinkSide, client: Client, authenticator: TokenAuthenticator, options: LinkOptions, replica: ReplicaAddress
) -> Link:
    return dialed_link(
        side,
        client,
        authenticator,
        label=replica.url,
        expected_name=replica.name,
        retry_refused=False,
        options=options,
    )


async def _run(network: Network, timeout: float, link: Link, replica: ReplicaAddress) -> None:
    def dial() -> AbstractAsyncContextManager[Transport]:
        return network.dial(replica.url, timeout=timeout)

    await link.run_dialer(dial)


async def _gather(client: Client, members: ClientMembers, source: Source) -> None:
    """Wait for the first replica, then a little for the others. Raises ``ConnectError`` when none comes."""
    with trio.move_on_after(client.timeout):
        while not any(link.up for link in members.links):
            if members.links and all(_hopeless(link) for link in members.links):
                break  # waiting would not help
            await client.arrivals.wait()
    if not any(link.up for link in members.links):
        raise _no_replica(members.links, source, client.timeout)
    with trio.move_on_after(GATHER_SECONDS):
        while not all(link.up or link.last_error is not None for link in members.links):
            await client.arrivals.wait()
    client.connected = True
    for link in members.links:
        if link.state is LinkState.CLOSED:
            logger.warning("a replica is not used: %s", link.last_error)


def _hopeless(link: Link) -> bool:
    return link.state is LinkState.CLOSED or isinstance(link.last_error, AuthRefused)


def _no_replica(links: list[Link], source: Source, timeout: float) -> ConnectError:
    """The most telling of the links' errors: one that lasts until somebody changes something, else all of them."""
    errors = [link.last_error for link in links if link.last_error is not None]
    for error in errors:
        if type(error) is not ConnectError:
            return error
    trouble = getattr(source.discovery, "trouble", "") if not links else ""
    told = "; ".join(str(error) for error in errors) or trouble or ("no replica answered" if links else "none is known")
    return ConnectError(f"no replica could be reached within {timeout:g} s ({source.address.source}): {told}")
