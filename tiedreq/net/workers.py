"""Tasks that run handlers, one of which leads: it waits for input to settle and begins what is to start.

A handler that returns without ever waiting costs no task and no pass of the scheduler: the leader runs it and goes on.
As soon as a handler waits for the first time its task stays with it, another one leads, and whatever else was to start
then has a task to itself. Tasks that are done wait to be of use again.

A handler sees none of this: it has a task, a cancel scope with its deadline, and context variables of its own.

The start of a copy is told to its partners before its handler runs, by a message that leaves when the link's writer has
its turn. A handler that computes for long would hold that up; so where handlers of a method did so before (or nothing
is known of it) the writers have their turn first.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import trio

from tiedreq.net.bell import Bell

LONG_SECONDS = 0.0006
"""A method whose handlers compute longer than this before they first wait, or return, lets the writers go first.

To let them takes two passes and the writes, some 0.4 ms in a process that has just woken up.
"""
SHARE = 0.2
"""How much the newest measurement counts."""
LEADING, IDLE = "leading worker", "idle worker"
"""The names of tasks; while one runs a handler that waits it has the name of the method."""
IDLE_MAX = 256
"""So many tasks wait to be of use again."""

ResultT = TypeVar("ResultT")


class Job(Protocol):
    """Something to run: ``begin``, then ``finish`` with what the coroutine returned; ``end`` in any case.

    ``scope`` is the cancel scope that it runs in, while it does; ``name`` its method's; ``deadline`` on Trio's clock.
    """

    name: str
    scope: trio.CancelScope | None
    deadline: float

    def begin(self) -> tuple[Context, Coroutine[Any, Any, Any]] | None:
        """What to run, and its context variables; None when that is no longer wanted."""

    def finish(self, result: Any) -> Awaitable[object] | None:
        """Take the result; returns what is to be waited for before the end, if anything."""

    def end(self, finished: bool) -> None:
        """It is over; ``finished`` unless it was cancelled, or never ran."""


JobT = TypeVar("JobT", bound=Job)


class _Worker(Generic[JobT]):
    __slots__ = ("job", "leads", "task")

    def __init__(self, job: JobT | None, leads: bool) -> None:
        self.job = job
        self.leads = leads
        self.task: trio.lowlevel.Task | None = None


class Workers(Generic[JobT]):
    """Runs jobs in tasks of ``nursery``. ``settled`` is called one pass of the scheduler after ``bell`` was rung, and
    may ``start`` jobs."""

    def __init__(self, nursery: trio.Nursery, bell: Bell, settled: Callable[[], None]) -> None:
        self._nursery = nursery
        self._bell = bell
        self._settled = settled
        self._starting: deque[JobT] = deque()
        self._idle: list[_Worker[JobT]] = []
        self._computing: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def start(self, job: JobT) -> None:
        """Let a job begin soon. Synchronous; from ``settled`` only."""
        self._starting.append(job)

    async def run(self) -> None:
        """Lead, and be of use, until cancelled."""
        await self._work(_Worker(None, True))

    async def _work(self, worker: _Worker[JobT]) -> None:
        task = worker.task = trio.lowlevel.current_task()
        while True:
            if worker.leads:
                task.name = LEADING
                if not self._starting:
                    await self._bell.wait()
                    self._settled()
                if not self._starting:
                    continue
                if any(self._computing.get(job.name, math.inf) > LONG_SECONDS for job in self._starting):
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
            elif worker.job is None:
                if len(self._idle) >= IDLE_MAX:
                    return
                task.name = IDLE
                await self._be_idle(worker)
                continue
            with trio.CancelScope() as scope:
                await self._run_jobs(worker, scope)

    async def _run_jobs(self, worker: _Worker[JobT], scope: trio.CancelScope) -> None:
        """Its own job; or, leading, one after another, as long as none waits or is stopped."""
        while True:
            job, worker.job = worker.job or self._starting.popleft(), None
            job.scope, scope.deadline = scope, job.deadline
            finished = False
            try:
                finished = await self._run_job(worker, job, scope)
            finally:
                job.scope = None
                job.end(finished)
            if scope.cancel_called or not worker.leads or not self._starting:
                return

    async def _run_job(self, worker: _Worker[JobT], job: JobT, scope: trio.CancelScope) -> bool:
        begun = job.begin()
        if begun is None:
            return False
        context, coroutine = begun
        began = perf_counter()
        try:
            trap = context.run(coroutine.send, None)
        except StopIteration as stop:
            self._computed(job.name, perf_counter() - began)
            result = stop.value
        else:
            self._computed(job.name, perf_counter() - began)
            self._let_another_lead(worker)
            assert worker.task is not None
            worker.task.name = job.name
            result = await _go_on(context, coroutine, trap)
        waiting = job.finish(result)
        if waiting is not None:
            self._let_another_lead(worker)
            scope.deadline = math.inf
            await waiting
        return True

    def _computed(self, name: str, seconds: float) -> None:
        """Of two measurements in a row the lesser counts: one alone may be that other processes had their turn."""
        last, self._last[name] = self._last.get(name, seconds), seconds
        known = self._computing.get(name, last)
        self._computing[name] = known + SHARE * (min(seconds, last) - known)

    def _let_another_lead(self, worker: _Worker[JobT]) -> None:
        if not worker.leads:
            return
        worker.leads = False
        while self._starting:
            self._give(self._starting.popleft(), False)
        self._give(None, True)

    def _give(self, job: JobT | None, leads: bool) -> None:
        if self._idle:
            worker = self._idle.pop()
            worker.job, worker.leads = job, leads
            assert worker.task is not None
            trio.lowlevel.reschedule(worker.task)
        else:
            self._nursery.start_soon(self._work, _Worker(job, leads), name=IDLE)

    async def _be_idle(self, worker: _Worker[JobT]) -> None:
        self._idle.append(worker)

        def abort(_: object) -> trio.lowlevel.Abort:
            if worker in self._idle:
                self._idle.remove(worker)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


@types.coroutine
def _go_on(context: Context, coroutine: Coroutine[Any, Any, ResultT], trap: Any) -> Generator[Any, Any, ResultT]:
    """Go on with a coroutine that wants ``trap`` from the scheduler, in its own context."""
    while True:
        try:
            value = yield trap
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            step: Callable[[Any], Any] = coroutine.throw
            argument: Any = error
        else:
            step, argument = coroutine.send, value
        try:
            trap = context.run(step, argument)
        except StopIteration as stop:
            result: ResultT = stop.value
            return result
