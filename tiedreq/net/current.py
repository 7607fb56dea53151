"""The execution that the current task or thread belongs to, if any: nested calls look it up."""

from __future__ import annotations

from contextvars import ContextVar

from tiedreq.service import Context

current_execution: ContextVar[Context | None] = ContextVar("tiedreq_execution", default=None)
"""Set by the executor for the time of a handler."""
