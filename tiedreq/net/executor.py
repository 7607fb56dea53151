"""Runs handlers: ``async def`` as tasks, plain ``def`` in worker threads. Decides nothing about the protocol.

A handler in a thread can't be cancelled by Trio: its cancelled scope waits until the function returns, which
``on_cancel`` functions may hasten.

Obligations, kept whatever happens: each ``StartWork`` is answered by exactly one ``WorkFinished``, and not before the
handler has really ended. An exception of a handler never leaves this module: the caller sees a failure, this
replica's log the traceback.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from tiedreq.core.commands import StartWork, StopWork
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.events import Answer, Fault, PushbackRequested, ReplicaEvent, StopEnabled, WorkFinished
from tiedreq.core.messages import Submit
from tiedreq.core.types import UNTIED, CopyId
from tiedreq.net.current import current_execution
from tiedreq.service import Context, Failure, Method, Service
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import decode_payload, encode_payload

log = logging.getLogger("tiedreq.replica")

CODE_LENGTH_MAX = 64
MESSAGE_LENGTH_MAX = 4_000

Feed = Callable[[ReplicaEvent], None]
Room = Callable[[CopyId, int], Awaitable[None]]


class _Execution:
    __slots__ = ("context", "method", "scope", "stopped")

    def __init__(self, method: Method, context: Context, scope: trio.CancelScope) -> None:
        self.method = method
        self.context = context
        self.scope = scope
        self.stopped = False


class Executor:
    """Runs the executions of one replica in ``nursery``.

    ``feed`` takes events (synchronous, Trio's thread). ``room`` waits until a result of so many bytes may go to the
    caller of a copy: until then the result waits here, in its slot.
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
        room: Room,
        limits: WireLimits,
        debug: bool = False,
    ) -> None:
        self._service = service
        self._replica = replica
        self._state = state
        self._nursery = nursery
        self._feed = feed
        self._room = room
        self._limits = limits
        self._debug = debug
        self._threads = trio.CapacityLimiter(slots)
        self._token = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock()
        self._executions: dict[CopyId, _Execution] = {}

    def __len__(self) -> int:
        return len(self._executions)

    def start(self, command: StartWork) -> None:
        """Begin an execution."""
        submit = command.submit
        method = self._service.methods[submit.method]
        deadline = command.deadline if method.run == "async" else math.inf
        execution = _Execution(method, self._context(submit, command.deadline), trio.CancelScope(deadline=deadline))
        self._executions[submit.copy] = execution
        self._nursery.start_soon(self._run, submit, execution, name=f"{submit.method} {submit.copy}")

    def stop(self, command: StopWork) -> None:
        """Stop an execution as far as it can be stopped."""
        execution = self._executions.get(command.copy)
        if execution is None:
            return
        execution.stopped = True
        execution.scope.cancel()
        for hook in execution.context._stop():
            try:
                hook()
            except Exception:
                log.exception("an on_cancel function of %s failed", execution.method.name)

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

    async def _run(self, submit: Submit, execution: _Execution) -> None:
        outcome: Answer | Fault | None = None
        try:
            with execution.scope:
                if not execution.stopped:
                    current_execution.set(execution.context)
                    outcome = await self._handle(submit, execution)
                if outcome is not None and not execution.stopped:
                    execution.scope.deadline = math.inf
                    await self._room(submit.copy, _size(outcome))
        finally:
            del self._executions[submit.copy]
            self._feed(WorkFinished(submit.copy, outcome))

    async def _handle(self, submit: Submit, execution: _Execution) -> Answer | Fault:
        method, context = execution.method, execution.context
        try:
            args = decode_payload(submit.payload, self._limits)
        except RemoteViolation as error:
            return Fault("bad_payload", str(error), b"", False)
        try:
            if method.run == "async":
                value = await method.handler(context, args)
            else:
                value = await trio.to_thread.run_sync(method.handler, context, args, limiter=self._threads)
        except Failure as failure:
            return self._deliberate(failure)
        except Exception as error:
            if not execution.stopped:
                log.exception("method %s failed on call %s", method.name, context.call_id)
            text = f"{type(error).__name__}: {error}" if self._debug else "the handler failed; see the replica's log"
            return Fault("internal", text[:MESSAGE_LENGTH_MAX], b"", False)
        return self._answer(value, method)

    def _answer(self, value: Any, method: Method) -> Answer | Fault:
        try:
            payload = encode_payload(value)
        except BadOption as error:
            log.error("method %s returned what can't be sent: %s", method.name, error)
            return Fault("unpackable", f"the result can't be sent: {error}"[:MESSAGE_LENGTH_MAX], b"", False)
        limit = self._limits.payload_bytes_max
        if len(payload) > limit:
            log.error("method %s returned %d bytes, over the limit of %d", method.name, len(payload), limit)
            text = f"the result has {len(payload)} bytes, over the replica's payload_bytes_max of {limit}"
            return Fault("too_large", text, b"", False)
        return Answer(payload)

    def _deliberate(self, failure: Failure) -> Fault:
        """A handler's own ``Failure``; details that can't be sent are left out and logged."""
        details = b""
        if failure.details is not None:
            try:
                details = encode_payload(failure.details)
            except BadOption as error:
                log.error("the details of failure %s can't be sent: %s", failure.code, error)
            if len(details) > self._limits.payload_bytes_max:
                log.error("the details of failure %s are too large: %d bytes", failure.code, len(details))
                details = b""
        code, message = str(failure.code)[:CODE_LENGTH_MAX], str(failure.message)[:MESSAGE_LENGTH_MAX]
        return Fault(code or "failure", message, details, bool(failure.retryable))


def _size(outcome: Answer | Fault) -> int:
    return len(outcome.payload) if isinstance(outcome, Answer) else len(outcome.details)
