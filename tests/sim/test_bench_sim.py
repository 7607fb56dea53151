"""``scripts/bench_sim``, as people and machines run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PEER = "SimPy, tied, no latency"
PROGRAM = [sys.executable, "scripts/_bench_sim.py"]


def bench(*arguments: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.system
def test_rows_as_agreed(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = bench("--rounds", "1", "--warmup", "0.01", "--seconds", "0.05", "--json", str(file))
    assert done.returncode == 0 and done.stderr == ""
    rows = json.loads(file.read_text())["rows"]
    assert [sorted(row) for row in rows] == [["name", "ratio", "ratio_to", "spread", "unit", "value"]] * len(rows)
    by_name = {row["name"]: row for row in rows}
    assert {"plain", "tied", "tied, backup", "bare queues", PEER} <= set(by_name)
    for name, row in by_name.items():
        assert name.split(",")[0] in done.stdout
        assert row["value"] > 0 and row["unit"] == "calls/s" and row["ratio_to"] == PEER
        assert row["ratio"] == pytest.approx(row["value"] / by_name[PEER]["value"], rel=0.01, abs=1e-4)


@pytest.mark.system
def test_sizes_are_compared_at_equal_load(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = bench("--replicas", "2,33", "--calls", "500", "--json", str(file), timeout=150)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert len(rows) == 10
    for name in ("2 replicas", "33 replicas"):
        assert rows[f"{name}, a call"]["unit"] == "us" and rows[f"{name}, a call"]["value"] > 1
        assert rows[f"{name}, a call"]["ratio_to"] == "2 replicas"
        assert 100 < rows[f"{name}, functions called for it"]["value"] < 2_000
        assert 1 < rows[f"{name}, memory"]["value"] < 1_000
    assert rows["2 replicas, a call"]["ratio"] == 1


@pytest.mark.system
def test_memory_is_looked_at_while_many_calls_are_made(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = bench("--endure", "20000", "--json", str(file))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    speed, first, later, last = json.loads(file.read_text())["rows"]
    assert done.stdout.count("MiB") >= 3 and speed["value"] > 100
    assert 1 < first["value"] <= later["value"] + later["spread"]
    assert last["ratio_to"] == first["name"] and last["value"] >= 0.5 * first["value"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--endure", "0"],
        ["--replicas", "10,0"],
        ["--replicas", "x"],
        ["--calls", "0"],
        ["--rounds", "0"],
        ["--warmup", "nan"],
        ["--seconds", "-1"],
        ["x"],
    ],
    ids=" ".join,
)
def test_bad_usage(arguments: list[str]) -> None:
    done = bench(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "usage:" in done.stderr and "Traceback" not in done.stderr
