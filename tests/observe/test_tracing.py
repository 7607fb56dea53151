"""OpenTelemetry: which spans there are, how they hang together across processes, and that tracing can't hurt a call."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.lowlevel
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.tracing import OtelClientTracer, OtelReplicaTracer, _with
from tiedreq.testing import LocalCluster
from tiedreq.wire.limits import METADATA_ENTRIES_MAX

BOTH_AT_ONCE = tiedreq.Tied(stagger=0.0, backup=None)


class Traces:
    """Collects spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, kind: SpanKind, *, copies: bool = False) -> list[ReadableSpan]:
        """Spans of a kind: of calls, or of copies."""
        return [span for span in self.spans if span.kind == kind and ("tiedreq.copy" in span.attributes) == copies]


@pytest.fixture
def traces() -> Traces:
    return Traces()


@asynccontextmanager
async def traced(cluster: LocalCluster, traces: Traces) -> AsyncIterator[tiedreq.Client]:
    async with cluster as client:
        client.tracer = OtelClientTracer(traces.provider)
        for name, handle in cluster.handles.items():
            handle._server.executions.tracer = OtelReplicaTracer(name, traces.provider)
        yield client


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_a_tied_call_is_a_span_with_a_child_for_each_copy(autojump_clock: Any, traces: Traces) -> None:
    cluster = LocalCluster(make_service(), replicas=2, slots=1)
    async with traced(cluster, traces) as client:
        reply = await client.request("nap", 0.05, policy=BOTH_AT_ONCE)
        await trio.sleep(0.1)
    (call,) = traces.of(SpanKind.CLIENT)
    copies = traces.of(SpanKind.CLIENT, copies=True)
    executions = {span.attributes["tiedreq.copy"]: span for span in traces.of(SpanKind.SERVER, copies=True)}
    assert call.name == "nap" and call.parent is None
    assert call.attributes["tiedreq.call_id"] == reply.call_id
    assert call.attributes["tiedreq.outcome"] == "answered" and call.attributes["tiedreq.replica"] == reply.replica
    assert call.attributes["tiedreq.copies"] == 2 and call.attributes["tiedreq.policy"] == "Tied"
    assert len(copies) == 2 and all(parent(copy) == call.context.span_id for copy in copies)
    assert {copy.attributes["tiedreq.rank"] for copy in copies} == {0, 1}
    assert [copy.attributes["tiedreq.winner"] for copy in copies].count(True) == 1
    for copy in copies:
        execution = executions[copy.attributes["tiedreq.copy"]]
        assert parent(execution) == copy.context.span_id
        assert execution.context.trace_id == call.context.trace_id
        assert execution.attributes["tiedreq.replica"] == copy.attributes["tiedreq.replica"]
        assert execution.status.status_code == StatusCode.UNSET
    assert {span.attributes["tiedreq.end"] for span in executions.values()} == {"done", "yielded: started"}
    assert (call.end_time - call.start_time) / 1e9 == pytest.approx(reply.latency, abs=1e-6)
    assert not client.tracer._calls and not any(h._server.executions.tracer._spans for h in cluster.handles.values())


async def test_spans_hang_below_the_callers_and_the_handlers_own(autojump_clock: Any, traces: Traces) -> None:
    service = tiedreq.Service("outer")
    tracer = trace.get_tracer("test", tracer_provider=traces.provider)

    @service.method(idempotent=True)
    async def inner(ctx: tiedreq.Context, args: Any) -> str:
        with tracer.start_as_current_span("handler's own"):
            await trio.lowlevel.checkpoint()
        return ctx.metadata["user"]

    cluster = LocalCluster(service, replicas=1)
    async with traced(cluster, traces) as client:
        with tracer.start_as_current_span("caller's own") as own:
            assert await client.call("inner", metadata={"user": "kept"}) == "kept"
        assert trace.get_current_span() is trace.INVALID_SPAN
    by_name = {span.name: span for span in traces.spans}
    (call,) = traces.of(SpanKind.CLIENT)
    (execution,) = traces.of(SpanKind.SERVER, copies=True)
    assert parent(call) == own.get_span_context().span_id
    assert parent(by_name["handler's own"]) == execution.context.span_id
    assert len({span.context.trace_id for span in traces.spans}) == 1


