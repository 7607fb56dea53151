"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

The client puts each call once, when it has its outcome, into ``ClientObserver.fresh``, and has them digested ``due`` at
a time. What is kept of a call are times and names: no payload, no answer, no metadata.

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
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.snapshot import VERSION, CallView, ClientMethodView, ClientSnapshot, CopyView, process_view

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.opencall import OpenCall

CALLS_DEFAULT = 1024
BATCH = 32
HEAVY_BYTES = 16_384
"""A call with arguments or an answer beyond that is digested with the frame that ends it."""
METHODS_MAX = 256
RECENT_DEFAULT = 64
OTHERS = "(others)"
LOST = "lost the race"


CallRecord = tuple[int | float | str | None, ...]
"""A call that has ended, as it is kept: one flat tuple of plain numbers and texts, which the garbage collector need not
look at. Times are Trio's. ``HEAD_FIELDS`` of the call: number, method, policy, began, ended, kind of the outcome, code;
then ``COPY_FIELDS`` for each copy: round and rank of its id, replica, kind, round of the call, sent, started, ended,
state, cause, whether it won, queue wait, service time."""
HEAD_FIELDS, COPY_FIELDS = 7, 13


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
        self.due = 1
        """So many of them are to be digested, once the frame is over."""
        self._client = client
        self._began = trio.current_time()
        self._methods: dict[tuple[str, type[Policy]], _Calls] = {}
        self._others = _Calls(OTHERS, OTHERS)

    def digest(self) -> None:
        """Count and keep the calls in ``fresh``: several at a time, which takes a third of what it takes one by one.

        What a call has besides is held for as long as it is in ``fresh``, which is a quarter of a second at most, and
        only until the frame is over for a call with much to hold (``HEAVY_BYTES``), or where spans wait for it.
        """
        fresh, self.fresh = self.fresh, []
        methods, keep, tracer = self._methods, self.calls.append, self._client.tracer
        self.due = BATCH if tracer is None else 1
        for call, outcome, now in fresh:
            core, began, winner, answers = call.core, call.began, outcome.copy, call.answers
            request = core.request
            key = request.method, type(request.policy)
            calls = methods.get(key) or self._row(*key)
            record: list[Any] = [request.id[1], calls.method, calls.policy, began, now, +outcome.kind, outcome.code]
            executions = 0
            for identity, copy in core.copies.items():
                started, ended, state = copy.started_at, copy.ended_at, copy.state
                answer = answers.get(identity) if answers else None
                won = identity == winner
                if won and answer is not None:
                    executions += 1
                    calls.useful += answer.busy
                elif started is not None:
                    executions += 1
                    calls.wasted += (now if ended is None else ended) - started
                record += (identity[2], identity[3], copy.replica, +copy.kind, copy.round, copy.sent_at, started, ended)
                record += (None if state is None else +state, +copy.cause, won)
                record += (None, None) if answer is None else (answer.queue_wait, answer.service_time)
            keep(tuple(record))
            calls.outcomes[outcome.kind] += 1
            calls.latency.counts[bisect_left(BOUNDS, now - began)] += 1
            calls.latency.sum += now - began
            calls.copies += len(core.copies)
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
            methods=[calls.view() for calls in (*self._methods.values(), self._others) if calls.copies],
            replicas=replicas,
            learned=learned,
            recent=[self._view(record, offset) for record in latest],
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
                return self._view(record, clock.offset())
        return None

    def _view(self, record: tuple[Any, ...], offset: float) -> CallView:
        """A record as plain values; ``offset`` as of ``clock.offset``."""
        number, method, policy, began, ended, kind, code = record[:HEAD_FIELDS]
        call = CallId(self._client.nonce, number)
        starts = range(HEAD_FIELDS, len(record), COPY_FIELDS)
        copies = [_copy_view(call, began, record[start : start + COPY_FIELDS]) for start in starts]
        return CallView(
            call_id=str(call),
            method=method,
            policy=policy,
            began=began + offset,
            latency=ended - began,
            outcome=OutcomeKind(kind).name.lower(),
            code=code,
            replica=next((copy["replica"] for copy in copies if copy["winner"]), None),
            copies=copies,
        )


def _copy_view(call: CallId, began: float, fields: tuple[Any, ...]) -> CopyView:
    serial, rank, replica, kind, round_, sent, started, ended, state, cause, won, waited, worked = fields
    return CopyView(
        copy=str(CopyId(*call, serial, rank)),
        replica=replica,
        kind=CopyKind(kind).label,
        rank=None if rank == UNTIED else rank,
        round=round_,
        sent=sent - began,
        started=None if started is None else started - began,
        ended=None if ended is None else ended - began,
        end=_end(ended, state, Cause(cause)),
        winner=won,
        queue_wait=waited,
        service_time=worked,
    )


def _end(ended: float | None, state: int | None, cause: Cause) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if ended is None:
        return LOST
    words = "lost" if state is None else CopyState(state).label
    return words if cause == Cause.NONE else f"{words}: {cause.label}"
