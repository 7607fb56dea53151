"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

``ClientObserver.ended`` is told each call once, when it has its outcome. What it keeps of a call are times and names:
no payload, no answer, no metadata. Call ids, methods and replica names are all that can be told from a record.

Invariants: the ring has a limit; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, the rest
share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.policy import Policy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.snapshot import VERSION, CallView, ClientMethodView, ClientSnapshot, CopyView, process_view

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.opencall import OpenCall

CALLS_DEFAULT = 1024
METHODS_MAX = 256
RECENT_DEFAULT = 64
OTHERS = "(others)"
LOST = "lost the race"


CallRecord = tuple[Any, ...]
"""A call that has ended, as it is kept: flat, for that takes little to make and to hold. Times are Trio's.

Number, method, policy, began, ended, kind of the outcome, code, and then for each copy ``COPY_FIELDS`` values: id,
replica, kind, round, sent, started, ended, state, cause, whether it won, queue wait, service time.
"""
HEAD_FIELDS, COPY_FIELDS = 7, 12


class ClientTracer(Protocol):
    """Hears of calls and their copies; see ``observe.tracing``. All methods are synchronous and must not raise."""

    def call_begins(self, call: OpenCall) -> None:
        """In the task and the context of who makes the call, before anything is sent."""

    def copy_leaves(self, call: OpenCall, command: SendCopy) -> SendCopy:
        """A copy is about to be sent; what is to be sent instead: the same with other metadata."""

    def call_ends(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """A call has its outcome. ``now`` is Trio's time."""


class _Calls:
    """Of one method under one kind of policy."""

    __slots__ = ("copies", "duplicates", "executions", "latency", "method", "outcomes", "policy", "useful", "wasted")

    def __init__(self, method: str, policy: str) -> None:
        self.method = method
        self.policy = policy
        self.outcomes = [0] * len(OutcomeKind)
        self.latency = Histogram()
        self.copies = 0
        self.executions = 0
        self.duplicates = 0
        self.useful = 0.0
        self.wasted = 0.0

    def view(self) -> ClientMethodView:
        return ClientMethodView(
            method=self.method,
            policy=self.policy,
            calls=sum(self.outcomes),
            outcomes={kind.name.lower(): self.outcomes[kind] for kind in OutcomeKind if self.outcomes[kind]},
            latency=self.latency.view(),
            copies=self.copies,
            executions=self.executions,
            duplicate_executions=self.duplicates,
            useful_seconds=self.useful,
            wasted_seconds=self.wasted,
        )


class ClientObserver:
    """Watches one client. ``calls`` is how many calls the ring holds.

    ``url`` is where it is shown, if it is; ``scope`` ends that and the measuring.
    """

    def __init__(self, client: Client, *, calls: int = CALLS_DEFAULT) -> None:
        self.lag = LoopLag()
        self.scope = trio.CancelScope()
        self.url: str | None = None
        self.calls: deque[CallRecord] = deque(maxlen=calls)
        self._client = client
        self._began = trio.current_time()
        self._methods: dict[tuple[str, type[Policy]], _Calls] = {}
        self._others = _Calls(OTHERS, OTHERS)

    def ended(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """A call has its outcome. On the path of every call: what is not needed later is not kept."""
        core = call.core
        request = core.request
        key = request.method, type(request.policy)
        calls = self._methods.get(key) or self._row(*key)
        began, answers, winner = call.began, call.answers, outcome.copy
        record = [request.id.number, calls.method, calls.policy, began, now, outcome.kind, outcome.code]
        executions = 0
        for copy in core.copies.values():
            identity, started, ended = copy.id, copy.started_at, copy.ended_at
            answer = answers.get(identity) if answers else None
            won = answer is not None and identity == winner
            waited = service = None
            if answer is not None:
                waited, service = answer.queue_wait, answer.service_time
            if won:
                executions += 1
                calls.useful += service  # type: ignore[operator]
            elif started is not None:
                executions += 1
                calls.wasted += (now if ended is None else ended) - started
            record += (identity, copy.replica, copy.kind, copy.round, copy.sent_at, started, ended)
            record += (copy.state, copy.cause, won, waited, service)
        self.calls.append(tuple(record))
        if self._client.tracer is not None:
            self._client.tracer.call_ends(call, outcome, now)
        calls.outcomes[outcome.kind] += 1
        calls.latency.counts[bisect_left(BOUNDS, now - began)] += 1
        calls.latency.sum += now - began
        calls.copies += len(core.copies)
        calls.executions += executions
        if executions > 1:
            calls.duplicates += 1

    def _row(self, method: str, policy: type[Policy]) -> _Calls:
        """The row of a method under a kind of policy; beyond ``METHODS_MAX`` of them, the row of all others."""
        if len(self._methods) < METHODS_MAX:
            row = self._methods[method, policy] = _Calls(method, policy.__name__)
            return row
        return self._others

    # ---- what can be seen -------------------------------------------------------------------------------------

    def snapshot(self, *, recent: int = RECENT_DEFAULT) -> ClientSnapshot:
        """The client now, with the last ``recent`` calls."""
        stats: dict[str, Any] = self._client.stats()
        replicas, learned, in_flight = stats.pop("replicas"), stats.pop("learned"), stats.pop("in_flight")
        for replica in replicas.values():
            replica["incarnation"] = f"{replica['incarnation']:016x}"
        offset = clock.offset()
        latest = list(self.calls)[-recent:] if recent > 0 else []
        return ClientSnapshot(
            version=VERSION,
            kind="client",
            client=f"{self._client.nonce:016x}",
            time=offset + trio.current_time(),
            uptime=trio.current_time() - self._began,
            in_flight=in_flight,
            counters=stats,
            methods=[calls.view() for calls in self._rows()],
            replicas=replicas,
            learned=learned,
            recent=[call_view(record, self._client.nonce, offset) for record in latest],
            loop_lag=self.lag.view(),
            process=process_view(),
        )

    def _rows(self) -> list[_Calls]:
        return [*self._methods.values(), *([self._others] if self._others.copies else [])]

    def find(self, call: CallId) -> CallRecord | None:
        """The record of a call; None once newer ones have pushed it out."""
        if call.client != self._client.nonce:
            return None
        return next((record for record in reversed(self.calls) if record[0] == call.number), None)

    def view(self, record: CallRecord) -> CallView:
        """A record as plain values."""
        return call_view(record, self._client.nonce, clock.offset())


def call_view(record: CallRecord, client: int, offset: float) -> CallView:
    """A record of the client with the nonce ``client`` as plain values; ``offset`` as of ``clock.offset``."""
    number, method, policy, began, ended, kind, code = record[:HEAD_FIELDS]
    views = [
        _copy_view(record[start : start + COPY_FIELDS], began) for start in range(HEAD_FIELDS, len(record), COPY_FIELDS)
    ]
    return CallView(
        call_id=str(CallId(client, number)),
        method=method,
        policy=policy,
        began=began + offset,
        latency=ended - began,
        outcome=kind.name.lower(),
        code=code,
        replica=next((view["replica"] for view in views if view["winner"]), None),
        copies=views,
    )


def _copy_view(fields: tuple[Any, ...], began: float) -> CopyView:
    identity, replica, kind, round_, sent, started, ended, state, cause, won, waited, service = fields
    return CopyView(
        copy=str(identity),
        replica=replica,
        kind=kind.label,
        rank=None if identity.rank == UNTIED else identity.rank,
        round=round_,
        sent=sent - began,
        started=None if started is None else started - began,
        ended=None if ended is None else ended - began,
        end=_end(ended, state, cause),
        winner=won,
        queue_wait=waited,
        service_time=service,
    )


def _end(ended: float | None, state: CopyState | None, cause: Cause) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if ended is None:
        return LOST
    words = "lost" if state is None else state.label
    return words if cause == Cause.NONE else f"{words}: {cause.label}"
