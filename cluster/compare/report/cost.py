"""The price of a policy as the replicas move apart: duplicate executions, wasted work, busy time."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from cluster.compare.report.picture import Picture, legend, look_of
from cluster.compare.report.views import Entry, View, Workload, file_name, interval_of

__all__ = ["pictures"]


class Price(NamedTuple):
    """A panel: a column, shown times ``factor``."""

    column: str
    factor: float
    title: str
    axis: str


APART = 3.0
HEADROOM = 1.05
"""The highest mark is not cut by the upper edge."""
BUSY_SHOWN_MIN = 0.02
"""The axis of the busy time goes at least that far to both sides of 1, so that chance does not look like a price."""

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
        for index, policy in enumerate(policies):
            aside = APART * (index - (len(policies) - 1) / 2)
            own = sorted((entry for entry in entries if entry.policy == policy), key=lambda entry: entry.latency)
            _draw(figure, panel, price, own, aside)
        panel.autoscale_view()
        panel.set_title(price.title)
        panel.set_ylabel(price.axis)
    for panel in panels[:2]:
        panel.set_ylim(0, HEADROOM * panel.get_ylim()[1])
    low, high = panels[2].get_ylim()
    panels[2].set_ylim(min(low, 1 - BUSY_SHOWN_MIN), max(high, 1 + BUSY_SHOWN_MIN))
    panels[2].axhline(1, color="#555555", linewidth=0.8, zorder=1)
    scale = _scale(panels[0], latencies)
    for panel in panels:
        panel.set_xlabel(f"one-way latency between replicas, ms\n({scale})")
    unstable = not all(entry.stable for entry in entries)
    legend(figure, policies, markers=True, unstable=unstable)
    seeds = max(entry.row["seeds"] for entry in entries)
    bars = "bars are 95 % confidence intervals over seeds" if seeds > 1 else "one seed: no confidence intervals"
    return Picture(
        "cost",
        file_name("cost", workload),
        str(workload),
        f"Price against latency between replicas, {workload}. {_words(entries, policies, latencies[-1])}",
        f"Duplicate executions: {bars}. Wasted work and busy time are ratios of sums over all seeds and have none."
        " Policies at the same latency are drawn a little apart.",
        figure,
    )


def _draw(figure: Figure, panel: Axes, price: Price, entries: list[Entry], aside: float) -> None:
    """One policy's line, some points (of paper) aside, so that bars don't cover each other."""
    there = [entry for entry in entries if entry.row[price.column] is not None]
    if not there:
        return
    look = look_of(there[0].policy)
    x = [entry.latency for entry in there]
    y = [entry.row[price.column] * price.factor for entry in there]
    here = panel.transData + ScaledTranslation(aside / 72, 0, figure.dpi_scale_trans)
    panel.plot(x, y, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=6, transform=here)
    panel.update_datalim(list(zip(x, y, strict=True)))  # what is drawn aside is not seen by the axes
    for entry, latency, value in zip(there, x, y, strict=True):
        limits = interval_of(entry.row, price.column)
        if limits is not None:
            low, high = limits[0] * price.factor, limits[1] * price.factor
            panel.update_datalim([(latency, low), (latency, high)])
            bars = [[max(0.0, value - low)], [max(0.0, high - value)]]
            panel.errorbar(
                [latency], [value], bars, ecolor=look.colour, elinewidth=1.3, capsize=3, fmt="none", transform=here
            )
        if not entry.stable:
            panel.plot([latency], [value], color="#555555", marker="x", markersize=11, linestyle="", transform=here)


def _scale(panel: Axes, latencies: list[float]) -> str:
    """Zero and the rest on one axis; what kind of axis it is, in words."""
    positive = [latency for latency in latencies if latency > 0]
    if positive[-1] < 8 * positive[0]:
        scale = "linear scale"
    elif latencies[0] == 0:
        panel.set_xscale("symlog", linthresh=positive[0], linscale=0.6)
        panel.set_xlim(-0.4 * positive[0], 1.5 * positive[-1])
        scale = f"log scale, linear below {positive[0]:g}"
    else:
        panel.set_xscale("log")
        panel.set_xlim(positive[0] / 1.3, 1.3 * positive[-1])
        scale = "log scale"
    panel.xaxis.set_major_locator(FixedLocator(latencies))
    panel.xaxis.set_major_formatter(FixedFormatter([f"{latency:g}" for latency in latencies]))
    panel.xaxis.set_minor_locator(NullLocator())
    return scale


def _words(entries: list[Entry], policies: list[str], latency: float) -> str:
    rates = {entry.policy: entry.row["duplicate_execution_rate"] for entry in entries if entry.latency == latency}
    told = [f"{policy} {rates[policy] * 100:.2f} %" for policy in policies if rates.get(policy) is not None]
    return f"Duplicate executions at {latency:g} ms: {', '.join(told)}."
