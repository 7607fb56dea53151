"""What a replica executes: copies whose handlers run, how they are stopped, and what comes of them.

Synchronous; ``net.executor`` runs the handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context as ContextVariables
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import trio

from tiedreq.core.commands import StartWork, StopWork
from tiedreq.core.events import Answer, Fault, PushbackRequested, ReplicaEvent, StopEnabled, WorkFinished
from tiedreq.core.messages import Submit
from tiedreq.core.types import UNTIED, CopyId
from tiedreq.net.current import current_execution
from tiedreq.net.edge import single_cause
from tiedreq.net.quiet import QuietLog
from tiedreq.service import Context, Failure, Method, Service
from tiedreq.wire.fields import CONTROL
from tiedreq.wire.limits import CODE_CHARS_MAX, FAILURE_CHARS_MAX, WireLimits
from tiedreq.wire.payload import encode_payload

if TYPE_CHECKING:
    from tiedreq.net.link import Link
    from tiedreq.observe.replica import ReplicaTracer

log = logging.getLogger("tiedreq.replica")

_quiet = QuietLog(log)
ANSWER_BYTES_BESIDE = 256
"""More than the numbers of a Result, a Failed or an Item can come to, encoded."""
FAILED_TEXT = "the handler failed; see the replica's log"

Feed = Callable[[ReplicaEvent], None]
Way = Callable[[CopyId], "Link | None"]
Handling = Coroutine[Any, Any, Answer | Fault]


class Execution:
    """A job of the workers: see ``net.workers.Job``."""

    __slots__ = (
        "_executions",
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

    def __init__(self, executions: Executions, command: StartWork, method: Method, context: Context) -> None:
        self._executions = executions
        self._result: Answer | Fault | None = None
        self.submit = command.submit
        self.deadline = command.deadline
        self.method = method
        self.name = method.name
        self.context = context
        self.scope: trio.CancelScope | None = None
        self.stopped = False
        self.resumed: trio.Event | None = None

    def begin(self) -> tuple[ContextVariables, Handling] | None:
        """A handler that was stopped before it began does not begin."""
        if self.stopped:
            return None
        variables = self._executions.variables.copy()
        variables.run(current_execution.set, self.context)
        if self._executions.tracer is not None:
            self._executions.tracer.execution_begins(self.submit, variables)
        return variables, self._executions.handle(self)

    def finish(self, result: Answer | Fault) -> Awaitable[object] | None:
        """The result waits here until its link has room for it; one that nobody wants any more does not wait."""
        self._result = result
        if self.stopped:
            return None
        return self._executions.until_room(self.submit.copy, _size(result))

    def end(self, finished: bool) -> None:
        """Whatever happened, the core is told."""
        self._executions.ended(self, self._result if finished else None)


class Executions:
    """Those of one replica.

    ``handle`` makes the coroutine that runs a handler, ``run`` lets one begin soon. ``feed`` takes events (synchronous,
    Trio's thread). ``way`` is the link to the caller of a copy, if there still is one: until it has room for a result
    or an item, that waits here, in its slot.
    """

    def __init__(
        self,
        service: Service,
        replica: str,
        state: Any,
        feed: Feed,
        way: Way,
        limits: WireLimits,
        handle: Callable[[Execution], Handling],
        run: Callable[[Execution], object],
        debug: bool,
    ) -> None:
        self.feed = feed
        self.way = way
        self.handle = handle
        self.tracer: ReplicaTracer | None = None
        self.variables = copy_context()
        """What every handler's context variables begin with."""
        self._service = service
        self._replica = replica
        self._state = state
        self._limits = limits
        self._run = run
        self._debug = debug
        self._quiet = QuietLog(log)
        self._token = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock()
        self._executions: dict[CopyId, Execution] = {}

    def __len__(self) -> int:
        return len(self._executions)

    def start(self, command: StartWork) -> None:
        """Begin an execution."""
        submit = command.submit
        method = self._service.methods[submit.method]
        execution = Execution(self, command, method, self._context(submit, command.deadline))
        self._executions[submit.copy] = execution
        self._run(execution)

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

    def ended(self, execution: Execution, outcome: Answer | Fault | None) -> None:
        """An execution is over."""
        if outcome is None:
            _call_hooks(execution)
        copy = execution.submit.copy
        del self._executions[copy]
        if self.tracer is not None:
            self.tracer.execution_ends(copy, outcome)
        self.feed(WorkFinished(copy, outcome))

    def until_room(self, copy: CopyId, size: int) -> Awaitable[object] | None:
        """What an answer of ``size`` bytes has to wait for before it may go to its caller; None if it may now."""
        link = self.way(copy)
        if link is None or link.has_room(size, ANSWER_BYTES_BESIDE):
            return None
        return link.room(size, ANSWER_BYTES_BESIDE)

    def _context(self, submit: Submit, deadline: float) -> Context:
        copy = submit.copy
        run_soon = self._token.run_sync_soon

        def from_any_thread(event: ReplicaEvent) -> None:
            run_soon(self.feed, event)

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

    def failed(self, execution: Execution, error: BaseException) -> Fault:
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

    def answer(self, value: Any, method: Method) -> Answer | Fault:
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


def _call_hooks(execution: Execution) -> None:
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
