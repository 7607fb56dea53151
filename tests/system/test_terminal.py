"""On a terminal a live table is shown, and everything else above it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cluster._launcher import write_app

pytestmark = pytest.mark.system

ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A launcher whose standard error, and input, is a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.told = ""
        self._master = master

    def until(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        """Read until the pattern is in what was told."""
        until = time.monotonic() + seconds
        while not (match := re.search(pattern, self.told)):
            assert time.monotonic() < until, self.told
            if select.select([self._master], [], [], 0.1)[0]:
                self.told += ESCAPES.sub(b"", os.read(self._master, 65536)).decode()
        return match

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)


@contextmanager
def terminal(folder: Path, *options: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.up", *options],
        cwd=folder,
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env={**os.environ, "COLUMNS": "160", "LINES": "40", "TERM": "xterm"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        os.close(master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_table_and_ctrl_c(tmp_path: Path) -> None:
    write_app(tmp_path)
    with terminal(tmp_path, "--replicas", "3", "--app", "app:service") as up:
        up.until(r"replica +state +pid +queue +running +started +dropped by peer +double starts")
        pid = int(up.until(r"r1 +up +(\d+) +0 +0/8 +0 +0 +0 +- +- +2/2")[1])
        os.kill(pid, signal.SIGKILL)
        up.until(rf"r1 \(process {pid}\) killed by SIGKILL: starting it again")
        up.until(r"r1 is back at ws://127.0.0.1:\d+ \(process \d+\)")
        new = int(up.until(rf"r1 +up +((?!{pid} )\d+) ")[1])
        replica = psutil.Process(new)
        up.type(b"\x03")
        up.until("cluster.up: stopped: SIGINT")
        assert up.process.wait(20) == 0
        assert not replica.is_running()


def test_the_terminal_is_closed(tmp_path: Path) -> None:
    write_app(tmp_path)
    with terminal(tmp_path, "--replicas", "2", "--app", "app:service") as up:
        up.until(r"r1 +up")
        children = psutil.Process(up.process.pid).children()
        os.close(up._master)
        up._master = os.open(os.devnull, os.O_RDONLY)
        assert up.process.wait(20) == 0
        assert not any(child.is_running() for child in children)


def test_traffic_below_the_table(tmp_path: Path) -> None:
    with terminal(tmp_path, "--replicas", "2", "--rate", "50", "--duration", "2s", "--policy", "plain") as up:
        up.until(r"traffic: plain, \d+ calls, 0 errors, \d+ of \d+ calls/s, p50 \S+  p99 \S+  p99.9 \S+ ms")
        up.until(r"policy +calls +errors +offered rate")
        up.until("stopped: the traffic has ended")
        assert up.process.wait(20) == 0
