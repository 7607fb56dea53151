"""What is said of a measured number, and the command that says it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.compare import live
from cluster.compare.agreement import __main__ as program
from cluster.compare.agreement.__main__ import main
from cluster.compare.agreement.judge import judged
from cluster.compare.cell import Cell
from cluster.compare.grid import Task
from cluster.compare.live_cluster import StartFailed
from cluster.compare.tally import Tally
from tiedreq.core.errors import BadOption

ONLY = "tied over all of 2 × 5"


def test_a_number_agrees_within_its_bound() -> None:
    assert judged("e", "q", 10.0, [10.1, 10.1], bound=0.02).agrees
    assert not judged("e", "q", 10.0, [10.3, 10.3], bound=0.02).agrees


def test_or_within_what_chance_makes_of_it() -> None:
    wide = judged("e", "q", 10.0, [9.0, 12.0], bound=0.02)
    assert wide.agrees and wide.low == pytest.approx(10.5 - 4.5) and wide.high == pytest.approx(10.5 + 4.5)
    assert not judged("e", "q", 10.0, [9.0, 12.0], bound=0.02, errors=0.0).agrees


def test_the_difference_is_relative() -> None:
    assert judged("e", "q", 10.0, [11.0], bound=0.02).difference == pytest.approx(0.1)
    assert judged("e", "q", 0.0, [0.0], bound=0.0).difference is None


def test_a_cell_takes_a_quantile_for_a_delay() -> None:
    assert Cell(rate=1.0, duration=1.0, backup_after="p90").backup_after == "p90"
    with pytest.raises(BadOption, match="after"):
        Cell(rate=1.0, duration=1.0, backup_after="p100")


@pytest.mark.agreement
def test_the_command_prints_a_table_and_writes_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    options = ["theory", "--only", "load 0.9: " + ONLY, "--scale", "0.02", "--jobs", "1"]
    done = CliRunner().invoke(main, [*options, "--json", str(file), "--markdown"])
    document = json.loads(file.read_text())
    assert done.exit_code == (0 if all(line["agrees"] for line in document["lines"]) else 1)
    assert "| central queue alone, mean wait |" in done.stdout
    assert {line["quantity"] for line in document["lines"]} >= {"mean wait", "P(W>0)", "duplicates", "utilisation"}
    (same,) = [line for line in document["lines"] if line["quantity"].startswith("wait ÷")]
    assert same["agrees"] and same["measured"] == pytest.approx(1.0, rel=1e-4)


def test_the_command_refuses_what_names_nothing() -> None:
    done = CliRunner().invoke(main, ["articles", "--only", "nothing of the kind"])
    assert done.exit_code == 2 and "no experiment has" in done.stderr


def test_an_agreement_that_is_interrupted_or_can_not_be_written_ends_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run_tasks", interrupted)
    result = CliRunner().invoke(program.main, ["theory", "--scale", "0.01"])
    assert result.exit_code == 130 and result.output == "interrupted before the end\n"
    result = CliRunner().invoke(program.main, ["theory", "--json", str(tmp_path / "no" / "lines.json")])
    assert result.exit_code == 2 and "is no directory" in result.output


def test_replicas_that_do_not_start_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(cell: Cell, seed: int) -> Tally:
        raise StartFailed("r0: no slots")

    monkeypatch.setattr(live, "run_cell", failing)
    result = CliRunner().invoke(program.main, ["live"])
    assert result.exit_code == 1 and result.output == "Error: r0: no slots\n"
