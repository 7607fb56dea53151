"""The public edge: what leaves it is one exception, never a group for a single cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


def single_cause(error: BaseException) -> BaseException:
    """The one cause in a group, however deep; the group itself when there are several.

    Cancellations that travel beside a real error are no cause.
    """
    while isinstance(error, BaseExceptionGroup):
        rest = error.split(trio.Cancelled)[1]
        if rest is None:
            return error.exceptions[0] if len(error.exceptions) == 1 else error
        if len(rest.exceptions) != 1:
            return rest
        error = rest.exceptions[0]
    return error


@contextmanager
def no_groups() -> Iterator[None]:
    """Let the single cause of a group out instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        cause = single_cause(group)
        if cause is group:
            raise
        raise cause from cause.__cause__
