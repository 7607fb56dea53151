"""The client: ``connect()`` and what it yields.

Data flow: link -> messages -> events -> ``CallCore`` -> commands -> links, or the waiting task. One task per link reads
and one writes; one timer task serves all calls. A call costs no task, nursery or cancel scope of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from tiedreq.core.call import CallCore
from tiedreq.core.call_stats import CallStats
from tiedreq.core.commands import (
    CallCommand,
    CancelCopy,
    CompleteCall,
    DeliverItems,
    GrantCredit,
    OutcomeKind,
    SendCopy,
)
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
from tiedreq.core.link_rules import DRAINED
from tiedreq.core.link_table import LinkState
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
from tiedreq.core.policy import Hedged, Policy, Tied
from tiedreq.core.stream_call import StreamCore
from tiedreq.core.types import CopyId, Identity, Window
from tiedreq.errors import ConnectError
from tiedreq.net.arguments import Accept, check_accept, check_content, check_handler, check_key, check_metadata
from tiedreq.net.bell import Bell
from tiedreq.net.inquiries import Inquiries
from tiedreq.net.link import Link
from tiedreq.net.link_owner import LinkDown, LinkUp
from tiedreq.net.opencall import OpenCall
from tiedreq.net.preparing import Preparing
from tiedreq.net.stream import OpenStream, Stream
from tiedreq.net.timers import Timers
from tiedreq.observe.client import HEAVY_BYTES, ClientObserver, ClientTracer
from tiedreq.reply import Reply
from tiedreq.wire.limits import WireLimits

METHODS_MAX = 4096
CLOSE_SECONDS = 1.0
VIEW_FIELDS = "zone draining queued free sent outstanding on_probation round_trip".split()
_TIED, _HEDGED = Tied(), Hedged()

logger = logging.getLogger("tiedreq.client")


class Client(Preparing):
    """Calls methods of a replicated service. Made by ``tiedreq.connect()``.

    Safe to use from any number of Trio tasks at once.
    """

    def __init__(
        self,
        policy: Policy,
        timeout: float,
        limits: ClientLimits,
        wire_limits: WireLimits,
        picker: str = "adaptive",
        zone: str = "",
    ) -> None:
        super().__init__(policy, timeout, limits, wire_limits, picker, zone)
        self._learning = LearningBook(limits.lessons_max)
        self._links: dict[int, Link] = {}
        self._stats = CallStats()
        self._timers = Timers(self._calls, self._due)
        self._inquiries = Inquiries(wire_limits)
        self.members: Callable[[], list[dict[str, Any]]] = list
        """What is known of the members of the cluster and of the links to them; ``connect()`` sets it."""
        self.observer: ClientObserver | None = None
        self.tracer: ClientTracer | None = None
        self.arrivals = Bell()
        self.connected = False
        """Set once ``connect()`` has yielded: from then on nobody but the log is told of a replica that refuses."""

    # ---- calls ------------------------------------------------------------------------------------------------

    async def call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with the client's policy and return the value. See ``request`` for options and errors."""
        return (await self._made(method, args, **options)).value()

    async def tied_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Tied()`` unless ``policy=`` says otherwise. See ``request``.

        Raises ``UnsafeToDuplicate`` before anything is sent when the method is not declared idempotent.
        """
        if options.get("policy") is None:
            options["policy"] = _TIED
        return (await self._made(method, args, **options)).value()

    async def hedged_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Hedged()`` unless ``policy=`` says otherwise: a backup when no answer came in time.

        Raises as ``tied_call``. See ``request``.
        """
        if options.get("policy") is None:
            options["policy"] = _HEDGED
        return (await self._made(method, args, **options)).value()

    async def request(
        self,
        method: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        policy: Policy | None = None,
        accept: Accept | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Reply:
        """Call ``method`` and return the value with its story.

        ``args`` is one value that msgpack can carry. ``timeout`` is in seconds; the surrounding Trio deadline counts
        too. ``key`` is an idempotency key, the same in every copy. ``accept(value)`` says whether an answer may win:
        one that it turns down does not end the race while another copy lives. ``policy`` overrides the client's; with
        the client's own policy a method that is not declared idempotent gets one copy.

        Raises ``UsageError`` before anything is sent (``UnknownMethod``, ``UnsafeToDuplicate``, ``TooLarge``,
        ``BadOption``); ``CallError`` otherwise: ``RemoteFailure``, ``DeadlineExceeded``, ``Overloaded``,
        ``Unavailable``, ``OutcomeUnknown``. The caller's own cancellation stays ``trio.Cancelled``.
        """
        call = await self._made(method, args, timeout=timeout, key=key, policy=policy, accept=accept, metadata=metadata)
        return call.reply(trio.current_time())

    async def _made(self, method: str, args: Any = None, **options: Any) -> OpenCall:
        """Make a call and return it once it is answered. Raises as ``request``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        call = self.begin(method, args, **options)
        outcome = await call.wait(self.cancel)
        if outcome.kind == OutcomeKind.DEADLINE and call.surrounding:
            await trio.lowlevel.checkpoint()  # the scheduler learns only here that the scope's time is over
        call.check()
        return call

    def begin(
        self,
        method: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        policy: Policy | None = None,
        accept: Accept | None = None,
        metadata: dict[str, str] | None = None,
    ) -> OpenCall:
        """Make a call for somebody who has no task to wait in: see ``OpenCall.told`` and ``cancel``.

        Raises what ``request`` raises before anything is sent.
        """
        began = trio.current_time()
        request, seconds, surrounding = self._prepare(
            method, args, timeout, check_key(key), policy, check_metadata(metadata), began
        )
        core = CallCore(
            request, self._replicas, self._stats, rounds_max=self.limits.rounds_max, learning=self._learning
        )
        call = OpenCall(core, check_accept(accept), began, seconds, surrounding, self._wire_limits)
        self._open(call)
        return call

    def _open(self, call: OpenCall) -> None:
        self._calls[call.core.request.id.number] = call
        if self.tracer is not None:
            self.tracer.call_begins(call)
        self._step(call, CallRequested(), call.began)

    # ---- streams ----------------------------------------------------------------------------------------------

    def stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """A stream of items, with the client's policy: ``async with client.stream(…) as stream: async for …``.

        The options are those of ``request`` without ``accept``; ``timeout`` is for the whole stream. The first item
        with content decides the race: every item but None and empty texts, bytes, lists and dicts, or what
        ``content(item)`` says. ``Stream`` tells the rest. A loser is always cancelled, whatever the policy says.
        """
        return self._stream(method, args, options)

    def tied_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Tied()`` unless ``policy=`` says otherwise."""
        if options.get("policy") is None:
            options["policy"] = _TIED
        return self._stream(method, args, options)

    def hedged_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Hedged()`` unless ``policy=`` says otherwise."""
        if options.get("policy") is None:
            options["policy"] = _HEDGED
        return self._stream(method, args, options)

    def _stream(self, method: str, args: Any, options: dict[str, Any]) -> Stream:
        return Stream(partial(self.open_stream, method, args, **options), self.cancel, self.took)

    def open_stream(
        self,
        method: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        policy: Policy | None = None,
        metadata: dict[str, str] | None = None,
        content: Accept | None = None,
    ) -> OpenStream:
        """Begin a stream, for ``Stream``. Raises what ``request`` raises before anything is sent."""
        began, limits = trio.current_time(), self.limits
        window = Window(limits.stream_items_max, limits.stream_bytes_max, check_content(content) is not None)
        request, seconds, surrounding = self._prepare(
            method, args, timeout, check_key(key), policy, check_metadata(metadata), began, window
        )
        core = StreamCore(request, self._replicas, self._stats, rounds_max=limits.rounds_max, learning=self._learning)
        call = OpenStream(core, content, began, seconds, surrounding, self._wire_limits)
        self._open(call)
        return call

    def took(self, call: OpenStream, event: ItemTaken) -> None:
        """The user has taken an item."""
        self._step(call, event, trio.current_time())

    def _item(self, link: Link, call: OpenCall, item: Item, now: float) -> bool:
        """Take an item; False for a breach, which ends its link: nothing that came after it counts."""
        try:
            if not isinstance(call, OpenStream):
                raise RemoteViolation(f"item: the answer to {item.copy} is no stream")
            event = call.event(link.id, item)
            if event is not None:
                self._step(call, event, now)
                call.forget(item.copy)
            elif call.error is not None:
                self._step(call, CallerCancelled(), now)
        except RemoteViolation as violation:
            link.drop("protocol", str(violation))
            return False
        return True

    def bind(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A callable ``bound(args=None, **options)`` that calls the method named like ``handler``."""
        name = check_handler(handler)

        async def bound(args: Any = None, **options: Any) -> Any:
            return await self.call(name, args, **options)

        bound.__name__ = name
        bound.__doc__ = handler.__doc__
        return bound

    def stats(self) -> dict[str, Any]:
        """Counters of this client, and what it knows of each replica and method.

        Durations in seconds, None where unknown. ``members`` says who belongs to the cluster, and whether it is ``up``,
        ``down``, ``refused`` or ``leaving``. ``learned`` has an entry per method and ``Backup``: the delay and why it
        is that, the state of the brake's governor (``ok``, ``saturated``, ``useless``, ``off``) and its reason, the
        budget's balance in seconds of work.
        """
        now = trio.current_time()
        counters = {name: getattr(self._stats, name) for name in self._stats.__slots__}
        replicas = {
            view.name: {
                **{name: getattr(view, name) for name in VIEW_FIELDS},
                "incarnation": view.identity.incarnation,
                "load": view.load(now),
                "slowness": view.health.slowness,
                "notice_latencies": dict(view.notice_latencies),
            }
            for view in self._replicas.views()
        }
        return {
            **counters,
            "in_flight": len(self._calls),
            "replicas": replicas,
            "members": self.members(),
            "learned": self._learning.view(now),
        }

    async def replica_status(self, *, timeout: float = 2.0) -> dict[str, dict[str, Any]]:
        """How each connected replica is, by name: see ``ReplicaHandle.status``. Asked of the replica, not its queue.

        A replica that does not answer within ``timeout`` seconds is left out.
        """
        return await self._inquiries.ask(self._links.values(), "", timeout)

    async def inquire(self, about: str, *, timeout: float = 2.0) -> dict[str, dict[str, Any]]:
        """What each connected replica says about ``snapshot`` or ``call:CALL_ID``, by name; as ``replica_status``.

        An answer without ``"about"`` is of a replica that does not know the question, or observes nothing.
        """
        return await self._inquiries.ask(self._links.values(), about, timeout)

    # ---- core and commands ------------------------------------------------------------------------------------

    def _step(self, call: OpenCall, event: CallEvent, now: float) -> None:
        """Give one event to a call's core and carry out its commands, all of them before the next event."""
        core = call.core
        failed: list[CopyUnsent] = []
        for command in core.step(event, now):
            self._execute(call, command, failed, now)
        while failed:
            for command in core.step(failed.pop(0), now):
                self._execute(call, command, failed, now)
        if call.outcome is None:
            wake_at = call.core.wake_at
            if wake_at < call.waking_at:
                call.waking_at = wake_at
                self._timers.set(core.request.id.number, wake_at)

    def _execute(self, call: OpenCall, command: CallCommand, failed: list[CopyUnsent], now: float) -> None:
        if type(command) is SendCopy:
            if not self._send(command if self.tracer is None else self.tracer.copy_leaves(call, command)):
                failed.append(CopyUnsent(command.submit.copy))
        elif type(command) is CompleteCall:
            self._calls.pop(call.core.request.id.number, None)
            if self.observer is not None:
                self.observer.fresh.append((call, command.outcome, now))
                if len(call.core.request.payload) > HEAVY_BYTES:
                    self.observer.due = 0
            call.complete(command.outcome)
        elif type(command) is DeliverItems:
            assert isinstance(call, OpenStream)
            call.deliver(command.copy, now)
        elif type(command) is GrantCredit:
            link = self._links.get(command.link)
            if link is not None:
                link.send(Credit(command.copy, command.items, command.bytes))
        elif type(command) is CancelCopy:
            link, view = self._links.get(command.link), self._replicas.get(command.link)
            if link is not None and view is not None:
                if link.discard(command.copy):
                    view.sent -= 1  # the replica will never count it
                else:
                    link.send(Cancel(command.copy))

    def _send(self, command: SendCopy) -> bool:
        """False for a replica that takes less than those that the call was checked against: it came later."""
        link, view = self._links.get(command.link), self._replicas.get(command.link)
        fits = view is not None and len(command.submit.payload) <= view.payload_bytes_max
        return fits and link is not None and link.send(command.submit)

    def cancel(self, call: OpenCall) -> None:
        """Nobody waits for this call any more: end it and its copies."""
        self._step(call, CallerCancelled(), trio.current_time())

    # ---- timers -----------------------------------------------------------------------------------------------

    def _due(self, number: int, at: float, now: float) -> None:
        call = self._calls.get(number)
        if call is not None and at >= call.waking_at:
            call.waking_at = math.inf
            self._step(call, TimePassed(), now)

    async def run_timers(self) -> None:
        """The one timer task of all calls."""
        await self._timers.run()

    async def close(self, links: list[Link]) -> None:
        """Cancel the open calls and close the links, within a bound even when the caller is cancelled."""
        self._closed = True
        now = trio.current_time()
        for call in list(self._calls.values()):
            self._step(call, CallerCancelled(), now)
        with trio.CancelScope(deadline=trio.current_time() + CLOSE_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                for link in links:
                    if link.up:
                        nursery.start_soon(link.flush, CLOSE_SECONDS)
        for link in links:
            link.close("closed", "the client is done")

    # ---- links ------------------------------------------------------------------------------------------------

    def let_go(self, link: int) -> int:
        """Send nothing new over this connection; how many copies are still out on it."""
        view = self._replicas.get(link)
        if view is None:
            return 0
        view.draining = True
        return view.outstanding

    def on_up(self, link: Link, up: LinkUp) -> None:
        """A replica has become reachable."""
        assert up.welcome is not None
        view = ReplicaView(up.link_id, Identity(up.peer.name, up.peer.incarnation), up.welcome)
        self._links[up.link_id] = link
        self._replicas.add(view)
        self._replicas_changed()
        if len(self._met_methods) > METHODS_MAX:
            self._met_methods.clear()
        self._met_methods.update(view.methods)
        now = trio.current_time()
        for call in list(self._calls.values()):
            self._step(call, ReplicaAvailable(), now)
        self.arrivals.ring()

    def on_down(self, link: Link, down: LinkDown) -> None:
        """A replica is no longer reachable over this connection."""
        self._links.pop(down.link_id, None)
        self._replicas.remove(down.link_id)
        self._replicas_changed()
        now = trio.current_time()
        lost = LinkLost(down.link_id, drained=down.by_peer and down.code == DRAINED)
        for call in list(self._calls.values()):
            self._step(call, lost, now)

    def _replicas_changed(self) -> None:
        self._infos.clear()
        own = self.limits.payload_bytes_max
        self._payload_bytes_max = min([own, *(view.payload_bytes_max for view in self._replicas.views())])

    def on_failure(self, link: Link, error: ConnectError) -> None:
        """A replica could not be reached."""
        if self.connected and link.state is LinkState.CLOSED:
            logger.warning("a replica is not used any more: %s", error)
        self.arrivals.ring()

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """What a replica said, in one frame."""
        now = trio.current_time()
        link_id = link.id
        view = self._replicas.get(link_id)
        if view is None:
            return
        view.round_trip, view.round_trip_deviation = link.round_trip, link.round_trip_deviation
        calls, nonce = self._calls, self.nonce
        for message in messages:
            kind = type(message)
            if kind is Result or kind is Started or kind is Ended or kind is Failed or kind is Item:
                if message.load is not None:  # type: ignore[union-attr]
                    view.take_load(message.load, now)  # type: ignore[union-attr]
                copy: CopyId = message.copy  # type: ignore[union-attr]
                call = calls.get(copy.number)
                if call is None or copy.client != nonce:
                    continue
                if kind is Item:
                    if not self._item(link, call, message, now):  # type: ignore[arg-type]
                        break
                else:
                    self._copy_news(call, link_id, message, now)  # type: ignore[arg-type]
            elif isinstance(message, Draining):
                view.draining = True
            elif isinstance(message, Report):
                view.notice_latencies = dict(message.notice_latencies)
            elif isinstance(message, Status):
                self._inquiries.arrived(message)
        if self.observer is not None and len(self.observer.fresh) >= self.observer.due:
            self.observer.digest()

    def _copy_news(self, call: OpenCall, link: int, message: Started | Result | Failed | Ended, now: float) -> None:
        copy = message.copy
        if type(message) is Result:
            if len(message.payload) > HEAVY_BYTES and self.observer is not None:
                self.observer.due = 0
            self._step(call, call.answer(link, message), now)
        elif type(message) is Started:
            self._step(call, CopyStarted(link, copy), now)
        elif type(message) is Failed:
            code, text, details, retryable = message.code, message.message, message.details, message.retryable
            self._step(call, FailureReceived(link, copy, code, text, details, retryable, message.service_time), now)
        else:
            assert type(message) is Ended
            state, cause, hint = message.state, message.cause, message.retry_after
            self._step(call, CopyEnded(link, copy, state, cause, hint, message.service_time), now)
