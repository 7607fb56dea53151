"""The benchmark of the bridges measures all its subjects and writes the rows that it shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_a_short_run(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["--rounds", "1", "--seconds", "0.3", "--in-flight", "1,8", "--json", str(file)]
    ran = subprocess.run(
        [sys.executable, "scripts/_bench_bridges.py", *options], cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    subjects = ("trio", "asyncio", "asyncio, guest mode", "blocking")
    what = ("p50", "calm p50", "calls", "CPU")
    assert list(rows) == [
        f"{name}, {flight} in flight: {each}" for flight in (1, 8) for name in subjects for each in what
    ]
    assert all(row["ratio_to"] == "trio" for row in rows.values())
    assert all(row["value"] > 0 and row["ratio"] > 0 for name, row in rows.items() if "CPU" not in name)
    assert rows["trio, 1 in flight: p50"]["ratio"] == 1.0
    assert all(name in ran.stdout for name in ("asyncio", "guest", "blocking"))
