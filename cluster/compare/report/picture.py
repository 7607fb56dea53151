"""What pictures have in common: how a policy looks in all of them, and how one becomes SVG.

Colours are those of Okabe and Ito (2008), which people with any colour vision can tell apart, with two more; a policy
also has its own marker and dash, so that no picture depends on colour alone.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

__all__ = [
    "LOOKS",
    "SETTINGS",
    "UNSTABLE",
    "Drawn",
    "Look",
    "Picture",
    "Section",
    "columns_for",
    "legend",
    "look_of",
    "name_of",
]

Section = Literal["tails", "cost", "winners", "ladder", "fan-out", "race"]

SETTINGS: Any = {
    "figure.constrained_layout.use": True,
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "tiedreq",
}


Dash = Literal["-", "--", "-.", ":"]


class Look(NamedTuple):
    """How a policy is drawn."""

    colour: str
    marker: str
    dash: Dash = "-"


LOOKS: dict[str, Look] = {
    "plain": Look("#000000", "o"),
    "hedged": Look("#d55e00", "s"),
    "hedged-fixed": Look("#e69f00", "D"),
    "hedged-uncancelled": Look("#e69f00", "d", "--"),
    "doubled": Look("#7f7f7f", "P"),
    "backup": Look("#cc79a7", "v"),
    "tied-classic": Look("#56b4e9", "^"),
    "tied-nobackup": Look("#009e73", "<", "--"),
    "tied": Look("#0072b2", "h"),
    "tied-exclusive": Look("#882255", "p", "-."),
    "auto": Look("#6a3d9a", "*", "--"),
}
LEGEND_INCHES = 2.0
"""The width of the longest entry of a legend, about."""

UNSTABLE = "unstable: depends on how long the run was"


def look_of(policy: str) -> Look:
    """How this policy is drawn everywhere."""
    return LOOKS.get(policy, Look("#7f7f7f", "8", ":"))


def name_of(policy: str, stable: bool) -> str:
    """A policy's name where it is written; one whose run was unstable is marked."""
    return policy if stable else f"{policy} (unstable)"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with the words that go with it. ``name`` is that of its file; ``alt`` says what it shows in words."""

    section: Section
    name: str
    title: str
    alt: str
    caption: str
    figure: Figure

    def to_svg(self) -> bytes:
        """The figure as SVG, the same for the same figure."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": self.title})
        return buffer.getvalue()


class Drawn(NamedTuple):
    """A picture and its SVG."""

    picture: Picture
    svg: bytes


def legend(figure: Figure, policies: list[str], *, markers: bool, unstable: bool, extra: Any = ()) -> None:
    """One legend below the figure for all of its panels."""
    handles: list[Any] = []
    for policy in policies:
        look = look_of(policy)
        marker = look.marker if markers else ""
        handles.append(Line2D([], [], color=look.colour, linestyle=look.dash, marker=marker, label=policy))
    handles.extend(extra)
    if unstable:
        handles.append(Line2D([], [], color="#555555", linestyle="", marker="x", markersize=8, label=UNSTABLE))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns_for(figure, len(handles)))


def columns_for(figure: Figure, entries: int) -> int:
    """How many entries of a legend fit side by side below a figure."""
    return max(1, min(entries, int(figure.get_figwidth() / LEGEND_INCHES)))
