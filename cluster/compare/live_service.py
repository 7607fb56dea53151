"""What the replicas of a live run serve: the laboratory's ``work``, or somebody's own service, kept a journal of.

``work`` occupies its slot for as long as the cell's law says, longer at a slow replica and in a brown-out. A pause
stops the whole replica as a garbage collection does: its event loop stands still, so that no message is read and no
timer goes off, and all work in progress ends later by the pause's length.

Two methods are the laboratory's own: ``BEGIN`` sets the moment from which pauses and brown-outs count, ``JOURNAL``
hands out what was executed. Only ``cluster.compare`` calls them.

Service times are those of the slot, on average: what a busy machine oversleeps in one execution, the next ones are
shorter by. Not for the demo (``cluster.demo``), whose pauses leave the replica's messages alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

import tiedreq
from cluster.compare.live_journal import FAILED, RETURNED, STOPPED, Journal
from cluster.compare.live_pauses import Pause, Stops
from cluster.compare.live_priority import before_others
from cluster.compare.live_settings import LabSettings
from cluster.compare.live_sleep import Sleepers, sleepers
from cluster.compare.live_timer import punctual_timers
from cluster.compare.tally import Distribution
from tiedreq.loading import load_service
from tiedreq.service import Handler, Method

__all__ = ["BEGIN", "JOURNAL", "METHOD", "Work", "lab_service"]

METHOD = "work"
BEGIN = "cluster.compare: begin"
JOURNAL = "cluster.compare: journal"
TIMEOUT_MAX = 86_400.0
OTHERS = ("backup", "failover")
"""Kinds of copies that are another execution of their call. (Of a double start both take the call's own time.)"""
OVERSLEPT_MAX = 0.005
"""More than that is not the timer's doing, and the next execution does not make up for it."""
OVERSLEPT_SHARE = 1 / 64


class Work:
    """The artificial work of one replica, and its pauses. All times are those of the monotonic clock, in seconds."""

    def __init__(self, settings: LabSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._times = Random(f"{settings.seed}/{settings.replica}/service")
        self._lock = threading.Lock()
        self._began = math.inf
        self._pauses: list[Pause] = []
        self._stops = Stops(())
        self._oversleeps = 0.0
        self.lateness = Distribution()
        self.begun = trio.Event()

    def begin(self, at: float, pauses: Iterable[Sequence[float]]) -> None:
        """The run begins at this moment: pauses and brown-outs count from it."""
        self._began = at
        self._pauses = [Pause(at + begin, at + end) for begin, end in pauses]
        self._stops = Stops(self._pauses)
        self.begun.set()

    def plan(self, kind: str, seconds: float) -> float:
        """An execution begins now: when it is to end. ``seconds`` is the time that the call brought.

        That is the time of its first execution (a tie has one, as a rule); a backup draws another.
        """
        settings, now = self._settings, self._clock()
        with self._lock:
            if settings.service is not None and kind in OTHERS:
                seconds = settings.service.sample(self._times)
            brown_out = settings.brown_out
            if brown_out is not None and brown_out.begin <= now - self._began < brown_out.end:
                seconds += brown_out.extra
            return self._stops.end_of(seconds * settings.slow_factor, begin=now)

    @property
    def late_p99(self) -> float | None:
        """How much later than planned one execution in a hundred has ended, in seconds."""
        return self.lateness.percentile(99.0)

    @property
    def oversleeps(self) -> float:
        """How much later than planned executions end, of late, in seconds."""
        return self._oversleeps

    def ended(self, planned: float) -> None:
        """An execution that was planned to end then, less what it was expected to oversleep, has ended now."""
        late = time.monotonic() - planned
        self.lateness.add(late)
        slept = late + self._oversleeps
        self._oversleeps += OVERSLEPT_SHARE * (min(max(slept, 0.0), OVERSLEPT_MAX) - self._oversleeps)

    async def pause(self) -> None:
        """Stop the event loop in every pause, until cancelled."""
        await self.begun.wait()
        for pause in self._pauses:
            await trio.sleep(max(0.0, pause.begin - time.monotonic()))
            time.sleep(max(0.0, pause.end - time.monotonic()))  # noqa: ASYNC251 -- everything is to stop


async def _work(ctx: tiedreq.Context, args: Any) -> None:
    """Take the time of one execution, and stop when told to."""
    work: Work = ctx.state.work
    planned = work.plan(ctx.kind, args)
    await ctx.state.sleepers.sleep(max(0.0, planned - work.oversleeps - time.monotonic()))
    work.ended(planned)


def _work_in_thread(ctx: tiedreq.Context, args: Any) -> None:
    """The same, to its end whatever happens. Threads sleep punctually."""
    work: Work = ctx.state.work
    planned = work.plan(ctx.kind, args)
    time.sleep(max(0.0, planned - time.monotonic()))


class LabState:
    """What handlers of ``work`` share."""

    def __init__(self, work: Work, sleepers: Sleepers) -> None:
        self.work = work
        self.sleepers = sleepers


def lab_service(settings: LabSettings, journal: Journal) -> tiedreq.Service:
    """The service of one replica. Raises ``AppError`` and ``BadOption`` when somebody's own can't be had."""
    work = Work(settings)
    app = None if settings.app is None else load_service(settings.app)
    if app is None:
        service = tiedreq.Service("laboratory", lifespan=lambda: _own_lifespan(work))
        handler: Handler = _work_in_thread if settings.threads else _work
        service.method(METHOD, idempotent=True, timeout_max=TIMEOUT_MAX)(_kept(handler, settings.threads, journal))
    else:
        service = tiedreq.Service(app.name, lifespan=app.lifespan)
        for method in app.methods.values():
            _add(service, method, journal)

    @service.method(BEGIN)
    async def begin(ctx: tiedreq.Context, args: Any) -> None:
        await trio.lowlevel.checkpoint()
        work.begin(args["at"], args["pauses"])

    @service.method(JOURNAL)
    async def read_journal(ctx: tiedreq.Context, args: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {**journal.page(args), "late_p99": work.late_p99}

    return service


@asynccontextmanager
async def _own_lifespan(work: Work) -> AsyncIterator[LabState]:
    async with punctual_timers(), sleepers() as shared, trio.open_nursery() as nursery:
        with before_others():
            nursery.start_soon(work.pause)
            yield LabState(work, shared)
            nursery.cancel_scope.cancel()


def _add(service: tiedreq.Service, method: Method, journal: Journal) -> None:
    if method.stream:  # nobody here asks for it
        service.methods[method.name] = method
        return
    declare = service.method(
        method.name,
        idempotent=method.idempotent,
        run=method.run,
        timeout_max=method.timeout_max,
        slots=method.slots,
    )
    declare(_kept(method.handler, method.run == "thread", journal))


def _kept(handler: Handler, threads: bool, journal: Journal) -> Handler:
    """``handler``, with a row in the journal for each execution."""

    async def as_task(ctx: tiedreq.Context, args: Any) -> Any:
        row, how = journal.begin(ctx), STOPPED
        try:
            value = await handler(ctx, args)
            how = RETURNED
            return value
        except Exception:
            how = FAILED
            raise
        finally:
            journal.end(row, how)

    def in_thread(ctx: tiedreq.Context, args: Any) -> Any:
        row, how = journal.begin(ctx), STOPPED
        try:
            value = handler(ctx, args)
            how = RETURNED
            return value
        except Exception:
            how = FAILED
            raise
        finally:
            journal.end(row, how)

    return in_thread if threads else as_task
