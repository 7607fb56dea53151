"""A Ray of this host alone, started for one launcher: nothing of it is left, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from tests.cluster._launcher import Up, eventually, gone_within
from tests.ray.conftest import PATIENCE

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

GONE_SECONDS = 5.0


def ctl(launcher: Up, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cluster.ctl", *arguments], cwd=launcher.cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_launcher_that_is_killed_leaves_nothing(up: Callable[..., Up]) -> None:
    launcher = up("--engine", "ray", "--replicas", "2", "--no-dashboard", "--json", RAY_ADDRESS="local")
    launcher.event("ready", PATIENCE)
    pids = launcher.replica_pids()

    ctl(launcher, "pause", "r0")
    frozen = psutil.Process(pids["r0"])
    assert eventually(lambda: frozen.status() == psutil.STATUS_STOPPED)
    ctl(launcher, "resume", "r0")
    assert eventually(lambda: frozen.status() != psutil.STATUS_STOPPED)

    ctl(launcher, "kill", "r1")
    assert launcher.event("replica_lost", PATIENCE)["reason"] == "killed"
    back = launcher.event("replica_restarted", PATIENCE)
    urls = {replica["name"]: replica["url"] for replica in launcher.cluster()["replicas"]}
    assert back["url"] == urls["r1"] and back["pid"] != pids["r1"]

    ctl(launcher, "pause", "r0")
    assert eventually(lambda: frozen.status() == psutil.STATUS_STOPPED)
    children = [child.pid for child in launcher.children()]
    assert len(children) > 4
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    assert gone_within(children, GONE_SECONDS * 4)


def test_where_no_ray_answers_it_says_so(up: Callable[..., Up]) -> None:
    launcher = up("--engine", "ray", "--address", "127.0.0.1:1", "--no-dashboard")
    assert launcher.wait(PATIENCE) == 1
    assert launcher.stderr == "cluster.up: no Ray cluster answers at 127.0.0.1:1: Connection refused"
    assert launcher.out == []
