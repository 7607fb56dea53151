"""The benchmarks, as people and machines run them: rows as agreed, bad usage in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FIELDS = ["name", "ratio", "ratio_to", "spread", "unit", "value"]


def bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"scripts/_bench_{name}.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def rows_of(name: str, file: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    done = bench(name, *arguments, "--json", str(file))
    assert done.returncode == 0 and done.stderr == ""
    rows = json.loads(file.read_text())["rows"]
    assert rows and all(sorted(row) == FIELDS for row in rows)
    assert all(isinstance(row["value"], (int, float)) and row["spread"] >= 0 for row in rows)
    return {row["name"]: row for row in rows}


@pytest.mark.system
def test_calls_over_sockets_beside_their_peers(tmp_path: Path) -> None:
    rows = rows_of("rpc", tmp_path / "rows.json", *"--rounds 1 --seconds 0.5 --sizes 200 --in-flight 1,4".split())
    for subject in ("plain", "tied", "tied, sent at once", "grpc.aio", "websocket", "tcp"):
        for flight in (1, 4):
            rate = rows[f"{subject}, 200 B, {flight} in flight: calls"]
            assert rate["value"] > 0 and rate["unit"] == "calls/s" and rate["ratio_to"] == "grpc.aio"
            assert rows[f"{subject}, 200 B, {flight} in flight: p50"]["value"] > 0


@pytest.mark.system
def test_another_build_takes_its_turns(tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT / "tiedreq", tmp_path / "tiedreq", ignore=shutil.ignore_patterns("__pycache__"))
    options = [*"--rounds 1 --seconds 0.3 --sizes 200 --in-flight 4 --only plain --beside".split(), str(tmp_path)]
    rows = rows_of("rpc", tmp_path / "rows.json", *options)
    for subject in ("plain", "plain, beside"):
        assert rows[f"{subject}, 200 B, 4 in flight: calls"]["value"] > 0
    (copy / "__init__.py").write_text("raise SystemExit('this is the other one')\n")
    done = bench("rpc", *options)
    assert done.returncode == 1 and "tiedreq: a process of it ended early" in done.stderr


def test_steps_of_the_cores(tmp_path: Path) -> None:
    rows = rows_of("core", tmp_path / "rows.json", *"--rounds 1 --lengths 5,50".split())
    assert rows["drop from a queue of 50"]["ratio_to"] == "drop from a queue of 5"
    assert all(row["value"] > 0 for row in rows.values())
    assert {row["unit"] for row in rows.values()} == {
        "µs per step",
        "µs per call",
        "µs per message",
        "µs per drop",
    }


def test_what_is_kept(tmp_path: Path) -> None:
    rows = rows_of("memory", tmp_path / "rows.json", *"--rounds 1 --count 300 --calls 200".split())
    kept = {name: row["value"] for name, row in rows.items()}
    assert 300 < kept["queued copy, one of 300"] < 5000
    assert 100 < kept["marker, one of 300"] < 1000
    assert 300 < kept["pending call, one of 300"] < 8000
    assert kept["resident memory after 200 calls"] > 10_000_000


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rpc", ["--rounds", "0"]),
        ("rpc", ["--in-flight", "4,x"]),
        ("rpc", ["--only", "plain;nonsense"]),
        ("rpc", ["--seconds", "nan"]),
        ("rpc", ["--beside", "scripts"]),
        ("core", ["--lengths", "10,-1"]),
        ("memory", ["--calls", "many"]),
    ],
    ids=str,
)
def test_bad_usage(name: str, arguments: list[str]) -> None:
    done = bench(name, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "usage:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.system
def test_pauses_of_a_replica_at_half_load(tmp_path: Path) -> None:
    rows = rows_of("pauses", tmp_path / "rows.json", *"--rounds 1 --seconds 1".split())
    assert rows["rate"]["value"] > 0 and rows["pauses, longest"]["unit"] == "ms"
    for kind in ("pauses", "own pauses", "machine"):
        assert 0 < rows[f"{kind}, p99.9"]["value"] <= rows[f"{kind}, longest"]["value"] * 1.001


@pytest.mark.system
def test_what_observation_costs(tmp_path: Path) -> None:
    rows = rows_of("observe", tmp_path / "rows.json", *"--rounds 2 --calls 10 --in-flight 4,1".split())
    for kind in ("plain, 4 in flight", "tied, 4 in flight", "tied, sent at once, 4 in flight", "tied, 1 in flight"):
        for quantity in ("processor time", "time"):
            for part in ("rings", "metrics", "default", "pauses", "watched", "nothing again"):
                assert rows[f"{kind}, {quantity}: {part}"]["value"] > 0
                assert rows[f"{kind}, {quantity}: {part}"]["ratio_to"] == f"{kind}, {quantity}: nothing"
