"""Set-up on a fresh machine: how a Python is found, and (long) what an installation survives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tidy._tree import ROOT, files

REAL_PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
TOOLS = ("bash", "cat", "sed", "dirname")

# Names on PATH that are no Python one could use.
SHIM = 'echo "$0: command not found" >&2; exit 127'
OLD = 'case "$*" in *platform*) echo 3.9.2 ;; *) echo old ;; esac'
BARE = "echo bare"


@pytest.fixture
def machine(tmp_path: Path):
    """A machine with nothing on PATH but a few tools and the given stand-ins; says which Python is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))

    def find(stand_ins: dict[str, str], **environment: str) -> tuple[int, str, str]:
        for name, script in stand_ins.items():
            (folder / name).write_text(f"#!{folder}/bash\n{script}\n")
            (folder / name).chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", f'set -euo pipefail; source "{ROOT}/scripts/_setup.sh"; find_python'],
            env={"PATH": str(folder), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    return find


GOOD = f'exec "{REAL_PYTHON}" "$@"'


def test_python3_is_taken_when_it_will_do(machine) -> None:
    assert machine({"python3": GOOD, "python3.13": GOOD}) == (0, "python3", "")


def test_a_shim_without_a_version_behind_it_is_passed_over(machine) -> None:
    assert machine({"python3": OLD, "python3.13": SHIM, "python3.12": BARE, "python3.11": GOOD}) == (
        0,
        "python3.11",
        "",
    )


def test_python_can_be_chosen(machine) -> None:
    assert machine({"python3": GOOD, "my own": GOOD}, PYTHON="my own") == (0, "my own", "")
    assert machine({}, PYTHON="none") == (1, "", "tiedreq: needs Python 3.11 or newer; none found as none on PATH")


@pytest.mark.parametrize(
    ("stand_ins", "told"),
    [
        ({}, "tiedreq: needs Python 3.11 or newer; none found on PATH"),
        ({"python3": SHIM}, "tiedreq: needs Python 3.11 or newer; none found on PATH"),
        ({"python3": OLD}, "tiedreq: needs Python 3.11 or newer; python3 is 3.9.2"),
        ({"python3": OLD, "python3.12": BARE}, "tiedreq: python3.12 can't make virtual environments; install its venv"),
    ],
)
def test_no_python_is_told_in_one_line(machine, stand_ins: dict[str, str], told: str) -> None:
    code, out, error = machine(stand_ins)
    assert code == 1 and out == ""
    assert error.startswith(told) and "\n" not in error


def test_another_environment_is_kept_out(machine) -> None:
    # A module that shadows the standard library's, as an inherited PYTHONPATH can bring.
    assert machine({"python3": GOOD}, PYTHONPATH="/nowhere", PYTHONHOME="/nowhere")[:2] == (0, "python3")


def test_usage_is_printed_without_any_set_up(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    told = subprocess.run([tmp_path / "scripts" / "test", "--help"], capture_output=True, text=True, check=True).stdout
    assert told.startswith("Usage: scripts/test") and "--minutes" in told
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What set-up needs of a checkout, in an empty folder with a space in its name."""
    folder = tmp_path / "fresh clone"
    for path in files():
        if path.parts[0] in ("scripts", "requirements", "tiedreq", "cluster") or len(path.parts) == 1:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
    return folder


def set_up(clone: Path, **environment: str) -> subprocess.Popen[str]:
    script = 'set -euo pipefail; source "$0/scripts/_setup.sh"; set_up run; exec "$root/.venv/bin/python" "$0/probe.py"'
    (clone / "probe.py").write_text("import tiedreq, cluster, trio\nprint(tiedreq.__file__)\n")
    return subprocess.Popen(
        ["bash", "-c", script, str(clone)],
        cwd="/",
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], clone: Path) -> str:
    """Standard error of a set-up that went well and wrote nothing else to standard output."""
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert out == f"{clone}/tiedreq/__init__.py\n"
    return error


@pytest.mark.system
@pytest.mark.timeout(600)
def test_set_up_in_an_empty_clone(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "trio.py").write_text("raise SystemExit('another trio')")

    # Ctrl-C in the middle of it.
    process = set_up(clone)
    assert process.stderr is not None
    for line in process.stderr:
        if "installing" in line:
            break
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0

    # Two at once.
    first = set_up(clone, PYTHONPATH=str(tmp_path), VIRTUAL_ENV=str(tmp_path))
    second = set_up(clone)
    told = finished(first, clone) + finished(second, clone)
    assert told.count("making .venv") == 1
    assert told.count("waiting for it") <= 1

    # Warm: nothing to say, and no time lost.
    assert finished(set_up(clone), clone) == ""
    began = time.perf_counter()
    subprocess.run(["bash", "-c", 'source "$0/scripts/_setup.sh"; set_up run', str(clone)], check=True)
    assert time.perf_counter() - began < 0.2

    # The checkout is moved: an environment holds absolute paths.
    moved = clone.rename(clone.with_name("moved"))
    assert "making .venv" in finished(set_up(moved), moved)
