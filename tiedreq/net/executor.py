"""Runs handlers: ``async def`` in Trio's thread (``net.workers``), plain ``def`` in worker threads.

Decides nothing about the protocol.

A handler in a thread can't be cancelled by Trio: its cancelled scope waits until the function returns, which
``on_cancel`` functions may hasten.

Obligations, kept whatever happens: each ``StartWork`` is answered by exactly one ``WorkFinished``, and not before the
handler has really ended. Nothing that a handler raises leaves this module but Ctrl-C: the caller sees a failure, this
replica's log the traceback. That includes ``SystemExit``: no call can end a replica.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing
from contextvars import Context as ContextVariables
from contextvars import copy_context
from typing import Any

import trio

from tiedreq.core.commands import StartWork, StopWork
from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import Answer, Fault, ItemProduced, PushbackRequested, ReplicaEvent, StopEnabled, WorkFinished
from tiedreq.core.messages import Submit
from tiedreq.core.types import UNTIED, CopyId
from tiedreq.net.bell import Bell
from tiedreq.net.current import current_execution
from tiedreq.net.edge import single_cause
from tiedreq.net.link import Link
from tiedreq.net.quiet import QuietLog
from tiedreq.net.workers import Workers
from tiedreq.observe.replica import ReplicaTracer
from tiedreq.service import Context, Failure, Method, Service
from tiedreq.wire.content import is_content
from tiedreq.wire.fields import CONTROL
from tiedreq.wire.limits import CODE_CHARS_MAX, FAILURE_CHARS_MAX, WireLimits
from tiedreq.wire.payload import decode_payload, encode_payload

log = logging.getLogger("tiedreq.replica")

_quiet = QuietLog(log)
ANSWER_BYTES_BESIDE = 256
"""More than the numbers of a Result, a Failed or an Item can come to, encoded."""
CHUNKED_BYTES_MIN = 32 * 1024
"""Smaller items never travel in chunks, with all that stands beside their payload."""
_END = object()
FAILED_TEXT = "the handler failed; see the replica's log"

Feed = Callable[[ReplicaEvent], None]
Way = Callable[[CopyId], Link | None]


class _Execution:
    """A job of the workers: see ``net.workers.Job``."""

    __slots__ = (
        "_executor",
        "_result",
        "context",
        "deadline",
        "method",
        "name",
        "resumed",
        "scope",
        "stopped",
        "submit",
    )

    def __init__(self, executor: Executor, command: StartWork, method: Method, context: Context) -> None:
        self._executor = executor
        self._result: Answer | Fault | None = None
        self.submit = command.submit
        self.deadline = command.deadline
        self.method = method
        self.name = method.name
        self.context = context
        self.scope: trio.CancelScope | None = None
        self.stopped = False
        self.resumed: trio.Event | None = None

    def begin(self) -> tuple[ContextVariables, Coroutine[Any, Any, Answer | Fault]] | None:
        """A handler that was stopped before it began does not begin."""
        if self.stopped:
            return None
        variables = self._executor.variables.copy()
        variables.run(current_execution.set, self.context)
        if self._executor.tracer is not None:
            self._executor.tracer.execution_begins(self.submit, variables)
        return variables, self._executor.handle(self)

    def finish(self, result: Answer | Fault) -> Awaitable[object] | None:
        """The result waits here until its link has room for it; one that nobody wants any more does not wait."""
        self._result = result
        if self.stopped:
            return None
        return self._executor.until_room(self.submit.copy, _size(result))

    def end(self, finished: bool) -> None:
        """Whatever happened, the core is told."""
        self._executor.ended(self, self._result if finished else None)


class Executor:
    """Runs the executions of one replica in ``nursery``.

    ``feed`` takes events (synchronous, Trio's thread). ``way`` is the link to the caller of a copy, if there still is
    one: until it has room for a result or an item, that waits here, in its slot. ``bell`` and ``settled`` as in
    ``net.workers``: input has come, and input has settled.
    """

    def __init__(
        self,
        service: Service,
        *,
        replica: str,
        slots: int,
        state: Any,
        nursery: trio.Nursery,
        feed: Feed,
        way: Way,
        limits: WireLimits,
        bell: Bell,
        settled: Callable[[], None],
        debug: bool = False,
    ) -> None:
        self._service = service
        self._replica = replica
        self._state = state
        self._feed = feed
        self._way = way
        self._limits = limits
        self._debug = debug
        self._quiet = QuietLog(log)
        self._threads = trio.CapacityLimiter(slots)
        self._token = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock()
        self._executions: dict[CopyId, _Execution] = {}
        self._workers: Workers[_Execution] = Workers(nursery, bell, settled)
        self.tracer: ReplicaTracer | None = None
        self.variables = copy_context()
        """What every handler's context variables begin with."""

    def __len__(self) -> int:
        return len(self._executions)

    async def run(self) -> None:
        """Run what is started, until cancelled."""
        await self._workers.run()

    def start(self, command: StartWork) -> None:
        """Begin an execution."""
        submit = command.submit
        method = self._service.methods[submit.method]
        execution = _Execution(self, command, method, self._context(submit, command.deadline))
        self._executions[submit.copy] = execution
        self._workers.start(execution)

    def stop(self, command: StopWork) -> None:
        """Stop an execution as far as it can be stopped."""
        execution = self._executions.get(command.copy)
        if execution is None:
            return
        execution.stopped = True
        if execution.scope is not None:
            execution.scope.cancel()
        _call_hooks(execution)

    def pause(self, copy: CopyId) -> None:
        """Ask a stream for nothing more until ``resume``."""
        execution = self._executions.get(copy)
        if execution is not None:
            execution.resumed = trio.Event()

    def resume(self, copy: CopyId) -> None:
        """Go on with a paused stream."""
        execution = self._executions.get(copy)
        if execution is not None and execution.resumed is not None:
            execution.resumed.set()
            execution.resumed = None

    def ended(self, execution: _Execution, outcome: Answer | Fault | None) -> None:
        """An execution is over."""
        if outcome is None:
            _call_hooks(execution)
        copy = execution.submit.copy
        del self._executions[copy]
        if self.tracer is not None:
            self.tracer.execution_ends(copy, outcome)
        self._feed(WorkFinished(copy, outcome))

    def until_room(self, copy: CopyId, size: int) -> Awaitable[object] | None:
        """What an answer of ``size`` bytes has to wait for before it may go to its caller; None if it may now."""
        link = self._way(copy)
        if link is None or link.has_room(size, ANSWER_BYTES_BESIDE):
            return None
        return link.room(size, ANSWER_BYTES_BESIDE)

    def _context(self, submit: Submit, deadline: float) -> Context:
        copy = submit.copy
        run_soon = self._token.run_sync_soon

        def from_any_thread(event: ReplicaEvent) -> None:
            run_soon(self._feed, event)

        return Context(
            call_id=str(copy.call),
            key=submit.key,
            replica=self._replica,
            rank=None if copy.rank == UNTIED else copy.rank,
            kind=submit.kind.label,
            metadata=dict(submit.metadata),
            state=self._state,
            layered=submit.layered or submit.copy.rank != UNTIED,
            deadline=deadline,
            now=self._clock.current_time,
            stoppable=lambda: from_any_thread(StopEnabled(copy)),
            pushback=lambda seconds: from_any_thread(PushbackRequested(seconds)),
        )

    async def handle(self, execution: _Execution) -> Answer | Fault:
        """Decode the arguments, call the handler, encode what it returns."""
        submit = execution.submit
        method, context = execution.method, execution.context
        try:
            args = decode_payload(submit.payload, self._limits)
        except RemoteViolation as error:
            return Fault("bad_payload", str(error), b"", False)
        try:
            if method.stream:
                return await self._produce(execution, args)
            if method.run == "async":
                value = await method.handler(context, args)
            else:
                value = await trio.to_thread.run_sync(method.handler, context, args, limiter=self._threads)
        except BaseException as error:
            leaving = _leaving(error)
            if leaving is not None:
                raise leaving from None
            return self._failed(execution, error)
        return self._answer(value, method)

    async def _produce(self, execution: _Execution, args: Any) -> Answer | Fault:
        """Hand a generator's values to the core one by one, no faster than its caller and the link take them."""
        copy, method = execution.submit.copy, execution.method
        number = 0
        values = method.handler(execution.context, args)
        if method.run == "thread":
            values = in_thread(values, self._threads)
        async with aclosing(values):
            async for value in values:
                item = self._answer(value, method)
                if isinstance(item, Fault):
                    return item
                if execution.stopped:
                    self._feed(ItemProduced(copy, item.payload, False))  # counted, and thrown away
                    return item
                room = self.until_room(copy, len(item.payload))
                if room is not None:
                    await room
                elif number:  # the first item waits for nobody; from the second on no handler keeps the loop to itself
                    await trio.lowlevel.checkpoint()
                self._feed(ItemProduced(copy, item.payload, is_content(item.payload)))
                number += 1
                link = self._way(copy)
                if link is not None and len(item.payload) >= CHUNKED_BYTES_MIN:
                    await link.left(copy)  # later ones are small, perhaps, and would pass it
                if execution.resumed is not None:
                    await execution.resumed.wait()
        return Answer(encode_payload(number))

    def _failed(self, execution: _Execution, error: BaseException) -> Fault:
        """What a handler raised, as its caller may know it. One that was told to stop may well raise."""
        cause = single_cause(error)
        if isinstance(cause, Failure):
            return self._deliberate(cause)
        name, text = execution.method.name, "method %s failed on call %s"
        if execution.stopped:
            log.debug(text, name, execution.context.call_id, exc_info=error)
        else:
            self._quiet.log(name, logging.ERROR, text, name, execution.context.call_id, error=error)
        text = f"{type(cause).__name__}: {_words(cause)}" if self._debug else FAILED_TEXT
        return Fault("internal", text[:FAILURE_CHARS_MAX], b"", False)

    def _answer(self, value: Any, method: Method) -> Answer | Fault:
        try:
            payload = encode_payload(value)
        except Exception as error:
            text = "method %s returned what can't be sent: %s"
            self._quiet.log(f"{method.name}: answer", logging.ERROR, text, method.name, _words(error))
            return Fault("unpackable", f"the result can't be sent: {_words(error)}"[:FAILURE_CHARS_MAX], b"", False)
        limit = self._limits.payload_bytes_max
        if len(payload) > limit:
            text = "method %s returned %d bytes, over the limit of %d"
            self._quiet.log(f"{method.name}: answer", logging.ERROR, text, method.name, len(payload), limit)
            text = f"the result has {len(payload)} bytes, over the replica's payload_bytes_max of {limit}"
            return Fault("too_large", text, b"", False)
        return Answer(payload)

    def _deliberate(self, failure: Failure) -> Fault:
        """A handler's own ``Failure``; details that can't be sent are left out and logged."""
        details = b""
        code = CONTROL.sub("?", _words(failure.code))[:CODE_CHARS_MAX] or "failure"
        if failure.details is not None:
            try:
                details = encode_payload(failure.details)
            except Exception as error:
                text = "the details of failure %s can't be sent: %s"
                self._quiet.log("details", logging.ERROR, text, code, _words(error))
            if len(details) > self._limits.payload_bytes_max:
                text = "the details of failure %s are too large: %d bytes"
                self._quiet.log("details", logging.ERROR, text, code, len(details))
                details = b""
        return Fault(code, _words(failure.message)[:FAILURE_CHARS_MAX], details, failure.retryable is True)


async def in_thread(generator: Generator[Any, Any, Any], limiter: trio.CapacityLimiter) -> AsyncGenerator[Any, None]:
    """The values of a plain generator, each step of which runs in a worker thread."""
    try:
        while (value := await trio.to_thread.run_sync(next, generator, _END, limiter=limiter)) is not _END:
            yield value
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(generator.close, limiter=limiter)


def _leaving(error: BaseException) -> BaseException | None:
    """The part of what a handler raised that is not its own: Ctrl-C, and the cancel of a scope around the handler."""
    cancelled = trio.current_effective_deadline() == -math.inf
    kinds = (KeyboardInterrupt, trio.Cancelled) if cancelled else (KeyboardInterrupt,)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds)
    return error if isinstance(error, kinds) else None


def _call_hooks(execution: _Execution) -> None:
    """Call the ``on_cancel`` functions of an execution, each once."""
    for hook in execution.context._stop():
        try:
            hook()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            name = execution.method.name
            _quiet.log(name, logging.ERROR, "an on_cancel function of %s failed", name, error=error)


def _words(value: object) -> str:
    """``value`` as text that can be sent, whatever it is."""
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:
        return f"({type(value).__name__})"


def _size(outcome: Answer | Fault) -> int:
    """Bytes of everything in an outcome but its numbers."""
    if isinstance(outcome, Answer):
        return len(outcome.payload)
    return len(outcome.details) + len(outcome.message.encode()) + len(outcome.code.encode())
