"""The ablation ladder: the policies one under the other, each part added in turn, and what each part buys and costs."""

from __future__ import annotations

from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from cluster.compare.report.picture import UNSTABLE, Picture, columns_for
from cluster.compare.report.views import Entry, View, Workload, file_name, interval_of

__all__ = ["pictures"]

POLICIES_MIN = 3
DECADES_FROM = 30
"""From so large a ratio on a logarithmic axis has room for powers of ten only."""

LATENCY_SPAN_MIN = 0.2
RATIO_SPAN_MIN = {"% of calls": 0.2, "per call": 0.04, "ratio to plain": 0.04}
"""No axis spans less (latencies: as a share of the longest), so that chance does not look like a difference."""

MARKERS = "osD^vPh<>pd*"
WORDS = {
    "plain": "one copy",
    "hedged": "backup from sending",
    "hedged-fixed": "backup, fixed delay",
    "hedged-uncancelled": "the same, not cancelled",
    "doubled": "two copies at once",
    "backup": "backup from start",
    "tied-classic": "tie alone",
    "tied-nobackup": "tie + yield",
    "tied": "tie + yield + backup",
    "tied-exclusive": "tie that asks + backup",
    "auto": "chooses by itself",
}


class Rung(NamedTuple):
    """A panel: a column and its axis. ``latency``: logarithmic where the values differ much."""

    column: str
    title: str
    axis: str
    latency: bool


RUNGS = (
    Rung("p50_ms", "p50", "latency, ms", True),
    Rung("p99_ms", "p99", "latency, ms", True),
    Rung("p999_ms", "p99.9", "latency, ms", True),
    Rung("duplicate_execution_rate", "duplicate executions", "% of calls", False),
    Rung("executions_per_call", "executions", "per call", False),
    Rung("extra_busy_ratio", "busy time", "ratio to plain", False),
)


def pictures(view: View) -> list[Picture]:
    """One picture for each workload with at least three policies."""
    return [
        _picture(view, workload, entries)
        for workload, entries in view.workloads.items()
        if len(view.policies(entries)) >= POLICIES_MIN
    ]


def _picture(view: View, workload: Workload, entries: list[Entry]) -> Picture:
    policies, latencies = view.policies(entries), view.latencies(entries)
    height = 1.7 + len(policies) * max(0.36, 0.13 * len(latencies))
    figure = Figure(figsize=(14.0, height))
    panels = figure.subplots(1, len(RUNGS), sharey=True)
    looks = _looks(latencies)
    for panel, rung in zip(panels, RUNGS, strict=True):
        for entry in entries:
            place = policies.index(entry.policy) + _offset(latencies.index(entry.latency), len(latencies))
            _draw(panel, rung, entry, place, looks[entry.latency])
        _scale(panel, rung, entries)
        for between in range(1, len(policies)):
            panel.axhline(between - 0.5, color="#cccccc", linewidth=0.6)
        panel.grid(False, axis="y")
    labels = [f"{policy}\n{WORDS[policy]}" if policy in WORDS else policy for policy in policies]
    panels[0].set_yticks(range(len(policies)), labels, fontsize=9)
    panels[0].set_ylim(len(policies) - 0.5, -0.5)
    handles = [
        Line2D([], [], linestyle="", color=looks[each][0], marker=looks[each][1], label=f"{each:g} ms between replicas")
        for each in latencies
    ]
    if not all(entry.stable for entry in entries):
        handles.append(Line2D([], [], linestyle="", color="#555555", marker="x", markersize=8, label=UNSTABLE))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns_for(figure, len(handles)))
    return Picture(
        "ladder",
        file_name("ladder", workload),
        str(workload),
        f"The policies one under the other, {workload}. {_words(entries, policies, latencies[-1])}",
        "From above to below a part is added at a time. Bars are 95 % confidence intervals over seeds, where there are"
        " several; executions and busy time are ratios of sums and have none. Axes need not begin at 0; where an axis"
        " is logarithmic it says so.",
        figure,
    )


def _looks(latencies: list[float]) -> dict[float, tuple[Any, str]]:
    """From light to dark as the latency grows, and a marker for each."""
    colours = matplotlib.colormaps["viridis_r"]
    last = max(1, len(latencies) - 1)
    return {
        latency: (colours(0.3 + 0.7 * index / last), MARKERS[index % len(MARKERS)])
        for index, latency in enumerate(latencies)
    }


def _offset(index: int, count: int) -> float:
    return 0.0 if count == 1 else 0.6 * (index / (count - 1) - 0.5)


def _draw(panel: Axes, rung: Rung, entry: Entry, place: float, look: tuple[Any, str]) -> None:
    value = entry.row[rung.column]
    if value is None:
        return
    factor = 100.0 if rung.axis.startswith("%") else 1.0
    limits = interval_of(entry.row, rung.column)
    if limits is not None:
        panel.hlines(place, limits[0] * factor, limits[1] * factor, color=look[0], linewidth=1.6)
    panel.plot([value * factor], [place], color=look[0], marker=look[1], markersize=5.5, linestyle="")
    if not entry.stable:
        panel.plot([value * factor], [place], color="#555555", marker="x", markersize=9, linestyle="")


def _scale(panel: Axes, rung: Rung, entries: list[Entry]) -> None:
    values = [entry.row[rung.column] for entry in entries if entry.row[rung.column]]
    log = rung.latency and bool(values) and max(values) > 5 * min(values)
    if log:
        panel.set_xscale("log")
        # An interval that reaches down to nothing would take the whole axis.
        panel.set_xlim(left=max(panel.get_xlim()[0], min(values) / 3))
        panel.xaxis.set_major_locator(
            LogLocator(base=10, subs=(1.0,) if max(values) > DECADES_FROM * min(values) else (1.0, 2.0, 5.0))
        )
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))
        _widen(panel, LATENCY_SPAN_MIN * max(values, default=1.0) if rung.latency else RATIO_SPAN_MIN[rung.axis])
    panel.tick_params(axis="x", labelsize=8.5)
    panel.set_title(rung.title)
    panel.set_xlabel(f"{rung.axis}\n(log scale)" if log else rung.axis)


def _widen(panel: Axes, span_min: float) -> None:
    low, high = panel.get_xlim()
    missing = max(0.0, span_min - (high - low))
    panel.set_xlim(low - missing / 2, high + missing / 2)


def _words(entries: list[Entry], policies: list[str], latency: float) -> str:
    values = {entry.policy: entry.row["p999_ms"] for entry in entries if entry.latency == latency}
    told = [f"{policy} {values[policy]:.0f}" for policy in policies if values.get(policy) is not None]
    return f"p99.9 in ms at {latency:g} ms between replicas: {', '.join(told)}."
