"""The program: table, JSON, CSV, expectations, exit codes, and the same result with any number of processes."""

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.compare.__main__ import Comparison, main
from cluster.compare.cell import Cell
from cluster.compare.document import write_csv
from cluster.compare.grid import Task
from cluster.compare.options import CompareOptions
from cluster.compare.plan import Plan
from cluster.compare.rows import COLUMNS, FAN_OUT_COLUMNS, Row
from cluster.compare.runner import run_tasks
from tiedreq.laws import Constant, Exponential

SMALL = "--replicas 3 --slots 2 --service exp(10ms) --load .5 --duration 1s --warmup 200ms --jobs 1".split()
VOLATILE = ("cpu_us_per_call", "wall_s", "calls_per_wall_s")


def run(*arguments: str) -> int:
    return main([*SMALL, *arguments])


def test_json_on_standard_output_and_the_table_beside(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--policies", "plain,tied", "--mesh-latency", "0,2ms", "--seeds", "2", "--json", "-")
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert code == 0
    assert (document["schema"], document["options"]["seeds"]) == (1, [1, 2])
    assert set(document) == {"schema", "environment", "options", "rows"}
    rows = document["rows"]
    assert [(row["policy"], row["mesh_latency_ms"]) for row in rows] == [
        ("plain", 0), ("tied", 0), ("plain", 2), ("tied", 2),
    ]  # fmt: skip
    assert all(tuple(row) == COLUMNS and row["seeds"] == 2 and row["errors"] == 0 for row in rows)
    assert rows[0]["extra_busy_ratio"] == 1 and rows[1]["duplicate_execution_rate"] > 0
    header = next(line for line in shown.err.splitlines() if "policy" in line)
    assert header.replace("│", "┃").split("┃")[5].strip() == "duplicates"


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert run("--policies", "plain", "--json", str(path)) == 0
    assert json.loads(path.read_text())["rows"][0]["policy"] == "plain"
    assert "duplicates" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target, why in ((tmp_path / "no" / "rows.json", f"{tmp_path / 'no'} is no directory"), (tmp_path, "directory")):
        assert run("--policies", "plain", "--json", str(target)) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and why in shown.err.splitlines()[-1]


def test_a_directory_that_cannot_be_made_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run("--policies", "plain", "--out", str(tmp_path / "file" / "report")) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "Not a directory" in shown.err.splitlines()[-1]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """So is ``--json /dev/stdout``: who may write there would else put a file in its place."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    assert run("--policies", "plain", "--json", str(link)) == 0
    assert link.is_symlink() and json.loads(real.read_text())["schema"] == 1


def test_with_fan_out_rows_of_single_calls_have_the_columns_of_root_calls_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--policies", "plain", "--fan-out", "1,2", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["fan_out"] for row in rows] == [1, 2]
    assert all(row[column] is not None for row in rows for column in FAN_OUT_COLUMNS)


@pytest.mark.parametrize(("factor", "code"), [("1.5", 0), ("0.1", 1)])
def test_expectations_make_the_exit_code(factor: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"tied.p99_ms < {factor} * plain.p99_ms"
    assert run("--policies", "plain,tied", "--expect", text) == code
    told = capsys.readouterr().err
    assert f"expectations: {1 - code} of 1 met" in told
    assert (f"not as expected: {text}" in told and '"policy": "tied"' in told) == bool(code)


def test_bad_usage_ends_with_two_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--policies", "best") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("Error: policies: 'best' is not one of")


def test_csv_has_two_columns_for_an_interval_and_nothing_for_null(tmp_path: Path) -> None:
    row: Row = {**dict.fromkeys(COLUMNS), "policy": "tied", "p50_ms_ci": [1.0, 2.5], "stable": True}
    write_csv([row], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        (read,) = csv.DictReader(file)
    assert (read["policy"], read["p50_ms_ci_low"], read["p50_ms_ci_high"], read["rate"]) == ("tied", "1.0", "2.5", "")


def fresh(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in document["rows"]]


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    documents = []
    for jobs in ("1", "2"):
        path = tmp_path / f"{jobs}.json"
        assert run("--policies", "hedged,tied", "--seeds", "2", "--jobs", jobs, "--json", str(path)) == 0
        documents.append(json.loads(path.read_text()))
    assert fresh(documents[0]) == fresh(documents[1])


def test_a_directory_gets_rows_and_the_curves_of_their_tails(tmp_path: Path) -> None:
    run("--policies", "plain,tied", "--seeds", "2", "--out", str(tmp_path / "report"))
    document = json.loads((tmp_path / "report" / "rows.json").read_text())
    with (tmp_path / "report" / "rows.csv").open(newline="") as file:
        assert [row["policy"] for row in csv.DictReader(file)] == ["plain", "tied"]
    for row, curve in zip(document["rows"], document["curves"], strict=True):
        times, shares = zip(*curve, strict=True)
        assert list(times) == sorted(times) and list(shares) == sorted(shares, reverse=True)
        assert shares[-1] == 0
        slower = max(share for time, share in curve if time > row["p90_ms"])
        assert slower == pytest.approx(0.1, abs=0.04)


class Interrupting(Constant):
    """A law whose first sample is Ctrl-C."""

    def sample(self, rng: Random) -> float:
        raise KeyboardInterrupt


def test_interrupted_it_writes_the_rows_that_are_finished(tmp_path: Path) -> None:
    good = Cell(policy="plain", replicas=2, slots=2, service=Exponential(0.01), rate=100.0, duration=1.0, warmup=0.1)
    bad = good.but(service=Interrupting(0.01))
    plan = Plan((good, bad), (1,), ("plain",), {"overrides": {}})
    path = tmp_path / "rows.json"
    assert Comparison(CompareOptions(plan, 1, None, str(path), ())).run() == 130
    assert [row["calls"] > 50 for row in json.loads(path.read_text())["rows"]] == [True]


def test_interrupted_before_any_row_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(policy="plain", service=Interrupting(0.01), rate=100.0, duration=1.0)
    assert Comparison(CompareOptions(Plan((cell,), (1,), ("plain",), {}), 1, None, None, ())).run() == 130
    assert "no row was finished" in capsys.readouterr().err


def test_tasks_come_with_their_tallies() -> None:
    cell = Cell(policy="plain", replicas=2, slots=2, rate=100.0, calls=20, warmup=0.0)
    tasks = [Task(cell, seed) for seed in (1, 2)]
    assert [(task, tally.calls) for task, tally in run_tasks(tasks, 1)] == [(tasks[0], 20), (tasks[1], 20)]
