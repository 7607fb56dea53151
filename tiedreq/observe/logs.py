"""Logs for a program that runs one replica: as text, or as JSON, one object a line.

A line of JSON has ``time`` (UTC), ``level``, ``logger``, ``message``; with an exception also ``error`` (``type``,
``message``, ``traceback``); and whatever the record was given as ``extra``. What a peer or a caller has sent is in it
only where the text would have it too, and a line break in it can't begin a new line.

What can come in floods is limited where it is written (``tiedreq.net.quiet``): a few lines per kind and ten seconds,
then a count of what was left out. Losing a race is no more than ``debug``: it is what ties are for.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
EXTRA_MAX = 32
_USUAL = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line without its end. Never raises for what a record holds."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told["error"] = {
                "type": type(error).__name__,
                "message": _words(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
        extra = [name for name in vars(record) if name not in _USUAL and name not in told]
        told.update((name, vars(record)[name]) for name in extra[:EXTRA_MAX])
        return json.dumps(told, default=_words, ensure_ascii=False, skipkeys=True)


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"({type(value).__name__})"


def set_up_logs(form: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything that is logged in this program to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
