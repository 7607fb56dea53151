"""The outcomes of several runs of ``harm`` as one grid: the correction for many comparisons is over all of them.

The full grid takes hours, so its scenarios are run one after the other, each with a document of its own. What is judged
of one alone is not what is judged of all: with more comparisons more look bad by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from cluster.compare.promises.harm import QUANTITIES, beyond_chance

__all__ = ["Together", "as_table", "together"]


@dataclass(slots=True)
class Together:
    """What was found in one scenario. ``worst`` is the largest mean of ``auto`` over plain for each quantity."""

    scenario: str
    cells: int = 0
    unstable: int = 0
    comparisons: int = 0
    beyond: int = 0
    proven: list[dict[str, Any]] = field(default_factory=list)
    collapsed: list[dict[str, Any]] = field(default_factory=list)
    reached: int = 0
    worst: dict[str, float] = field(default_factory=dict)


def together(documents: Iterable[dict[str, Any]]) -> list[Together]:
    """One line for each scenario, in the order of the documents. ``ValueError`` for another kind of document."""
    comparisons: list[dict[str, Any]] = []
    found: dict[str, Together] = {}

    def line_of(item: dict[str, Any]) -> Together:
        return found.setdefault(item["scenario"], Together(item["scenario"]))

    for document in documents:
        if not isinstance(document, dict) or not {"comparisons", "gains", "unstable"} <= document.keys():
            raise ValueError("not a document of harm")
        comparisons += document["comparisons"]
        for gain in document["gains"]:
            line_of(gain).cells += 1
            line_of(gain).reached += gain["reached"]
        for cell in document["unstable"]:
            line_of(cell).unstable += 1
        for cell in document.get("collapsed", ()):
            line_of(cell).collapsed.append(cell)
    for one in comparisons:
        line = line_of(one)
        line.comparisons += 1
        line.beyond += one["ratio"] > one["limit"]
        line.worst[one["quantity"]] = max(one["ratio"], line.worst.get(one["quantity"], 0.0))
    tested = sorted((one for one in comparisons if one["chance"] is not None), key=lambda one: one["chance"])
    for one in tested[: beyond_chance([one["chance"] for one in tested])]:
        line_of(one).proven.append(one)
    return list(found.values())


def as_table(lines: Sequence[Together]) -> Table:
    """The lines for people."""
    table = Table(title="auto against plain, by scenario", title_justify="left")
    titles = ("scenario", "cells", "not stable", "means beyond the limit", "proven")
    for title in (*titles, *(f"worst {name}" for name in QUANTITIES), "with the gain"):
        table.add_column(title, no_wrap=True)
    for line in lines:
        worst = (f"{line.worst[name]:.3f}" if name in line.worst else "–" for name in QUANTITIES)
        beyond = f"{line.beyond} of {line.comparisons}"
        gain = f"{line.reached} of {line.cells}"
        table.add_row(line.scenario, str(line.cells), str(line.unstable), beyond, str(len(line.proven)), *worst, gain)
    return table
