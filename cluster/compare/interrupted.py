"""How a program of the laboratory ends after Ctrl-C or SIGTERM: with one line, and the exit code 130.

Not for ``cluster.compare`` itself, which writes the rows that were finished first.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "interruptible", "lone_interrupt"]

INTERRUPTED = 130


@contextmanager
def lone_interrupt() -> Iterator[None]:
    """Let KeyboardInterrupt out alone.

    Trio raises it in whichever task runs. What other tasks raise while they are stopped, calls of a client that is
    closed by then say, comes with it in a group and is of no account.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None


@contextmanager
def interruptible(story: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM in this block end the program; ``story`` says what was being done. For the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with lone_interrupt():
            yield
    except KeyboardInterrupt:
        print(f"interrupted {story()}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
