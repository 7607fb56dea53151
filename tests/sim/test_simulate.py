"""``scripts/simulate``, as people and machines run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = [sys.executable, "scripts/_simulate.py"]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50)


def test_a_line_for_each_seed() -> None:
    done = simulate("--seeds", "3", "--first", "7")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == ""
    assert lines[0].startswith("3 seeds from 7 on")
    assert [re.match(r"seed (\d+): .* hash [0-9a-f]{16}$", line)[1] for line in lines[1:4]] == ["7", "8", "9"]  # type: ignore[index]
    assert lines[4].startswith("3 seeds, ") and lines[4].endswith("0 failed")


def test_one_seed_shows_its_options_first_and_its_transcript() -> None:
    brief, full = simulate("--seed", "3"), simulate("--seed", "3", "--trace")
    assert brief.returncode == full.returncode == 0
    assert brief.stdout.startswith("seed 3: ")
    assert " -> StartWork " in full.stdout and " -> StartWork " not in brief.stdout
    assert brief.stdout.splitlines()[-1] == full.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "x"],
        ["--seeds", "-1"],
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--seed", "1", "--seeds", "2"],
        ["--seeds", "2", "--trace"],
        ["--seed", "1", "--keep-going"],
        ["--speed", "--first", "1"],
        ["1"],
    ],
    ids=" ".join,
)
def test_bad_usage(arguments: list[str]) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "usage:" in done.stderr and "Traceback" not in done.stderr


def test_interrupted() -> None:
    with subprocess.Popen([*PROGRAM, "--minutes", "5"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
        assert running.wait(20) == 130, rest
    assert rest.splitlines()[-1].endswith("0 failed")


def test_a_failure_is_told_with_the_command_that_replays_it() -> None:
    program = "\n".join(
        [
            "import sys",
            "sys.path.insert(0, 'scripts')",
            "import _simulate",
            "from tiedreq.core.replica import ReplicaCore",
            "ReplicaCore._peer_started = lambda self, event, now: None",
            "sys.argv = ['simulate', '--seeds', '40']",
            "sys.exit(_simulate.main())",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    replay = re.findall(r"^replay: scripts/simulate --seed (\d+) --trace$", done.stdout, re.MULTILINE)
    assert len(replay) == 2 and len(set(replay)) == 1
    assert re.search(r"^  S(6|11) ", done.stdout, re.MULTILINE) and "1 failed" in done.stdout


def test_speed_is_measured_for_each_policy() -> None:
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import _simulate as s; s.SPEED_CALLS = 500; sys.exit(s.speed())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0
    rows = re.findall(r"^  (\w.*?) +([\d,]+)   1\.\d{3} executions$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["plain", "tied", "tied and backup"]
    assert all(int(rate.replace(",", "")) > 100 for _, rate in rows)
