"""What a replica remembers of what it did: rings of copies that ended and of notices, and counts per method.

What is on the path of every copy does next to nothing: it keeps references to what is there already, the copies that
ended and the messages that were said and heard. They are counted and packed into the rings ``BATCH`` at a time, which
takes a fraction of what it takes one by one. Payloads are never kept longer, and nothing is copied that the core can be
asked for: what waits and runs, counters, endings.

Invariants: the rings have a fixed size; the table of methods is that of the service; at most ``PEERS_MAX`` names of
peers are known, the rest share one; what is held for the next digest is bounded in number, bytes and time.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextvars import Context
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.copybook import NEVER, HeldCopy
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Claim, Denied, Granted, Message, Next, Started, Submit
from tiedreq.core.types import CallId, CopyId, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.pauses import LoopPauses
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import VERSION, LinkView, ReplicaMethodView, ReplicaSnapshot, process_view
from tiedreq.observe.stories import CALL, HEARD, NO_METHOD, NOTICE, RECORD, ReplicaStory, parse_call_id, replica_story
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.net.link import Link
    from tiedreq.net.server import ReplicaServer

RECORDS_DEFAULT = 16_384
PEERS_MAX = 4_096
OTHERS = "(others)"
BATCH = 64
HEAVY_BYTES = 16_384
"""A copy with arguments beyond that is digested with the frame that ends it."""
RECORD_SIZE, NOTICE_SIZE = RECORD.size, NOTICE.size
DONE, FAILED = CopyState.DONE, CopyState.FAILED
_WORDS: dict[type, int] = {kind: word for word, kind in enumerate((Started, Next, Claim, Granted, Denied))}
"""What ``NOTICE_WORDS`` stand for."""
_pack, _pack_notice = RECORD.pack_into, NOTICE.pack_into

logger = logging.getLogger("tiedreq.replica")


class ReplicaTracer(Protocol):
    """Hears of executions; see ``observe.tracing``. All methods are synchronous and must not raise."""

    def execution_begins(self, submit: Submit, variables: Context) -> None:
        """A handler is about to run in the context ``variables``, which may be changed."""

    def copy_ends(self, held: HeldCopy) -> None:
        """A copy ended without an answer, executed or not; if it runs, it is told to stop."""

    def execution_ends(self, copy: CopyId, outcome: Answer | Fault | None) -> None:
        """A handler that began has ended; None: it was stopped."""


class _Executions:
    """Of one method, those that have ended."""

    __slots__ = ("ends", "queue_wait", "service", "wasted_busy")

    def __init__(self) -> None:
        self.ends = [0] * len(CopyState)
        self.wasted_busy = 0.0
        self.service = Histogram()
        self.queue_wait = Histogram()

    def view(self, running: int) -> ReplicaMethodView:
        answered, failed = self.ends[CopyState.DONE], self.ends[CopyState.FAILED]
        return ReplicaMethodView(
            started=sum(self.ends) + running,
            running=running,
            answered=answered,
            failed=failed,
            wasted=sum(self.ends) - answered - failed,
            busy_seconds=self.service.sum + self.wasted_busy,
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
        self._methods = {name: _Executions() for name in service.methods}
        self._names = tuple(self._methods)
        self._known = list(self._methods.values())
        self._rows = {name: row for row, name in enumerate(self._methods)}
        self._no_method = _Executions()
        self._peers: dict[str, int] = {}
        self.said: list[tuple[Link, Message]] = []
        """What the core has said to peers since the last digest."""
        self._heard: list[tuple[float, str, list[Message]]] = []  # frames of peers since then
        self.retired: list[HeldCopy] = []
        """The copies that have ended since then: the core puts them here."""
        self._frames: list[tuple[float, int, int]] = []  # when one was over, how many copies ended, how much was said
        self._ended = 0  # so many of those that ended belong to frames that are over
        self.timed = 0
        """And so many of both. Where there are more at the end of a frame, ``frame_over`` is to be told."""
        self._due = 1
        server.core.retired = self.retired

    # ---- on the path of every message -------------------------------------------------------------------------

    def frame_over(self, now: float) -> None:
        """What one frame brought about was carried out, at ``now``: what ended and was said then has its time."""
        ended, said = len(self.retired), len(self.said)
        before = self._ended
        self._frames.append((now, ended - before, said + before - self.timed))
        self._ended, self.timed = ended, ended + said
        if ended > before and max([len(held.submit.payload) for held in self.retired[before:]]) > HEAVY_BYTES:
            self._due = 0
        if ended + said >= self._due:
            self.digest()

    def hear(self, peer: str, messages: list[Message]) -> None:
        """What ``peer`` said, in one frame."""
        self._heard.append((trio.current_time(), peer, messages))
        if len(self._heard) >= self._due:
            self.digest()

    # ---- several at a time ------------------------------------------------------------------------------------

    def digest(self) -> None:
        """Count and keep what has come since the last time.

        A copy that has ended is held until then, with its arguments: for a quarter of a second at most, and only until
        the frame is over if these are large (``HEAVY_BYTES``), or where spans or a debug log wait for it.
        """
        tracer, in_detail = self._server.executor.tracer, logger.isEnabledFor(logging.DEBUG)
        self._due = 1 if in_detail or tracer is not None else BATCH
        retired, said = self.retired, self.said
        if len(retired) + len(said) != self.timed:  # of a frame that is not over: it asks for a snapshot
            ended = len(retired) - self._ended
            self._frames.append((trio.current_time(), ended, len(retired) + len(said) - self.timed - ended))
        copies, notices = iter(retired), iter(said)
        for now, ended, told in self._frames:
            if ended:
                self._keep(islice(copies, ended), now)
            for link, message in islice(notices, told):
                self._note(now, link.peer.name if link.peer is not None else OTHERS, (message,), 0)
        for now, peer, messages in self._heard:
            self._note(now, peer, messages, HEARD)
        if in_detail or tracer is not None:
            for held in retired:
                if held.state is not DONE and held.state is not FAILED:
                    self._in_vain(held, tracer)
        for pending in (retired, said, self._heard, self._frames):
            pending.clear()
        self._ended = self.timed = 0

    def _keep(self, copies: Iterable[HeldCopy], now: float) -> None:
        """Count and keep copies that ended at ``now``."""
        ring, rows, known = self.ring, self._rows, self._known
        for held in copies:
            submit, state, arrived, started = held.submit, held.state, held.arrived_at, held.started_at
            row = rows.get(submit.method, NO_METHOD)
            _pack(ring.block, ring.at, now, arrived, started, row, submit.kind, state, held.cause, *submit.copy)
            ring.at += RECORD_SIZE
            if ring.at == len(ring.block):
                ring.at, ring.full = 0, True
            executions = known[row] if row != NO_METHOD else self._no_method
            if state is DONE or state is FAILED:
                service, waited = now - started, started - arrived
                executions.ends[state] += 1
                executions.service.counts[bisect_left(BOUNDS, service)] += 1
                executions.service.sum += service
                executions.queue_wait.counts[bisect_left(BOUNDS, waited)] += 1
                executions.queue_wait.sum += waited
            elif started != NEVER:
                executions.ends[state] += 1
                executions.wasted_busy += now - started

    def _note(self, now: float, peer: str, messages: Iterable[Message], heard: int) -> None:
        """Keep the notices among ``messages``."""
        ring, number = self.notices, self._peers.get(peer)
        if number is None:
            number = self._number(peer)
        for message in messages:
            word = _WORDS.get(type(message))
            if word is not None:
                _pack_notice(ring.block, ring.at, now, number, word | heard, *message.copy)  # type: ignore[union-attr]
                ring.at += NOTICE_SIZE
                if ring.at == len(ring.block):
                    ring.at, ring.full = 0, True

    def _number(self, peer: str) -> int:
        if len(self._peers) < PEERS_MAX:
            return self._peers.setdefault(peer, len(self._peers))
        return self._peers.setdefault(OTHERS, len(self._peers))

    @staticmethod
    def _in_vain(held: HeldCopy, tracer: ReplicaTracer | None) -> None:
        if tracer is not None:
            tracer.copy_ends(held)
        logger.debug("copy %s ends %s: %s", held.id, held.state.label, held.cause.label)

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
