"""The timeline of one tied call: what happens at the client and at both replicas, and how their race ends."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cluster.compare.report.picture import Picture
from cluster.compare.report.race import Copy, Race, run_race

__all__ = ["pictures"]

MESH_LATENCY = 0.005
FREE_APART = (0.021, 0.012)
FREE_TOGETHER = (0.014, 0.012)
CLIENT_LANE = 2.0
BUSY, QUEUED, RUNNING, STOPPED, NOTICE, MESSAGE = "#d4d4d4", "#bfe0f5", "#0072b2", "#d55e00", "#009e73", "#777777"
HALF = 0.17
CLEAR = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0}


def pictures() -> list[Picture]:
    """The usual course, and the race that it can become, one above the other."""
    usual, race = run_race(FREE_APART, MESH_LATENCY), run_race(FREE_TOGETHER, MESH_LATENCY)
    figure = Figure(figsize=(11.0, 7.4))
    above, below = figure.subplots(2, 1, sharex=True)
    _draw(above, usual)
    above.set_title("The usual course: one copy starts, the other is dropped from its queue, and nothing runs twice")
    _draw(below, race)
    below.set_title("The race: both start before the notices arrive, and the second copy yields")
    below.set_xlabel("time since the call was made, ms (linear scale)")
    _legend(figure)
    return [
        Picture(
            "race",
            "race",
            f"one tied call, {MESH_LATENCY * 1000:g} ms between the replicas",
            f"Two timelines of a tied call. Above: {_story(usual)} Below: {_story(race)}",
            "A small call of its own, simulated by the cores of production with one slot at each replica; it is not a"
            " call of this comparison. 5 ms between the replicas, 2 ms to the client, 20 ms of work.",
            figure,
        )
    ]


def _draw(panel: Axes, race: Race) -> None:
    lanes = {copy.replica: CLIENT_LANE - 1 - rank for rank, copy in enumerate(race.copies.values())}
    names = [f"replica {replica}\ncopy {rank}" for rank, replica in enumerate(lanes)]
    panel.set_yticks([CLIENT_LANE, *lanes.values()], ["client", *names])
    panel.set_ylim(-0.55, 2.5)
    panel.grid(False, axis="y")
    for replica, until in race.free_at.items():
        panel.barh(lanes[replica], until, height=2 * HALF, color=BUSY, hatch="..", edgecolor="#b0b0b0", linewidth=0)
    panel.barh(CLIENT_LANE, race.answered or 0.0, height=0.05, color="#444444")
    for copy in race.copies.values():
        _draw_copy(panel, copy, lanes[copy.replica])
    for notice in race.notices:
        _arrow(panel, notice.sent, lanes[notice.source], notice.handled, lanes[notice.target], NOTICE, width=2.0)
    winner = next((copy for copy in race.copies.values() if copy.replica == race.winner), None)
    if race.answered is not None and winner is not None and winner.ended is not None:
        _arrow(panel, winner.ended, lanes[winner.replica] + HALF, race.answered, CLIENT_LANE, MESSAGE)
        _beside(panel, race.answered, CLIENT_LANE, f"answer after {race.answered:.3g} ms")
    panel.set_xlim(-1, (race.answered or 0.0) + 8)


def _draw_copy(panel: Axes, copy: Copy, lane: float) -> None:
    if copy.came is None:
        return
    _arrow(panel, copy.sent, CLIENT_LANE, copy.came, lane + HALF, MESSAGE)
    queue_end = copy.started if copy.started is not None else copy.ended
    if queue_end is not None:
        place, width = lane - HALF - 0.08, queue_end - copy.came
        panel.barh(place, width, left=copy.came, height=0.12, color=QUEUED, edgecolor=RUNNING, linewidth=0.6)
        panel.text(copy.came + 0.2, lane - HALF - 0.2, "copy in the queue", fontsize=8, va="top")
    if copy.ended is None:
        return
    if copy.started is not None:
        won = copy.how == "done"
        width = copy.ended - copy.started
        colour, hatch = (RUNNING, "") if won else (STOPPED, "//")
        panel.barh(lane, width, left=copy.started, height=2 * HALF, color=colour, hatch=hatch, edgecolor="white")
        if won:
            panel.text(copy.started + width / 2, lane, "runs", color="white", ha="center", va="center", fontsize=9)
    if copy.how != "done":
        place = lane if copy.started is not None else lane - HALF - 0.08
        panel.plot([copy.ended], [place], marker="X", color="black", markersize=9, linestyle="")
        ran = "" if copy.started is None else f", {copy.ended - copy.started:.3g} ms of work wasted"
        _beside(panel, copy.ended, place, f"{copy.how}{ran}", down=14 if ran else 0)


def _beside(panel: Axes, x: float, y: float, text: str, down: float = 0.0) -> None:
    panel.annotate(text, (x, y), (9, -down), textcoords="offset points", va="center", fontsize=9, zorder=5, bbox=CLEAR)


def _arrow(panel: Axes, x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1.0) -> None:
    panel.annotate(
        "",
        (to_x, to_y),
        (x, y),
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0},
    )


def _legend(figure: Figure) -> None:
    figure.legend(
        handles=[
            Patch(facecolor=BUSY, hatch="..", edgecolor="#b0b0b0", label="slot busy with another call"),
            Patch(facecolor=QUEUED, edgecolor=RUNNING, label="copy waits"),
            Patch(facecolor=RUNNING, label="copy runs and answers"),
            Patch(facecolor=STOPPED, hatch="//", edgecolor="white", label="copy runs and yields"),
            Line2D([], [], color=NOTICE, linewidth=2, label="Started notice"),
            Line2D([], [], color=MESSAGE, label="copy, answer"),
            Line2D([], [], color="black", marker="X", linestyle="", label="copy ends"),
        ],
        loc="outside lower center",
        ncols=4,
    )


def _story(race: Race) -> str:
    told = []
    for copy in race.copies.values():
        began = "never starts" if copy.started is None else f"starts at {copy.started:.3g} ms"
        told.append(f"the copy at {copy.replica} {began} and is {copy.how} at {copy.ended or 0:.3g} ms")
    return f"{'; '.join(told)}; the answer comes at {race.answered or 0:.3g} ms from {race.winner}."
