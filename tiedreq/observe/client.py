"""What a client remembers of its calls: rings of those that ended, and counts per method and kind of policy.

On the path of a call is one append, of a tuple of what is there already when the call has its outcome. Calls are kept
and counted ``BATCH`` at a time, and put into words when somebody asks. What is kept are numbers, names and times,
packed into blocks: no payload, no answer, no metadata, and no objects, for these would make the garbage collector run
more often, which takes longer than the packing.

Invariants: the rings have a fixed size; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, and
at most ``REPLICAS_MAX`` replicas a name, the rest share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.call import CallCore
from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.policy import Policy
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import CallId, CopyId
from tiedreq.observe import clock
from tiedreq.observe.callring import COPY, COUNT_MAX, NEVER, NO_REPLICA, NO_STATE, CallRing
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.snapshot import VERSION, CallView, ClientMethodView, ClientSnapshot, process_view

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.opencall import OpenCall

CALLS_DEFAULT = 1024
BATCH = 8
"""So many calls are kept and counted at a time: each is held until then, and more of them would make the garbage
collector run more often than that is worth."""
HEAVY_BYTES = 16_384
"""A call whose arguments, with the details of its failure, are larger is not held at all."""
METHODS_MAX = 256
REPLICAS_MAX = 4_096
COPY_SIZE, _pack = COPY.size, COPY.pack_into
NOTHING = (0.0, NEVER, NEVER, NO_STATE, 0, False, NEVER, NEVER)
ANSWERED = OutcomeKind.ANSWERED
RECENT_DEFAULT = 64
OTHERS = "(others)"


Ended = tuple[CallCore, float, Outcome, float]
"""A call that has just ended: its core, when it began, its outcome, and now."""


class ClientTracer(Protocol):
    """Hears of calls and their copies; see ``observe.tracing``. All methods are synchronous and must not raise."""

    def call_begins(self, call: OpenCall) -> None:
        """In the task and the context of who makes the call, before anything is sent."""

    def copy_leaves(self, call: OpenCall, command: SendCopy) -> SendCopy:
        """A copy is about to be sent; what is to be sent instead: the same with other metadata."""

    def call_ends(self, call: OpenCall, outcome: Outcome, now: float) -> None:
        """A call has its outcome. ``now`` is Trio's time."""


