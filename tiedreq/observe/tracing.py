"""OpenTelemetry: a span for each call, a child for each copy, and for each execution a child of its copy's.

The context travels in the metadata of each copy, as the propagators of the program write it (``traceparent`` and so
on): so that a handler's own spans, and the calls that it makes, hang below the copy that it is. A caller's own metadata
is never overwritten, and what has no room in it does not travel.

This module needs ``opentelemetry-api``, the extra ``otel``; who exports the spans is the program's affair. Attributes
name calls, copies, methods and replicas: no arguments, answers, keys or texts of errors.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import Context as ContextVariables
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import trio
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

import tiedreq
from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.events import Answer, Fault
from tiedreq.core.messages import Submit
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyState
from tiedreq.net.opencall import end_in_words
from tiedreq.net.quiet import QuietLog
from tiedreq.observe.callring import LOST
from tiedreq.wire.limits import METADATA_ENTRIES_MAX, METADATA_KEY_CHARS_MAX, METADATA_VALUE_CHARS_MAX

if TYPE_CHECKING:
    from tiedreq.net.opencall import OpenCall

P = ParamSpec("P")
T = TypeVar("T")

_quiet = QuietLog(logging.getLogger("tiedreq.observe"))


class _Traced(NamedTuple):
    """A call under way. ``offset`` is what Trio's time lacks to the time of day, in nanoseconds."""

    span: Span
    offset: int
    copies: dict[CopyId, Span]


def _harmless(method: Callable[P, T | None]) -> Callable[P, T | None]:
    """Whatever a propagator or a span processor raises is logged, and the call goes on."""

    @functools.wraps(method)
    def guarded(*arguments: P.args, **options: P.kwargs) -> T | None:
        try:
            return method(*arguments, **options)
        except Exception as error:
            _quiet.log("tracing", logging.ERROR, "tracing failed; the call goes on", error=error)
            return None

    return guarded


