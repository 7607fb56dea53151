"""What the benchmarks share: rows as docs/performance.md explains them, the table, the options, processor time.

Peers are measured in the same run and take turns with what is compared to them. A row's value is the median over the
rounds, its spread the distance from the least to the greatest, and a ratio the median of the rounds' own ratios: what
disturbs the machine for a while then disturbs both sides of a ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypedDict

import psutil
from rich.console import Console
from rich.table import Table


class Row(TypedDict):
    """One line of a benchmark. ``ratio`` is None where there is nothing to compare with."""

    name: str
    value: float
    unit: str
    spread: float
    ratio_to: str | None
    ratio: float | None


def row(
    name: str, unit: str, values: Sequence[float], *, peer: str | None = None, peers: Sequence[float] | None = None
) -> Row:
    """A row from the values of all rounds; ``peers`` are those of ``peer`` in the same rounds."""
    ratio = None
    if peers is not None:
        ratio = statistics.median(ours / theirs if theirs else 0.0 for ours, theirs in zip(values, peers, strict=True))
    return {
        "name": name,
        "value": significant(statistics.median(values)),
        "unit": unit,
        "spread": significant(max(values) - min(values)),
        "ratio_to": peer if peers is not None else None,
        "ratio": None if ratio is None else significant(ratio),
    }


def significant(value: float) -> float:
    """``value`` with five digits: more would be noise."""
    return float(f"{value:.5g}")


def show(title: str, rows: Sequence[Row]) -> None:
    """The table."""
    table = Table(title=title)
    for column in ("", "value", "unit", "spread", "ratio", "to"):
        table.add_column(column, justify="right" if column in ("value", "spread", "ratio") else "left")
    for each in rows:
        ratio = "" if each["ratio"] is None else f"{each['ratio']:.3g}"
        values = f"{each['value']:,.6g}", each["unit"], f"{each['spread']:,.4g}", ratio, each["ratio_to"] or ""
        table.add_row(each["name"], *values)
    Console().print(table)


def write(file: Path | None, rows: Sequence[Row]) -> None:
    """The rows as the JSON that all benchmarks write."""
    if file is not None:
        file.write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n")


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that these processes have used so far, all together."""
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


def positive(text: str) -> float:
    """An option: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def whole(text: str) -> int:
    """An option: a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def wholes(text: str) -> list[int]:
    """An option: whole numbers above 0 with commas between them."""
    return [whole(part) for part in text.split(",")]


def installation(text: str) -> Path:
    """An option: a directory that holds tiedreq."""
    path = Path(text).resolve()
    if not (path / "tiedreq" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} holds no tiedreq/__init__.py; unpack a wheel there")
    return path


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(prog=f"scripts/{name}", description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    return made


def as_program(main: Callable[[], int]) -> NoReturn:
    """The end of each program: its exit code, or 130 after Ctrl-C."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
