"""``scripts/simulate``, as people and machines run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiedreq.sim.options import SimOptions

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = [sys.executable, "scripts/_simulate.py"]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50)


def test_each_seed_tells_its_options_first() -> None:
    done = simulate("--seeds", "3", "--first", "7")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == ""
    assert lines[0].startswith("3 seeds from 7 on")
    assert lines[1:7:2] == [SimOptions.draw(seed).line() for seed in (7, 8, 9)]
    assert all(re.fullmatch(r"  \d+ calls, .* hash [0-9a-f]{16}", line) for line in lines[2:7:2])
    assert lines[7].startswith("3 seeds, ") and lines[7].endswith("0 failed")


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
    """The seeds are the same each time: if one of them fails, it fails again."""
    command = [*PROGRAM, "--minutes", "5", "--first", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        told = [running.stdout.readline() for _ in range(3)]
        running.send_signal(signal.SIGINT)
        told += running.stdout.readlines()
        assert running.wait(20) == 130, "".join([*told, running.stderr.read()])
        assert running.stderr.read() == ""
    assert told[-1].rstrip().endswith("0 failed")


def run_changed(*changes: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """``scripts/simulate`` with something changed in its process."""
    start = ["import sys", "sys.path.insert(0, 'scripts')", "import _simulate"]
    end = [f"sys.argv = ['simulate', *{arguments.split()!r}]", "_simulate.start()"]
    program = "\n".join([*start, *changes, *end])
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50)


def test_an_interruption_is_no_failure_wherever_it_falls() -> None:
    """The first Ctrl-C is not raised inside a step, where a handler of errors could take it for one."""
    done = run_changed(
        "import os, signal",
        "from tiedreq.core.replica import ReplicaCore",
        "def swallow(self, event, now):",
        "    try:",
        "        sent or sent.append(os.kill(os.getpid(), signal.SIGINT))",
        "        return step(self, event, now)",
        "    except BaseException:",
        "        raise ValueError('swallowed')",
        "sent = []",
        "step, ReplicaCore.step = ReplicaCore.step, swallow",
        arguments="--minutes 5 --first 1",
    )
    assert done.returncode == 130 and done.stderr == "", done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("0 failed")


def test_a_second_interruption_ends_it_at_once() -> None:
    done = run_changed(
        "import os, signal",
        "from tiedreq.sim.clock import Clock",
        "def stuck(self, until):",
        "    while True:",
        "        os.kill(os.getpid(), signal.SIGINT)",
        "Clock.run = stuck",
        arguments="--minutes 5 --first 1",
    )
    assert done.returncode == 130 and done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("0 seeds, ")


def test_an_error_of_the_world_is_told_with_its_seed() -> None:
    done = run_changed(
        "from tiedreq.sim.network import Network",
        "Network.__init__ = lambda *given: 1 / 0",
        arguments="--seeds 2 --first 5 --keep-going",
    )
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.count("ZeroDivisionError: division by zero\nreplay: scripts/simulate --seed ") == 2
    assert done.stdout.splitlines()[-2:] == [f"replay: scripts/simulate --seed {seed} --trace" for seed in (5, 6)]


def test_a_failure_is_told_with_the_command_that_replays_it() -> None:
    done = run_changed(
        "from tiedreq.core.replica import ReplicaCore",
        "ReplicaCore._peer_started = lambda self, event, now: None",
        arguments="--seeds 40",
    )
    assert done.returncode == 1
    replay = re.findall(r"^replay: scripts/simulate --seed (\d+) --trace$", done.stdout, re.MULTILINE)
    assert len(replay) == 2 and len(set(replay)) == 1
    assert SimOptions.draw(int(replay[0])).describe() in done.stdout
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
