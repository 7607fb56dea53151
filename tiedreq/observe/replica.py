"""What a replica remembers of what it did: rings of copies that ended and of notices, and counts per method.

A copy that has ended is one tuple of numbers, which the core appends to a list, and what was said to peers or heard of
them waits in another one; they are counted and packed into their rings ``BATCH`` at a time, which takes a fraction of
what it takes one by one, and no more: what is held makes the garbage collector run more often. No payload is kept, and
nothing is copied that the core can be asked for: what waits and runs, counters, endings.

Invariants: the rings have a fixed size; the table of methods is that of the service; at most ``PEERS_MAX`` names of
peers are known, the rest share one; what waits for the next digest is less than ``BATCH`` copies and frames, and what
one frame brings.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.copybook import NEVER, Retired
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Claim, Denied, Granted, Message, Next, Started, Submit
from tiedreq.core.types import CallId, Cause, CopyId, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.pauses import LoopPauses
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import VERSION, LinkView, ReplicaMethodView, ReplicaSnapshot, process_view
from tiedreq.observe.stories import CALL, NO_METHOD, NOTICE, RECORD, ReplicaStory, parse_call_id, replica_story
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.net.server import ReplicaServer

RECORDS_DEFAULT = 16_384
PEERS_MAX = 4_096
OTHERS = "(others)"
BATCH = 32
RECORD_SIZE, NOTICE_SIZE = RECORD.size, NOTICE.size
DONE, FAILED = CopyState.DONE, CopyState.FAILED
SHORT = BOUNDS[0]
STARTED = 0
_WORDS: dict[type, int] = {kind: word for word, kind in enumerate((Started, Next, Claim, Granted, Denied))}
"""What ``NOTICE_WORDS`` stand for."""
Note = tuple[float, str, Iterable[Message], int]
"""Messages to a peer or of one: when that was, in Trio's time; its name; the messages; ``SENT`` or ``HEARD``."""
_pack, _pack_notice = RECORD.pack_into, NOTICE.pack_into

logger = logging.getLogger("tiedreq.replica")


class ReplicaTracer(Protocol):
    """Hears of executions; see ``observe.tracing``. All methods are synchronous and must not raise."""

    def execution_begins(self, submit: Submit, variables: Context) -> None:
        """A handler is about to run in the context ``variables``, which may be changed."""

    def copy_ends(self, copy: CopyId, state: CopyState, cause: Cause) -> None:
        """A copy ended without an answer, executed or not; if it runs, it is told to stop."""

    def execution_ends(self, copy: CopyId, outcome: Answer | Fault | None) -> None:
        """A handler that began has ended; None: it was stopped."""


