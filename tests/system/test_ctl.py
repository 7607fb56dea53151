"""`python -m cluster.ctl` on real processes: what each verb does to a cluster under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import trio

from cluster.control_file import read_control_file
from cluster.control_socket import ask
from tests.cluster._launcher import Up, eventually

pytestmark = pytest.mark.system

Start = Callable[..., Up]


class Ctl:
    """Runs `cluster.ctl` on one launcher's cluster."""

    def __init__(self, launcher: Up) -> None:
        self._launcher = launcher

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cluster.ctl", *arguments]
        return subprocess.run(command, cwd=self._launcher.cwd, capture_output=True, text=True, timeout=60, check=False)

    def __call__(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def status(self) -> dict[str, Any]:
        """As `status --json` shows it, without a process for each look."""
        state = self._launcher.state
        found: dict[str, Any] = trio.run(ask, state, read_control_file(state), {"do": "status"})["status"]
        return found

    def state(self, name: str) -> str:
        return str(self.status()["replicas"][name]["state"])

    def linked(self, one: str, other: str) -> bool:
        status = self.status()["replicas"][one]["status"]
        return status is not None and bool(status["links"].get(other, {}).get("up"))

    def all_linked(self) -> bool:
        replicas = self.status()["replicas"]
        return all(
            replica["status"] is not None
            and sum(link["up"] for link in replica["status"]["links"].values()) == len(replicas) - 1
            for replica in replicas.values()
        )


def test_a_rolling_restart_and_a_drain_fail_no_call(up: Start) -> None:
    launcher = up("--replicas", "4", "--rate", "150", "--service", "exp(10ms)", "--json")
    launcher.event("ready")
    ctl = Ctl(launcher)
    before = launcher.replica_pids()
    assert eventually(lambda: ctl.status()["traffic"]["progress"])
    assert ctl("restart") == "r0, r1, r2, r3: restarted\n"
    after = launcher.replica_pids()
    assert not set(before.values()) & set(after.values())
    assert [launcher.event("replica_restarted")["replica"] for _ in before] == list(before)

    assert "stays down" in ctl("drain", "r1")
    assert launcher.event("replica_drained")["pid"] == after["r1"]
    assert not psutil.pid_exists(after["r1"])
    assert ctl.state("r1") == "drained"
    refused = ctl.run("pause", "r1")
    assert (refused.returncode, refused.stderr) == (1, "cluster.ctl: r1 is drained, not up\n")
    ctl("restart", "r1")
    assert ctl.state("r1") == "up"
    assert eventually(ctl.all_linked), "the others report it within a second"

    assert launcher.stop() == 0
    summary = launcher.event("summary")
    assert (summary["errors"], summary["unfinished"]) == (0, 0) and summary["calls"] > 100


def test_pause_kill_and_heal(up: Start) -> None:
    launcher = up("--replicas", "3", "--rate", "50", "--json")
    launcher.event("ready")
    ctl = Ctl(launcher)
    pids = launcher.replica_pids()

    assert ctl("pause", "r0") == f"r0 is paused (process {pids['r0']})\n"
    assert psutil.Process(pids["r0"]).status() == psutil.STATUS_STOPPED
    assert ctl.state("r0") == "paused"
    assert ctl.run("drain", "r0").stderr == "cluster.ctl: r0 is paused: resume it first\n"
    ctl("latency", "2ms")  # waits in the launcher for the frozen one
    assert ctl("resume") == "r0: resumed\n"
    assert eventually(ctl.all_linked)

    assert ctl("partition", "r0", "r1", "--one-way") == "r1 hears nothing from r0\n"
    assert eventually(lambda: not ctl.linked("r0", "r1") and not ctl.linked("r1", "r0"))
    assert eventually(lambda: ctl.linked("r0", "r2") and ctl.linked("r1", "r2"))
    assert ctl("kill", "r1") == f"r1 was killed (process {pids['r1']})\n"
    assert launcher.event("replica_lost")["reason"] == "killed by SIGKILL"
    launcher.event("replica_restarted")
    time.sleep(1)
    assert not ctl.linked("r1", "r0"), "the partition outlives the process"
    ctl("slow", "r2", "3")
    assert ctl.status()["faults"] == {"latency": "2ms", "partitions": [["r0", "r1"]], "slow": {"r2": 3.0}}
    ctl("heal", "--all")
    assert ctl.status()["faults"] == {"latency": "0", "partitions": [], "slow": {}}
    assert eventually(ctl.all_linked)

    for policy in ("hedged", "tied"):
        ctl("traffic", "--rate", "80", "--policy", policy, "--work")
        assert eventually(lambda policy=policy: ctl.status()["traffic"]["progress"]["policy"].endswith(policy))  # type: ignore[misc]
    assert launcher.stop() == 0
    assert launcher.event("summary")["errors"] == 0


def test_traffic_that_begins_later(up: Start) -> None:
    launcher = up("--replicas", "2", "--json")
    launcher.event("ready")
    ctl = Ctl(launcher)
    assert json.loads(ctl("status", "--json"))["traffic"]["running"] is False
    ctl("work", "--service", "const(2ms)")
    ctl("traffic", "--rate", "100", "--policy", "plain", "--work")
    assert eventually(lambda: (ctl.status()["traffic"]["progress"] or {"calls": 0})["calls"] > 50)
    found = ctl.status()["traffic"]["progress"]
    assert found["errors"] == 0 and found["policy"] == "plain" and found["method"] == "work"
    assert "r0" in ctl("status") and os.path.exists(launcher.state / "control.json")
    assert launcher.stop() == 0
    assert launcher.event("summary")["calls"] > 50
    assert not os.path.exists(launcher.state / "control.json")
    assert not os.path.exists(launcher.state / "control.sock")
