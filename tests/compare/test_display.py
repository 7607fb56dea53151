"""The table on a terminal: no cell is cut, whatever its width, and calls and errors are always told."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cluster.compare.display import make_table
from cluster.compare.rows import make_row
from tests.compare.test_rows import CELL, tally

CELLS = [CELL.but(policy=policy) for policy in ("plain", "tied")]


@pytest.mark.parametrize("width", range(60, 200, 7))
def test_nothing_is_cut(width: int) -> None:
    rows = [(cell, make_row(cell, [tally(), tally(2)], [tally(), tally(2)])) for cell in CELLS]
    out = io.StringIO()
    Console(file=out, width=width).print(make_table(rows, "all", width))
    shown = out.getvalue()
    lines = shown.splitlines()
    assert "…" not in shown and max(map(len, lines)) <= width
    header = next(line for line in lines if "policy" in line)
    in_columns = "calls" in header and "errors" in header
    assert in_columns != ("errors in all" in " ".join(lines[:3]))
