"""Where a client's open calls are: the synchronous middle between its user, the cores of its calls, and its links.

Data flow: link -> messages -> events -> ``CallCore`` -> commands -> links, or the waiting task. Nothing here waits:
``net.client`` has what does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from tiedreq.core.call import CallCore
from tiedreq.core.call_stats import CallStats
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, DeliverItems, GrantCredit, SendCopy
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import (
    CallerCancelled,
    CallEvent,
    CallRequested,
    CopyEnded,
    CopyStarted,
    CopyUnsent,
    FailureReceived,
    ItemTaken,
    LinkLost,
    ReplicaAvailable,
    TimePassed,
)
from tiedreq.core.lessons import LearningBook
from tiedreq.core.limits import ClientLimits
from tiedreq.core.messages import (
    Cancel,
    Credit,
    Draining,
    Ended,
    Failed,
    Item,
    Message,
    Report,
    Result,
    Started,
    Status,
)
from tiedreq.core.picker import ReplicaView
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import CopyId, Window
from tiedreq.net.arguments import check_accept, check_content, check_key, check_metadata
from tiedreq.net.opencall import OpenCall
from tiedreq.net.openstream import OpenStream
from tiedreq.net.preparing import Preparing
from tiedreq.net.sending import Sending
from tiedreq.net.times import Times
from tiedreq.observe.client import BATCH, HEAVY_BYTES, ClientObserver, ClientTracer
from tiedreq.wire.limits import WireLimits

METHODS_MAX = 4096


class Desk(Preparing):
    """Begins calls, gives their cores what happens, and carries out what those decide.

    ``answered`` takes what replicas say of themselves when asked.
    """

    def __init__(
        self,
        policy: Any,
        timeout: Any,
        limits: ClientLimits,
        wire_limits: WireLimits,
        picker: str,
        zone: str,
        answered: Callable[[Status], None],
    ) -> None:
        super().__init__(policy, timeout, limits, wire_limits, picker, zone)
        self.learning = LearningBook(limits.lessons_max)
        self.stats = CallStats()
        self.ways: dict[int, Sending] = {}
        """The way out of each link that is up, by its id."""
        self.times = Times(self.calls)
        self.observer: ClientObserver | None = None
        self.tracer: ClientTracer | None = None
        self._answered = answered
        self._cancelled: Callable[[OpenCall], object] = self.cancel

    # ---- beginnings -------------------------------------------------------------------------------------------

    def begin(
        self,
        method: Any,
        args: Any = None,
        timeout: Any = None,
        key: Any = None,
        policy: Any = None,
        accept: Any = None,
        metadata: Any = None,
    ) -> OpenCall:
        """See ``Client.begin``. (A compiled function would refuse other types with a ``TypeError`` of its own.)"""
        if key is not None:
            check_key(key)
        if accept is not None:
            check_accept(accept)
        began = trio.current_time()
        made = self.prepare(method, args, timeout, key, policy, check_metadata(metadata), began)
        request, seconds, surrounding = made
        core = CallCore(request, self.replicas, self.stats, rounds_max=self.limits.rounds_max, learning=self.learning)
        call = OpenCall(core, accept, began, seconds, surrounding, self.wire_limits, self._cancelled)
        self._open(call)
        return call

    def begin_stream(
        self,
        method: Any,
        args: Any = None,
        timeout: Any = None,
        key: Any = None,
        policy: Any = None,
        metadata: Any = None,
        content: Any = None,
    ) -> OpenStream:
        """See ``Client.open_stream``."""
        began, limits = trio.current_time(), self.limits
        window = Window(limits.stream_items_max, limits.stream_bytes_max, check_content(content) is not None)
        request, seconds, surrounding = self.prepare(
            method, args, timeout, check_key(key), policy, check_metadata(metadata), began, window
        )
        core = StreamCore(request, self.replicas, self.stats, rounds_max=limits.rounds_max, learning=self.learning)
        call = OpenStream(core, content, began, seconds, surrounding, self.wire_limits, self._cancelled)
        self._open(call)
        return call

    def _open(self, call: OpenCall) -> None:
        self.calls[call.core.request.id.number] = call
        if self.tracer is not None:
            self.tracer.call_begins(call)
        self.step(call, CallRequested(), call.began)

    def took(self, call: OpenStream, event: ItemTaken) -> None:
        """The user has taken an item of a stream."""
        self.step(call, event, trio.current_time())

    def cancel(self, call: OpenCall) -> None:
        """Nobody waits for this call any more: end it and its copies."""
        self.step(call, CallerCancelled(), trio.current_time())

    def close(self) -> None:
        """Cancel the open calls, and begin no more."""
        self.closed = True
        self._tell_all(CallerCancelled())

    # ---- core and commands ------------------------------------------------------------------------------------

    def step(self, call: OpenCall, event: CallEvent, now: float) -> None:
        """Give one event to a call's core and carry out its commands, all of them before the next event."""
        core = call.core
        failed: list[CopyUnsent] = []
        for command in core.step(event, now):
            self._execute(call, command, failed, now)
        while failed:
            for command in core.step(failed.pop(0), now):
                self._execute(call, command, failed, now)
        if call.outcome is None:
            wake_at = core.wake_at
            if wake_at < call.waking_at:
                self.times.set(call, wake_at)

    def _execute(self, call: OpenCall, command: CallCommand, failed: list[CopyUnsent], now: float) -> None:
        if type(command) is SendCopy:
            if self.tracer is not None:
                command = self.tracer.copy_leaves(call, command)
            # A replica that takes less than those that the call was checked against came later.
            way, view = self.ways.get(command.link), self.replicas.get(command.link)
            submit = command.submit
            fits = view is not None and len(submit.payload) <= view.payload_bytes_max
            if not fits or way is None or not way.send(submit):
                failed.append(CopyUnsent(submit.copy))
        elif type(command) is CompleteCall:
            self.calls.pop(call.core.request.id.number, None)
            outcome = command.outcome
            call.complete(outcome)  # before those who only watch
            if self.tracer is not None:
                self.tracer.call_ends(call, outcome, now)
            if self.observer is not None:
                fresh = self.observer.fresh
                fresh.append((call.core, call.began, outcome, now))
                heavy = len(call.core.request.payload) + len(outcome.details) > HEAVY_BYTES
                if heavy or len(fresh) >= BATCH:
                    self.observer.digest()
        elif type(command) is DeliverItems:
            assert isinstance(call, OpenStream)
            call.deliver(command.copy, now)
        elif type(command) is GrantCredit:
            way = self.ways.get(command.link)
            if way is not None:
                way.send(Credit(command.copy, command.items, command.bytes))
        elif type(command) is CancelCopy:
            way, view = self.ways.get(command.link), self.replicas.get(command.link)
            if way is not None and view is not None:
                if way.discard(command.copy):
                    view.sent -= 1  # the replica will never count it
                else:
                    way.send(Cancel(command.copy))

    def due(self, now: float) -> float:
        """Wake the calls whose time has come; when the next one wants to be woken."""
        while (call := self.times.next_due(now)) is not None:
            self.step(call, TimePassed(), now)
        return self.times.earliest

    def _tell_all(self, event: CallEvent) -> None:
        now = trio.current_time()
        for call in list(self.calls.values()):
            self.step(call, event, now)

    # ---- links ------------------------------------------------------------------------------------------------

    def linked(self, view: ReplicaView, way: Sending) -> None:
        """A replica has become reachable."""
        self.ways[view.link] = way
        self.replicas.add(view)
        self._replicas_changed()
        if len(self.met_methods) > METHODS_MAX:
            self.met_methods.clear()
        self.met_methods.update(view.methods)
        self._tell_all(ReplicaAvailable())

    def lost(self, link: int, *, drained: bool) -> None:
        """A replica is no longer reachable over this connection; ``drained`` as in ``LinkLost``.

        What may not run twice, and had not left, can't have run: it is as if it had not been sent, and moves on.
        """
        way = self.ways.pop(link, None)
        self.replicas.remove(link)
        self._replicas_changed()
        if way is not None:
            now = trio.current_time()
            for copy in way.left_behind():
                call = self.calls.get(copy.number)
                if call is not None and not call.core.request.idempotent:
                    self.step(call, CopyUnsent(copy), now)
        self._tell_all(LinkLost(link, drained=drained))

    def heard(self, link: int, messages: list[Message], round_trip: float | None, deviation: float | None) -> None:
        """What a replica said, in one frame. Raises ``RemoteViolation``; what came after the breach is not heard."""
        view = self.replicas.get(link)
        if view is None:
            return
        view.round_trip, view.round_trip_deviation = round_trip, deviation
        now = trio.current_time()
        for message in messages:
            self._hear(view, message, now)

    def _hear(self, view: ReplicaView, message: Message, now: float) -> None:
        kind = type(message)
        if kind is Result or kind is Started or kind is Ended or kind is Failed or kind is Item:
            if message.load is not None:  # type: ignore[union-attr]
                view.take_load(message.load, now)  # type: ignore[union-attr]
            copy: CopyId = message.copy  # type: ignore[union-attr]
            call = self.calls.get(copy.number)
            if call is not None and copy.client == self.nonce:
                self._copy_news(call, view.link, message, now)
        elif isinstance(message, Draining):
            view.draining = True
        elif isinstance(message, Report):
            view.notice_latencies = dict(message.notice_latencies)
        elif isinstance(message, Status):
            self._answered(message)

    def _copy_news(self, call: OpenCall, link: int, message: Message, now: float) -> None:
        if type(message) is Result:
            self.step(call, call.answer(link, message), now)
        elif type(message) is Started:
            self.step(call, CopyStarted(link, message.copy), now)
        elif type(message) is Item:
            self._item(link, call, message, now)
        elif type(message) is Failed:
            code, text, details, retryable = message.code, message.message, message.details, message.retryable
            event = FailureReceived(link, message.copy, code, text, details, retryable, message.service_time)
            self.step(call, event, now)
        elif type(message) is Ended:
            state, cause, hint = message.state, message.cause, message.retry_after
            self.step(call, CopyEnded(link, message.copy, state, cause, hint, message.service_time), now)

    def _item(self, link: int, call: OpenCall, item: Item, now: float) -> None:
        if not isinstance(call, OpenStream):
            raise RemoteViolation(f"item: the answer to {item.copy} is no stream")
        event = call.event(link, item)
        if event is not None:
            self.step(call, event, now)
            call.forget(item.copy)
        elif call.error is not None:
            self.step(call, CallerCancelled(), now)

    def _replicas_changed(self) -> None:
        self.infos.clear()
        own = self.limits.payload_bytes_max
        self.payload_bytes_max = min([own, *(view.payload_bytes_max for view in self.replicas.views())])
