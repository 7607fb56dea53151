"""The launcher's tables: the live one of replicas and traffic, and the summary of a finished run.

Pure: numbers in, a table of ``rich`` out. When and where it is shown is ``cluster.output``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.summary import FIELDS
from tiedreq.tables import NOTHING, milliseconds, replica_table


def live_table(
    statuses: Mapping[str, Mapping[str, Any] | None], states: Mapping[str, str], progress: Mapping[str, Any] | None
) -> RenderableType:
    """The replicas, and below them how the traffic goes, if there is any."""
    table = replica_table({name: _with_all_links(name, status, states) for name, status in statuses.items()}, states)
    if progress is None:
        return table
    line = (
        f"traffic: {progress['policy']}, {progress['calls']:,} calls, {progress['errors']:,} errors, "
        f"{progress['achieved_rate']:,.0f} of {progress['offered_rate']:,.0f} calls/s, "
        f"p50 {milliseconds(progress['p50_ms'])}  p99 {milliseconds(progress['p99_ms'])}  "
        f"p99.9 {milliseconds(progress['p999_ms'])} ms"
    )
    return Group(table, Text(line))


def _with_all_links(name: str, status: Mapping[str, Any] | None, states: Mapping[str, str]) -> Mapping[str, Any] | None:
    """A replica does not list a lost link that its peer has to dial: here every other replica has one."""
    if status is None:
        return None
    links = {peer: status["links"].get(peer, {"up": False}) for peer in states if peer != name}
    return {**status, "links": links}


def summary_table(summary: Mapping[str, Any]) -> Table:
    """A summary event as one row; what kinds of error there were stands below it."""
    caption = ", ".join(f"{name}: {count:,}" for name, count in summary.get("error_kinds", {}).items())
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    table.add_column("policy")
    for field in FIELDS:
        table.add_column(field.replace("_", " "), justify="right")
    table.add_row(str(summary["policy"]), *(_cell(field, summary[field]) for field in FIELDS))
    return table


def _cell(field: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    if field.endswith("_ms"):
        return milliseconds(value)
    if field.endswith("_rate") and field != "duplicate_execution_rate":
        return f"{value:,.1f}"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
