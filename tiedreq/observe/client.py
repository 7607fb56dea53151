"""What a client remembers of its calls: a ring of those that ended, and counts per method and kind of policy.

The client puts each call once, when it has its outcome, into ``ClientObserver.fresh``. What is kept of a call are times
and names: no payload, no answer, no metadata.

Invariants: the ring has a limit; at most ``METHODS_MAX`` pairs of method and policy have a row of their own, the rest
share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

import trio

from tiedreq.core.commands import Outcome, OutcomeKind, SendCopy
from tiedreq.core.policy import Policy
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState
from tiedreq.observe import clock
from tiedreq.observe.histogram import BOUNDS, Histogram
from tiedreq.observe.lag import LoopLag
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import VERSION, CallView, ClientMethodView, ClientSnapshot, CopyView, process_view

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.opencall import OpenCall

CALLS_DEFAULT = 2048
METHODS_MAX = 256
CODES_MAX = 1024
REPLICAS_MAX = 4096
RECENT_DEFAULT = 64
OTHERS = "(others)"
LOST = "lost the race"


COPIES_MAX = 8
"""Copies of one call that are kept: more than this many have been seen by nobody."""
NO_TIME = float("-inf")
NOTHING = 255
_HEAD, _COPY = "QHddBHB", "QbBBHdddddBB"
_FORMS = tuple(Struct("<" + _HEAD + _COPY * copies) for copies in range(COPIES_MAX + 1))
"""A call with so many copies. The call: number, row, began, ended, kind of the outcome, code, number of copies. A copy:
round and rank of its id, kind, round of the call, replica, sent, started, ended, queue wait, service time, state, cause
(with the highest bit: it won). Times are Trio's."""
_WON = 128


