"""What a replica remembers of what it did: a ring of records, one for each copy that ended, and counts per method.

``ReplicaObserver.retired`` is on the path of every copy, so it does little: it packs a record and counts. Payloads are
never kept, and nothing is copied that the core can be asked for: what waits and runs, counters, endings.

Invariants: the ring has a fixed size; the table of methods is that of the service.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.copybook import NEVER, HeldCopy
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Submit
from tiedreq.core.types import CallId, CopyId, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import VERSION, LinkView, ReplicaMethodView, ReplicaSnapshot, process_view
from tiedreq.observe.stories import CALL, NO_METHOD, RECORD, ReplicaStory, parse_call_id, replica_story
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.net.server import ReplicaServer

RECORDS_DEFAULT = 16_384

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
    """Watches one replica. ``records`` is how many records the ring holds.

    What a record holds is in ``observe.stories``.
    """

    def __init__(
        self, server: ReplicaServer, service: Service, *, cluster: str, records: int = RECORDS_DEFAULT
    ) -> None:
        self.lag = LoopLag()
        self.ring = Ring(RECORD.size, records)
        self._server = server
        self._service = service.name
        self._cluster = cluster
        self._began = trio.current_time()
        self._methods = {name: _Executions() for name in service.methods}
        self._names = tuple(self._methods)
        self._rows = {name: (row, executions) for row, (name, executions) in enumerate(self._methods.items())}
        self._no_method = NO_METHOD, _Executions()
        server.core.retired = []

    # ---- on the path of every message -------------------------------------------------------------------------

    def retired(self, copies: Iterable[HeldCopy], now: float) -> None:
        """These copies ended at ``now``. Told once for all that one frame brought about."""
        ring, rows = self.ring, self._rows
        for held in copies:
            submit, state, arrived, started = held.submit, held.state, held.arrived_at, held.started_at
            row, executions = rows.get(submit.method, self._no_method)
            RECORD.pack_into(
                ring.block, ring.at, now, arrived, started, row, submit.kind, state, held.cause, *submit.copy
            )
            ring.at += RECORD.size
            if ring.at == len(ring.block):
                ring.at, ring.full = 0, True
            if state is CopyState.DONE or state is CopyState.FAILED:
                service, waited = now - started, started - arrived
                executions.ends[state] += 1
                executions.service.counts[bisect_left(BOUNDS, service)] += 1
                executions.service.sum += service
                executions.queue_wait.counts[bisect_left(BOUNDS, waited)] += 1
                executions.queue_wait.sum += waited
            else:
                self._in_vain(held, executions, now)

    def _in_vain(self, held: HeldCopy, executions: _Executions, now: float) -> None:
        if held.started_at != NEVER:
            executions.ends[held.state] += 1
            executions.wasted_busy += now - held.started_at
        tracer = self._server.executor.tracer
        if tracer is not None:
            tracer.copy_ends(held)
        if logger.isEnabledFor(logging.DEBUG):
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
        """What the ring still holds about one call. Takes a look at every record: a millisecond or two."""
        name, held = self._server.identity.name, self._server.core.copies_of(call)
        return replica_story(name, self.ring.unpacked(RECORD), call, clock.offset(), self._names, held)

    def snapshot(self) -> ReplicaSnapshot:
        """The replica now."""
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
            process=process_view(),
            sizes=core.sizes(),
        )

    def _counters(self, messages: int) -> dict[str, float]:
        stats = self._server.core.stats
        names = (
            "submitted duplicate_submits started done failed notices late_notices notices_unsent stale_notices "
            "double_starts busy_seconds wasted_seconds queue_wait_seconds"
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
