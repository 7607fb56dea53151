"""What ``cluster.ctl status`` shows a person. Pure: a status in, a table and lines of ``rich`` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cluster.table import live_table
from tiedreq.units import format_number


def render(status: Mapping[str, Any]) -> RenderableType:
    """The replicas, the traffic if it runs, and below what was done to the cluster."""
    replicas = status["replicas"]
    table = live_table(
        {name: replica["status"] for name, replica in replicas.items()},
        {name: replica["state"] for name, replica in replicas.items()},
        (status["traffic"] or {}).get("progress"),
    )
    lines = [*_faults(status["faults"])]
    if status["work"] is not None:
        pauses = "; ".join(status["work"]["pause"])
        lines.append(f"work: {status['work']['service']}{f', pauses {pauses}' if pauses else ''}")
    return Group(table, *(Text(line) for line in lines))


def _faults(faults: Mapping[str, Any]) -> list[str]:
    lines = []
    if faults["latency"] not in (None, "0"):
        lines.append(f"latency between replicas: {faults['latency']}")
    pairs = {(source, target) for source, target in faults["partitions"]}
    both = {pair for pair in pairs if pair[::-1] in pairs}
    shown = [f"{source} – {target}" for source, target in sorted(both) if source < target]
    shown += [f"{source} → {target}" for source, target in sorted(pairs - both)]
    if shown:
        lines.append(f"cut off: {', '.join(shown)}")
    if faults["slow"]:
        lines.append(f"slow: {', '.join(f'{name} × {format_number(f)}' for name, f in faults['slow'].items())}")
    return lines
