"""One open call at the client: its core, the task that waits, and how its outcome becomes a value or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from tiedreq.core.call import CallCore, SentCopy
from tiedreq.core.commands import Outcome, OutcomeKind
from tiedreq.core.errors import RemoteViolation, UsageError
from tiedreq.core.events import CallerCancelled, CallEvent, FailureReceived, ResultReceived
from tiedreq.core.messages import Result
from tiedreq.core.types import UNTIED, Cause, CopyId
from tiedreq.errors import (
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    RemoteFailure,
    Unavailable,
    UnknownMethod,
    UnsafeToDuplicate,
)
from tiedreq.net.arguments import Accept
from tiedreq.reply import Attempt, Reply
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits
from tiedreq.wire.payload import decode_payload

NOT_SENT = "no copy was sent: no replica was there to take it"
NO_TIME = "no copy was sent: its time was over when it was made"


class Answered:
    """What came with the answer of a copy: the decoded value, and the replica's own measurements in seconds.

    ``busy`` is how long the handler ran in all; of a stream ``service_time`` is the part up to the first content.
    """

    __slots__ = ("busy", "queue_wait", "service_time", "value")

    def __init__(self, value: Any, service_time: float, queue_wait: float) -> None:
        self.value = value
        self.service_time = self.busy = service_time
        self.queue_wait = queue_wait


class OpenCall:
    """The driver's record of one call.

    ``began`` is Trio's time when the call was made; ``surrounding`` says that a scope around the call ends it, not the
    call's own ``timeout``; ``answers`` are those that came, by copy; ``error`` is what the caller's own ``accept``
    raised. ``task`` waits for the outcome; if none does, ``told`` is called at it, and must not raise. ``cancelled`` is
    called at the very moment when the scope of the task that waits is cancelled.
    """

    __slots__ = (
        "_limits",
        "accept",
        "answers",
        "began",
        "cancelled",
        "core",
        "error",
        "outcome",
        "surrounding",
        "task",
        "timeout",
        "told",
        "waking_at",
    )

    def __init__(
        self,
        core: CallCore,
        accept: Accept | None,
        began: float,
        timeout: float,
        surrounding: bool = False,
        limits: WireLimits = DEFAULT_LIMITS,
        cancelled: Callable[[OpenCall], object] | None = None,
    ) -> None:
        self.core = core
        self.accept = accept
        self.began = began
        self.timeout = timeout
        self.surrounding = surrounding
        self._limits = limits
        self.answers: dict[CopyId, Answered] = {}
        self.outcome: Outcome | None = None
        self.error: Exception | None = None
        self.waking_at = float("inf")
        self.told: Callable[[], object] | None = None
        self.task: trio.lowlevel.Task | None = None
        self.cancelled = cancelled

    def complete(self, outcome: Outcome) -> None:
        """The outcome is known: wake the task that waits, or tell whom it concerns."""
        self.outcome = outcome
        task = self.task
        if task is not None:
            self.task = None
            trio.lowlevel.reschedule(task)
        elif self.told is not None:
            self.told()

    def answer(self, link: int, message: Result) -> CallEvent:
        """A replica has answered: what to tell the core. ``accept`` is asked; if it raises, that is the call's end."""
        copy: CopyId = message.copy
        if copy not in self.core.copies:
            return ResultReceived(link, copy, False)  # never sent: it changes nothing, and nothing of it is kept
        size, limit = len(message.payload), self._limits.payload_bytes_max
        if size > limit:
            text = f"the answer has {size} bytes, over the client's payload_bytes_max of {limit}"
            return FailureReceived(link, copy, "too_large", text, b"", False)
        try:
            value = decode_payload(message.payload, self._limits)
        except RemoteViolation as error:
            return FailureReceived(link, copy, "bad_payload", f"the answer can't be decoded: {error}", b"", False)
        acceptable = True
        if self.accept is not None:
            try:
                acceptable = bool(self.accept(value))
            except Exception as error:
                self.error = error
                return CallerCancelled()
        self.answers[copy] = Answered(value, message.service_time, message.queue_wait)
        return ResultReceived(link, copy, acceptable, message.service_time, message.queue_wait)

    def interrupted(self, _raise: object) -> trio.lowlevel.Abort:
        """What Trio calls when the scope of the task that waits is cancelled."""
        self.task = None
        if self.cancelled is not None:
            self.cancelled(self)
        return trio.lowlevel.Abort.SUCCEEDED

    # ---- the story --------------------------------------------------------------------------------------------

    def attempts(self) -> tuple[Attempt, ...]:
        """What became of each copy so far."""
        return tuple(self._attempt(sent) for sent in self.core.copies.values())

    def _attempt(self, sent: SentCopy) -> Attempt:
        def since(time: float | None) -> float | None:
            return None if time is None else time - self.began

        return Attempt(
            replica=sent.replica,
            rank=None if sent.id.rank == UNTIED else sent.id.rank,
            kind=sent.kind.label,
            sent=sent.sent_at - self.began,
            started=since(sent.started_at),
            ended=since(sent.ended_at),
            end=end_in_words(sent),
        )

    def value(self) -> Any:
        """The answer's value. Only after an outcome of kind ANSWERED."""
        assert self.outcome is not None and self.outcome.copy is not None
        return self.answers[self.outcome.copy].value

    def reply(self, now: float) -> Reply:
        """The answer with its story. Only after an outcome of kind ANSWERED."""
        assert self.outcome is not None and self.outcome.copy is not None
        copy = self.outcome.copy
        sent, answer = self.core.copies[copy], self.answers[copy]
        return Reply(
            value=answer.value,
            call_id=str(copy.call),
            replica=sent.replica,
            kind=sent.kind.label,
            latency=now - self.began,
            queue_wait=answer.queue_wait,
            service_time=answer.service_time,
            attempts=self.attempts(),
        )

    def check(self) -> None:
        """Raise the error that the outcome stands for, if it is not an answer. Only after the outcome."""
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        if self.outcome.kind != OutcomeKind.ANSWERED:
            raise self._failure()

    def _details(self, details: bytes) -> Any:
        try:
            return decode_payload(details, self._limits) if details else None
        except RemoteViolation:
            return None

    def _failure(self) -> Exception:
        assert self.outcome is not None
        outcome, request = self.outcome, self.core.request
        call_id, attempts = str(request.id), self.attempts()
        where = ", ".join(f"{a.replica}: {a.end or 'no news'}" for a in attempts)
        where = where or (NOT_SENT if self.timeout > 0 else NO_TIME)
        name = f"call {call_id} of {request.method!r}"
        match outcome.kind:
            case OutcomeKind.FAILED:
                replica = f" (at {self.core.copies[outcome.copy].replica})" if outcome.copy is not None else ""
                details = self._details(outcome.details)
                return RemoteFailure(
                    outcome.message + replica, code=outcome.code, details=details, call_id=call_id, attempts=attempts
                )
            case OutcomeKind.DEADLINE:
                text = f"{name}: no answer within {self.timeout:.4g} s ({where})"
                return DeadlineExceeded(text, call_id=call_id, attempts=attempts)
            case OutcomeKind.OVERLOADED:
                hint = f"; come back in {outcome.retry_after:.3g} s" if outcome.retry_after else ""
                text = f"{name}: every replica asked refused ({where}){hint}"
                return Overloaded(text, retry_after=outcome.retry_after, call_id=call_id, attempts=attempts)
            case OutcomeKind.UNKNOWN:
                text = f"{name}: the replica was lost while it had the call; it may or may not have run ({where})"
                return OutcomeUnknown(text, call_id=call_id, attempts=attempts)
            case OutcomeKind.CANCELLED:
                text = f"{name}: the client was closed before an answer came ({where})"
                return Unavailable(text, call_id=call_id, attempts=attempts)
            case OutcomeKind.REJECTED if outcome.cause == Cause.UNKNOWN_METHOD:
                return UnknownMethod(f"{name}: the replica does not serve this method ({where})")
            case OutcomeKind.REJECTED if outcome.cause == Cause.WRONG_KIND:
                return UsageError(f"{name}: the replica says that it is a stream, or that it is none ({where})")
            case OutcomeKind.REJECTED:
                return UnsafeToDuplicate(f"{name}: the replica says that it is not declared idempotent ({where})")
        text = f"{name}: the replicas that had it were lost, and no other could take it ({where})"
        return Unavailable(text, call_id=call_id, attempts=attempts)


def end_in_words(sent: SentCopy) -> str | None:
    """How a copy ended, as in ``Attempt.end``; None while nothing is known."""
    if sent.ended_at is None:
        return None
    state = "lost" if sent.state is None else sent.state.label
    return state if sent.cause == Cause.NONE else f"{state}: {sent.cause.label}"
