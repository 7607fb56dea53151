"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

The client puts each call once, when it has its outcome, into ``ClientObserver.fresh``. What is kept of a call are times
and names: no payload, no answer, no metadata.

Invariants: the ring has a limit; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, the rest
share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import trio

from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.policy import Policy
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId
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
    """A call that has ended, as it is kept. Times are Trio's; ``waited`` and ``worked`` are of the copy that won."""

    number: int
    row: _Calls
    began: float
    ended: float
    kind: OutcomeKind
    code: str
    winner: CopyId | None
    copies: tuple[SentCopy, ...]
    waited: float | None
    worked: float | None


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
        self.calls: deque[tuple[Any, ...]] = deque(maxlen=calls)
        """The fields of ``CallRecord``, as plain tuples."""
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
        methods, keep, tracer = self._methods, self.calls.append, self._client.tracer
        for call, outcome, now in fresh:
            core, began, winner = call.core, call.began, outcome.copy
            request, copies = core.request, tuple(core.copies.values())
            key = request.method, type(request.policy)
            calls = methods.get(key) or self._row(*key)
            waited = worked = None
            answer = call.answers.get(winner) if winner is not None else None
            if answer is not None:
                waited, worked = answer.queue_wait, answer.service_time
                calls.useful += worked
            if answer is not None and len(copies) == 1:
                calls.executions += 1
            else:
                self._race(calls, copies, winner, answer is not None, now)
            record = request.id[1], calls, began, now, outcome.kind, outcome.code, winner, copies, waited, worked
            keep(record)
            calls.outcomes[outcome.kind] += 1
            calls.latency.counts[bisect_left(BOUNDS, now - began)] += 1
            calls.latency.sum += now - began
            calls.copies += len(copies)
            if tracer is not None:
                tracer.call_ends(call, outcome, now)

    @staticmethod
    def _race(calls: _Calls, copies: Iterable[SentCopy], winner: CopyId | None, answered: bool, now: float) -> None:
        """Count the executions of a call with several copies, or without an answer."""
        executions = 0
        for copy in copies:
            if answered and copy.id == winner:
                executions += 1
            elif copy.started_at is not None:
                executions += 1
                calls.wasted += (now if copy.ended_at is None else copy.ended_at) - copy.started_at
        calls.executions += executions
        calls.duplicates += executions > 1

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
            methods=[calls.view() for calls in (*self._methods.values(), self._others) if calls.copies],
            replicas=replicas,
            learned=learned,
            recent=[self._view(CallRecord(*record), offset) for record in latest],
            loop_lag=self.lag.view(),
            process=process_view(),
        )

    def find(self, call: CallId) -> CallView | None:
        """A call; None once newer ones have pushed it out, or if it never was."""
        self.digest()
        if call.client != self._client.nonce:
            return None
        for record in reversed(self.calls):
            if record[0] == call.number:
                return self._view(CallRecord(*record), clock.offset())
        return None

    def _view(self, record: CallRecord, offset: float) -> CallView:
        """A record as plain values; ``offset`` as of ``clock.offset``."""
        copies = [_copy_view(record, copy) for copy in record.copies]
        return CallView(
            call_id=str(CallId(self._client.nonce, record.number)),
            method=record.row.method,
            policy=record.row.policy,
            began=record.began + offset,
            latency=record.ended - record.began,
            outcome=record.kind.name.lower(),
            code=record.code,
            replica=next((copy["replica"] for copy in copies if copy["winner"]), None),
            copies=copies,
        )


def _copy_view(record: CallRecord, copy: SentCopy) -> CopyView:
    def since(at: float | None) -> float | None:
        return None if at is None else at - record.began

    won = copy.id == record.winner
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
        winner=won,
        queue_wait=record.waited if won else None,
        service_time=record.worked if won else None,
    )


def _end(copy: SentCopy) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if copy.ended_at is None:
        return LOST
    words = "lost" if copy.state is None else copy.state.label
    return words if copy.cause == Cause.NONE else f"{words}: {copy.cause.label}"
