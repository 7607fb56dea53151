"""How much of Python a thing takes: counted, not timed, so the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["lines_run"]


def lines_run(action: Callable[[], object]) -> int:
    """How many lines of Python ``action`` runs.

    Without collections meanwhile: Hypothesis times them with a function of Python, whose lines would count.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return trace

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return lines