class _Executions:
    """Of one method, those that have ended."""

    __slots__ = (
        "busy",
        "failed",
        "number",
        "queue_wait",
        "service",
        "services",
        "waited",
        "waits",
        "wasted",
        "wasted_busy",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.failed = self.wasted = 0
        self.busy = self.waited = self.wasted_busy = 0.0
        self.service = Histogram()
        self.queue_wait = Histogram()
        self.services, self.waits = self.service.counts, self.queue_wait.counts

    def view(self, running: int) -> ReplicaMethodView:
        """It all as plain values, and those that are ``running``."""
        self.service.sum, self.queue_wait.sum = self.busy, self.waited
        ended = sum(self.services)
        return ReplicaMethodView(
            started=ended + self.wasted + running,
            running=running,
            answered=ended - self.failed,
            failed=self.failed,
            wasted=self.wasted,
            busy_seconds=self.busy + self.wasted_busy,
            wasted_seconds=self.wasted_busy,
            service=self.service.view(),
            queue_wait=self.queue_wait.view(),
        )


class ReplicaObserver:
    """Watches one replica. ``records`` is how many copies and how many notices the rings hold.

    What a record holds is in ``observe.stories``.
    """

    def __init__(
        self, server: ReplicaServer, service: Service, *, cluster: str, records: int = RECORDS_DEFAULT
    ) -> None:
        self.lag = LoopLag(self.digest)  # for what comes with no frame, or stands alone
        self.pauses = LoopPauses.of_this_loop()
        self.ring = Ring(RECORD_SIZE, records)
        self.notices = Ring(NOTICE.size, records)
        self._server = server
        self._service = service.name
        self._cluster = cluster
        self._began = trio.current_time()
        self._methods = {name: _Executions(number) for number, name in enumerate(service.methods)}
        self._names = tuple(self._methods)
        self._no_method = _Executions(NO_METHOD)
        self.keeps = self.counts = True
        """What of both is done. (``scripts/bench_observe`` measures them apart.)"""
        self._peers: dict[str, int] = {}
        self.retired: list[Retired] = []
        """The copies that have ended since the last digest: the core puts them here."""
        self.notes: list[Note] = []
        """What was said to peers, and heard of them, since then."""
        self.due = 1
        """So many of both are to be digested, once the frame is over."""
        server.core.retired = self.retired

    # ---- several at a time ------------------------------------------------------------------------------------

    def digest(self) -> None:
        """Keep and count what has come since the last time, which is a quarter of a second ago at most."""
        tracer, in_detail = self._server.executions.tracer, logger.isEnabledFor(logging.DEBUG)
        self.due = 1 if in_detail or tracer is not None else BATCH
        try:
            self._take(self.retired)
            if self.keeps:
                self._note(self.notes)
            if in_detail or tracer is not None:
                for record in self.retired:
                    self._in_vain(record, tracer)
        finally:  # what can't be kept is not tried again with each message
            self.retired.clear()
            self.notes.clear()

    def _take(self, retired: list[Retired]) -> None:
        """Keep and count copies that have ended, each once."""
        ring, methods, none, keeps, counts = self.ring, self._methods, self._no_method, self.keeps, self.counts
        block, at, full = ring.block, ring.at, len(ring.block)
        for now, arrived, started, method, kind, state, cause, client, number, round_, rank in retired:
            row = methods.get(method, none)
            if keeps:
                _pack(block, at, now, arrived, started, row.number, kind, state, cause, client, number, round_, rank)
                at += RECORD_SIZE
                if at == full:
                    at, ring.full = 0, True
            if counts and started != NEVER:
                if state is DONE or state is FAILED:
                    took, waited = now - started, started - arrived
                    row.services[bisect_left(BOUNDS, took) if took > SHORT else 0] += 1
                    row.busy += took
                    row.waits[bisect_left(BOUNDS, waited) if waited > SHORT else 0] += 1
                    row.waited += waited
                    if state is FAILED:
                        row.failed += 1
                else:
                    row.wasted += 1
                    row.wasted_busy += now - started
        ring.at = at

    def _note(self, notes: list[Note]) -> None:
        """Put the notices among what was said and heard into their ring."""
        ring, peers, words = self.notices, self._peers, _WORDS
        block, at, full = ring.block, ring.at, len(ring.block)
        last, place = None, 0
        for now, name, messages, direction in notes:
            if name is not last:
                last = name
                found = peers.get(name)
                place = self._number(name) if found is None else found
            for message in messages:
                kind = type(message)
                word = STARTED if kind is Started else words.get(kind)
                if word is not None:
                    client, number, round_, rank = message.copy  # type: ignore[union-attr]
                    _pack_notice(block, at, now, place, word | direction, client, number, round_, rank)
                    at += NOTICE_SIZE
                    if at == full:
                        at, ring.full = 0, True
        ring.at = at

    def _number(self, peer: str) -> int:
        if len(self._peers) < PEERS_MAX:
            return self._peers.setdefault(peer, len(self._peers))
        return self._peers.setdefault(OTHERS, len(self._peers))

    @staticmethod
    def _in_vain(record: Retired, tracer: ReplicaTracer | None) -> None:
        """Tell of a copy that ended without an answer."""
        state, cause, copy = record[5], record[6], CopyId(*record[7:])
        if state not in (DONE, FAILED):
            if tracer is not None:
                tracer.copy_ends(copy, state, cause)
            logger.debug("copy %s ends %s: %s", copy, state.label, cause.label)

    # ---- what can be seen -------------------------------------------------------------------------------------

    def told(self, about: str) -> dict[str, Any] | None:
        """The answer to an ``Inquiry`` about ``snapshot`` or ``call:CALL_ID``; None when it is about neither."""
        if about == "snapshot":
            return {"about": about, **self.snapshot()}
        if about.startswith(CALL):
            call = parse_call_id(about.removeprefix(CALL))
            return {"about": about, **self.story(call)} if call is not None else None
        return None

    def story(self, call: CallId) -> ReplicaStory:
        """What the rings still hold about one call."""
        self.digest()
        name, held = self._server.identity.name, self._server.core.copies_of(call)
        offset, peers = clock.offset(), list(self._peers)
        return replica_story(name, self.ring, self.notices, call, offset, self._names, peers, held)

    def snapshot(self) -> ReplicaSnapshot:
        """The replica now."""
        self.digest()
        server, core = self._server, self._server.core
        status = server.status()
        running = Counter(held.submit.method for held in core.executing() if held.state is CopyState.RUNNING)
        endings: dict[str, dict[str, int]] = {}
        for (state, cause), count in core.stats.endings.items():
            endings.setdefault(state.label, {})[cause.label] = count
        return ReplicaSnapshot(
            version=VERSION,
            kind="replica",
            name=server.identity.name,
            incarnation=f"{server.identity.incarnation:016x}",
            service=self._service,
            cluster=self._cluster,
            time=clock.offset() + trio.current_time(),
            uptime=trio.current_time() - self._began,
            ready=not core.draining,
            draining=core.draining,
            slots=core.slots,
            queue=core.queue_length,
            running=core.running,
            free=core.free_slots,
            callers=core.sizes()["callers"],
            counters=self._counters(status["messages"]),
            endings=endings,
            methods={name: executions.view(running[name]) for name, executions in self._methods.items()},
            links={name: self._link(name, state) for name, state in status["links"].items()},
            loop_lag=self.lag.view(),
            loop_pauses=self.pauses.view(),
            process=process_view(),
            sizes=core.sizes(),
        )

    def _counters(self, messages: int) -> dict[str, float]:
        stats = self._server.core.stats
        names = (
            "submitted duplicate_submits started done failed notices late_notices notices_unsent stale_notices "
            "double_starts items items_wasted busy_seconds wasted_seconds queue_wait_seconds"
        )
        counters: dict[str, float] = {name: getattr(stats, name) for name in names.split()}
        counters["markers_evicted"] = self._server.core.markers_evicted
        counters["messages"] = messages
        return counters

    def _link(self, name: str, state: dict[str, object]) -> LinkView:
        link = self._server.mesh.get(name)
        round_trip = None if link is None else link.round_trip
        return LinkView(
            up=link is not None,
            reason=str(state["reason"]),
            round_trip=round_trip,
            round_trip_deviation=None if link is None else link.round_trip_deviation,
            round_trip_min=None if link is None else link.round_trip_min,
            notice_latency=None if round_trip is None else round_trip / 2,
            messages_waiting=0 if link is None else link.messages_waiting,
        )
