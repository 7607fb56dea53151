"""The failure throttle: no further copies while many calls fail in ways that invite another try.

As in gRPC proposal A6 ("gRPC Retry Design", retry throttling), per client: a bucket holds at most ``TOKENS_MAX``
tokens and begins full. Each failure that its handler called retryable takes one token, each answer that was used gives
``TOKENS_PER_ANSWER`` back. While there is not more than half of the bucket, neither backups are sent nor is a failed
call tried again: it ends with its failure. Lost links and refusals are not counted here; they have brakes of their own
(``core.budget``). So a method of which more than a tenth fails for long is not made worse by further tries, and fifty
failures in a row end them.
"""

from __future__ import annotations

TOKENS_MAX = 100.0
TOKENS_PER_ANSWER = 0.1


class FailureThrottle:
    """The bucket of one client."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = TOKENS_MAX

    @property
    def open(self) -> bool:
        """True while further copies may be sent."""
        return self.tokens > TOKENS_MAX / 2

    def failed(self) -> None:
        """A handler failed and said that another try may succeed."""
        self.tokens = max(0.0, self.tokens - 1.0)

    def answered(self) -> None:
        """An answer was used."""
        if self.tokens < TOKENS_MAX:
            self.tokens = min(TOKENS_MAX, self.tokens + TOKENS_PER_ANSWER)
