"""A Ray of several nodes, and launchers that join it. What needs them is skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster._launcher import Up, starter

PATIENCE = 120.0
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def ray_is_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install -r requirements/ray.txt")


class NoNodes(Exception):
    """The nodes could not be had."""


class Nodes:
    """The program ``_nodes.py``."""

    def __init__(self, count: int, cpus: float, temporary: Path) -> None:
        self.token = secrets.token_hex(32)
        self.popen = subprocess.Popen(
            [sys.executable, str(HERE / "_nodes.py"), str(count), str(cpus), str(temporary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        self.address = self._answer()["address"]

    @property
    def environment(self) -> dict[str, str]:
        """What who joins needs."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def lose(self, index: int) -> None:
        """Lose the node with this index, as a machine is lost."""
        self._tell(f"lose {index}")

    def end(self) -> None:
        """End all nodes, and what is left of them."""
        assert self.popen.stdin is not None and self.popen.stdout is not None
        left: list[Any] = [self.popen]
        with suppress(psutil.NoSuchProcess):
            left += psutil.Process(self.popen.pid).children(recursive=True)
        self.popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(PATIENCE)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()
        self.popen.stdout.close()

    def workers(self) -> list[str]:
        """The names of the processes that run actors and tasks."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        names = []
        for child in children:
            with suppress(psutil.Error):
                names.append(" ".join(child.cmdline()))
        return [name for name in names if name.startswith("ray::") and "Agent" not in name]

    def _tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()
        assert self._answer() == {"done": line}

    def _answer(self) -> dict[str, str]:
        assert self.popen.stdout is not None
        timer = threading.Timer(PATIENCE, self.popen.kill)
        timer.start()
        try:
            line = self.popen.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.end()
            raise NoNodes("they are gone, or did not answer")
        answer: dict[str, str] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def nodes(ray_is_installed: None) -> Iterator[Nodes]:
    """Three nodes of two CPUs each."""
    # A short path: Ray's sockets are below it.
    with tempfile.TemporaryDirectory(prefix="tq-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        try:
            found = Nodes(3, 2, Path(temporary))
        except NoNodes:  # a raylet gets 30 s to start, which a machine that is busy may not have for it
            found = Nodes(3, 2, Path(temporary))
        yield found
        found.end()


@pytest.fixture
def up(ray_is_installed: None, tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts launchers on Ray."""
    yield from starter(tmp_path)
