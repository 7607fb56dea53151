"""What a replica remembers of what it did: a ring of records, and counts per method.

``ReplicaObserver.stepped`` is told every event with the commands that followed, a frame's worth at a time. It is on the
path of every message, so it does little: it looks at types, packs records into a ring, and counts finished executions.
Payloads are never kept.

Invariants: the ring has a limit; the table of methods is that of the service; what is kept of running executions goes
when they end, each exactly once (an obligation of the executor).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.commands import ReplicaCommand, SendCaller, StartWork
from tiedreq.core.events import (
    Answer,
    CallerLost,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    Fault,
    InputSettled,
    PeerClaimed,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    SubmitReceived,
    WorkFinished,
)
from tiedreq.core.messages import Ended, Failed, Result, Submit
from tiedreq.core.types import UNTIED, CallId, CopyId
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import VERSION, LinkView, ReplicaMethodView, ReplicaSnapshot, process_view
from tiedreq.observe.stories import (
    ARRIVED,
    CALL,
    CALLER_GONE,
    CANCEL,
    DONE,
    ENDED,
    FAILED,
    HEARD,
    HEARD_KINDS,
    NEVER,
    NO_METHOD,
    RECORD,
    ReplicaStory,
    parse_call_id,
    replica_story,
)
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.net.server import ReplicaServer

RECORDS_DEFAULT = 16_384

logger = logging.getLogger("tiedreq.replica")

Trail = list[tuple[ReplicaEvent, Sequence[ReplicaCommand]]]
"""What the core took in one go: each event with the commands that followed."""


class ReplicaTracer(Protocol):
    """Hears of executions; see ``observe.tracing``. All methods are synchronous and must not raise."""

    def execution_begins(self, submit: Submit, variables: Context) -> None:
        """A handler is about to run in the context ``variables``, which may be changed."""

    def copy_ends(self, message: Ended) -> None:
        """A copy ended without an answer, executed or not; if it runs, it is told to stop."""

    def execution_ends(self, copy: CopyId, outcome: Answer | Fault | None) -> None:
        """A handler that began has ended; None: it was stopped."""


class _Executions:
    """Of one method."""

    __slots__ = ("answered", "busy", "failed", "queue_wait", "service", "wasted", "wasted_busy")

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.wasted = 0
        self.busy = 0.0
        self.wasted_busy = 0.0
        self.service = Histogram()
        self.queue_wait = Histogram()

    def view(self, running: int) -> ReplicaMethodView:
        return ReplicaMethodView(
            started=self.answered + self.failed + self.wasted + running,
            running=running,
            answered=self.answered,
            failed=self.failed,
            wasted=self.wasted,
            busy_seconds=self.busy,
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
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._running: dict[CopyId, tuple[_Executions, float]] = {}

    # ---- on the path of every message -------------------------------------------------------------------------

    def stepped(self, trail: Trail, now: float) -> None:
        """The core took these events, one after the other, at ``now``, and said what has to be done."""
        keep, running, rows = self._keep, self._running, self._rows
        for event, commands in trail:
            kind = type(event)
            if kind is SubmitReceived:
                submit: Submit = event.submit  # type: ignore[union-attr]
                row = rows.get(submit.method, NO_METHOD)
                keep(now, ARRIVED, submit.copy, row, submit.kind, event.link)  # type: ignore[union-attr]
            elif kind is WorkFinished:
                self._finished(event.copy, commands, now)  # type: ignore[union-attr]
                continue
            elif kind is PeerStarted:
                keep(now, HEARD, event.copy)  # type: ignore[union-attr]
            elif kind is not InputSettled:
                self._other(event, now)
            for command in commands:
                if type(command) is StartWork:
                    submit = command.submit
                    running[submit.copy] = self._methods[submit.method], now
                elif type(command) is SendCaller and type(command.message) is Ended:
                    self._ended(command.message, now)

    def _keep(
        self, now: float, kind: int, copy: CopyId, first: int = 0, second: int = 0, x: float = 0.0, y: float = 0.0
    ) -> None:
        ring = self.ring
        RECORD.pack_into(ring.block, ring.at, now, kind, first, second, x, y, *copy)
        ring.at += RECORD.size
        if ring.at == len(ring.block):
            ring.at, ring.full = 0, True

    def _finished(self, copy: CopyId, commands: Sequence[ReplicaCommand], now: float) -> None:
        executions, started_at = self._running.pop(copy)
        busy = now - started_at
        executions.busy += busy
        for command in commands:
            if type(command) is not SendCaller:
                continue
            message = command.message
            if type(message) is Result:
                executions.answered += 1
                kind = DONE
            elif type(message) is Failed:
                executions.failed += 1
                kind = FAILED
            else:
                if type(message) is Ended:
                    self._ended(message, now)
                continue
            service, waited = message.service_time, message.queue_wait
            self._keep(now, kind, copy, 0, 0, waited, service)
            executions.service.counts[bisect_left(BOUNDS, service)] += 1
            executions.service.sum += service
            executions.queue_wait.counts[bisect_left(BOUNDS, waited)] += 1
            executions.queue_wait.sum += waited
            return
        executions.wasted += 1
        executions.wasted_busy += busy

    def _ended(self, message: Ended, now: float) -> None:
        running = self._running.get(message.copy)
        started_at = NEVER if running is None else running[1]
        self._keep(now, ENDED, message.copy, message.state, message.cause, started_at)
        if self._server.executor.tracer is not None:
            self._server.executor.tracer.copy_ends(message)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("copy %s ends %s: %s", message.copy, message.state.label, message.cause.label)

    def _other(self, event: ReplicaEvent, now: float) -> None:
        match event:
            case CancelReceived():
                self._keep(now, CANCEL, event.copy)
            case PeerNext() | PeerClaimed() | ClaimGranted() | ClaimDenied():
                self._keep(now, HEARD, event.copy, HEARD_KINDS.index(type(event)))
            case CallerLost():
                self._keep(now, CALLER_GONE, CopyId(0, event.link, 0, UNTIED))

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
        running = [(copy, started_at) for copy, (_, started_at) in self._running.items() if copy[:2] == call]
        records = self.ring.unpacked(RECORD)
        return replica_story(self._server.identity.name, records, call, clock.offset(), self._names, running)

    def snapshot(self) -> ReplicaSnapshot:
        """The replica now."""
        server, core = self._server, self._server.core
        status = server.status()
        running = Counter(executions for executions, _ in self._running.values())
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
            methods={name: executions.view(running[executions]) for name, executions in self._methods.items()},
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
