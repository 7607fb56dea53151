"""Tables for people: what replicas report of themselves, and the story of a call.

A status is what ``ReplicaHandle.status()`` returns; a missing number is shown as ``-``, never as 0. Not for programs:
they take the status itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tiedreq.reply import Attempt

NOTHING = "-"
STATES = {"up": "green", "draining": "yellow", "starting": "yellow", "silent": "red", "failed": "bold red"}


def replica_table(statuses: Mapping[str, Mapping[str, Any] | None], states: Mapping[str, str] | None = None) -> Table:
    """One row for each replica. ``states`` says what is known of one otherwise; None: no status came from it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("replica")
    table.add_column("state")
    for name in ("pid", "queue", "running", "started", "dropped by peer", "double starts", "p50 ms", "p99 ms", "links"):
        table.add_column(name, justify="right")
    for name, status in statuses.items():
        state = (states or {}).get(name) or state_of(status)
        table.add_row(name, Text(state, STATES.get(state, "")), *replica_cells(status))
    return table


def state_of(status: Mapping[str, Any] | None) -> str:
    """``up``, ``draining`` or ``silent``, from a status alone."""
    if status is None:
        return "silent"
    return "draining" if status.get("draining") else "up"


def replica_cells(status: Mapping[str, Any] | None) -> list[str]:
    """The numbers of one row, from the process id on."""
    if status is None:
        return [NOTHING] * 9
    numbers = [_count(status.get(name)) for name in ("started", "dropped_by_peer", "double_starts")]
    running = f"{_count(status.get('running'))}/{_count(status.get('slots'))}"
    times = [milliseconds(status.get(name)) for name in ("p50_ms", "p99_ms")]
    return [str(status.get("pid", NOTHING)), _count(status.get("queue")), running, *numbers, *times, links_cell(status)]


def links_cell(status: Mapping[str, Any]) -> str:
    """``3/3`` when all links are up; the names of those that are down otherwise."""
    links: Mapping[str, Mapping[str, Any]] = status.get("links") or {}
    down = [name for name, link in links.items() if not link.get("up")]
    if (status.get("mesh") or {}).get("links", "all") != "all":
        return f"{len(links) - len(down)} in use"
    shown = f"{len(links) - len(down)}/{len(links)}"
    return f"{shown} down: {', '.join(down[:4])}{' …' if len(down) > 4 else ''}" if down else shown


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    """The copies of a call, in the order they were sent. Times are milliseconds since the call began."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("replica", "kind", "rank"):
        table.add_column(name)
    for name in ("sent ms", "started ms", "ended ms"):
        table.add_column(name, justify="right")
    table.add_column("end")
    for attempt in attempts:
        times = [_since(time) for time in (attempt.sent, attempt.started, attempt.ended)]
        rank = NOTHING if attempt.rank is None else str(attempt.rank)
        table.add_row(attempt.replica, attempt.kind, rank, *times, attempt.end or "cancelled: not needed")
    return table


def milliseconds(value: float | None) -> str:
    """A number of milliseconds with three digits that count."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _since(seconds: float | None) -> str:
    return NOTHING if seconds is None else milliseconds(seconds * 1000)


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"
