"""Starts the launcher and the console command as real processes, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

READY = re.compile(r"^ready (\d+) replicas(?:, dashboard (http://\S+))? state (\S+)$")
PATIENCE = 60.0
"""Seconds: where many things run at once, a launcher and its replicas take half a minute to start."""

APP = """
    import trio, tiedreq
    service = tiedreq.Service("app")

    @service.method(idempotent=True)
    async def lookup(ctx, args):
        await trio.sleep((args or {}).get("sleep", 0))
        return {"args": args, "replica": ctx.replica}
"""


class Child:
    """A process whose outputs are read as they come. Only ever ended by its id."""

    def __init__(self, arguments: list[str], cwd: Path, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.cwd = cwd
        self.out: list[str] = []
        self.error: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.popen.stdout, self.out, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.popen.stderr, self.error, lambda _: None), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def stderr(self) -> str:
        return "\n".join(self.error)

    def line(self, timeout: float = PATIENCE) -> str:
        """The next line of standard output."""
        line = self._lines.get(timeout=timeout)
        assert line is not None, f"ended with {self.wait()}:\n{self.stderr}"
        return line

    def event(self, kind: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """The next event of this kind; others before it are passed over."""
        until = time.monotonic() + timeout
        while True:
            event: dict[str, Any] = json.loads(self.line(max(0.01, until - time.monotonic())))
            if event["event"] == kind:
                return event

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        code = self.popen.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def end(self) -> None:
        """End it, and what it started, whatever state they are in."""
        with contextlib.suppress(psutil.Error):
            for child in self.children():
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self.popen.kill()
        self.wait()
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()

    def _read(self, stream: IO[str], lines: list[str], put: Callable[[str | None], None]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))
            put(line.rstrip("\n"))
        put(None)


class Up(Child):
    """``python -m cluster.up`` in ``cwd``."""

    def __init__(self, cwd: Path, *options: str, **environment: str) -> None:
        super().__init__(["-m", "cluster.up", *options], cwd, **environment)
        self.state = cwd / ".tiedreq"

    def ready(self) -> re.Match[str]:
        line = self.line()
        match = READY.match(line)
        assert match, line
        return match

    @property
    def cluster_file(self) -> Path:
        return self.state / "cluster.json"

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster_file.read_text())
        return found

    def replica_pids(self) -> dict[str, int]:
        return {replica["name"]: replica["pid"] for replica in self.cluster()["replicas"]}

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.signal(number)
        return self.wait()


def write_app(folder: Path, source: str = APP, name: str = "app.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    return eventually(lambda: not any(alive(pid) for pid in pids), seconds)


def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def starter(folder: Path) -> Iterator[Callable[..., Up]]:
    """For fixtures: a function that starts launchers; all are ended afterwards."""
    started: list[Up] = []

    def start(*options: str, cwd: Path = folder, **environment: str) -> Up:
        started.append(Up(cwd, *options, **environment))
        return started[-1]

    yield start
    for launcher in started:
        launcher.end()
