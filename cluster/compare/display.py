"""What people see of a comparison: a progress bar on a terminal, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cluster.compare.cell import Cell
from cluster.compare.rows import Row, Value

__all__ = ["Bar", "make_table", "progress"]

WIDTH_WITHOUT_TERMINAL = 170


class Column(NamedTuple):
    """A column of the table. ``scale`` and ``digits`` say how the number is shown."""

    title: str
    name: str
    scale: float = 1.0
    digits: int = 2
    unit: str = ""


IDENTIFYING = (
    Column("rate /s", "rate", digits=0),
    Column("load", "load", 100, 1, " %"),
    Column("fan-out", "fan_out", digits=0),
    Column("mesh ms", "mesh_latency_ms", digits=1),
)
NUMBERS = (
    Column("duplicates", "duplicate_execution_rate", 100, 3, " %"),
    Column("slow roots", "slow_root_rate", 100, 1, " %"),
    Column("independent", "slow_root_rate_independent", 100, 1, " %"),
    Column("p50", "p50_ms", digits=1),
    Column("p99", "p99_ms", digits=1),
    Column("p99.9", "p999_ms", digits=1),
    Column("p99.9 interval", "p999_ms_ci"),
    Column("executions", "executions_per_call", digits=3),
    Column("extra busy", "extra_busy_ratio", digits=3),
    Column("calls", "calls", digits=0),
    Column("errors", "errors", digits=0),
    Column("wasted", "wasted_work_ratio", 100, 2, " %"),
    Column("backups", "backup_rate", 100, 2, " %"),
    Column("won", "backup_win_rate", 100, 0, " %"),
    Column("late", "late_cancel_rate", 100, 2, " %"),
    Column("mean wait", "mean_wait_ms", digits=2),
)
"""The first ones count most: where a terminal is too narrow, the last ones are left out."""

EDGE = 3
"""What the frame takes for each column."""


class Bar(Protocol):
    """Something that hears of every finished run."""

    def advance(self) -> None:
        """One more is done."""


class _Silent:
    def advance(self) -> None:
        pass


class _Shown:
    def __init__(self, shown: Progress, total: int) -> None:
        self._shown = shown
        self._task = shown.add_task("runs", total=total)

    def advance(self) -> None:
        self._shown.advance(self._task)


@contextmanager
def progress(console: Console, total: int) -> Iterator[Bar]:
    """A progress bar while the body runs, where there is a terminal."""
    if not console.is_terminal:
        yield _Silent()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as shown:
        yield _Shown(shown, total)


def make_table(rows: Sequence[tuple[Cell, Row]], title: str, width: int) -> Table:
    """The rows as a table; the first column after those that say what a row is about is the duplicate-execution rate.

    Durations are milliseconds. Columns that would make it wider than ``width`` characters are left out, the least
    important first, and so is what no row has.
    """
    heading = "policy"
    names = [str(row["policy"]) + ("" if row["stable"] else " (unstable)") for _, row in rows]
    shown = [
        (column, [_shown(row.get(column.name), column) for _, row in rows])
        for column in (*IDENTIFYING, *NUMBERS)
        if any(row.get(column.name) is not None for _, row in rows)
    ]
    left = width - max(map(len, (heading, *names))) - 1 - EDGE
    fitting = []
    for column, cells in shown:
        left -= max(len(column.title), *map(len, cells)) + EDGE
        if left < 0:
            break
        fitting.append((column, cells))
    if not {"calls", "errors"} <= {column.name for column, _ in fitting}:
        calls, errors = (
            [count for _, row in rows if isinstance(count := row[name], int)] for name in ("calls", "errors")
        )
        title += f"; {min(calls)} to {max(calls)} calls, {sum(errors)} errors in all"
    table = Table(title=title, title_justify="left")
    table.add_column(heading, no_wrap=True)
    for column, _ in fitting:
        table.add_column(column.title, justify="right", no_wrap=True)
    group = rows[0][0]
    for index, (cell, _) in enumerate(rows):
        if cell.but(policy=group.policy) != group:
            table.add_section()
        group = cell
        table.add_row(names[index], *(cells[index] for _, cells in fitting))
    return table


def _shown(value: Value, column: Column) -> str:
    if isinstance(value, list):
        return f"{value[0]:.1f} – {value[1]:.1f}"
    if isinstance(value, int | float):
        return f"{value * column.scale:.{column.digits}f}{column.unit}"
    return "–"
