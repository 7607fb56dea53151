"""Which policy wins where: the lowest p99.9 for each load and latency between replicas, and whether that is certain."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cluster.compare.report.picture import Picture, look_of
from cluster.compare.report.views import Entry, Experiment, View, Workload, file_name, interval_of

__all__ = ["Verdict", "judge", "pictures"]

COLUMN = "p999_ms"
EQUALS_TOLD_MAX = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who has the lowest p99.9 of one cell. ``equals``: those whose intervals overlap the best one's, best first.

    ``unstable`` policies took no part. ``judged`` is False where there are no intervals. ``best`` is None where every
    run was unstable.
    """

    best: Entry | None
    runner_up: Entry | None
    equals: tuple[Entry, ...]
    judged: bool
    unstable: int

    @property
    def clear(self) -> bool:
        """Whether the best is better than all others beyond the intervals."""
        return self.best is not None and self.judged and not self.equals and (bool(self.runner_up) or self.unstable > 0)


def judge(entries: list[Entry]) -> Verdict:
    """Compare the policies of one cell. Unstable runs don't take part: their percentiles mean nothing."""
    fit = sorted(
        (entry for entry in entries if entry.stable and entry.row[COLUMN] is not None), key=lambda one: one.row[COLUMN]
    )
    unstable = sum(not entry.stable for entry in entries)
    if not fit:
        return Verdict(None, None, (), False, unstable)
    best, others = fit[0], fit[1:]
    limits = interval_of(best.row, COLUMN)
    judged = limits is not None and all(interval_of(entry.row, COLUMN) is not None for entry in others)
    equals = []
    for entry in others:
        theirs = interval_of(entry.row, COLUMN)
        if limits is not None and theirs is not None and theirs[0] <= limits[1]:
            equals.append(entry)
    return Verdict(best, others[0] if others else None, tuple(equals), judged, unstable)


def pictures(view: View) -> list[Picture]:
    """One map for each experiment with two or more policies and two or more cells."""
    found = []
    for experiment, workloads in view.experiments.items():
        entries = [entry for workload in workloads for entry in view.workloads[workload]]
        cells = {(workload, entry.latency) for workload in workloads for entry in view.workloads[workload]}
        if len(view.policies(entries)) > 1 and len(cells) > 1:
            found.append(_picture(view, experiment, workloads, entries))
    return found


def _picture(view: View, experiment: Experiment, workloads: list[Workload], entries: list[Entry]) -> Picture:
    latencies = view.latencies(entries)
    figure = Figure(figsize=(max(6.4, 1.9 * len(latencies) + 1.6), max(2.6, 1.05 * len(workloads) + 1.6)))
    axes = figure.subplots()
    told, winners = [], []
    for row, workload in enumerate(workloads):
        for column, latency in enumerate(latencies):
            here = [entry for entry in view.workloads[workload] if entry.latency == latency]
            if not here:
                continue
            verdict = judge(here)
            _draw_cell(axes, column, row, verdict)
            told.append(f"{workload.traffic}, {latency:g} ms: {' '.join(_lines(verdict))}")
            winners.extend([] if verdict.best is None else [verdict.best.policy])
    axes.set_xlim(0, len(latencies))
    axes.set_ylim(0, len(workloads))
    axes.set_xticks([index + 0.5 for index in range(len(latencies))], [f"{latency:g}" for latency in latencies])
    axes.set_yticks(
        [index + 0.5 for index in range(len(workloads))], [each.traffic.replace(", ", "\n") for each in workloads]
    )
    axes.set_xlabel("one-way latency between replicas, ms (values as measured, not to scale)")
    axes.set_ylabel("calls per second, load")
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _legend(figure, [policy for policy in view.policies(entries) if policy in winners])
    return Picture(
        "winners",
        file_name("winners", experiment),
        str(experiment),
        f"Which policy has the lowest p99.9, {experiment}. {'; '.join(told)}.",
        "The policy with the lowest p99.9, and the next one, in ms. Hatched: the 95 % intervals of the best and of the"
        " policies after ≈ overlap, so that this comparison shows no difference between them. With one seed there are"
        " no intervals, and no cell is certain. Unstable runs can't win. A narrow win may not be worth its price: see"
        " duplicate executions and busy time.",
        figure,
    )


def _lines(verdict: Verdict) -> list[str]:
    best, runner_up = verdict.best, verdict.runner_up
    if best is None:
        return ["all unstable"] if verdict.unstable else ["no answers"]
    lines = [f"{best.policy} {_ms(best)}"]
    if verdict.equals:
        lines += [f"≈ {entry.policy} {_ms(entry)}" for entry in verdict.equals[:EQUALS_TOLD_MAX]]
        more = len(verdict.equals) - EQUALS_TOLD_MAX
        return [*lines, f"≈ {more} more"] if more > 0 else lines
    if runner_up is None:
        return [*lines, "others unstable" if verdict.unstable else "nothing else measured"]
    return [*lines, f"next: {runner_up.policy} {_ms(runner_up)}"] + ([] if verdict.judged else ["(no intervals)"])


def _ms(entry: Entry) -> str:
    value = float(entry.row[COLUMN])
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _draw_cell(axes: Axes, column: int, row: int, verdict: Verdict) -> None:
    colour = "#dddddd" if verdict.best is None else look_of(verdict.best.policy).colour
    hatch = "" if verdict.best is None or verdict.clear else "////"
    faint = 0.45 if verdict.clear else 0.16
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, alpha=faint, linewidth=0))
    axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor="white", linewidth=3))
    if hatch:
        axes.add_patch(
            Rectangle((column, row), 1, 1, fill=False, edgecolor=colour, hatch=hatch, linewidth=0, alpha=0.4)
        )
    lines = _lines(verdict)
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    text = "\n".join(lines)
    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8.5, linespacing=1.35, bbox=box)


def _legend(figure: Figure, policies: list[str]) -> None:
    handles = [Patch(facecolor=look_of(policy).colour, alpha=0.45, label=policy) for policy in policies]
    handles.append(Patch(facecolor="white", edgecolor="#777777", hatch="////", label="no certain winner"))
    figure.legend(handles=handles, loc="outside upper right", ncols=min(6, len(handles)))
