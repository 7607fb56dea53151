"""The public error tree. Each message says what happened, to which call, at which replica, and what to do.

``UsageError``: nothing was sent. ``ConnectError``: no link could be made. ``CallError``: a call that was sent has no
answer; ``call_id`` names it and ``attempts`` tells what became of each copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiedreq.core.errors import BadOption, TiedreqError, UsageError

if TYPE_CHECKING:
    from tiedreq.reply import Attempt

__all__ = [
    "AuthRefused",
    "BadOption",
    "CallError",
    "ConnectError",
    "DeadlineExceeded",
    "OutcomeUnknown",
    "Overloaded",
    "RemoteFailure",
    "TiedreqError",
    "TooLarge",
    "Unavailable",
    "UnknownMethod",
    "UnsafeToDuplicate",
    "UsageError",
    "VersionMismatch",
]


class UnsafeToDuplicate(UsageError):
    """A method that is not declared idempotent was to be tied or hedged."""


class UnknownMethod(UsageError):
    """No connected replica serves this method."""


class TooLarge(UsageError):
    """Something is larger than its limit. ``field`` names it, ``limit`` is in the unit that the message names."""

    def __init__(self, message: str, *, limit: int, field: str) -> None:
        super().__init__(message)
        self.limit = limit
        self.field = field


class ConnectError(TiedreqError, OSError):
    """No replica could be reached."""


class AuthRefused(ConnectError):
    """The other side has another cluster token, belongs to another cluster, or a certificate is not trusted."""


class VersionMismatch(ConnectError):
    """The two protocol ranges do not meet. The message names both."""


class CallError(TiedreqError):
    """A call ended without an answer.

    ``call_id`` is the call's id as text, ``attempts`` what became of each copy. ``items``: how many items of a stream
    its user had been given by then.
    """

    items: int = 0

    def __init__(self, message: str, *, call_id: str = "", attempts: tuple[Attempt, ...] = ()) -> None:
        super().__init__(message)
        self.call_id = call_id
        self.attempts = attempts


class RemoteFailure(CallError):
    """The handler failed: on purpose with a ``Failure`` (its code, message, details), else with ``"internal"``."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        details: Any = None,
        call_id: str = "",
        attempts: tuple[Attempt, ...] = (),
    ) -> None:
        super().__init__(f"{code}: {message}", call_id=call_id, attempts=attempts)
        self.code = code
        self.message = message
        self.details = details


class DeadlineExceeded(CallError, TimeoutError):
    """The call's time ran out before an answer came."""


class Overloaded(CallError):
    """Every replica that was asked refused. ``retry_after`` is in seconds, 0 when no replica gave a hint."""

    def __init__(
        self, message: str, *, retry_after: float, call_id: str = "", attempts: tuple[Attempt, ...] = ()
    ) -> None:
        super().__init__(message, call_id=call_id, attempts=attempts)
        self.retry_after = retry_after


class Unavailable(CallError, ConnectionError):
    """The replicas that had the call were lost, and no other could take it."""


class OutcomeUnknown(CallError):
    """The replica was lost while it had a call that may not run twice: it may or may not have run."""


class StreamInterrupted(CallError):
    """A stream broke after ``items`` items."""

    def __init__(self, message: str, *, items: int, call_id: str = "", attempts: tuple[Attempt, ...] = ()) -> None:
        super().__init__(message, call_id=call_id, attempts=attempts)
        self.items = items
