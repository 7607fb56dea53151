"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

The client puts each call once, when it has its outcome, into ``ClientObserver.fresh``. What is kept of a call are times
and names: no payload, no answer, no metadata.

Invariants: the ring has a limit; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, the rest
share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.policy import Policy
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyState
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


class CallRecord(NamedTuple):
    """A call that has ended, as it is kept. Times are Trio's."""

    number: int
    method: str
    policy: str
    began: float
    ended: float
    kind: OutcomeKind
    code: str
    winner: CopyId | None
    copies: tuple[SentCopy, ...]
    answers: tuple[tuple[CopyId, float, float], ...]
    """Queue wait and service time of each copy that answered."""


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
        self.lag = LoopLag(self.digest)  # calls that were cancelled, or out of time, come with no frame
        self.scope = trio.CancelScope()
        self.url: str | None = None
        self.calls: deque[CallRecord] = deque(maxlen=calls)
        self.fresh: list[tuple[OpenCall, Outcome, float]] = []
        """Calls that have just ended, with their outcomes and Trio's time: the client puts them here."""
        self._client = client
        self._began = trio.current_time()
        self._methods: dict[tuple[str, type[Policy]], _Calls] = {}
        self._others = _Calls(OTHERS, OTHERS)

    def digest(self) -> None:
        """Count and keep the calls in ``fresh``. Called after each frame: by then a frame's worth of them are there.

        Several at a time, and soon: what a call has besides is held as long as it is in ``fresh``.
        """
        fresh, self.fresh = self.fresh, []
        tracer = self._client.tracer
        for call, outcome, now in fresh:
            core, answers, began, winner = call.core, call.answers, call.began, outcome.copy
            request = core.request
            key = request.method, type(request.policy)
            calls = self._methods.get(key) or self._row(*key)
            copies = tuple(core.copies.values())
            executions = 0
            for copy in copies:
                if copy.started_at is not None and copy.id != winner:
                    executions += 1
                    calls.wasted += (now if copy.ended_at is None else copy.ended_at) - copy.started_at
            won = answers.get(winner) if winner is not None else None
            if won is not None:
                executions += 1
                calls.useful += won.service_time
            times = tuple([(copy, answer.queue_wait, answer.service_time) for copy, answer in answers.items()])
            self.calls.append(
                CallRecord(
                    *(request.id.number, calls.method, calls.policy, began, now, outcome.kind, outcome.code),
                    *(winner, copies, times),
                )
            )
            calls.outcomes[outcome.kind] += 1
            calls.latency.counts[bisect_left(BOUNDS, now - began)] += 1
            calls.latency.sum += now - began
            calls.copies += len(copies)
            calls.executions += executions
            calls.duplicates += executions > 1
            if tracer is not None:
                tracer.call_ends(call, outcome, now)

    def _row(self, method: str, policy: type[Policy]) -> _Calls:
        """The row of a method under a kind of policy; beyond ``METHODS_MAX`` of them, the row of all others."""
        if len(self._methods) < METHODS_MAX:
            row = self._methods[method, policy] = _Calls(method, policy.__name__)
            return row
        return self._others

    # ---- what can be seen -------------------------------------------------------------------------------------

    def snapshot(self, *, recent: int = RECENT_DEFAULT) -> ClientSnapshot:
        """The client now, with the last ``recent`` calls."""
        self.digest()
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
        self.digest()
        if call.client != self._client.nonce:
            return None
        return next((record for record in reversed(self.calls) if record.number == call.number), None)

    def view(self, record: CallRecord) -> CallView:
        """A record as plain values."""
        return call_view(record, self._client.nonce, clock.offset())


def call_view(record: CallRecord, client: int, offset: float) -> CallView:
    """A record of the client with the nonce ``client`` as plain values; ``offset`` as of ``clock.offset``."""
    views = [_copy_view(record, copy) for copy in record.copies]
    return CallView(
        call_id=str(CallId(client, record.number)),
        method=record.method,
        policy=record.policy,
        began=record.began + offset,
        latency=record.ended - record.began,
        outcome=record.kind.name.lower(),
        code=record.code,
        replica=next((view["replica"] for view in views if view["winner"]), None),
        copies=views,
    )


def _copy_view(record: CallRecord, copy: SentCopy) -> CopyView:
    def since(at: float | None) -> float | None:
        return None if at is None else at - record.began

    times = next(((waited, service) for answered, waited, service in record.answers if answered == copy.id), None)
    return CopyView(
        copy=str(copy.id),
        replica=copy.replica,
        kind=copy.kind.label,
        rank=None if copy.id.rank == UNTIED else copy.id.rank,
        round=copy.round,
        sent=copy.sent_at - record.began,
        started=since(copy.started_at),
        ended=since(copy.ended_at),
        end=_end(copy.ended_at, copy.state, copy.cause),
        winner=copy.id == record.winner,
        queue_wait=None if times is None else times[0],
        service_time=None if times is None else times[1],
    )


def _end(ended: float | None, state: CopyState | None, cause: Cause) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if ended is None:
        return LOST
    words = "lost" if state is None else state.label
    return words if cause == Cause.NONE else f"{words}: {cause.label}"
