"""The public edge: what leaves it is one exception, never a group for a single cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import trio


def single_cause(error: BaseException) -> BaseException:
    """The one cause in a group, however deep; the group itself when there are several.

    Cancellations that travel beside a real error are no cause.
    """
    while isinstance(error, BaseExceptionGroup):
        cancelled, rest = error.split(trio.Cancelled)
        if rest is None:
            return error.exceptions[0] if len(error.exceptions) == 1 else error
        if len(rest.exceptions) != 1:
            return error if cancelled is None else rest
        error = rest.exceptions[0]
    return error


def _only_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


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


class UserBlock:
    """Keeps what the user's block raises apart from what the tasks around it raise, and lets it out unchanged.

    ``with block.outside():`` stands round the nursery, ``with block:`` round the yield inside it, which swallows. An
    error of the block is not lost when its surroundings are cancelled meanwhile; with an error of the tasks beside it
    both come out, in a group.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._raised = raised
        return True

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Raises what the block raised, once everything around it has ended."""
        try:
            with no_groups():
                yield
        except BaseException as error:
            raised = self._raised
            if raised is None or _only_cancelled(raised):
                raise
            if not _only_cancelled(error):
                raise BaseExceptionGroup("the block failed, and so did what it ran in", [raised, error]) from None
            raise raised from raised.__cause__
        if self._raised is not None:
            raise self._raised
