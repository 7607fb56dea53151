"""The launcher from end to end, as quick as real processes can be; the rest is in tests/system."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster._launcher import Up, gone_within, write_app


def tiedreq(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiedreq", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)


def test_up_call_and_down(up: Callable[..., Up], tmp_path: Path) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "2", "--app", "app:service")
    match = launcher.ready()
    assert match[1] == "2" and match[2].startswith("http://127.0.0.1:")
    assert Path(match[3]) == launcher.state
    assert launcher.line().startswith("try: ")

    assert stat.S_IMODE(os.stat(launcher.cluster_file).st_mode) == 0o600
    cluster = launcher.cluster()
    assert set(cluster) == {"version", "cluster", "pid", "token", "replicas", "dashboard"}
    assert (cluster["version"], cluster["pid"], cluster["dashboard"]) == (1, launcher.pid, match[2])
    with urllib.request.urlopen(f"{match[2]}healthz", timeout=30) as answer:
        assert answer.read() == b"ok\n"
    pids = list(launcher.replica_pids().values())
    assert sorted(launcher.replica_pids()) == ["r0", "r1"]
    assert sorted(child.pid for child in launcher.children()) == sorted(pids)

    called = tiedreq("call", "lookup", '{"key": "k1"}', "--explain", cwd=tmp_path)
    assert json.loads(called.stdout)["args"] == {"key": "k1"}, called.stderr
    assert "answered by r" in called.stderr and "first" in called.stderr

    assert launcher.stop(signal.SIGINT) == 0
    assert gone_within(pids, 0.5)
    assert not launcher.cluster_file.exists()
    assert launcher.error == ["cluster.up: stopped: SIGINT"]


def test_an_import_error_shows_its_own_traceback(up: Callable[..., Up], tmp_path: Path) -> None:
    path = write_app(tmp_path, "import json\njson.loads('{')\n")
    launcher = up("--app", "app:service")
    assert launcher.wait() == 2
    assert launcher.out == []
    place = next(line for line in launcher.error if "File " in line)
    assert place.startswith(f'  File "{path}", line 2')
    assert launcher.stderr.count("Traceback") == 1 and "JSONDecodeError" in launcher.stderr
    assert "importlib" not in launcher.stderr


def test_a_taken_port_is_one_line(up: Callable[..., Up], tmp_path: Path) -> None:
    write_app(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launcher = up("--replicas", "2", "--app", "app:service", "--port", str(port - 1))
        assert launcher.wait() == 1
    assert launcher.out == []
    assert launcher.error == [f"cluster.up: r1: can't listen at 127.0.0.1 port {port}: address already in use"]


@pytest.mark.parametrize("options", [["--no-dashboard"], []], ids=["replica", "dashboard"])
def test_a_host_that_nobody_knows_is_one_line(up: Callable[..., Up], tmp_path: Path, options: list[str]) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "1", "--app", "app:service", "--host", "nowhere.invalid", *options)
    assert launcher.wait() == 1
    (line,) = launcher.error
    assert "can't listen at nowhere.invalid port 0: " in line and "name" in line.rpartition(": ")[2]