class Names:
    """Texts as small numbers, at most ``most`` of them; any other is ``OTHERS``."""

    def __init__(self, *first: str, most: int) -> None:
        self.texts = [OTHERS, *first]
        self._numbers = {text: number for number, text in enumerate(self.texts)}
        self._most = most

    def number(self, text: str) -> int:
        """The number of a text."""
        number = self._numbers.get(text)
        if number is None:
            if len(self.texts) >= self._most:
                return 0
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


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

    __slots__ = (
        *("copies", "duplicates", "executions", "latency", "method", "outcomes", "policy", "row", "useful", "wasted"),
    )

    def __init__(self, method: str, policy: str, row: int) -> None:
        self.row = row
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
        self.ring = Ring(_FORMS[-1].size, calls)
        self.fresh: list[tuple[OpenCall, Outcome, float]] = []
        """Calls that have just ended, with their outcomes and Trio's time: the client puts them here."""
        self._client = client
        self._began = trio.current_time()
        self._methods: dict[tuple[str, type[Policy]], _Calls] = {}
        self._rows = [_Calls(OTHERS, OTHERS, 0)]
        self._codes = Names("", most=CODES_MAX)
        self._replicas = Names(most=REPLICAS_MAX)

    def digest(self) -> None:
        """Count and keep the calls in ``fresh``. Called after each frame: by then a frame's worth of them are there.

        Several at a time, and soon: what a call has besides is held as long as it is in ``fresh``.
        """
        fresh, self.fresh = self.fresh, []
        tracer = self._client.tracer
        for call, outcome, now in fresh:
            request = call.core.request
            key = request.method, type(request.policy)
            calls = self._methods.get(key) or self._row(*key)
            self._count(calls, call, outcome, now)
            if tracer is not None:
                tracer.call_ends(call, outcome, now)

    def _count(self, calls: _Calls, call: OpenCall, outcome: Outcome, now: float) -> None:
        answers, began, winner = call.answers, call.began, outcome.copy
        copies = call.core.copies
        code = self._codes.number(outcome.code) if outcome.code else 1
        values: list[Any] = [call.core.request.id.number, calls.row, began, now, outcome.kind, code, len(copies)]
        executions = 0
        for identity, copy in copies.items():
            started, ended, cause = copy.started_at, copy.ended_at, int(copy.cause)
            answer = answers.get(identity)
            if identity == winner and answer is not None:
                executions += 1
                calls.useful += answer.service_time
            elif started is not None:
                executions += 1
                calls.wasted += (now if ended is None else ended) - started
            if identity == winner:
                cause |= _WON
            values += (
                identity.round,
                identity.rank,
                copy.kind,
                min(copy.round, 255),
                self._replicas.number(copy.replica),
            )
            values += (copy.sent_at, NO_TIME if started is None else started, NO_TIME if ended is None else ended)
            values += (NO_TIME, NO_TIME) if answer is None else (answer.queue_wait, answer.service_time)
            values += (NOTHING if copy.state is None else copy.state, cause)
        kept = len(copies)
        if kept > COPIES_MAX:
            kept = values[6] = COPIES_MAX
            del values[7 + 12 * COPIES_MAX :]
        _FORMS[kept].pack_into(self.ring.block, self.ring.at, *values)
        self.ring.advance()
        calls.outcomes[outcome.kind] += 1
        calls.latency.counts[bisect_left(BOUNDS, now - began)] += 1
        calls.latency.sum += now - began
        calls.copies += len(copies)
        calls.executions += executions
        calls.duplicates += executions > 1

    def _row(self, method: str, policy: type[Policy]) -> _Calls:
        """The row of a method under a kind of policy; beyond ``METHODS_MAX`` of them, the row of all others."""
        if len(self._methods) < METHODS_MAX:
            row = self._methods[method, policy] = _Calls(method, policy.__name__, len(self._rows))
            self._rows.append(row)
            return row
        return self._rows[0]

    # ---- what can be seen -------------------------------------------------------------------------------------

    def snapshot(self, *, recent: int = RECENT_DEFAULT) -> ClientSnapshot:
        """The client now, with the last ``recent`` calls."""
        self.digest()
        stats: dict[str, Any] = self._client.stats()
        replicas, learned, in_flight = stats.pop("replicas"), stats.pop("learned"), stats.pop("in_flight")
        for replica in replicas.values():
            replica["incarnation"] = f"{replica['incarnation']:016x}"
        offset = clock.offset()
        latest = deque(self.ring.slots(), maxlen=recent) if recent > 0 else ()
        return ClientSnapshot(
            version=VERSION,
            kind="client",
            client=f"{self._client.nonce:016x}",
            time=offset + trio.current_time(),
            uptime=trio.current_time() - self._began,
            in_flight=in_flight,
            counters=stats,
            methods=[calls.view() for calls in self._rows if any(calls.outcomes)],
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
        found = [record for record in self.ring.slots() if _FORMS[0].unpack_from(record)[0] == call.number]
        return self._view(found[-1], clock.offset()) if found else None

    def _view(self, record: memoryview, offset: float) -> CallView:
        """A record as plain values; ``offset`` as of ``clock.offset``."""
        number, row, began, ended, kind, code, count = _FORMS[0].unpack_from(record)
        fields = _FORMS[count].unpack_from(record)[7:]
        call = CallId(self._client.nonce, number)
        copies = [self._copy_view(call, began, fields[12 * index : 12 * index + 12]) for index in range(count)]
        return CallView(
            call_id=str(call),
            method=self._rows[row].method,
            policy=self._rows[row].policy,
            began=began + offset,
            latency=ended - began,
            outcome=OutcomeKind(kind).name.lower(),
            code=self._codes.texts[code],
            replica=next((copy["replica"] for copy in copies if copy["winner"]), None),
            copies=copies,
        )

    def _copy_view(self, call: CallId, began: float, fields: tuple[Any, ...]) -> CopyView:
        serial, rank, kind, round_, replica, sent, started, ended, waited, service, state, cause = fields
        return CopyView(
            copy=str(CopyId(*call, serial, rank)),
            replica=self._replicas.texts[replica],
            kind=CopyKind(kind).label,
            rank=None if rank == UNTIED else rank,
            round=round_,
            sent=sent - began,
            started=_known(started, began),
            ended=_known(ended, began),
            end=_end(ended, state, Cause(cause & ~_WON)),
            winner=bool(cause & _WON),
            queue_wait=_known(waited),
            service_time=_known(service),
        )


def _known(time: float, since: float = 0.0) -> float | None:
    return None if time == NO_TIME else time - since


def _end(ended: float, state: int, cause: Cause) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if ended == NO_TIME:
        return LOST
    words = "lost" if state == NOTHING else CopyState(state).label
    return words if cause == Cause.NONE else f"{words}: {cause.label}"
