"""Commands that the launcher prints must work where it was started, whether or not PATH has its environment."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.config import UpConfig
from cluster.pasting import control_line, try_line

BESIDE = Path(sys.executable).parent


def test_programs_on_the_path_are_named_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(BESIDE))
    assert try_line(UpConfig()) == """tiedreq call search '{"query": "json"}'"""
    assert control_line(UpConfig(), "dashboard") == f"{Path(sys.executable).name} -m cluster.ctl dashboard"


def test_others_by_their_path_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(BESIDE.parent.parent)
    short = Path(BESIDE.parent.name, BESIDE.name)
    assert control_line(UpConfig(), "dashboard") == f"{short / Path(sys.executable).name} -m cluster.ctl dashboard"
    assert try_line(UpConfig()).startswith(f"{short / 'tiedreq'} call")
    monkeypatch.chdir("/")
    assert shlex.split(control_line(UpConfig(), "status"))[0].endswith(Path(sys.executable).name)


def test_a_state_directory_of_its_own_is_named(tmp_path: Path) -> None:
    """The line is run by a shell, and finds the directory: it says that no cluster is up there."""
    config = UpConfig(state_dir=tmp_path / "it's")
    told = subprocess.run(control_line(config, "status"), shell=True, capture_output=True, text=True)
    assert told.returncode == 1 and f"no cluster is up in {config.state_dir}" in told.stderr, told
