"""Programs around tiedreq: the cluster launcher and its companions."""

from __future__ import annotations

import sys
from types import TracebackType


def _say_what_failed(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Ctrl-C is no failure that anybody has to find: it ends a program without a word of Python's own."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if sys.argv[:1] == ["-m"]:
    # ``python -m cluster.…`` is about to load the program, which takes a second, and has its own way with Ctrl-C later.
    sys.excepthook = _say_what_failed
