"""Comparing on somebody's own service: its options, and what a doubtful row says."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import click
import pytest

from cluster.compare.cell import Cell
from cluster.compare.document import write_csv
from cluster.compare.options import read_options
from cluster.compare.rows import COLUMNS, NOTE, make_row
from cluster.compare.tally import Tally

OWN = ["--world", "live", "--app", "tests.compare_live.own:service"]


def test_an_own_service_has_rates_and_no_load() -> None:
    plan = read_options([*OWN, "--rate", "10,20", "--method", "greet", "--args", '{"name": "x"}']).plan
    assert [(cell.rate, cell.load, cell.policy) for cell in plan.cells] == [
        (rate, None, policy) for rate in (10.0, 20.0) for policy in ("plain", "hedged", "tied")
    ]
    assert {(cell.app, cell.method, cell.arguments) for cell in plan.cells} == {(OWN[3], "greet", '{"name": "x"}')}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (OWN, "rate: how many calls per second your service takes is not known; give a --rate"),
        ([*OWN, "--load", "0.5"], "app: not together with --load"),
        ([*OWN, "--rate", "1", "--service", "exp(10ms)"], "app: not together with --service"),
        ([*OWN, "--rate", "1", "--args", "{"], "arguments: '{' is not JSON"),
        (["--app", "a:b", "--rate", "1"], "app: somebody's own service can be compared live only; add --world live"),
        (["--world", "live", "--rate", "1", "--method", "x"], "method, arguments: they are for somebody's own service"),
    ],
)
def test_what_makes_no_sense_with_it_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(words)):
        read_options(options)


def test_a_doubtful_live_row_says_why(tmp_path: Path) -> None:
    cell = Cell(world="live", rate=1.0, duration=1.0)
    late, other = "the client did not keep up", "r1 did not keep up"
    doubtful = make_row(cell, [Tally(notes=[late]), Tally(notes=[late, other])], None)
    sound = make_row(cell, [Tally(), Tally()], None)
    assert doubtful[NOTE] == f"{late}; {other}" and tuple(sound) == COLUMNS
    write_csv([sound, doubtful], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row[NOTE] for row in csv.DictReader(file)] == ["", f"{late}; {other}"]
