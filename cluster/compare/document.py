"""The document of a comparison: environment, options and rows, as JSON and as CSV.

The schema is fixed: other programs read it. Every value is plain JSON, NaN never appears.
"""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from cluster.compare.cell import Cell
from cluster.compare.rows import COLUMNS, FAN_OUT_COLUMNS, NOTE, Row
from cluster.compare.runner import cores
from tiedreq.core.errors import BadOption

__all__ = ["SCHEMA", "check_target", "json_target", "make_directory", "make_document", "write_csv", "write_json"]

SCHEMA = 1


def make_document(options: dict[str, Any], rows: Sequence[tuple[Cell, Row]]) -> dict[str, Any]:
    """The document for these rows."""
    return {"schema": SCHEMA, "environment": environment(), "options": options, "rows": [row for _, row in rows]}


def environment() -> dict[str, Any]:
    """Where it ran."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": cores(),
        "tiedreq": metadata.version("tiedreq"),
    }


def check_target(path: Path, field: str) -> None:
    """Raise ``BadOption`` where a file could not be written: better before a run of hours than after it."""
    if path.is_dir():
        raise BadOption(f"{field}: {path} is a directory")
    if _goes_elsewhere(path):
        return
    if not path.parent.is_dir():
        raise BadOption(f"{field}: {path.parent} is no directory")
    if not os.access(path.parent, os.W_OK):
        raise BadOption(f"{field}: nothing may be written in {path.parent}")


def make_directory(path: Path, field: str) -> None:
    """Make a directory for results, before the run that they are of. Raises ``BadOption`` where it can't be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"{field}: {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise BadOption(f"{field}: nothing may be written in {path}")


def json_target(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """What an option ``--json`` of click says, where it can be written."""
    if value not in (None, "-"):
        try:
            check_target(Path(value), "json")
        except BadOption as error:
            raise click.UsageError(str(error)) from None
    return value


def write_json(document: dict[str, Any], path: Path) -> None:
    """Write a document to a file that is whole or not there (a pipe or ``/dev/stdout`` takes it as it comes)."""
    _write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows with a header. A pair of limits takes two columns, ``…_low`` and ``…_high``; null is empty."""
    extra = [column for column in (*FAN_OUT_COLUMNS, NOTE) if any(column in row for row in rows)]
    names = [name for column in (*COLUMNS, *extra) for name in _names(column)]
    with _temporary(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: value for column in row for name, value in _cells(column, row[column])})
    _temporary(path).replace(path)


def _names(column: str) -> tuple[str, ...]:
    return (f"{column}_low", f"{column}_high") if column.endswith("_ci") else (column,)


def _cells(column: str, value: Any) -> list[tuple[str, Any]]:
    names = _names(column)
    if len(names) == 1:
        return [(column, "" if value is None else value)]
    low, high = ("", "") if value is None else value
    return [(names[0], low), (names[1], high)]


def _goes_elsewhere(path: Path) -> bool:
    """True for a link, a pipe, a terminal: what is written there must not take their place."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _write(path: Path, text: str) -> None:
    if _goes_elsewhere(path):
        path.write_text(text, encoding="utf-8")
        return
    _temporary(path).write_text(text, encoding="utf-8")
    _temporary(path).replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
