"""A measured number next to the one that it should be, the verdict, and the table of many.

Not for what is measured (``theory``, ``articles``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

__all__ = ["Line", "as_json", "as_markdown", "judged", "make_table"]

ERRORS = 3.0
"""Standard errors that chance may make."""


@dataclass(frozen=True, slots=True)
class Line:
    """One number of one experiment.

    ``expected`` is by theory or as published, ``measured`` ours. ``low`` to ``high`` is what chance may make of it
    (None: it may make nothing), ``bound`` the relative difference that is allowed. ``note`` is for people.
    """

    experiment: str
    quantity: str
    expected: float
    measured: float
    low: float | None
    high: float | None
    bound: float
    agrees: bool
    calls: int
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Relative to the expected number; None where that is 0."""
        return self.measured / self.expected - 1 if self.expected else None


def judged(
    experiment: str,
    quantity: str,
    expected: float,
    values: Sequence[float],
    *,
    bound: float,
    errors: float = ERRORS,
    calls: int = 0,
    note: str = "",
) -> Line:
    """The line of a number that has one value for each seed: their mean is to be within ``bound`` of ``expected``
    (relative), or within ``errors`` standard errors of it.
    """
    mean = math.fsum(values) / len(values)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    agrees = abs(mean - expected) <= max(bound * abs(expected), errors * error)
    chance = ERRORS * error
    return Line(experiment, quantity, expected, mean, mean - chance, mean + chance, bound, agrees, calls, note)


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as plain JSON values."""
    return [{**asdict(line), "difference": line.difference} for line in lines]


def make_table(lines: Sequence[Line], title: str, expected: str, chance: str) -> Table:
    """The lines as a table; ``expected`` and ``chance`` are the titles of those columns."""
    table = Table(title=title, title_justify="left")
    for name in ("experiment", "quantity"):
        table.add_column(name)
    for name in (expected, "measured", chance, "difference", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("agrees")
    before = None
    for line in lines:
        if before not in (None, line.experiment):
            table.add_section()
        table.add_row(
            line.experiment if line.experiment != before else "", line.quantity, *numbers(line), verdict(line)
        )
        before = line.experiment
    return table


def as_markdown(lines: Sequence[Line], expected: str, chance: str) -> str:
    """The same table for a document."""
    rows = [("experiment", "quantity", expected, "measured", chance, "difference", "calls", "agrees")]
    rows.append(("---", "---", "--:", "--:", "--:", "--:", "--:", "---"))
    before = ""
    for line in lines:
        name = line.experiment if line.experiment != before else ""
        rows.append((name, line.quantity, *numbers(line), "yes" if line.agrees else "**no**"))
        before = line.experiment
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def numbers(line: Line) -> tuple[str, str, str, str, str]:
    """The numbers of a line as they are shown."""
    span = "" if line.low is None or line.high is None else f"{shown(line.low)} – {shown(line.high)}"
    difference = "" if line.difference is None else f"{line.difference:+.1%}"
    return shown(line.expected), shown(line.measured), span, difference, f"{line.calls}"


def shown(value: float) -> str:
    """Four digits of a small number, three of others."""
    return f"{value:.4f}" if abs(value) < 10 and value != round(value, 1) else f"{value:.1f}"


def verdict(line: Line) -> str:
    """Yes or no, and the note."""
    return ("yes" if line.agrees else "NO") + (f": {line.note}" if line.note else "")