class OtelClientTracer:
    """See ``ClientTracer``. ``provider`` None: the program's own."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("tiedreq", tiedreq.__version__, provider)
        self._calls: dict[int, _Traced] = {}

    @_harmless
    def call_begins(self, call: OpenCall) -> None:
        """See ``ClientTracer``. The parent is the span that is current in the caller's task."""
        request = call.core.request
        offset = time.time_ns() - _nanoseconds(trio.current_time())
        attributes: dict[str, str | int] = {
            "rpc.system": "tiedreq",
            "rpc.method": request.method,
            "tiedreq.call_id": str(request.id),
            "tiedreq.policy": type(request.policy).__name__,
        }
        span = self._tracer.start_span(
            request.method,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=offset + _nanoseconds(call.began),
        )
        self._calls[request.id.number] = _Traced(span, offset, {})

    def copy_leaves(self, call: OpenCall, command: SendCopy) -> SendCopy:
        """See ``ClientTracer``."""
        return self._copy_leaves(call, command) or command

    @_harmless
    def _copy_leaves(self, call: OpenCall, command: SendCopy) -> SendCopy | None:
        traced = self._calls.get(call.core.request.id.number)
        if traced is None:
            return None
        submit = command.submit
        sent = call.core.copies[submit.copy]
        attributes: dict[str, str | int] = {
            "tiedreq.copy": str(submit.copy),
            "tiedreq.replica": sent.replica,
            "tiedreq.kind": submit.kind.label,
            "tiedreq.round": sent.round,
        }
        if submit.copy.rank != UNTIED:
            attributes["tiedreq.rank"] = submit.copy.rank
        span = self._tracer.start_span(
            f"{submit.method} {submit.kind.label} copy",
            context=trace.set_span_in_context(traced.span, otel_context.Context()),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=traced.offset + _nanoseconds(sent.sent_at),
        )
        traced.copies[submit.copy] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(span, otel_context.Context()))
        return command._replace(submit=submit._replace(metadata=_with(submit.metadata, carrier)))

    @_harmless
    def call_ends(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """See ``ClientTracer``."""
        traced = self._calls.pop(call.core.request.id.number, None)
        if traced is None:
            return
        executions = 0
        for identity, span in traced.copies.items():
            sent = call.core.copies[identity]
            answer = call.answers.get(identity)
            if sent.started_at is not None:
                span.add_event("started", timestamp=traced.offset + _nanoseconds(sent.started_at))
            executions += sent.started_at is not None or answer is not None
            span.set_attribute("tiedreq.end", end_in_words(sent) or LOST)
            span.set_attribute("tiedreq.winner", identity == outcome.copy)
            if answer is not None:
                span.set_attribute("tiedreq.queue_wait", answer.queue_wait)
                span.set_attribute("tiedreq.service_time", answer.service_time)
            span.end(traced.offset + _nanoseconds(now if sent.ended_at is None else sent.ended_at))
        span = traced.span
        span.set_attribute("tiedreq.outcome", outcome.kind.name.lower())
        span.set_attribute("tiedreq.copies", len(traced.copies))
        span.set_attribute("tiedreq.executions", executions)
        if outcome.copy is not None and outcome.copy in call.core.copies:
            span.set_attribute("tiedreq.replica", call.core.copies[outcome.copy].replica)
        if outcome.kind not in (OutcomeKind.ANSWERED, OutcomeKind.CANCELLED):
            span.set_attribute("error.type", outcome.code or outcome.kind.name.lower())
            span.set_status(Status(StatusCode.ERROR))
        span.end(traced.offset + _nanoseconds(now))


class OtelReplicaTracer:
    """See ``ReplicaTracer``. ``provider`` None: the program's own."""

    def __init__(self, replica: str, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("tiedreq", tiedreq.__version__, provider)
        self._replica = replica
        self._spans: dict[CopyId, Span] = {}
        self._ends: dict[CopyId, str] = {}

    @_harmless
    def execution_begins(self, submit: Submit, variables: ContextVariables) -> None:
        """See ``ReplicaTracer``. The span is current in the handler."""
        copy = submit.copy
        context = propagate.extract(dict(submit.metadata), context=otel_context.Context())
        attributes: dict[str, str | int] = {
            "rpc.system": "tiedreq",
            "rpc.method": submit.method,
            "tiedreq.call_id": str(copy.call),
            "tiedreq.copy": str(copy),
            "tiedreq.replica": self._replica,
            "tiedreq.kind": submit.kind.label,
        }
        if copy.rank != UNTIED:
            attributes["tiedreq.rank"] = copy.rank
        span = self._tracer.start_span(submit.method, context=context, kind=SpanKind.SERVER, attributes=attributes)
        self._spans[copy] = span
        variables.run(otel_context.attach, trace.set_span_in_context(span, context))

    @_harmless
    def copy_ends(self, copy: CopyId, state: CopyState, cause: Cause) -> None:
        """See ``ReplicaTracer``."""
        if copy in self._spans:
            self._ends[copy] = f"{state.label}: {cause.label}"

    @_harmless
    def execution_ends(self, copy: CopyId, outcome: Answer | Fault | None) -> None:
        """See ``ReplicaTracer``. An execution that was stopped is no error: it lost, or nobody waits any more."""
        span, end = self._spans.pop(copy, None), self._ends.pop(copy, None)
        if span is None:
            return
        if outcome is None:
            end = end or "stopped"
        elif isinstance(outcome, Fault) and end is None:
            span.set_attribute("error.type", outcome.code)
            span.set_status(Status(StatusCode.ERROR))
            end = "failed"
        span.set_attribute("tiedreq.end", end or "done")
        span.end()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _with(metadata: tuple[tuple[str, str], ...], carrier: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """``metadata`` and as much of ``carrier`` as it has no entry for and room for."""
    known = {name for name, _ in metadata}
    fitting = [
        (name, value)
        for name, value in carrier.items()
        if name not in known and len(name) <= METADATA_KEY_CHARS_MAX and len(value) <= METADATA_VALUE_CHARS_MAX
    ]
    return (*metadata, *fitting[: max(0, METADATA_ENTRIES_MAX - len(metadata))])
