"""A replica of the simulated world: executes what its ReplicaCore commands, and decides nothing.

It does what a driver in a real process does: it turns messages into events, ends every instant's batch of input with
``InputSettled``, wakes the core when it asked for that, and runs handlers as stretches of virtual time. A frozen
replica does none of it; when it wakes, the input of the stall is handled before slots are filled.

Not for what handlers do and how long they take (``workload``), nor for when a replica crashes (``faults``).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any, Protocol

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
from tiedreq.core.events import (
    Answer,
    CallerConnected,
    CallerLost,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    CreditReceived,
    DrainRequested,
    Fault,
    InputSettled,
    ItemProduced,
    PeerClaimed,
    PeerConnected,
    PeerLost,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    StopEnabled,
    SubmitReceived,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import (
    Cancel,
    Claim,
    Credit,
    Denied,
    Draining,
    Goodbye,
    Granted,
    Next,
    Started,
    Submit,
    Welcome,
)
from tiedreq.core.names import new
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import CopyId, Identity
from tiedreq.sim.clock import NEVER, Clock
from tiedreq.sim.handlers import Execution, Handlers, Streams
from tiedreq.sim.links import Connection, Direction, Opening, Parcel
from tiedreq.sim.network import Network

INPUT_SETTLED = InputSettled()
TIME_PASSED = TimePassed()
CONTENT, PREAMBLE = b"x", b"\xc0"
"""Payloads of items. They are of one size."""


class ReplicaObserver(Protocol):
    """Who wants to see every step of every replica."""

    def before_replica(self, node: ReplicaNode, event: ReplicaEvent) -> None:
        """A core is about to take ``event``."""

    def replica(self, node: ReplicaNode, event: ReplicaEvent, commands: list[ReplicaCommand]) -> None:
        """A core has taken ``event`` and answered with ``commands``, which are about to be executed."""

    def fault(self, what: str, node: str, detail: str) -> None:
        """Something was done to a node: ``crash``, ``restart``, ``freeze``, ``drain``; or it has ``left``."""


class ReplicaNode:
    """One replica by name, through all its incarnations. ``core`` is that of the present one."""

    core: ReplicaCore
    identity: Identity

    def __init__(
        self,
        name: str,
        network: Network,
        handlers: Handlers,
        rng: Random,
        *,
        methods: tuple[HeldMethod, ...],
        slots: int,
        limits: ReplicaLimits,
        observer: ReplicaObserver | None,
        core: Callable[..., ReplicaCore],
        zone: str = "",
        streams: Streams | None = None,
    ) -> None:
        self.name = name
        self.zone = zone
        self.alive = False
        self.frozen = False
        self.frozen_until = 0.0
        self.leaving = False
        self.generation = 0
        self.slots = slots
        self.executions: dict[CopyId, Execution] = {}
        self.peers: dict[int, str] = {}
        self.clock: Clock = network.clock
        self._network = network
        self._handlers = handlers
        self._streams = streams if streams is not None else Streams()
        self._rng = rng
        self._methods = methods
        self._stoppable = {method.info.name: method.info.stoppable for method in methods}
        self._limits = limits
        self._observer = observer
        self._make_core = core
        self._links: dict[int, Direction] = {}
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._unsettled = False
        self._timer_at = NEVER
        # Bound once: they are put on the clock again and again.
        self._work_due_action = self._work_due
        self._settle_action = self._settle

    # ---- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a new incarnation, with nothing remembered."""
        self.identity = Identity(self.name, self._rng.getrandbits(64))
        self.core = self._make_core(self.identity, self._methods, slots=self.slots, limits=self._limits)
        self.generation += 1
        self.alive = True
        self.frozen = False
        self.leaving = False
        self._timer_at = NEVER

    def crash(self) -> None:
        """End at once: running handlers, copies and links are gone, and nobody is told."""
        self._die()
        self._network.crashed(self)

    def drain(self) -> None:
        """Ask for an orderly end. ``leaving`` is True from now on, also while a frozen replica hasn't heard of it."""
        self.leaving = True
        self._take(self.step, DrainRequested())

    def freeze(self, seconds: float) -> None:
        """Stop everything, running handlers too, for ``seconds``."""
        now = self.clock.now
        until = now + seconds
        longer = until - max(now, self.frozen_until)
        if longer <= 0:
            return
        self.frozen = True
        self.frozen_until = until
        for execution in self.executions.values():
            execution.finish_at += longer
        self.clock.at(until, self._wake, self.generation)

    def _die(self) -> None:
        self.alive = False
        self.frozen = False
        self._inbox.clear()
        for execution in self.executions.values():
            execution.ended = True
            self._handlers.stopped(self, execution)
        self.executions.clear()
        self._links.clear()
        self.peers.clear()

    def _wake(self, generation: int, _: None) -> None:
        if generation != self.generation or not self.frozen or self.clock.now < self.frozen_until:
            return
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for handle, arguments in inbox:
            handle(*arguments)
        self._settle_later()

    def _take(self, handle: Callable[..., None], *arguments: Any) -> None:
        """Handle something now, or when the replica wakes."""
        if self.frozen:
            self._inbox.append((handle, arguments))
        elif self.alive:
            handle(*arguments)

    # ---- input ------------------------------------------------------------------------------------------------

    def receive(self, link: int, message: Parcel) -> None:
        """A message arrived over one of this replica's connections."""
        if self.frozen:
            self._inbox.append((self.receive, (link, message)))
            return
        kind = type(message)
        event: ReplicaEvent
        if kind is Submit:
            event = new(SubmitReceived, (link, message))
        elif isinstance(message, Started):
            event = new(PeerStarted, (link, message.copy, message.remaining))
        elif isinstance(message, Cancel):
            event = CancelReceived(link, message.copy)
        elif isinstance(message, Credit):
            event = CreditReceived(link, message.copy, message.items, message.bytes)
        elif isinstance(message, Next):
            event = PeerNext(link, message.copy, message.remaining)
        elif isinstance(message, Claim):
            event = PeerClaimed(link, message.copy, message.arbiter, message.claimant)
        elif isinstance(message, Granted):
            event = ClaimGranted(link, message.copy)
        elif isinstance(message, Denied):
            event = ClaimDenied(link, message.copy, message.started)
        else:
            self._receive_of_link(link, message)
            return
        self.step(event)

    def _receive_of_link(self, link: int, message: Parcel) -> None:
        """What is not for the core: the begin and the end of a connection."""
        if isinstance(message, Opening):
            end = message.connection.acceptor
            self._peer_connected(link, end.identity, message.connection.dialer.outgoing)
        elif isinstance(message, Goodbye):
            self._network.said_goodbye(link, self, message.code)
        else:
            assert isinstance(message, Draining), f"a replica was sent {message}"

    def accepted(self, connection: Connection) -> None:
        """A caller's or a peer's connection is up here."""
        link, end, other = connection.link, connection.acceptor, connection.dialer
        infos = tuple(method.info for method in self._methods)
        end.outgoing.send(
            Opening(
                connection, Welcome(self.slots, self.core.draining, self._limits.payload_bytes_max, infos, self.zone)
            )
        )
        if isinstance(other.node, ReplicaNode):
            self._peer_connected(link, other.identity, end.outgoing)
        else:
            self._links[link] = end.outgoing
            self.step(CallerConnected(link, other.identity.incarnation))

    def _peer_connected(self, link: int, peer: Identity, outgoing: Direction) -> None:
        self._links[link] = outgoing
        self.peers[link] = peer.name
        self.step(PeerConnected(link, peer))

    def lost(self, link: int, *, drained: bool) -> None:
        """This end has learnt that a connection is gone."""
        self._take(self._lost, link)

    def _lost(self, link: int) -> None:
        if self._links.pop(link, None) is None:
            return
        self.step(PeerLost(link) if self.peers.pop(link, None) is not None else CallerLost(link))

    # ---- the core ---------------------------------------------------------------------------------------------

    def step(self, event: ReplicaEvent) -> None:
        """Give the core an event, and do what it says."""
        if not self._unsettled:
            self._unsettled = True
            self.clock.ending.append(self._settle_action)
        if self._observer is not None:
            self._watched_step(event)
            return
        commands = self.core.step(event, self.clock.now)
        if commands:
            self._execute(commands)

    def _watched_step(self, event: ReplicaEvent) -> None:
        assert self._observer is not None
        self._observer.before_replica(self, event)
        commands = self.core.step(event, self.clock.now)
        self._observer.replica(self, event, commands)
        if commands:
            self._execute(commands)

    def _settle_later(self) -> None:
        if not self._unsettled:
            self._unsettled = True
            self.clock.ending.append(self._settle_action)

    def _settle(self) -> None:
        """End this instant's batch of input."""
        self._unsettled = False
        if not self.alive or self.frozen:
            return
        core = self.core
        if self._observer is not None:
            self._watched_step(INPUT_SETTLED)
        elif not core.settled:
            commands = core.step(INPUT_SETTLED, self.clock.now)
            if commands:
                self._execute(commands)
        if core.alarm < self._timer_at:
            wake_at = core.wake_at
            if wake_at is not None and wake_at < self._timer_at:
                self._timer_at = max(wake_at, self.clock.now)
                self.clock.at(wake_at, self._timer_due, self._timer_at)

    def _timer_due(self, due: float, _: None) -> None:
        if due != self._timer_at or not self.alive:
            return
        now = self.clock.now
        if self.frozen:
            self._timer_at = self.frozen_until
            self.clock.at(self.frozen_until, self._timer_due, self.frozen_until)
            return
        self._timer_at = NEVER
        wake_at = self.core.wake_at
        if wake_at is not None and wake_at <= now:
            self.step(TIME_PASSED)
        else:
            self._settle_later()

    def _execute(self, commands: list[ReplicaCommand]) -> None:
        links = self._links
        for command in commands:
            if isinstance(command, SendCaller):
                link, message = command
                direction = links.get(link)
                if direction is not None:
                    direction.send(message)
            elif isinstance(command, StartWork):
                self._start_work(command.submit)
            elif isinstance(command, SendPeer):
                direction = links.get(command.link)
                if direction is not None:
                    direction.send(command.message)
            elif isinstance(command, StopWork):
                self._stop_work(command.copy)
            elif isinstance(command, PauseWork):
                self.executions[command.copy].paused = True
            elif isinstance(command, ResumeWork):
                self._resume_work(self.executions[command.copy])
            else:
                assert isinstance(command, FinishDrain)
                self.clock.at(self.clock.now, self._leave, self.generation)

    # ---- handlers ---------------------------------------------------------------------------------------------

    def _start_work(self, submit: Submit) -> None:
        clock = self.clock
        seconds = self._handlers.begin(self, submit)
        stoppable = self._stoppable[submit.method]
        execution = Execution(submit, clock.now, seconds, stoppable)
        self.executions[submit.copy] = execution
        if submit.window is not None:
            execution.plan = self._streams.plan(self, submit)
        if execution.finish_at > clock.now:
            heappush(clock.entries, (execution.finish_at, clock.number(), self._work_due_action, execution, None))
        else:
            clock.at(clock.now, self._work_due_action, execution)
        if not stoppable:
            wait = self._handlers.becomes_stoppable(self, submit)
            if wait is not None:
                clock.at(clock.now + wait, self._stop_enabled, execution)

    def finish(self, execution: Execution) -> None:
        """Let a handler come to its end now, or when the replica wakes."""
        execution.finish_at = self.frozen_until if self.frozen else self.clock.now
        self.clock.at(execution.finish_at, self._work_due_action, execution)

    def enable_stop(self, execution: Execution) -> None:
        """Let a handler in a thread say now how it can be stopped."""
        self._stop_enabled(execution, None)

    def _stop_enabled(self, execution: Execution, _: None) -> None:
        if execution.ended or execution.stoppable:
            return
        if self.frozen:
            self.clock.at(self.frozen_until, self._stop_enabled, execution)
            return
        execution.stoppable = True
        self.step(StopEnabled(execution.submit.copy))
        if execution.stop_asked:
            self._stop_work(execution.submit.copy)

    def _stop_work(self, copy: CopyId) -> None:
        execution = self.executions.get(copy)
        if execution is None or execution.stopping:
            return
        execution.stop_asked = True
        if not execution.stoppable:
            return
        clock = self.clock
        execution.stopping = True
        execution.finish_at = min(execution.finish_at, clock.now + self._handlers.stop_seconds(self, execution))
        clock.at(execution.finish_at, self._work_due_action, execution)

    def _resume_work(self, execution: Execution) -> None:
        execution.paused = False
        if not execution.stopping:
            self._next_stage(execution)

    def _next_stage(self, execution: Execution) -> None:
        """When the next item of a stream is due, or its end."""
        wait = execution.plan[0].seconds if execution.plan else 0.0
        execution.finish_at = self.clock.now + wait
        self.clock.at(execution.finish_at, self._work_due_action, execution)

    def _yield_item(self, execution: Execution) -> None:
        execution.finish_at = NEVER
        stage = execution.plan.pop(0)
        self.step(ItemProduced(execution.submit.copy, CONTENT if stage.content else PREAMBLE, stage.content))
        if not (execution.paused or execution.ended or execution.stopping):
            self._next_stage(execution)

    def _work_due(self, execution: Execution, _: None) -> None:
        if execution.ended:
            return
        if execution.finish_at > self.clock.now:
            if execution.finish_at < NEVER:
                self.clock.at(execution.finish_at, self._work_due_action, execution)
            return
        if execution.plan and not execution.stopping:
            self._yield_item(execution)
            return
        execution.ended = True
        copy = execution.submit.copy
        del self.executions[copy]
        outcome: Answer | Fault | None = None
        if execution.stopping:
            self._handlers.stopped(self, execution)
        else:
            outcome = self._handlers.end(self, execution)
        self.step(new(WorkFinished, (copy, outcome)))

    def _leave(self, generation: int, _: None) -> None:
        """The drain is over: flush what was sent, and be gone."""
        if generation == self.generation and self.alive:
            self._network.leave(self)
            if self._observer is not None:
                self._observer.fault("left", self.name, str(self.identity))
            self._die()
