"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

``ClientObserver.ended`` is told each call once, when it has its outcome. What it keeps of a call are times and names:
no payload, no answer, no metadata. Call ids, methods and replica names are all that can be told from a record.

Invariants: the ring has a limit; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, the rest
share one.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tiedreq.core.commands import Outcome
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId
from tiedreq.observe import clock
from tiedreq.observe.histogram import Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.snapshot import VERSION, CallView, ClientMethodView, ClientSnapshot, CopyView, process_view

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.opencall import Answered, OpenCall

CALLS_DEFAULT = 2048
METHODS_MAX = 256
RECENT_DEFAULT = 64
OTHERS = "(others)"
LOST = "lost the race"


class CallRecord(NamedTuple):
    """A call that has ended. Times are Trio's."""

    id: CallId
    method: str
    policy: str
    began: float
    ended: float
    outcome: Outcome
    copies: tuple[SentCopy, ...]
    answers: dict[CopyId, tuple[float, float]]
    """Queue wait and service time of the copies that answered."""


class _Calls:
    """Of one method under one kind of policy."""

    __slots__ = ("copies", "duplicates", "executions", "latency", "outcomes", "useful", "wasted")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.latency = Histogram()
        self.copies = 0
        self.executions = 0
        self.duplicates = 0
        self.useful = 0.0
        self.wasted = 0.0

    def view(self, method: str, policy: str) -> ClientMethodView:
        return ClientMethodView(
            method=method,
            policy=policy,
            calls=self.outcomes.total(),
            outcomes=dict(self.outcomes),
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
        self._methods: dict[tuple[str, str], _Calls] = {}

    def ended(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """A call has its outcome."""
        core = call.core
        request = core.request
        policy = type(request.policy).__name__
        calls = self._methods.get((request.method, policy)) or self._row(request.method, policy)
        copies = tuple(core.copies.values())
        executions = 0
        for copy in copies:
            started = copy.started_at
            if copy.id == outcome.copy and copy.id in call.answers:
                executions += 1
                calls.useful += call.answers[copy.id].service_time
            elif started is not None:
                executions += 1
                calls.wasted += (now if copy.ended_at is None else copy.ended_at) - started
        calls.outcomes[outcome.kind.name.lower()] += 1
        calls.latency.add(now - call.began)
        calls.copies += len(copies)
        calls.executions += executions
        if executions > 1:
            calls.duplicates += 1
        brief = outcome if not (outcome.details or outcome.message) else outcome._replace(details=b"", message="")
        answers = {copy: _times(answer) for copy, answer in call.answers.items()}
        self.calls.append(CallRecord(request.id, request.method, policy, call.began, now, brief, copies, answers))

    def _row(self, method: str, policy: str) -> _Calls:
        key = (method, policy) if len(self._methods) < METHODS_MAX else (OTHERS, OTHERS)
        return self._methods.setdefault(key, _Calls())

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
            methods=[calls.view(*key) for key, calls in self._methods.items()],
            replicas=replicas,
            learned=learned,
            recent=[call_view(record, offset) for record in latest],
            loop_lag=self.lag.view(),
            process=process_view(),
        )

    def find(self, call: CallId) -> CallRecord | None:
        """The record of a call; None once newer ones have pushed it out."""
        for record in reversed(self.calls):
            if record.id == call:
                return record
        return None

    def view(self, record: CallRecord) -> CallView:
        """A record as plain values."""
        return call_view(record, clock.offset())


def _times(answer: Answered) -> tuple[float, float]:
    return answer.queue_wait, answer.service_time


def call_view(record: CallRecord, offset: float) -> CallView:
    """A record as plain values; ``offset`` as of ``clock.offset``."""
    outcome = record.outcome
    winner = outcome.copy
    views = [_copy_view(record, copy, winner) for copy in record.copies]
    return CallView(
        call_id=str(record.id),
        method=record.method,
        policy=record.policy,
        began=record.began + offset,
        latency=record.ended - record.began,
        outcome=outcome.kind.name.lower(),
        code=outcome.code,
        replica=next((view["replica"] for view in views if view["winner"]), None),
        copies=views,
    )


def _copy_view(record: CallRecord, copy: SentCopy, winner: CopyId | None) -> CopyView:
    def since(at: float | None) -> float | None:
        return None if at is None else at - record.began

    wait, service = record.answers.get(copy.id, (None, None))
    return CopyView(
        copy=str(copy.id),
        replica=copy.replica,
        kind=copy.kind.label,
        rank=None if copy.id.rank == UNTIED else copy.id.rank,
        round=copy.round,
        sent=copy.sent_at - record.began,
        started=since(copy.started_at),
        ended=since(copy.ended_at),
        end=_end(copy),
        winner=copy.id == winner,
        queue_wait=wait,
        service_time=service,
    )


def _end(copy: SentCopy) -> str | None:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if copy.ended_at is None:
        return LOST
    state = "lost" if copy.state is None else copy.state.label
    return state if copy.cause == Cause.NONE else f"{state}: {copy.cause.label}"
