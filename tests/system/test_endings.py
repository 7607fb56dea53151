"""Every way in which a launcher can end: nothing is left behind, and the exit code says what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

import tiedreq
from tests.cluster._launcher import Up, alive, eventually, gone_within, write_app

pytestmark = pytest.mark.system

Start = Callable[..., Up]

STUBBORN = """
    import os, signal, subprocess, sys, threading, time
    import trio, tiedreq

    service = tiedreq.Service("stubborn")

    @service.method()
    def thread(ctx, args):
        open("running", "w").close()
        time.sleep(args["sleep"])

    @service.method()
    async def loop(ctx, args):
        open("running", "w").close()
        time.sleep(args["sleep"])

    @service.method()
    async def deaf(ctx, args):
        open("running", "w").close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(args["sleep"])

    @service.method()
    async def patient(ctx, args):
        open("running", "w").close()
        await trio.sleep(args["sleep"])

    @service.method()
    async def parent(ctx, args):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid

    @service.method()
    async def die(ctx, args):
        os._exit(3)
"""


class Caller:
    """Makes one call from a thread of its own, and forgets its outcome."""

    def __init__(self, launcher: Up, method: str, args: object) -> None:
        self._path = launcher.cluster_file
        self._call = method, args
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._run,))
        self._thread.start()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope, contextlib.suppress(tiedreq.TiedreqError):
            async with tiedreq.connect(self._path) as client:
                await client.call(*self._call, timeout=60)

    def end(self) -> None:
        assert self._token is not None and self._scope is not None
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()


@contextlib.contextmanager
def busy(launcher: Up, method: str, sleep: float = 60.0):
    """A replica that runs ``method``."""
    caller = Caller(launcher, method, {"sleep": sleep})
    try:
        assert eventually((launcher.cwd / "running").exists)
        yield
    finally:
        caller.end()


@pytest.fixture
def stubborn(up: Start, tmp_path: Path) -> Start:
    def start(*options: str) -> Up:
        write_app(tmp_path, STUBBORN)
        launcher = up("--replicas", "2", "--app", "app:service", *options)
        launcher.ready()
        return launcher

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains(stubborn: Start, number: int) -> None:
    launcher = stubborn()
    pids = [child.pid for child in launcher.children()]
    with busy(launcher, "patient", sleep=1.0):
        began = time.monotonic()
        assert launcher.stop(number) == 0
    assert 0.3 < time.monotonic() - began < 5, "what ran was finished, and nothing else was waited for"
    assert gone_within(pids, 0.5)
    assert launcher.error == [f"cluster.up: stopped: {signal.Signals(number).name}"]


def test_a_signal_before_it_is_ready(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path, "import time\ntime.sleep(100)\n")
    launcher = up("--replicas", "2", "--app", "app:service")
    assert eventually(lambda: len(launcher.children()) == 2)
    time.sleep(0.5)
    pids = [child.pid for child in launcher.children()]
    assert launcher.stop() == 0
    assert gone_within(pids, 0.5)
    assert launcher.out == []


def test_the_second_signal_ends_at_once(stubborn: Start) -> None:
    launcher = stubborn()
    pids = [child.pid for child in launcher.children()]
    with busy(launcher, "patient"):
        launcher.signal(signal.SIGINT)
        time.sleep(0.5)
        assert launcher.popen.poll() is None
        began = time.monotonic()
        assert launcher.stop(signal.SIGTERM) == 130
        assert time.monotonic() - began < 2
    assert gone_within(pids, 0.5)


@pytest.mark.parametrize("method", ["thread", "loop", "deaf"])
def test_who_does_not_drain_is_killed(stubborn: Start, method: str) -> None:
    launcher = stubborn("--drain-timeout", "500ms")
    pids = [child.pid for child in launcher.children()]
    with busy(launcher, method):
        began = time.monotonic()
        assert launcher.stop() == 0
        assert time.monotonic() - began < 6
    assert gone_within(pids, 0.5)
    assert "did not drain within 500ms and was killed" in launcher.stderr


def test_a_frozen_replica_is_killed_too(stubborn: Start) -> None:
    launcher = stubborn("--drain-timeout", "500ms")
    pids = launcher.replica_pids()
    os.kill(pids["r1"], signal.SIGSTOP)
    assert launcher.stop() == 0
    assert gone_within(list(pids.values()), 0.5)
    assert "r1 did not drain" in launcher.stderr and "r0 did not drain" not in launcher.stderr


def test_what_a_replica_started_goes_with_it(stubborn: Start) -> None:
    launcher = stubborn()

    async def call() -> int:
        async with tiedreq.connect(launcher.cluster_file) as client:
            pid: int = await client.call("parent")
            return pid

    grandchild = trio.run(call)
    assert alive(grandchild)
    assert launcher.stop() == 0
    assert gone_within([grandchild], 0.5)


def test_the_launcher_is_killed(stubborn: Start, up: Start) -> None:
    launcher = stubborn()
    pids = [child.pid for child in launcher.children()]
    os.kill(launcher.replica_pids()["r1"], signal.SIGSTOP)
    launcher.signal(signal.SIGKILL)
    assert launcher.wait() == -signal.SIGKILL
    assert gone_within(pids, 5), "the frozen one too"
    with pytest.raises(tiedreq.ConnectError, match="stale: its launcher"):
        trio.run(_connect, launcher.cluster_file)
    again = up("--replicas", "1", "--app", "app:service")
    again.ready()
    assert len(again.replica_pids()) == 1
    assert again.stop() == 0


async def _connect(path: Path) -> None:
    async with tiedreq.connect(path):
        pass


def test_the_launcher_is_killed_while_a_replica_is_busy(stubborn: Start) -> None:
    launcher = stubborn()
    pids = [child.pid for child in launcher.children()]
    with busy(launcher, "loop"):
        launcher.signal(signal.SIGKILL)
        assert gone_within(pids, 5)


def test_the_launcher_is_killed_with_traffic(up: Start) -> None:
    launcher = up("--replicas", "2", "--rate", "50")
    launcher.ready()
    assert eventually(lambda: len(launcher.children()) == 3)
    pids = [child.pid for child in launcher.children()]
    time.sleep(0.5)
    launcher.signal(signal.SIGKILL)
    assert gone_within(pids, 5)


def test_a_second_one_in_the_same_directory(stubborn: Start, up: Start) -> None:
    launcher = stubborn()
    before = launcher.cluster_file.read_bytes()
    second = up("--replicas", "1", "--app", "app:service")
    assert second.wait() == 2
    assert second.out == []
    assert len(second.error) == 1 and f"(process {launcher.pid})" in second.stderr
    assert launcher.cluster_file.read_bytes() == before
    assert launcher.stop() == 0


def test_nobody_reads(tmp_path: Path) -> None:
    """Pipes that are full stop neither the replicas nor the launcher's end."""
    write_app(
        tmp_path,
        """
        import sys, threading, time, tiedreq
        service = tiedreq.Service("noisy")

        def talk():
            while True:
                print("out " * 20)
                print("err " * 20, file=sys.stderr)

        threading.Thread(target=talk, daemon=True).start()
        """,
    )
    command = [sys.executable, "-m", "cluster.up", "--replicas", "2", "--app", "app:service"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        try:
            assert launcher.stdout is not None
            assert launcher.stdout.readline().startswith(b"ready 2 replicas")
            pids = [child.pid for child in psutil.Process(launcher.pid).children()]
            time.sleep(1)
            launcher.terminate()
            assert launcher.wait(20) == 0
            assert gone_within(pids, 0.5)
        finally:
            launcher.kill()


def test_the_reader_goes_away(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    command = f"{sys.executable} -m cluster.up --replicas 1 --app app:service --json | head -1; echo ended"
    with subprocess.Popen(["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert '"ready"' in shell.stdout.readline()
        launcher = next(
            child for child in psutil.Process(shell.pid).children(recursive=True) if "cluster.up" in child.cmdline()
        )
        replica = launcher.children()[0]
        os.kill(replica.pid, signal.SIGKILL)  # an event that nobody reads
        assert eventually(lambda: [c for c in launcher.children() if c.pid != replica.pid])
        launcher.terminate()
        assert shell.stdout.readline() == "ended\n"


def test_all_replicas_fail(up: Start, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import os, threading, tiedreq
        service = tiedreq.Service("doomed")
        if os.path.exists("ready"):
            os._exit(7)
        """,
    )
    launcher = up("--replicas", "2", "--app", "app:service", "--json")
    launcher.event("ready")
    (tmp_path / "ready").touch()
    for pid in launcher.replica_pids().values():
        os.kill(pid, signal.SIGKILL)
    states = []
    while len(states) < 8:
        lost = launcher.event("replica_lost")
        states.append((lost["replica"], lost["state"], lost["reason"]))
    stopped = launcher.event("stopped")
    assert (stopped["exit"], stopped["reason"]) == (1, "all replicas have failed")
    assert launcher.wait() == 1
    for name in ("r0", "r1"):
        mine = [(state, reason) for replica, state, reason in states if replica == name]
        assert [state for state, _ in mine] == ["restarting"] * 3 + ["failed"]
        assert [reason for _, reason in mine] == ["killed by SIGKILL"] + ["exit code 7"] * 3


async def refused(cluster: dict[str, Any], tokens: list[str | None]) -> None:
    """Whoever does not have the cluster's token is not let in."""
    for token in tokens:
        with pytest.raises(tiedreq.AuthRefused, match="token"):
            async with tiedreq.connect(cluster["replicas"][0]["url"], token=token, cluster=cluster["cluster"]):
                pass


def test_four_at_once(up: Start, tmp_path: Path) -> None:
    launchers = []
    for name in "abcd":
        folder = tmp_path / name
        folder.mkdir()
        write_app(folder)
        launchers.append(up("--replicas", "2", "--app", "app:service", cwd=folder))
    for launcher in launchers:
        launcher.ready()
    urls = [replica["url"] for launcher in launchers for replica in launcher.cluster()["replicas"]]
    assert len(set(urls)) == 8
    assert len({launcher.cluster()["cluster"] for launcher in launchers}) == 4
    tokens = {launcher.cluster()["token"] for launcher in launchers}
    assert len(tokens) == 4 and all(len(token) >= 32 for token in tokens), "each has one of its own, by default"
    assert {launcher.cluster_file.stat().st_mode & 0o777 for launcher in launchers} == {0o600}
    trio.run(refused, launchers[0].cluster(), [None, "guessed", launchers[1].cluster()["token"]])
    assert [launcher.stop() for launcher in launchers] == [0, 0, 0, 0]