async def test_handlers_in_threads_see_the_span(traces: Traces) -> None:
    service = tiedreq.Service("threads")

    @service.method(idempotent=True)
    def look(ctx: tiedreq.Context, args: Any) -> int:
        return trace.get_current_span().get_span_context().span_id

    async with traced(LocalCluster(service, replicas=1), traces) as client:
        seen = await client.call("look")
    (execution,) = traces.of(SpanKind.SERVER, copies=True)
    assert seen == execution.context.span_id


async def test_failures_are_errors_and_lost_races_are_not(autojump_clock: Any, traces: Traces) -> None:
    async with traced(LocalCluster(make_service(), replicas=1), traces) as client:
        with pytest.raises(tiedreq.RemoteFailure):
            await client.call("fail")
        with pytest.raises(tiedreq.DeadlineExceeded):
            await client.call("nap", 5.0, timeout=0.05)
        with trio.move_on_after(0.05):
            await client.call("nap", 5.0)
        await trio.sleep(0.1)
    failed, late, cancelled = traces.of(SpanKind.CLIENT)
    assert failed.status.status_code == StatusCode.ERROR and failed.attributes["error.type"] == "broken"
    assert late.status.status_code == StatusCode.ERROR and late.attributes["error.type"] == "deadline"
    assert cancelled.status.status_code == StatusCode.UNSET and cancelled.attributes["tiedreq.outcome"] == "cancelled"
    ends = [span.attributes["tiedreq.end"] for span in traces.of(SpanKind.SERVER, copies=True)]
    assert ends[0] == "failed" and set(ends[1:]) <= {"stopped", "cancelled: caller", "expired: deadline"}
    told = " ".join(str(span.attributes) for span in traces.spans)
    assert "as it should be" not in told, "texts of errors stay where they are"


async def test_what_a_propagator_raises_does_no_harm(
    autojump_clock: Any, traces: Traces, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("a bad propagator")

    monkeypatch.setattr(propagate, "inject", broken)
    monkeypatch.setattr(propagate, "extract", broken)
    async with traced(LocalCluster(make_service(), replicas=1), traces) as client:
        assert await client.call("nap", 0.001) == "r0"
    assert "a bad propagator" in caplog.text and "the call goes on" in caplog.text
    assert len(traces.of(SpanKind.CLIENT)) == 1
    assert not client.tracer._calls


def test_the_callers_metadata_is_left_alone() -> None:
    own = (("traceparent", "mine"), ("a", "1"))
    assert _with(own, {"traceparent": "ours", "tracestate": "x=1"}) == (*own, ("tracestate", "x=1"))
    full = tuple((f"k{n}", "") for n in range(METADATA_ENTRIES_MAX))
    assert _with(full, {"traceparent": "ours"}) == full
    assert _with((), {"traceparent": "t", "baggage": "x" * 10_000}) == (("traceparent", "t"),)


async def test_over_sockets_by_option(traces: Traces) -> None:
    observe = tiedreq.Observe(tracing=traces.provider)
    async with trio.open_nursery() as nursery:

        async def replica(task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            await tiedreq.serve(make_service(), name="a", observe=observe, task_status=task_status)

        handle = await nursery.start(replica)
        async with tiedreq.connect([handle.url], observe=observe) as client:
            await client.call("nap", 0.001)
        nursery.cancel_scope.cancel()
    (copy,) = traces.of(SpanKind.CLIENT, copies=True)
    (execution,) = traces.of(SpanKind.SERVER, copies=True)
    assert parent(execution) == copy.context.span_id


async def test_without_the_extra_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tiedreq.observe.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(tiedreq.BadOption, match=re.escape("pip install 'tiedreq[otel]'")):
        await tiedreq.serve(make_service(), name="a", observe=tiedreq.Observe(tracing=True))
