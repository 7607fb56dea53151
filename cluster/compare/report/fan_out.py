"""What many calls at once make of a rare slow one: root calls that need n answers, against 1 - (1 - p)^n."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

from cluster.compare.report.picture import Picture, legend, look_of
from cluster.compare.report.views import Entry, View, Workload, file_name, interval_of

__all__ = ["pictures"]

POINTS = 60
APART = 0.03
"""Policies at the same fan-out are drawn so much of it aside, so that bars don't cover each other."""


class Fan(NamedTuple):
    """Rows that share all but the policy and the fan-out. ``latency`` between replicas in milliseconds."""

    workload: Workload
    latency: float
    entries: list[Entry]

    @property
    def sizes(self) -> list[int]:
        """How many calls a root call needs, rising."""
        return sorted({_size(entry) for entry in self.entries})

    @property
    def name(self) -> str:
        """What the picture is of."""
        return f"{self.workload}, {self.latency:g} ms between replicas"


def pictures(view: View) -> list[Picture]:
    """One picture for each load and latency that was measured at two or more fan-outs."""
    return [_picture(view, fan) for fan in _fans(view) if len(fan.sizes) > 1]


def _fans(view: View) -> list[Fan]:
    found: dict[tuple[Workload, float], Fan] = {}
    for workload, entries in view.workloads.items():
        alike = workload._replace(experiment=workload.experiment._replace(fan_out=1))
        for entry in entries:
            if entry.row.get("slow_root_rate_independent") is not None:
                found.setdefault((alike, entry.latency), Fan(alike, entry.latency, [])).entries.append(entry)
    return list(found.values())


def _size(entry: Entry) -> int:
    return int(entry.row["fan_out"])


def _picture(view: View, fan: Fan) -> Picture:
    policies = view.policies(fan.entries)
    figure = Figure(figsize=(11.0, 4.6))
    slow, tail = figure.subplots(1, 2, sharex=True)
    for index, policy in enumerate(policies):
        own = sorted((entry for entry in fan.entries if entry.policy == policy), key=_size)
        aside = 1 + APART * (index - (len(policies) - 1) / 2)
        _draw_slow(slow, own, fan.sizes[-1], aside)
        _draw_tail(tail, own, aside)
    _scale(slow, tail, fan.sizes)
    chance = Line2D([], [], color="#555555", linestyle=":", label="1 − (1 − p)ⁿ")
    unstable = not all(entry.stable for entry in fan.entries)
    legend(figure, policies, markers=True, unstable=unstable, extra=[chance])
    return Picture(
        "fan-out",
        file_name("roots", fan.workload) + f"-{fan.latency:g}-ms",
        fan.name,
        f"Slow root calls against the number of calls that they need, {fan.name}. {_words(fan, policies)}",
        "Left: a root call is slow when it takes longer than 99 % of single calls do under plain. Dotted: what it would"
        " be if calls were slow independently of each other, with the share p of single calls that are slow under that"
        " policy (with the most calls per root call). Where calls of one root call meet the same pause or queue, fewer"
        " root calls are slow than that. Right: the latency that one root call in a hundred exceeds, with 95 %"
        " confidence intervals where there are several seeds.",
        figure,
    )


def _draw_slow(panel: Axes, entries: list[Entry], most: int, aside: float) -> None:
    look = look_of(entries[0].policy)
    sizes = [_size(entry) for entry in entries]
    _mark(panel, entries, sizes, [entry.row["slow_root_rate"] * 100 for entry in entries], aside)
    share = 1 - (1 - entries[-1].row["slow_root_rate_independent"]) ** (1 / sizes[-1])
    x = [most ** (index / (POINTS - 1)) for index in range(POINTS)]
    panel.plot(x, [100 * (1 - (1 - share) ** n) for n in x], color=look.colour, linestyle=":", linewidth=1.3)


def _draw_tail(panel: Axes, entries: list[Entry], aside: float) -> None:
    there = [entry for entry in entries if entry.row["p99_ms"] is not None]
    _mark(panel, there, [_size(entry) for entry in there], [entry.row["p99_ms"] for entry in there], aside)
    for entry in there:
        limits = interval_of(entry.row, "p99_ms")
        if limits is not None:
            panel.vlines(_size(entry) * aside, *limits, color=look_of(entry.policy).colour, linewidth=1.3)


def _mark(panel: Axes, entries: list[Entry], sizes: list[int], values: list[float], aside: float) -> None:
    look = look_of(entries[0].policy) if entries else look_of("")
    x = [size * aside for size in sizes]
    panel.plot(x, values, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=6)
    for entry, at, value in zip(entries, x, values, strict=True):
        if not entry.stable:
            panel.plot([at], [value], color="#555555", marker="x", markersize=11, linestyle="")


def _scale(slow: Axes, tail: Axes, sizes: list[int]) -> None:
    for panel in (slow, tail):
        panel.set_xscale("log")
        panel.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
        panel.xaxis.set_major_locator(FixedLocator(sizes))
        panel.xaxis.set_major_formatter(FixedFormatter([f"{size:,}" for size in sizes]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("calls that a root call needs (log scale)")
    slow.set_ylim(bottom=0)
    slow.set_title("slow root calls")
    slow.set_ylabel("root calls slower than 99 % of plain's single calls, %")
    tail.set_yscale("log")
    tail.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    tail.yaxis.set_minor_formatter(NullFormatter())
    low, high = tail.get_ylim()
    marks = [mark for mark in (10.0, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if low <= mark <= high]
    if marks:
        tail.yaxis.set_major_locator(FixedLocator(marks))
    tail.set_title("p99 of root calls")
    tail.set_ylabel("latency, ms (log scale)")


def _words(fan: Fan, policies: list[str]) -> str:
    most = fan.sizes[-1]
    rows: dict[str, dict[str, Any]] = {entry.policy: entry.row for entry in fan.entries if _size(entry) == most}
    told = [
        f"{policy} {rows[policy]['slow_root_rate'] * 100:.1f} %"
        f" (independent: {rows[policy]['slow_root_rate_independent'] * 100:.1f} %)"
        for policy in policies
        if policy in rows
    ]
    return f"Of root calls of {most:,} calls are slow: {', '.join(told)}."
