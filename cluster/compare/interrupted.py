"""How a program of the laboratory ends after Ctrl-C or SIGTERM: with one line, and the exit code 130.

Not for ``cluster.compare`` itself, which writes the rows that were finished first.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "interruptible"]

INTERRUPTED = 130


@contextmanager
def interruptible(story: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM in this block end the program; ``story`` says what was being done. For the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted {story()}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
