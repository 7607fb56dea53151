"""A replica: links in, ``ReplicaCore`` in the middle, handlers and links out.

Data flow: link -> messages -> events -> core -> commands -> executor and links. All input that is read in one pass of
the scheduler is given to the core before slots are filled (``InputSettled``): the settling task is woken by the first
event of a pass and runs in the next.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.commands import (
    FinishDrain,
    PauseWork,
    ReplicaCommand,
    ResumeWork,
    SendCaller,
    SendPeer,
    StartWork,
    StopWork,
)
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.events import (
    CallerConnected,
    CallerLost,
    CancelReceived,
    CreditReceived,
    DrainRequested,
    InputSettled,
    NoticeLatencyMeasured,
    PeerConnected,
    PeerLost,
    ReplicaEvent,
    SubmitReceived,
    TimePassed,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.link import Admit
from tiedreq.core.link_options import LinkSide, LinkTiming
from tiedreq.core.link_rules import DRAINED
from tiedreq.core.messages import (
    Cancel,
    Credit,
    Failed,
    Hello,
    Inquiry,
    Message,
    Result,
    Status,
    Submit,
    Welcome,
)
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import CopyId, CopyState, Identity
from tiedreq.errors import ConnectError
from tiedreq.net.bell import Bell
from tiedreq.net.executor import Executor
from tiedreq.net.frames import Unfinished
from tiedreq.net.link import Link, accepted_link, dialed_link
from tiedreq.net.link_owner import LinkDown, LinkOptions, LinkOwner, LinkUp
from tiedreq.net.mesh import LINKS_MAX, Mesh
from tiedreq.net.mesh_shape import MeshShape
from tiedreq.net.network import Network
from tiedreq.net.outbox import OutboxLimits
from tiedreq.net.peer_news import peer_events
from tiedreq.net.shaping import DelayLine
from tiedreq.net.transport import Transport
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.service import Service
from tiedreq.units import LatencySpec
from tiedreq.wire.limits import wire_limits
from tiedreq.wire.payload import encode_payload
from tiedreq.wire.proof import TokenAuthenticator

log = logging.getLogger("tiedreq.replica")

RECENT_SOJOURNS_MAX = 2048
FLUSH_SECONDS = 1.0


class ReplicaServer(LinkOwner):
    """One replica of a service. ``serve()`` makes and runs it; users hold its ``ReplicaHandle``."""

    observer: ReplicaObserver | None = None

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
        self.links: dict[int, Link] = {}
        self._service = service
        self._side = LinkSide(cluster, "replica", identity.name, identity.incarnation)
        self._authenticator = TokenAuthenticator.of(token)
        self._network = network
        self._shape = None if mesh_latency is None else MeshShape(identity.name, mesh_latency, zone)
        self._nursery = nursery
        self._wire = wire_limits(limits.payload_bytes_max)
        self._options = LinkOptions(
            timing=LinkTiming(
                heartbeat_interval=limits.heartbeat_interval,
                heartbeat_misses=limits.heartbeat_misses_max,
                handshake_timeout=limits.handshake_timeout,
            ),
            outbox=OutboxLimits(
                messages_max=limits.outbox_messages_max,
                bytes_max=limits.outbox_bytes_max,
                bulk_bytes_max=limits.outbox_bytes_max,
            ),
            wire=self._wire,
            when_full="close",
            unfinished=Unfinished(max(limits.unfinished_bytes_max, self._wire.chunk_total_bytes_max)),
        )
        self._connections = 0
        self._gone = trio.lowlevel.ParkingLot()
        self.peers = Mesh(identity, limits, nursery, self._peer_link, self._dial_peer)
        self.mesh = self.peers.links
        self._lines: dict[Link, DelayLine] = {}  # of links to those whose name is not known yet
        self._events: deque[ReplicaEvent] = deque()
        self._processing = False
        self._settle_bell = Bell()
        self._timer_bell = Bell()
        self._waking_at = math.inf
        self._sojourns: deque[float] = deque(maxlen=RECENT_SOJOURNS_MAX)
        self._messages = 0
        methods = [HeldMethod(method.info, method.slots) for method in service.methods.values()]
        self.core = ReplicaCore(identity, methods, slots=slots, limits=limits)
        self.executor = Executor(
            service,
            replica=identity.name,
            slots=slots,
            state=state,
            nursery=nursery,
            feed=self._take,
            way=self._way,
            limits=self._wire,
            bell=self._settle_bell,
            settled=lambda: self.feed(InputSettled()),
            debug=debug,
        )

    # ---- core and commands ------------------------------------------------------------------------------------

    def feed(self, event: ReplicaEvent) -> None:
        """Give one event to the core and carry out its commands; an event that arises meanwhile waits its turn."""
        self._feed_all((event,))

    def _feed_all(self, events: Iterable[ReplicaEvent]) -> None:
        """Give events to the core, one after another; an event that one of them causes comes before the next."""
        waiting = self._events
        if self._processing:
            waiting.extend(events)
            return
        self._processing = True
        core, observer = self.core, self.observer
        now = trio.current_time()
        try:
            for event in events:
                waiting.appendleft(event)
                while waiting:
                    event = waiting.popleft()
                    commands = core.step(event, now)
                    for command in commands:
                        self._execute(command)
        finally:
            self._processing = False
            if observer is not None and len(observer.retired) + len(observer.said) != observer.timed:
                observer.frame_over(now)
        wake_at = core.wake_at
        if wake_at is not None and wake_at < self._waking_at:
            self._waking_at = wake_at
            self._timer_bell.ring()

    def _execute(self, command: ReplicaCommand) -> None:
        kind = type(command)
        if kind is SendCaller or kind is SendPeer:
            link = self.links.get(command.link)  # type: ignore[union-attr]
            if link is not None:
                self._send(link, command.message)  # type: ignore[union-attr]
                if kind is SendPeer and self.observer is not None:
                    self.observer.said.append((link, command.message))  # type: ignore[union-attr]
        elif isinstance(command, StartWork):
            self.executor.start(command)
        elif isinstance(command, StopWork):
            self.executor.stop(command)
        elif isinstance(command, PauseWork):
            self.executor.pause(command.copy)
        elif isinstance(command, ResumeWork):
            self.executor.resume(command.copy)
        elif isinstance(command, FinishDrain):
            self.finished.set()

    def _send(self, link: Link, message: Message) -> None:
        if type(message) is Result or type(message) is Failed:
            self._sojourns.append(message.queue_wait + message.service_time)
        self._messages += link.send(message)

    async def settle(self) -> None:
        """The task that ends each batch of input, and begins what starts then."""
        await self.executor.run()

    async def keep_time(self) -> None:
        """The one timer task of the core."""
        while True:
            wake_at = self.core.wake_at
            self._waking_at = math.inf if wake_at is None else wake_at
            with trio.CancelScope(deadline=self._waking_at):
                await self._timer_bell.wait()
                continue
            self._take(TimePassed())

    def _take(self, event: ReplicaEvent) -> None:
        """Give an event from outside to the core; slots are filled once this pass of the scheduler is over."""
        self.feed(event)
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self.core.settled:
            self._settle_bell.ring()

    def _way(self, copy: CopyId) -> Link | None:
        """The link to the caller of a live copy."""
        link_id = self.core.caller_link(copy)
        return self.links.get(link_id) if link_id is not None else None

    # ---- links ------------------------------------------------------------------------------------------------

    def on_up(self, link: Link, up: LinkUp) -> None:
        """See ``LinkOwner``."""
        self.links[up.link_id] = link
        peer = up.peer
        if peer.role == "client":
            self._take(CallerConnected(up.link_id, peer.incarnation))
            return
        link.when_full = "shed"
        line = self._lines.get(link)
        if line is not None and self._shape is not None:
            self._shape.identify(line, peer.name)
        if self._shape is not None and up.welcome is not None:
            self._shape.locate(peer.name, up.welcome.zone)
        self.peers.came_up(link, peer.name)
        self._take(PeerConnected(up.link_id, Identity(peer.name, peer.incarnation)))

    def on_down(self, link: Link, down: LinkDown) -> None:
        """See ``LinkOwner``."""
        self.links.pop(down.link_id, None)
        peer = link.peer
        if self.observer is not None:
            self.observer.digest()  # while the link still knows its peer
        if peer is not None and peer.role == "replica":
            self.peers.went_down(link, peer.name, down)
            self._take(PeerLost(down.link_id))
        else:
            self._take(CallerLost(down.link_id))

    def on_failure(self, link: Link, error: ConnectError) -> None:
        """See ``LinkOwner``."""
        self.peers.failed(link, error)

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """See ``LinkOwner``."""
        peer = link.peer
        if peer is not None and peer.role == "client":
            self._messages += len(messages)
            events = self._caller_events(link, messages)
        else:
            events = peer_events(link.id, messages)
            if peer is not None and self.observer is not None:
                self.observer.hear(peer.name, messages)
        try:
            self._feed_all(events)
        except RemoteViolation as violation:
            link.drop("protocol", str(violation))
        self._settle_soon()

    def _caller_events(self, link: Link, messages: list[Message]) -> Iterator[ReplicaEvent]:
        """What a caller's messages mean to the core. Raises ``RemoteViolation`` for what callers don't send."""
        link_id = link.id
        for message in messages:
            if type(message) is Submit:
                if self.peers.on_use and message.partners:
                    self.peers.use(message.partners, message.remaining)
                yield SubmitReceived(link_id, message)
            elif type(message) is Credit:
                yield CreditReceived(link_id, *message)
            elif type(message) is Cancel:
                yield CancelReceived(link_id, message.copy)
            elif isinstance(message, Inquiry):
                told = self.observer.told(message.about) if self.observer is not None else None
                link.send(Status(message.number, encode_payload(told or self.status())))
            else:
                raise RemoteViolation(f"{type(message).__name__} from a client")

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

    async def measure(self) -> None:
        """Tell the core, now and then, how long a notice takes to each peer."""
        while True:
            await trio.sleep(self.limits.report_interval)
            for name, link in list(self.mesh.items())[:LINKS_MAX]:
                round_trip = link.round_trip
                if round_trip is not None:
                    self._take(NoticeLatencyMeasured(name, round_trip / 2))

    async def drain(self, timeout: float) -> None:
        """Finish what runs, at most ``timeout`` seconds, let the outboxes empty, and end every link for good.

        A link that has heard everything ends with a Goodbye that says so: its other side then knows that a copy of
        which it heard nothing has never started.
        """
        self._take(DrainRequested())
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

    async def all_links_gone(self) -> None:
        """Wait until the connections are torn down, which each link does within a bound."""
        while self._connections:
            await self._gone.park()

    # ---- what can be seen -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """A picture of this replica as plain values: counters since its start, gauges, links. JSON can carry it.

        ``messages`` counts those to peers and to and from callers: summed over replicas, each message once.
        ``cpu_seconds`` is the processor time of this process.
        """
        core, stats = self.core, self.core.stats
        sojourns = sorted(self._sojourns)
        return {
            "name": self.identity.name,
            "incarnation": f"{self.identity.incarnation:016x}",
            "zone": self.zone,
            "pid": os.getpid(),
            "draining": core.draining,
            "slots": core.slots,
            "queue": core.queue_length,
            "running": core.running,
            "free": core.free_slots,
            "calls": stats.submitted,
            "started": stats.started,
            "done": stats.done,
            "failed": stats.failed,
            "dropped_by_peer": stats.ended(CopyState.DROPPED),
            "yielded": stats.ended(CopyState.YIELDED),
            "cancelled": stats.ended(CopyState.CANCELLED),
            "expired": stats.ended(CopyState.EXPIRED),
            "refused": stats.ended(CopyState.REFUSED),
            "double_starts": stats.double_starts,
            "notices": stats.notices,
            "late_notices": stats.late_notices,
            "busy_seconds": stats.busy_seconds,
            "wasted_seconds": stats.wasted_seconds,
            "items": stats.items,
            "items_wasted": stats.items_wasted,
            "messages": self._messages,
            "cpu_seconds": time.process_time(),
            "p50_ms": _quantile_ms(sojourns, 0.50),
            "p99_ms": _quantile_ms(sojourns, 0.99),
            "callers": core.sizes()["callers"],
            "links": self.peers.link_views(),
            "mesh": self.peers.view(),
        }


def _quantile_ms(ordered: list[float], share: float) -> float | None:
    return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
