"""A caller of the simulated world: executes what its calls' CallCores command, and decides nothing.

It does what a driver in a real process does: it keeps the table of replicas, turns messages into events, and wakes the
calls that asked for that. A frozen caller does none of it; when it wakes, the input of the stall comes before timers.

Not for what is called and when (``workload``).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any, Protocol

from tiedreq.core.call import CallCore, CallRequest, CallStats
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, GrantCredit, Outcome, SendCopy
from tiedreq.core.events import (
    CallerCancelled,
    CallEvent,
    CallRequested,
    CopyEnded,
    CopyStarted,
    CopyUnsent,
    FailureReceived,
    ItemReceived,
    ItemTaken,
    LinkLost,
    ReplicaAvailable,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.lessons import LearningBook
from tiedreq.core.limits import ClientLimits
from tiedreq.core.messages import Cancel, Credit, Draining, Ended, Failed, Goodbye, Item, Report, Result, Started
from tiedreq.core.names import new
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Policy
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import CallId, CopyId, Identity, Window
from tiedreq.sim.clock import NEVER, Clock, Entry
from tiedreq.sim.handlers import Streams
from tiedreq.sim.links import Connection, Direction, Opening, Parcel
from tiedreq.sim.network import Network
from tiedreq.sim.replica_node import CONTENT

TIME_PASSED = TimePassed()
CALL_REQUESTED = CallRequested()
STALE_MIN = 4_096
"""So many timers of ended calls are left to run out before they are cleared away."""


class OpenCall:
    """A call that has no outcome yet. ``tag`` is the workload's own."""

    __slots__ = ("core", "number", "outcome", "requested_at", "tag", "taken", "timer_at", "timers")

    def __init__(self, number: int, core: CallCore, now: float, tag: Any) -> None:
        self.number = number
        self.core = core
        self.requested_at = now
        self.tag = tag
        self.outcome: Outcome | None = None
        self.timer_at = NEVER
        self.timers = 0
        self.taken = 0


class Users(Protocol):
    """Those who make the calls."""

    def acceptable(self, caller: CallerNode, call: OpenCall, result: Result) -> bool:
        """The verdict on an answer."""

    def completed(self, caller: CallerNode, call: OpenCall, service_time: float) -> None:
        """A call has its outcome. ``service_time`` of the answer that was taken, in seconds; 0 without one."""


class CallerObserver(Protocol):
    """Who wants to see every step of every call."""

    def before_call(self, node: CallerNode, call: OpenCall, event: CallEvent) -> None:
        """A core is about to take ``event``."""

    def call(self, node: CallerNode, call: OpenCall, event: CallEvent, commands: list[CallCommand]) -> None:
        """A core has taken ``event`` and answered with ``commands``, which are about to be executed."""


class Trips(Protocol):
    """Who measures round trips."""

    def connected(self, caller: str, view: ReplicaView) -> None:
        """A caller has a new view of a replica."""