class _Calls:
    """Of one method under one kind of policy. ``took`` and ``seconds`` are the histogram of latencies.

    ``outcomes`` counts those that are no answers: the others are the rest.
    """

    __slots__ = (
        "copies",
        "duplicates",
        "executions",
        "latency",
        "method",
        "number",
        "outcomes",
        "policy",
        "seconds",
        "took",
        "useful",
        "wasted",
    )

    def __init__(self, method: str, policy: str, number: int) -> None:
        self.method = method
        self.number = number
        self.policy = policy
        self.outcomes = [0] * len(OutcomeKind)
        self.latency = Histogram()
        self.took = self.latency.counts
        self.seconds = 0.0
        self.copies = 0
        self.executions = 0
        self.duplicates = 0
        self.useful = 0.0
        self.wasted = 0.0

    def count(self, copies: Collection[SentCopy], winner: CopyId | None, now: float) -> None:
        """Count the copies of a call that ended at ``now``, and what they took."""
        executions = 0
        for sent in copies:
            if sent.busy is not None and (sent.id is winner or sent.id == winner):
                executions += 1
                self.useful += sent.busy
            elif sent.started_at is not None:
                executions += 1
                self.wasted += (now if sent.ended_at is None else sent.ended_at) - sent.started_at
        self.copies += len(copies)
        self.executions += executions
        if executions > 1:
            self.duplicates += 1

    @property
    def calls(self) -> int:
        """How many have ended."""
        return sum(self.took)

    def view(self) -> ClientMethodView:
        """It all as plain values."""
        self.latency.sum = self.seconds
        outcomes = list(self.outcomes)
        outcomes[ANSWERED] = self.calls - sum(outcomes)
        return ClientMethodView(
            method=self.method,
            policy=self.policy,
            calls=self.calls,
            outcomes={kind.name.lower(): outcomes[kind] for kind in OutcomeKind if outcomes[kind]},
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
        self.lag = LoopLag(self.digest)
        self.scope = trio.CancelScope()
        self.url: str | None = None
        self.calls = CallRing(calls)
        self.fresh: list[Ended] = []
        """Calls that have just ended: the client puts them here, and has them digested when they are ``BATCH``."""
        self._client = client
        self._began = trio.current_time()
        self.keeps = self.counts = True
        """What of both is done. (``scripts/bench_observe`` measures them apart.)"""
        self._rows: dict[tuple[str, type[Policy]], _Calls] = {}
        self._others = _Calls(OTHERS, OTHERS, 0)
        self._replicas: dict[str, int] = {}

    # ---- several at a time ------------------------------------------------------------------------------------

    def digest(self) -> None:
        """Keep and count the calls in ``fresh``, each once, whatever happens."""
        fresh, self.fresh = self.fresh, []
        keeps, counts = self.keeps, self.counts
        method: str | None = None
        policy: Policy | None = None
        row = self._others
        for core, began, outcome, now in fresh:
            request, copies, kind = core.request, core.copies, outcome.kind
            if request.method is not method or request.policy is not policy:
                method, policy = request.method, request.policy
                row = self._rows.get((method, type(policy))) or self._row(method, type(policy))
            if counts:
                row.count(copies.values(), outcome.copy, now)
                took = now - began
                row.took[bisect_left(BOUNDS, took)] += 1
                row.seconds += took
                if kind is not ANSWERED:
                    row.outcomes[kind] += 1
            if keeps:
                self._keep(request.id[1], row.number, kind, began, now, copies, outcome.copy)
                if outcome.code:
                    self.calls.codes.append((request.id[1], outcome.code))

    def _keep(
        self,
        number: int,
        row: int,
        kind: OutcomeKind,
        began: float,
        now: float,
        copies: dict[CopyId, SentCopy],
        winner: CopyId | None,
    ) -> None:
        """A record for each copy; one for a call without any."""
        ring, replicas, count = self.calls.copies, self._replicas, len(copies)
        if count > COUNT_MAX:
            count = COUNT_MAX
        block, at, full = ring.block, ring.at, len(ring.block)
        for copy, sent in copies.items():
            replica = replicas.get(sent.replica)
            if replica is None:
                replica = self._number(sent.replica)
            started, ended, state, waited = sent.started_at, sent.ended_at, sent.state, sent.queue_wait
            _pack(
                block,
                at,
                number,
                row,
                kind,
                count,
                began,
                now,
                copy[2],
                copy[3],
                replica,
                sent.kind,
                sent.round,
                sent.sent_at,
                NEVER if started is None else started,
                NEVER if ended is None else ended,
                NO_STATE if state is None else state,
                sent.cause,
                copy is winner or copy == winner,
                NEVER if waited is None else waited,
                NEVER if waited is None else sent.service_time,
            )
            at += COPY_SIZE
            if at == full:
                at, ring.full = 0, True
        if not copies:
            _pack(block, at, number, row, kind, 0, began, now, 0, 0, NO_REPLICA, 0, 0, *NOTHING)
            at += COPY_SIZE
            if at == full:
                at, ring.full = 0, True
        ring.at = at

    def _row(self, method: str, policy: type[Policy]) -> _Calls:
        """The row of a method under a kind of policy; beyond ``METHODS_MAX`` of them, the row of all others."""
        if len(self._rows) < METHODS_MAX:
            row = self._rows[method, policy] = _Calls(method, policy.__name__, len(self._rows) + 1)
            return row
        return self._others

    def _number(self, replica: str) -> int:
        if len(self._replicas) < REPLICAS_MAX:
            return self._replicas.setdefault(replica, len(self._replicas))
        return self._replicas.setdefault(OTHERS, len(self._replicas))

    # ---- what can be seen -------------------------------------------------------------------------------------

    def snapshot(self, *, recent: int = RECENT_DEFAULT) -> ClientSnapshot:
        """The client now, with the last ``recent`` calls."""
        self.digest()
        stats: dict[str, Any] = self._client.stats()
        replicas, learned, in_flight = stats.pop("replicas"), stats.pop("learned"), stats.pop("in_flight")
        for replica in replicas.values():
            replica["incarnation"] = f"{replica['incarnation']:016x}"
        offset = clock.offset()
        rows, names = self._names()
        return ClientSnapshot(
            version=VERSION,
            kind="client",
            client=f"{self._client.nonce:016x}",
            time=offset + trio.current_time(),
            uptime=trio.current_time() - self._began,
            in_flight=in_flight,
            counters=stats,
            methods=[calls.view() for calls in (*self._rows.values(), self._others) if calls.calls],
            replicas=replicas,
            learned=learned,
            recent=self.calls.latest(self._client.nonce, recent, rows, names, offset),
            loop_lag=self.lag.view(),
            process=process_view(),
        )

    def find(self, call: CallId) -> CallView | None:
        """A call; None once newer ones have pushed it out, or if it never was."""
        self.digest()
        if call.client != self._client.nonce:
            return None
        return self.calls.find(self._client.nonce, call.number, *self._names(), clock.offset())

    def _names(self) -> tuple[list[tuple[str, str]], list[str]]:
        """The rows and the replicas, by number."""
        rows = [(row.method, row.policy) for row in (self._others, *self._rows.values())]
        return rows, list(self._replicas)
