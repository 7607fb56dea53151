"""Where a replica's copies are: the synchronous middle between its links, its core, and its handlers.

Data flow: link -> messages -> events -> ``ReplicaCore`` -> commands -> executions and links. Nothing here waits:
``net.server`` has what does.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import trio

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
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import CancelReceived, CreditReceived, InputSettled, ReplicaEvent, SubmitReceived, TimePassed
from tiedreq.core.messages import Cancel, Credit, Failed, Inquiry, Message, Result, Status, Submit
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import CopyId, CopyState, Identity
from tiedreq.net.peer_news import peer_events
from tiedreq.net.sending import Sending
from tiedreq.observe.stories import HEARD, SENT
from tiedreq.wire.payload import encode_payload

if TYPE_CHECKING:
    from tiedreq.net.executions import Executions
    from tiedreq.net.link import Link
    from tiedreq.net.mesh import Mesh
    from tiedreq.observe.replica import ReplicaObserver

RECENT_SOJOURNS_MAX = 2048


class Reception:
    """Gives a replica's core what happens, and carries out what it decides.

    ``executions`` is to be set before the first event. ``unsettled`` is called when input is to be settled soon,
    ``sooner`` when the core wants to be woken earlier than at ``waking_at``, ``finished`` when a drain is done.
    """

    executions: Executions

    def __init__(
        self,
        core: ReplicaCore,
        identity: Identity,
        zone: str,
        peers: Mesh,
        unsettled: Callable[[], object],
        sooner: Callable[[], object],
        finished: Callable[[], object],
    ) -> None:
        self.core = core
        self.identity = identity
        self.zone = zone
        self.links: dict[int, Link] = {}
        self.observer: ReplicaObserver | None = None
        self.waking_at = math.inf
        """When the core will be woken, as far as that was asked for."""
        self._ways: dict[int, Sending] = {}
        self._names: dict[int, str] = {}
        self._fed_at = 0.0
        self._peers = peers
        self._unsettled = unsettled
        self._sooner = sooner
        self._finished = finished
        self._events: deque[ReplicaEvent] = deque()
        self._processing = False
        self._sojourns: deque[float] = deque(maxlen=RECENT_SOJOURNS_MAX)
        self._messages = 0

    # ---- core and commands ------------------------------------------------------------------------------------

    def take(self, event: ReplicaEvent) -> None:
        """Give an event from outside to the core; slots are filled once this pass of the scheduler is over."""
        self._feed((event,))
        if not self.core.settled:
            self._unsettled()

    def settle(self) -> None:
        """All input of a pass has been given to the core: let it fill its slots."""
        self._feed((InputSettled(),))

    def time_passed(self) -> None:
        """The time that the core named has come."""
        self.take(TimePassed())

    def way(self, copy: CopyId) -> Link | None:
        """The link to the caller of a live copy."""
        link_id = self.core.caller_link(copy)
        return self.links.get(link_id) if link_id is not None else None

    def _feed(self, events: Iterable[ReplicaEvent]) -> None:
        """Give events to the core, one after another, and carry out its commands.

        An event that one of them causes comes before the next; one that arises while commands are carried out waits.
        """
        waiting = self._events
        if self._processing:
            waiting.extend(events)
            return
        self._processing = True
        core, observer = self.core, self.observer
        now = self._fed_at = trio.current_time()
        try:
            for event in events:
                waiting.appendleft(event)
                while waiting:
                    for command in core.step(waiting.popleft(), now):
                        self._execute(command, now)
        finally:
            self._processing = False
            if observer is not None and len(observer.retired) + len(observer.notes) >= observer.due:
                observer.digest()
        wake_at = core.wake_at
        if wake_at is not None and wake_at < self.waking_at:
            self.waking_at = wake_at
            self._sooner()

    def _execute(self, command: ReplicaCommand, now: float) -> None:
        if type(command) is SendCaller:
            way, message = self._ways.get(command.link), command.message
            if way is not None:
                if type(message) is Result or type(message) is Failed:
                    self._sojourns.append(message.queue_wait + message.service_time)
                self._messages += way.send(message)
        elif type(command) is SendPeer:
            way = self._ways.get(command.link)
            if way is not None:
                self._messages += way.send(command.message)
                if self.observer is not None:
                    self.observer.notes.append((now, self._names[command.link], (command.message,), SENT))
        elif type(command) is StartWork:
            self.executions.start(command)
        elif type(command) is StopWork:
            self.executions.stop(command)
        elif type(command) is PauseWork:
            self.executions.pause(command.copy)
        elif type(command) is ResumeWork:
            self.executions.resume(command.copy)
        elif type(command) is FinishDrain:
            self._finished()

    # ---- links ------------------------------------------------------------------------------------------------

    def linked(self, link_id: int, link: Link) -> None:
        """A link is up."""
        self.links[link_id] = link
        self._ways[link_id] = link.sending
        self._names[link_id] = "" if link.peer is None else link.peer.name

    def lost(self, link_id: int) -> None:
        """It is no more."""
        self.links.pop(link_id, None)
        self._ways.pop(link_id, None)
        self._names.pop(link_id, None)

    def heard(self, link: Link, messages: list[Message]) -> None:
        """What a caller or a peer said, in one frame."""
        peer, observer = link.peer, self.observer
        if peer is not None and peer.role == "client":
            self._messages += len(messages)
            events, observer = self._caller_events(link, messages), None
        else:
            events = peer_events(link.id, messages)
        try:
            self._feed(events)
        except RemoteViolation as violation:
            link.drop("protocol", str(violation))
        else:
            if observer is not None:
                observer.notes.append((self._fed_at, "" if peer is None else peer.name, messages, HEARD))
        if not self.core.settled:
            self._unsettled()

    def _caller_events(self, link: Link, messages: list[Message]) -> Iterator[ReplicaEvent]:
        """What a caller's messages mean to the core. Raises ``RemoteViolation`` for what callers don't send."""
        link_id = link.id
        for message in messages:
            if type(message) is Submit:
                if self._peers.on_use and message.partners:
                    self._peers.use(message.partners, message.remaining)
                yield SubmitReceived(link_id, message)
            elif type(message) is Credit:
                yield CreditReceived(link_id, message.copy, message.items, message.bytes)
            elif type(message) is Cancel:
                yield CancelReceived(link_id, message.copy)
            elif type(message) is Inquiry:
                told = self.observer.told(message.about) if self.observer is not None else None
                link.send(Status(message.number, encode_payload(told or self.status())))
            else:
                raise RemoteViolation(f"{type(message).__name__} from a client")

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
            "links": self._peers.link_views(),
            "mesh": self._peers.view(),
        }


def _quantile_ms(ordered: list[float], share: float) -> float | None:
    return 1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
