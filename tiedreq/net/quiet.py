"""A log that a flood of bad peers can't flood: a few lines per window and kind, then a count of what was left out."""

from __future__ import annotations

import logging
import time


class QuietLog:
    """Writes to ``logger``, per ``kind`` at most ``lines_max`` lines in ``window`` seconds.

    The first line after a full window says how many were left out. ``kind`` must come from a fixed set: nothing that
    a peer chooses.
    """

    def __init__(self, logger: logging.Logger, *, lines_max: int = 5, window: float = 10.0) -> None:
        self._logger = logger
        self._lines_max = lines_max
        self._window = window
        self._kinds: dict[str, tuple[float, int]] = {}

    def log(self, kind: str, level: int, text: str, *arguments: object, error: BaseException | None = None) -> None:
        """Write ``text % arguments``, with the traceback of ``error``, unless this kind has had its share."""
        now = time.monotonic()  # real time: people read the log, whatever clock Trio runs on
        since, count = self._kinds.get(kind, (now, 0))
        left_out = 0
        if now - since >= self._window:
            left_out = max(0, count - self._lines_max)
            since, count = now, 0
        self._kinds[kind] = (since, count + 1)
        if count >= self._lines_max:
            return
        if left_out:
            text += f" ({left_out} more like this were not shown)"
        self._logger.log(level, text, *arguments, exc_info=error)
