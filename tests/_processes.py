"""Which processes descend from this test run, also where their own parent is gone.

A child inherits the environment, and in it a variable that names this run. Looking at every process takes some
milliseconds, so that is done only after something was started: an audit hook counts it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import psutil

VARIABLE = "TIEDREQ_TEST_RUN"
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"})
# Helpers that the standard library keeps for the life of the interpreter.
KEPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Descendants:
    """The live descendants of this interpreter, and its children that nobody has waited for."""

    def __init__(self) -> None:
        self._run = f"{os.getpid()}-{psutil.Process().create_time()}"
        os.environ[VARIABLE] = self._run
        self._started = 0
        self._looked_at = 0
        self._alive: frozenset[psutil.Process] = frozenset()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in STARTS:
            self._started += 1

    def alive(self, *, look: bool = False) -> frozenset[psutil.Process]:
        """Those found at the last look; a new look is taken if a process was started since, or on request."""
        if look or self._looked_at != self._started:
            self._looked_at = self._started
            self._alive = frozenset(filter(self._descends, psutil.process_iter()))
        return self._alive

    def _descends(self, process: psutil.Process) -> bool:
        if process.pid == os.getpid():
            return False
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return process.ppid() == os.getpid()
            if process.environ().get(VARIABLE) != self._run:
                return False
            return not any(kept in word for word in process.cmdline() for kept in KEPT)
        except psutil.Error:
            return False


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid}, just ended"


def end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()
        process.wait(5)
