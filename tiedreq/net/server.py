"""A replica: links in, ``ReplicaCore`` in the middle, handlers and links out.

``net.reception`` is its synchronous middle; here is what waits, and who may link. All input that is read in one pass of
the scheduler is given to the core before slots are filled (``InputSettled``): the settling task is woken by the first
event of a pass and runs in the next.
"""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.errors import BadOption
from tiedreq.core.events import (
    CallerConnected,
    CallerLost,
    DrainRequested,
    NoticeLatencyMeasured,
    PeerConnected,
    PeerLost,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.link import Admit
from tiedreq.core.link_options import LinkSide
from tiedreq.core.link_rules import DRAINED
from tiedreq.core.messages import Hello, Message, Welcome
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import Identity
from tiedreq.errors import ConnectError
from tiedreq.net.bell import Bell
from tiedreq.net.executor import Executor
from tiedreq.net.frames import Unfinished
from tiedreq.net.link import Link
from tiedreq.net.link_ends import accepted_link, dialed_link
from tiedreq.net.link_owner import LinkDown, LinkOwner, LinkUp, link_options
from tiedreq.net.mesh import LINKS_MAX, Mesh
from tiedreq.net.mesh_shape import MeshShape
from tiedreq.net.network import Network
from tiedreq.net.reception import Reception
from tiedreq.net.shaping import DelayLine
from tiedreq.net.transport import Transport
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.service import Service
from tiedreq.units import LatencySpec
from tiedreq.wire.limits import wire_limits
from tiedreq.wire.proof import TokenAuthenticator

FLUSH_SECONDS = 1.0
GONE_SECONDS = 1.0


class ReplicaServer(LinkOwner):
    """One replica of a service. ``serve()`` makes and runs it; users hold its ``ReplicaHandle``."""

    def __init__(
        self,
        service: Service,
        identity: Identity,
        *,
        cluster: str,
        token: str | None,
        slots: int,
        limits: ReplicaLimits,
        network: Network,
        mesh_latency: LatencySpec | None,
        nursery: trio.Nursery,
        state: Any,
        debug: bool,
        zone: str = "",
    ) -> None:
        self.identity = identity
        self.zone = zone
        self.limits = limits
        self.finished = trio.Event()
        self._service = service
        self._side = LinkSide(cluster, "replica", identity.name, identity.incarnation)
        self._authenticator = TokenAuthenticator.of(token)
        self._network = network
        self._shape = None if mesh_latency is None else MeshShape(identity.name, mesh_latency, zone)
        self._nursery = nursery
        self._wire = wire_limits(limits.payload_bytes_max)
        unfinished = Unfinished(max(limits.unfinished_bytes_max, self._wire.chunk_total_bytes_max))
        self._options = link_options(limits, self._wire, "close", unfinished)
        self._connections = 0
        self._gone = trio.lowlevel.ParkingLot()
        self.peers = Mesh(identity, limits, nursery, self._peer_link, self._dial_peer)
        self.mesh = self.peers.links
        self._lines: dict[Link, DelayLine] = {}  # of links to those whose name is not known yet
        self._timer_bell, settle_bell = Bell(), Bell()
        methods = [HeldMethod(method.info, method.slots) for method in service.methods.values()]
        self.core = ReplicaCore(identity, methods, slots=slots, limits=limits)
        self._reception = reception = Reception(
            self.core, identity, zone, self.peers, settle_bell.ring, self._timer_bell.ring, self.finished.set
        )
        self.links = reception.links
        self._executor = Executor(
            service,
            replica=identity.name,
            slots=slots,
            state=state,
            nursery=nursery,
            feed=reception.take,
            way=reception.way,
            limits=self._wire,
            bell=settle_bell,
            settled=reception.settle,
            debug=debug,
        )
        self.executions = reception.executions = self._executor.executions

    # ---- what waits --------------------------------------------------------------------------------------------

    @property
    def observer(self) -> ReplicaObserver | None:
        """What is remembered of copies and notices; None where nothing is."""
        return self._reception.observer

    @observer.setter
    def observer(self, observer: ReplicaObserver | None) -> None:
        self._reception.observer = observer

    async def begin(self, listen: str) -> str:
        """Accept connections, and run what is called; returns the URL. Raises ``OSError`` when it can't listen."""
        nursery = self._nursery
        for task in (self._executor.run, self._keep_time, self._measure, self.peers.tend):
            nursery.start_soon(task)
        url: str = await nursery.start(self._network.accept, listen, self.accepted)
        return url

    async def _keep_time(self) -> None:
        """The one timer task of the core."""
        while True:
            wake_at = self.core.wake_at
            self._reception.waking_at = math.inf if wake_at is None else wake_at
            with trio.CancelScope(deadline=self._reception.waking_at):
                await self._timer_bell.wait()
                continue
            self._reception.time_passed()

    # ---- links ------------------------------------------------------------------------------------------------

    def on_up(self, link: Link, up: LinkUp) -> None:
        """See ``LinkOwner``."""
        self._reception.linked(up.link_id, link)
        peer = up.peer
        if peer.role == "client":
            self._reception.take(CallerConnected(up.link_id, peer.incarnation))
            return
        link.when_full = "shed"
        line = self._lines.get(link)
        if line is not None and self._shape is not None:
            self._shape.identify(line, peer.name)
        if self._shape is not None and up.welcome is not None:
            self._shape.locate(peer.name, up.welcome.zone)
        self.peers.came_up(link, peer.name)
        self._reception.take(PeerConnected(up.link_id, Identity(peer.name, peer.incarnation)))

    def on_down(self, link: Link, down: LinkDown) -> None:
        """See ``LinkOwner``."""
        self._reception.lost(down.link_id)
        peer = link.peer
        if peer is not None and peer.role == "replica":
            self.peers.went_down(link, peer.name, down)
            self._reception.take(PeerLost(down.link_id))
        else:
            self._reception.take(CallerLost(down.link_id))

    def on_failure(self, link: Link, error: ConnectError) -> None:
        """See ``LinkOwner``."""
        self.peers.failed(link, error)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """See ``LinkOwner``."""
        self._reception.heard(link, messages)

    def admit(self, hello: Hello, line: DelayLine | None = None) -> tuple[str, str] | None:
        """Whether a proven other side may come in; from here on it is known whom ``line`` leads to."""
        if hello.role == "replica":
            if hello.name == self.identity.name:
                return "identity", f"this replica is named {hello.name!r} too"
            if hello.name > self.identity.name:
                return "identity", "of two replicas the one with the lower name dials"
            if self.peers.displaced(hello):
                return "replaced", "a newer incarnation of this replica is linked"
            if line is not None and self._shape is not None:
                self._shape.identify(line, hello.name)
        return None

    def welcome(self) -> Welcome:
        """What an accepted side may know now."""
        methods = tuple(method.info for method in self._service.methods.values())
        return Welcome(self.core.slots, self.core.draining, self.limits.payload_bytes_max, methods, self.zone)

    async def accepted(self, transport: Transport) -> None:
        """Run one accepted connection to its end."""
        self._connections += 1
        try:
            await self._accepted(transport)
        finally:
            self._connections -= 1
            self._gone.unpark_all()

    async def _accepted(self, transport: Transport) -> None:
        if self._shape is None:
            await self._accepted_link(transport, None).run_accepted(transport)
            return
        with self._shape.line() as line:
            async with line.attach(transport) as shaped:
                await self._accepted_link(transport, line).run_accepted(shaped)

    def _accepted_link(self, transport: Transport, line: DelayLine | None) -> Link:
        return accepted_link(
            self._side,
            self,
            self._authenticator,
            welcome=self.welcome,
            admit=lambda hello: self.admit(hello, line),
            label=transport.peer,
            options=self._options,
        )

    # ---- the mesh ---------------------------------------------------------------------------------------------

    def _peer_link(self, replica: ReplicaAddress, admit: Admit) -> Link:
        return dialed_link(
            self._side,
            self,
            self._authenticator,
            label=replica.url,
            expected_name=replica.name,
            admit=admit,
            welcome=self.welcome,
            options=self._options,
        )

    async def _dial_peer(self, link: Link, url: str, name: str | None) -> None:
        def connect() -> AbstractAsyncContextManager[Transport]:
            return self._network.dial(url, timeout=self.limits.handshake_timeout)

        if self._shape is None:
            await link.run_dialer(connect)
            return
        with self._shape.line(name) as line:
            if name is None:
                self._lines[link] = line
            try:
                await link.run_dialer(lambda: line.dial(connect))
            finally:
                self._lines.pop(link, None)

    def shape(self) -> MeshShape:
        """Latency and blocks of what goes to its peers. Raises ``BadOption`` for a replica started without."""
        if self._shape is None:
            raise BadOption("mesh_latency: this replica was started without one, so its links can't be shaped")
        return self._shape

    async def _measure(self) -> None:
        """Tell the core, now and then, how long a notice takes to each peer."""
        while True:
            await trio.sleep(self.limits.report_interval)
            for name, link in list(self.mesh.items())[:LINKS_MAX]:
                round_trip = link.round_trip
                if round_trip is not None:
                    self._reception.take(NoticeLatencyMeasured(name, round_trip / 2))

    async def drain(self, timeout: float) -> None:
        """Finish what runs, at most ``timeout`` seconds, let the outboxes empty, and end every link for good.

        Returns once the connections are torn down, which each link does within a bound.

        A link that has heard everything ends with a Goodbye that says so: its other side then knows that a copy of
        which it heard nothing has never started.
        """
        self._reception.take(DrainRequested())
        with trio.move_on_after(timeout):
            await self.finished.wait()
        told: list[Link] = []

        async def flush(link: Link) -> None:
            if await link.flush(FLUSH_SECONDS):
                told.append(link)

        async with trio.open_nursery() as nursery:
            for link in list(self.links.values()):
                nursery.start_soon(flush, link)
        self.peers.end()
        for link in [*self.peers.dialed, *self.links.values()]:
            drained = self.finished.is_set() and link in told
            link.close(DRAINED if drained else "closed", "the replica has drained")
        with trio.move_on_after(GONE_SECONDS):
            while self._connections:
                await self._gone.park()

    def status(self) -> dict[str, Any]:
        """See ``Reception.status``."""
        return self._reception.status()
