"""The price of a policy as the replicas move apart: duplicate executions, wasted work, busy time."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from cluster.compare.report.picture import Picture, legend, look_of
from cluster.compare.report.views import Entry, View, Workload, file_name, interval_of

__all__ = ["pictures"]


class Price(NamedTuple):
    """A panel: a column, shown times ``factor``."""

    column: str
    factor: float
    title: str
    axis: str


PRICES = (
    Price("duplicate_execution_rate", 100, "duplicate executions", "calls executed twice or more, %"),
    Price("wasted_work_ratio", 100, "wasted work", "busy time whose result was not used, %"),
    Price("extra_busy_ratio", 1, "busy time", "busy time per call, ratio to plain"),
)


def pictures(view: View) -> list[Picture]:
    """One picture for each workload that was measured at two or more latencies."""
    return [
        _picture(view, workload, entries)
        for workload, entries in view.workloads.items()
        if len(view.latencies(entries)) > 1
    ]


def _picture(view: View, workload: Workload, entries: list[Entry]) -> Picture:
    policies, latencies = view.policies(entries), view.latencies(entries)
    figure = Figure(figsize=(12.4, 4.4))
    panels = figure.subplots(1, len(PRICES), sharex=True)
    for panel, price in zip(panels, PRICES, strict=True):
        for policy in policies:
            _draw(panel, price, sorted((entry for entry in entries if entry.policy == policy), key=_latency))
        panel.set_title(price.title)
        panel.set_ylabel(price.axis)
    for panel in panels[:2]:
        panel.set_ylim(bottom=0)
    panels[2].axhline(1, color="#555555", linewidth=0.8, zorder=1)
    scale = _scale(panels[0], latencies)
    figure.supxlabel(f"one-way latency between replicas, ms ({scale})", fontsize=10)
    unstable = not all(entry.stable for entry in entries)
    legend(figure, panels[0], policies, markers=True, unstable=unstable)
    seeds = max(entry.row["seeds"] for entry in entries)
    bars = "bars are 95 % confidence intervals over seeds" if seeds > 1 else "one seed: no confidence intervals"
    return Picture(
        "cost",
        file_name("cost", workload),
        str(workload),
        f"Price against latency between replicas, {workload}. {_words(entries, policies, latencies[-1])}",
        f"Duplicate executions: {bars}. Wasted work and busy time are ratios of sums over all seeds and have none.",
        figure,
    )


def _latency(entry: Entry) -> float:
    return entry.latency


def _draw(panel: Axes, price: Price, entries: list[Entry]) -> None:
    there = [entry for entry in entries if entry.row[price.column] is not None]
    if not there:
        return
    look = look_of(there[0].policy)
    x = [entry.latency for entry in there]
    y = [entry.row[price.column] * price.factor for entry in there]
    panel.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=6)
    for entry, here, value in zip(there, x, y, strict=True):
        limits = interval_of(entry.row, price.column)
        if limits is not None:
            panel.vlines(here, limits[0] * price.factor, limits[1] * price.factor, color=look.colour, linewidth=1.6)
        if not entry.stable:
            panel.plot([here], [value], color="#555555", marker="x", markersize=11, linestyle="")


def _scale(panel: Axes, latencies: list[float]) -> str:
    """Zero and the rest on one axis; what kind of axis it is, in words."""
    positive = [latency for latency in latencies if latency > 0]
    if positive[-1] < 8 * positive[0]:
        scale = "linear scale"
    elif latencies[0] == 0:
        panel.set_xscale("symlog", linthresh=positive[0], linscale=0.6)
        scale = f"log scale, linear below {positive[0]:g}"
    else:
        panel.set_xscale("log")
        scale = "log scale"
    panel.xaxis.set_major_locator(FixedLocator(latencies))
    panel.xaxis.set_major_formatter(FixedFormatter([f"{latency:g}" for latency in latencies]))
    panel.xaxis.set_minor_locator(NullLocator())
    return scale


def _words(entries: list[Entry], policies: list[str], latency: float) -> str:
    rates = {entry.policy: entry.row["duplicate_execution_rate"] for entry in entries if entry.latency == latency}
    told = [f"{policy} {rates[policy]:.2%}" for policy in policies if rates.get(policy) is not None]
    return f"Duplicate executions at {latency:g} ms: {', '.join(told)}."