class CallerNode:
    """One client: its table of replicas, and its open calls by number."""

    identity: Identity
    table: ReplicaTable

    def __init__(
        self,
        name: str,
        network: Network,
        users: Users,
        meter: Trips,
        rng: Random,
        *,
        limits: ClientLimits,
        unsent: float,
        observer: CallerObserver | None,
        core: Callable[..., CallCore],
        picker: str = "two-choices",
        learns: bool = False,
        zone: str = "",
        streams: Streams | None = None,
    ) -> None:
        self.name = name
        self.zone = zone
        self.alive = False
        self.frozen = False
        self.frozen_until = 0.0
        self.generation = 0
        self.calls: dict[int, OpenCall] = {}
        self.stats = CallStats()
        self.clock: Clock = network.clock
        self._network = network
        self._users = users
        self._streams = streams if streams is not None else Streams()
        self._views: dict[int, ReplicaView] = {}
        self._meter = meter
        self._rng = rng
        self._limits = limits
        self._unsent = unsent
        self._observer = observer
        self._make_core = core
        self._picker = picker
        self._learns = learns
        self.learning: LearningBook | None = None
        self._links: dict[int, Direction] = {}
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._stale = 0
        self._timer_due_action = self._timer_due

    # ---- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new process: a new nonce, nothing known."""
        self.identity = Identity(self.name, self._rng.getrandbits(64))
        self.table = ReplicaTable(self._rng, self._picker, self.zone)
        self.learning = LearningBook(self._limits.lessons_max) if self._learns else None
        self._views.clear()
        self.generation += 1
        self.alive = True
        self.frozen = False

    def crash(self) -> list[OpenCall]:
        """End at once. Returns the calls that will never have an outcome."""
        self.alive = False
        self.frozen = False
        lost = list(self.calls.values())
        for call in lost:
            self._stale += call.timers
        self.calls.clear()
        self._inbox.clear()
        self._links.clear()
        self._network.crashed(self)
        return lost

    def freeze(self, seconds: float) -> None:
        """Stop everything for ``seconds``."""
        until = self.clock.now + seconds
        if not self.frozen or until > self.frozen_until:
            self.frozen = True
            self.frozen_until = until
            self.clock.at(until, self._wake, self.generation)

    def _wake(self, generation: int, _: None) -> None:
        if generation != self.generation or not self.frozen or self.clock.now < self.frozen_until:
            return
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for handle, arguments in inbox:
            handle(*arguments)

    # ---- what users do ----------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        policy: Policy,
        timeout: float,
        *,
        idempotent: bool,
        stoppable: bool = True,
        payload: bytes = b"",
        window: Window | None = None,
        tag: Any = None,
    ) -> OpenCall:
        """Make a call with ``timeout`` seconds for its outcome; with a ``window``, of a stream."""
        now = self.clock.now
        self._number = number = self._number + 1
        identity = new(CallId, (self.identity.incarnation, number))
        fields = (identity, method, idempotent, payload, policy, now + timeout, None, False, (), stoppable, window)
        core = (self._make_core if window is None else StreamCore)(
            new(CallRequest, fields),
            self.table,
            self.stats,
            rounds_max=self._limits.rounds_max,
            learning=self.learning,
        )
        self.calls[number] = call = OpenCall(number, core, now, tag)
        self._step(call, CALL_REQUESTED)
        return call

    def cancel(self, call: OpenCall) -> None:
        """The user no longer wants the call."""
        if call.outcome is None and call.number in self.calls:
            if self.frozen:
                self._inbox.append((self.cancel, (call,)))
            else:
                self._step(call, CallerCancelled())

    # ---- input ------------------------------------------------------------------------------------------------

    def receive(self, link: int, message: Parcel) -> None:
        """A message arrived over one of this caller's connections."""
        if self.frozen:
            self._inbox.append((self.receive, (link, message)))
            return
        kind = type(message)
        if kind is Started or kind is Result or kind is Ended or kind is Failed:
            self._about_copy(link, message)  # type: ignore[arg-type]  # as told by ``kind``, which is fast
        elif isinstance(message, Item):
            self._item(link, message)
        elif isinstance(message, Opening):
            self._opened(link, message)
        elif isinstance(message, Goodbye):
            self._network.said_goodbye(link, self, message.code)
        elif isinstance(message, Report):
            view = self._views.get(link)
            if view is not None:
                view.notice_latencies = dict(message.notice_latencies)
        else:
            assert isinstance(message, Draining), f"a caller was sent {message}"
            view = self._views.get(link)
            if view is not None:
                view.draining = True

    def _about_copy(self, link: int, message: Started | Result | Ended | Failed) -> None:
        view = self._views.get(link)
        load, copy = message.load, message.copy
        if view is not None and load is not None:
            view.take_load(load, self.clock.now)
        call = self.calls.get(copy[1])
        if call is None or copy[0] != self.identity[1]:
            return
        kind = type(message)
        if kind is Started:
            self._step(call, new(CopyStarted, (link, copy)))
        elif isinstance(message, Result):
            acceptable, service_time = self._users.acceptable(self, call, message), message.service_time
            event = new(ResultReceived, (link, copy, acceptable, service_time, message.queue_wait))
            self._step(call, event, service_time)
        elif isinstance(message, Ended):
            state, cause, hint = message.state, message.cause, message.retry_after
            self._step(call, CopyEnded(link, copy, state, cause, hint, message.service_time))
        elif isinstance(message, Failed):
            code, text, details, retryable = message.code, message.message, message.details, message.retryable
            self._step(call, FailureReceived(link, copy, code, text, details, retryable, message.service_time))

    def _item(self, link: int, item: Item) -> None:
        view, copy = self._views.get(link), item.copy
        if view is not None and item.load is not None:
            view.take_load(item.load, self.clock.now)
        call = self.calls.get(copy.number)
        if call is not None and copy.client == self.identity.incarnation:
            content, size = item.payload == CONTENT, len(item.payload)
            event = ItemReceived(link, copy, item.number, size, content, item.service_time, item.queue_wait)
            self._step(call, event)

    def _take_item(self, call: OpenCall, generation: int) -> None:
        """The user takes an item, if there still is a user."""
        core = call.core
        if call.outcome is not None or generation != self.generation or not isinstance(core, StreamCore):
            return
        if self.frozen:
            self.clock.at(self.frozen_until, self._take_item, call, generation)
        elif call.taken < core.items:
            call.taken += 1
            self._step(call, ItemTaken(len(CONTENT)))
            self._take_later(call)

    def _take_later(self, call: OpenCall) -> None:
        wait = self._streams.take_seconds()
        self.clock.at(self.clock.now + wait, self._take_item, call, self.generation)

    def _opened(self, link: int, opening: Opening) -> None:
        connection = opening.connection
        self._links[link] = connection.dialer.outgoing
        view = ReplicaView(link, connection.acceptor.identity, opening.welcome)
        self._views[link] = view
        self.table.add(view)
        self._meter.connected(self.name, view)
        for call in list(self.calls.values()):
            self._step(call, ReplicaAvailable())

    def accepted(self, connection: Connection) -> None:
        """Callers dial and are never dialed."""
        raise AssertionError(f"{self.name} was dialed")

    def lost(self, link: int, *, drained: bool) -> None:
        """This end has learnt that a connection is gone."""
        if self.frozen:
            self._inbox.append((self._lost, (link, drained)))
        else:
            self._lost(link, drained)

    def _lost(self, link: int, drained: bool) -> None:
        if self._links.pop(link, None) is None:
            return
        self._views.pop(link, None)
        self.table.remove(link)
        for call in list(self.calls.values()):
            self._step(call, LinkLost(link, drained))

    # ---- the core ---------------------------------------------------------------------------------------------

    def _step(self, call: OpenCall, event: CallEvent, service_time: float = 0.0) -> None:
        core = call.core
        if self._observer is None:
            commands = core.step(event, self.clock.now)
        else:
            self._observer.before_call(self, call, event)
            commands = core.step(event, self.clock.now)
            self._observer.call(self, call, event, commands)
        if commands:
            self._execute(call, commands, service_time)
        if call.outcome is None:
            wake_at = core.wake_at
            if wake_at < call.timer_at:
                self._set_timer(call, wake_at)

    def _execute(self, call: OpenCall, commands: list[CallCommand], service_time: float) -> None:
        links = self._links
        unsent: list[CopyId] = []
        for command in commands:
            if isinstance(command, SendCopy):
                link, submit = command
                direction = links.get(link)
                if direction is None or (self._unsent and self._rng.random() < self._unsent):
                    unsent.append(submit.copy)
                else:
                    direction.send(submit)
            elif isinstance(command, CompleteCall):
                self._complete(call, command.outcome, service_time)
            elif isinstance(command, CancelCopy):
                direction = links.get(command.link)
                if direction is not None:
                    direction.send(Cancel(command.copy))
            elif isinstance(command, GrantCredit):
                direction = links.get(command.link)
                if direction is not None:
                    direction.send(Credit(command.copy, command.items, command.bytes))
            else:
                self._take_later(call)
        for copy in unsent:
            self._step(call, CopyUnsent(copy))

    def _complete(self, call: OpenCall, outcome: Outcome, service_time: float) -> None:
        if call.outcome is None:
            call.outcome = outcome
            self.calls.pop(call.number, None)
            self._stale += call.timers
            self._users.completed(self, call, service_time)

    # ---- timers -----------------------------------------------------------------------------------------------

    def _set_timer(self, call: OpenCall, when: float) -> None:
        """Wake the call then. The clock knows it by its number, so that nothing is left of a call that has ended."""
        clock = self.clock
        call.timers += 1
        if when > clock.now:
            call.timer_at = when
            heappush(clock.entries, (when, clock.number(), self._timer_due_action, call.number, None))
        else:
            call.timer_at = clock.now
            clock.at(clock.now, self._timer_due_action, call.number)
        if self._stale > STALE_MIN and 2 * self._stale > len(clock.entries):
            self._stale = 0
            clock.forget(self._is_stale)

    def _is_stale(self, entry: Entry) -> bool:
        return entry[2] == self._timer_due_action and entry[3] not in self.calls

    def _timer_due(self, number: int, _: None) -> None:
        call = self.calls.get(number)
        if call is None:
            self._stale -= 1
            return
        call.timers -= 1
        now = self.clock.now
        if now != call.timer_at:
            return
        call.timer_at = NEVER
        if self.frozen:
            self._set_timer(call, self.frozen_until)
        else:
            wake_at = call.core.wake_at
            if wake_at <= now:
                self._step(call, TIME_PASSED)
            else:
                self._set_timer(call, wake_at)
