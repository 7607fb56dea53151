"""One call: its core, the copies that are under way, and what they brought.

Data flow: news of a copy -> event -> ``CallCore`` -> commands -> the carrier, which begins and stops copies. A carrier
tells the news of one copy at a time, and calls ``elapsed`` when the time that ``wake_at`` names has come.

Invariants
* Every copy that the carrier began is either chosen at the end, or stopped, or has ended by itself; what a copy brought
  and the call did not choose (``leftovers``) is the carrier's to close.
* After the outcome no copy begins.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from tiedreq.core.call import CallCore, CallRequest
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, Outcome, OutcomeKind, SendCopy
from tiedreq.core.events import (
    CallerCancelled,
    CallEvent,
    CallRequested,
    CopyStarted,
    CopyUnsent,
    FailureReceived,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.policy import Plain
from tiedreq.core.types import CallId, CopyId, CopyKind
from tiedreq.hedging.observing import HedgeEvent, Observer, tell
from tiedreq.hedging.starting import LATER
from tiedreq.hedging.upstream import Lane, Upstream

TIME_MIN = 1e-6


class Flight:
    """One copy under way. ``answer`` or ``error`` is what it brought; ``handle`` is the carrier's own.

    ``not_before``: the carrier is to begin no earlier, on its clock (a host asked for a pause).
    """

    __slots__ = ("answer", "began", "error", "handle", "id", "kind", "lane", "not_before", "over", "stopped")

    def __init__(self, copy: CopyId, kind: CopyKind, lane: Lane, now: float) -> None:
        self.id = copy
        self.kind = kind
        self.lane = lane
        self.began = now
        self.not_before = now
        self.answer: Any = None
        self.error: BaseException | None = None
        self.handle: Any = None
        self.over = False
        self.stopped = False


class HedgeCore(CallCore):
    """A ``CallCore`` whose second backup waits ``LATER`` times as long as its first.

    A call whose backup is late too is known to be slow; what is not known is whether the backup is, or will answer
    in a moment. Waiting a little longer halves the number of second backups, at next to no cost.
    """

    def _arm_from_send(self, now: float) -> None:
        super()._arm_from_send(now)
        if self._backups:
            self._backup_at = now + LATER * (self._backup_at - now)


class Carrier(Protocol):
    """Who takes copies to their host."""

    def carry(self, flight: Flight) -> bool:
        """Begin a copy, without waiting; False when that can't be done: then nothing has left."""

    def stop(self, flight: Flight) -> None:
        """The copy is no longer wanted. Its end need not be told."""


