"""The log tail: which share of the calls took longer than t, for each policy."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cluster.compare.report.picture import Picture, legend, look_of
from cluster.compare.report.views import Entry, View, Workload, file_name, some_of

__all__ = ["pictures"]

PANELS_MAX = 4
POINTS_MAX = 250
DECADES_FROM = 100
"""Below that ratio of the longest to the shortest, powers of ten alone would be too few marks."""

FEW_CALLS = 10
"""Where so few calls took longer, the curve is mostly chance."""


def pictures(view: View) -> list[Picture]:
    """One picture for each workload whose curves the document has; a panel for each of up to four latencies."""
    return [_picture(view, workload, entries) for workload, entries in view.workloads.items() if _drawable(entries)]


def _drawable(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if len(entry.curve) > 1]


def _picture(view: View, workload: Workload, entries: list[Entry]) -> Picture:
    entries = _drawable(entries)
    latencies = view.latencies(entries)
    shown = some_of(latencies, PANELS_MAX)
    policies = view.policies(entries)
    figure = Figure(figsize=(max(6.4, 3.1 * len(shown) + 0.6), 4.6))
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
    for panel, latency in zip(panels, shown, strict=True):
        _draw(panel, [entry for entry in entries if entry.latency == latency])
        panel.set_title(f"{latency:g} ms between replicas")
        panel.set_xlabel("latency of a call, ms (log scale)")
    panels[0].set_ylabel("share of calls that took longer (log scale)")
    _scale(panels[0], entries)
    unstable = not all(entry.stable for entry in entries)
    few = Line2D([], [], color="#555555", linestyle=":", label=f"fewer than {FEW_CALLS} calls: chance")
    marks = [few]
    if unstable:
        marks.append(Line2D([], [], color="#555555", alpha=0.35, linewidth=4, label="unstable run"))
    legend(figure, policies, markers=False, unstable=False, extra=marks)
    left_out = "" if shown == latencies else f" Shown are {len(shown)} of {len(latencies)} latencies between replicas."
    return Picture(
        "tails",
        file_name("tail", workload),
        str(workload),
        f"Curves of the tail, {workload}. " + _words(entries, policies, shown[0]),
        "How to read it: at 0.1 % a curve shows the latency that one call in a thousand exceeds (p99.9). Further left"
        f" is better. All seeds together, both axes logarithmic.{left_out}",
        figure,
    )


def _draw(panel: Axes, entries: list[Entry]) -> None:
    for entry in entries:
        look = look_of(entry.policy)
        points = some_of([(ms, share) for ms, share in entry.curve if share > 0 and ms > 0], POINTS_MAX)
        roots = entry.row["calls"] / (entry.row.get("fan_out") or 1)
        limit = FEW_CALLS / max(1.0, roots)
        firm = [point for point in points if point[1] >= limit]
        loose = [*firm[-1:], *points[len(firm) :]]
        width, alpha = (1.5, 1.0) if entry.stable else (4.0, 0.35)
        for part, dash in ((firm, look.dash), (loose, ":")):
            if part:
                times, shares = zip(*part, strict=True)
                panel.plot(
                    times,
                    shares,
                    color=look.colour,
                    linestyle=dash,
                    drawstyle="steps-post",
                    linewidth=width,
                    alpha=alpha,
                )


def _scale(panel: Axes, entries: list[Entry]) -> None:
    """Log axes, from what the fastest 3 % of the calls don't exceed to the longest."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    shares = [share for entry in entries for _, share in entry.curve if share > 0]
    body = [ms for entry in entries for ms, share in entry.curve if 0 < share <= 0.97 and ms > 0]
    panel.set_ylim(min(shares) / 1.5, 1.05)
    if body:
        panel.set_xlim(min(body) * 0.9, max(body) * 1.15)
        if max(body) < DECADES_FROM * min(body):
            panel.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share * 100:g} %"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _words(entries: list[Entry], policies: list[str], latency: float) -> str:
    values = {entry.policy: entry.row["p999_ms"] for entry in entries if entry.latency == latency}
    told = [f"{policy} {values[policy]:.0f}" for policy in policies if values.get(policy) is not None]
    return f"p99.9 in ms at {latency:g} ms between replicas: {', '.join(told)}."
