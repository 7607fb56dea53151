"""The client: ``connect()`` and what it yields.

``net.desk`` is its synchronous middle, where calls are; here is what waits. One task per link reads and one writes; one
timer task serves all calls. A call costs no task, nursery or cancel scope of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import trio

from tiedreq.core.call_stats import CallStats
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.limits import ClientLimits
from tiedreq.core.link_rules import DRAINED
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Message
from tiedreq.core.picker import ReplicaView
from tiedreq.core.policy import Hedged, Policy, Tied
from tiedreq.core.types import Identity
from tiedreq.errors import ConnectError
from tiedreq.net.arguments import Accept, check_handler
from tiedreq.net.bell import Bell
from tiedreq.net.desk import Desk
from tiedreq.net.inquiries import Inquiries
from tiedreq.net.link import Link
from tiedreq.net.link_owner import LinkDown, LinkOwner, LinkUp
from tiedreq.net.opencall import OpenCall
from tiedreq.net.openstream import OpenStream
from tiedreq.net.stream import Stream
from tiedreq.net.timers import Timer
from tiedreq.observe.client import ClientObserver, ClientTracer
from tiedreq.reply import Reply
from tiedreq.wire.limits import WireLimits

CLOSE_SECONDS = 1.0
COUNTERS = [field.name for field in fields(CallStats)]
VIEW_FIELDS = "zone draining queued free sent outstanding on_probation round_trip".split()
_TIED, _HEDGED = Tied(), Hedged()

logger = logging.getLogger("tiedreq.client")


class Client(LinkOwner):
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
        self._inquiries = Inquiries(wire_limits)
        self._desk = desk = Desk(policy, timeout, limits, wire_limits, picker, zone, self._inquiries.arrived)
        self._timer = Timer(desk.due)
        desk.times.sooner = self._timer.sooner
        self._links: dict[int, Link] = {}
        self._calls, self._replicas = desk.calls, desk.replicas
        self.limits = limits
        self.policy, self.timeout = desk.policy, desk.timeout
        self.nonce = desk.nonce
        self.cancel: Callable[[OpenCall], None] = desk.cancel
        """Nobody waits for this call any more: end it and its copies."""
        self.members: Callable[[], list[dict[str, Any]]] = list
        """What is known of the members of the cluster and of the links to them; ``connect()`` sets it."""
        self.arrivals = Bell()
        self.connected = False
        """Set once ``connect()`` has yielded: from then on nobody but the log is told of a replica that refuses."""

    @property
    def observer(self) -> ClientObserver | None:
        """What is remembered of calls; None where nothing is."""
        return self._desk.observer

    @observer.setter
    def observer(self, observer: ClientObserver | None) -> None:
        self._desk.observer = observer

    @property
    def tracer(self) -> ClientTracer | None:
        """Who hears of calls and their copies, if somebody does."""
        return self._desk.tracer

    @tracer.setter
    def tracer(self, tracer: ClientTracer | None) -> None:
        self._desk.tracer = tracer

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
        call = self._desk.begin(method, args, **options)
        if call.outcome is None:
            call.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(call.interrupted)
        assert call.outcome is not None
        if call.surrounding and call.outcome.kind == OutcomeKind.DEADLINE:
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
        return self._desk.begin(method, args, timeout, key, policy, accept, metadata)

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
        return Stream(partial(self.open_stream, method, args, **options), self.cancel, self._desk.took)

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
        return self._desk.begin_stream(method, args, timeout, key, policy, metadata, content)

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
        desk, stats = self._desk, self._desk.stats
        counters = {name: getattr(stats, name) for name in COUNTERS}
        replicas = {
            view.name: {
                **{name: getattr(view, name) for name in VIEW_FIELDS},
                "incarnation": view.identity.incarnation,
                "load": view.load(now),
                "slowness": view.health.slowness,
                "notice_latencies": dict(view.notice_latencies),
            }
            for view in desk.replicas.views()
        }
        return {
            **counters,
            "in_flight": len(desk.calls),
            "replicas": replicas,
            "members": self.members(),
            "learned": desk.learning.view(now),
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

    # ---- time, and the end ------------------------------------------------------------------------------------

    async def run_timers(self) -> None:
        """The one timer task of all calls."""
        await self._timer.run()

    async def close(self, links: list[Link]) -> None:
        """Cancel the open calls and close the links, within a bound even when the caller is cancelled."""
        self._desk.close()
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
        self._desk.linked(view, link.sending)
        self.arrivals.ring()

    def on_down(self, link: Link, down: LinkDown) -> None:
        """A replica is no longer reachable over this connection."""
        self._links.pop(down.link_id, None)
        self._desk.lost(down.link_id, drained=down.by_peer and down.code == DRAINED)

    def on_failure(self, link: Link, error: ConnectError) -> None:
        """A replica could not be reached."""
        if self.connected and link.state is LinkState.CLOSED:
            logger.warning("a replica is not used any more: %s", error)
        self.arrivals.ring()

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """What a replica said, in one frame."""
        try:
            self._desk.heard(link.id, messages, link.round_trip, link.round_trip_deviation)
        except RemoteViolation as violation:
            link.drop("protocol", str(violation))