class Race:
    """One call from its start to its outcome. Times are seconds on the carrier's clock.

    ``duplicable``: the call may run twice. ``holds``: a further try at a host that asked for a pause waits for its
    end, rather than not being made.
    """

    def __init__(
        self,
        upstream: Upstream,
        endpoint: str,
        carrier: Carrier,
        *,
        duplicable: bool,
        now: float,
        deadline: float = float("inf"),
        observer: Observer | None = None,
        holds: bool = False,
    ) -> None:
        policy = upstream.options.policy if duplicable else Plain()
        number = upstream.next_number()
        request = CallRequest(CallId(upstream.nonce, number), endpoint, duplicable, b"", policy, deadline)
        rounds = 1 + (upstream.failovers or 0)
        self.core = HedgeCore(request, upstream.table, upstream.stats, rounds_max=rounds, learning=upstream.learning)
        self.upstream = upstream
        self.endpoint = endpoint
        self.began = now
        self.flights: dict[CopyId, Flight] = {}
        self.outcome: Outcome | None = None
        self._carrier = carrier
        self._observer = observer
        self._holds = holds
        self._closed_to_more = False
        upstream.in_flight += 1

    @property
    def wake_at(self) -> float:
        """When ``elapsed`` is to be called next; infinity for never."""
        return self.core.wake_at

    # ---- news -------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The caller made the call."""
        self._step(CallRequested(), now)

    def elapsed(self, now: float) -> None:
        """The time that ``wake_at`` named has come."""
        self._step(TimePassed(), now)

    def cancel(self, now: float) -> None:
        """The caller has left: whatever is under way is stopped."""
        self._step(CallerCancelled(), now)

    def answered(self, flight: Flight, answer: Any, now: float) -> bool:
        """A copy brought an answer that may win. False: it came too late, and is the carrier's to close."""
        if not self._end(flight):
            return False
        flight.answer = answer
        self.upstream.answered(flight.lane)
        busy = max(now - flight.began, TIME_MIN)
        self._step(ResultReceived(flight.lane.view.link, flight.id, True, busy), now)
        return True

    def failed(
        self,
        flight: Flight,
        reason: str,
        now: float,
        *,
        answer: Any = None,
        error: BaseException | None = None,
        retryable: bool = True,
        pushback: float | None = None,
    ) -> bool:
        """A copy failed, with an ``answer`` that says so or with an ``error``. False: it came too late, as above.

        Not ``retryable``: every copy would fail alike, the call ends. ``pushback``: for so many seconds the host wants
        no more; below 0: nobody is to try this call again.
        """
        if not self._end(flight):
            return False
        flight.answer, flight.error = answer, error
        if retryable:
            self.upstream.failed(flight.lane, now)
        if pushback is not None and pushback > 0:
            self.upstream.push_back(flight.lane, pushback, now)
        elif pushback is not None and pushback < 0:
            self._closed_to_more = True
        self._tell("failed", flight, now, reason)
        busy = max(now - flight.began, TIME_MIN)
        event = FailureReceived(flight.lane.view.link, flight.id, "failed", reason, b"", retryable, busy)
        self._step(event, now)
        return True

    def unsent(self, flight: Flight, now: float, error: BaseException, *, by_host: bool) -> None:
        """Nothing of a copy reached its host: it certainly did not run. ``by_host``: the host could not be reached."""
        if not self._end(flight, sent=False):
            return
        reason = repr(error)
        flight.error = error
        if by_host:
            self.upstream.unreachable(flight.lane, now)
        self._tell("unsent", flight, now, reason)
        self._step(CopyUnsent(flight.id), now)

    def _end(self, flight: Flight, *, sent: bool = True) -> bool:
        """True for the first news of a copy that is still wanted."""
        if flight.over or flight.stopped:
            return False
        flight.over = True
        if sent:
            flight.lane.view.received += 1
        return True

    # ---- what came of it --------------------------------------------------------------------------------------

    def chosen(self) -> Flight | None:
        """The copy whose answer or error is the call's; None when there is none (the call was cancelled, or too late).

        Of several failures it is the first, as long as a copy was answered; else the last refusal.
        """
        assert self.outcome is not None
        if self.outcome.kind == OutcomeKind.CANCELLED:
            return None
        named = self.flights.get(self.outcome.copy) if self.outcome.copy is not None else None
        if named is not None and (named.answer is not None or named.error is not None):
            return named
        brought = [flight for flight in self.flights.values() if flight.answer is not None or flight.error is not None]
        return brought[-1] if brought else None

    def leftovers(self, chosen: Flight | None) -> list[Any]:
        """The answers that were not chosen."""
        return [f.answer for f in self.flights.values() if f is not chosen and f.answer is not None]

    def attempts(self) -> list[dict[str, Any]]:
        """The story of the call, as plain values: of each copy its host, kind, when it was sent, and how it ended."""
        story = []
        for sent in self.core.copies.values():
            flight = self.flights.get(sent.id)
            end = None if sent.ended_at is None else sent.ended_at - self.began
            how = "lost" if sent.state is None else sent.state.label
            story.append(
                {
                    "host": sent.replica if flight is None else flight.lane.name,
                    "kind": sent.kind.label,
                    "sent": sent.sent_at - self.began,
                    "ended": end,
                    "end": how,
                }
            )
        return story

    # ---- the core ---------------------------------------------------------------------------------------------

    def _step(self, event: CallEvent, now: float) -> None:
        events: deque[CallEvent] = deque([event])
        while events:
            for command in self.core.step(events.popleft(), now):
                more = self._execute(command, now)
                if more is not None:
                    events.append(more)

    def _execute(self, command: CallCommand, now: float) -> CallEvent | None:
        if isinstance(command, SendCopy):
            return self._send(command, now)
        if isinstance(command, CancelCopy):
            flight = self.flights.get(command.copy)
            if flight is not None:
                self._stop(flight, now)
        elif isinstance(command, CompleteCall):
            self._complete(command.outcome, now)
        return None

    def _send(self, command: SendCopy, now: float) -> CallEvent:
        copy, kind = command.submit.copy, command.submit.kind
        lane = self.upstream.lanes[command.link]
        flight = Flight(copy, kind, lane, now)
        pause = lane.view.pushback_until if kind == CopyKind.FAILOVER else 0.0
        if (self._closed_to_more and kind != CopyKind.FIRST) or (pause > now and not self._holds):
            return CopyUnsent(copy)
        flight.not_before = max(now, pause)
        self.flights[copy] = flight
        if not self._carrier.carry(flight):
            del self.flights[copy]
            return CopyUnsent(copy)
        self._tell("sent", flight, now)
        return CopyStarted(command.link, copy)

    def _stop(self, flight: Flight, now: float) -> None:
        if not flight.over and not flight.stopped:
            flight.stopped = True
            flight.lane.view.received += 1
            self._tell("lost", flight, now)
            self._carrier.stop(flight)

    def _complete(self, outcome: Outcome, now: float) -> None:
        self.outcome = outcome
        self.upstream.in_flight -= 1
        if self._observer is None:
            return
        target, what = "", "failed-call"
        if outcome.kind == OutcomeKind.ANSWERED and outcome.copy is not None:
            winner = self.flights[outcome.copy]
            target, what = winner.lane.name, "answered"
            self._tell("won", winner, now)
        elif outcome.kind == OutcomeKind.CANCELLED:
            what = "cancelled"
        tell(self._observer, HedgeEvent(what, self.endpoint, target, "", now - self.began, outcome.message))

    def _tell(self, what: str, flight: Flight, now: float, reason: str = "") -> None:
        if self._observer is not None:
            kind, since = flight.kind.label, now - self.began
            tell(self._observer, HedgeEvent(what, self.endpoint, flight.lane.name, kind, since, reason))
