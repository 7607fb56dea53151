"""The local engine: child programs of the launcher, each in a session of its own.

A child gets control messages on its standard input, answers on its standard output and logs on its standard error.
In a session of its own a Ctrl-C at the terminal reaches the launcher alone, and everything that a child starts can be
ended with it.

Children are started from Trio's own thread, not by ``trio.lowlevel.open_process``: they ask the kernel to be killed
when the *thread* that started them ends (``die_with``), and a worker thread ends after some idle seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import trio

from cluster.engines.base import ReplicaSpec
from cluster.lines import LineSender, LogReader, MessageReader

POLL_SECONDS = 0.05
REAP_SECONDS = 5.0
PARENT_VARIABLE = "TIEDREQ_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1


class Program:
    """A Python module that runs as a child with control pipes. Make it in Trio's thread.

    ``environment`` is added to this process's own.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        safe_path = ["-P"] if sys.flags.safe_path else []
        with ExitStack() as child_ends, ExitStack() as own_ends:
            pipes = [_pipe(child_ends, own_ends, child_reads=reads) for reads in (True, False, False)]
            self._popen = subprocess.Popen(
                [sys.executable, *safe_path, "-m", module],
                stdin=pipes[0][0],
                stdout=pipes[1][0],
                stderr=pipes[2][0],
                env={**os.environ, **environment, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )
            own_ends.pop_all()
        self._commands = trio.lowlevel.FdStream(pipes[0][1])
        self._messages = trio.lowlevel.FdStream(pipes[1][1])
        self._log = trio.lowlevel.FdStream(pipes[2][1])
        self._sender = LineSender(self._commands)
        self._killed = False

    @property
    def pid(self) -> int:
        """The child's process id, also that of its session and process group."""
        return self._popen.pid

    async def send(self, message: Mapping[str, Any]) -> bool:
        """See ``ReplicaProcess``."""
        return await self._sender.send(message)

    def messages(self) -> AsyncIterator[dict[str, Any]]:
        """See ``ReplicaProcess``."""
        return MessageReader(self._messages)

    def log(self) -> AsyncIterator[str]:
        """See ``ReplicaProcess``."""
        return LogReader(self._log)

    def freeze(self) -> None:
        """See ``ReplicaProcess``."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """See ``ReplicaProcess``."""
        self._signal_all(signal.SIGCONT)

    async def ended(self) -> str:
        """See ``ReplicaProcess``. The end of a pipe would not do: a grandchild may hold it open."""
        while not self._has_ended():  # noqa: ASYNC110 -- the kernel tells nobody but who asks
            await trio.sleep(POLL_SECONDS)
        self._finish()
        return ending_in_words(self._popen.returncode or 0)

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or None while it is not known."""
        return self._popen.returncode

    def kill(self) -> None:
        """See ``ReplicaProcess``."""
        if not self._killed:
            self._killed = True
            self._finish()
            for stream in (self._commands, self._messages, self._log):
                stream.close()

    def _has_ended(self) -> bool:
        """Whether it is a zombie, or reaped: without reaping it, so that its process group's number stays its own."""
        if self._popen.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # whoever started the launcher told the kernel to reap its children
            return True

    def _signal_all(self, number: signal.Signals) -> None:
        """Signal the whole process group. Not once it was reaped: then the group's number may be another's."""
        if self._popen.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _finish(self) -> None:
        """Kill the whole process group and reap the child."""
        if self._popen.returncode is None:
            self._signal_all(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, which ends it when it can
                self._popen.wait(REAP_SECONDS)


class LocalEngine:
    """Replicas are child processes on this host. See ``Engine``."""

    start_seconds = 60.0

    @asynccontextmanager
    async def running(self, note: Callable[[str], None]) -> AsyncIterator[None]:
        """See ``Engine``. Nothing is needed."""
        yield

    async def ready(self, cluster: str) -> str:
        """See ``Engine``."""
        return ""

    def start(self, spec: ReplicaSpec) -> Program:
        """See ``Engine``."""
        return Program("cluster.replica", spec.environment)


def ending_in_words(returncode: int) -> str:
    """How a process ended: ``killed by SIGKILL``, ``exit code 1``."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def die_with_launcher() -> None:
    """For a child: be killed by the kernel when the launcher is gone, even while frozen or busy.

    Where the kernel has no such service (it is Linux's), the end of the control pipe has to do.
    """
    launcher = int(os.environ.pop(PARENT_VARIABLE, "0"))
    if sys.platform != "linux" or not launcher:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)


def take_control_pipes() -> tuple[int, int]:
    """For a child: move the control pipes away from descriptors 0 and 1, to (commands, answers).

    A handler that reads standard input finds its end, one that prints prints to the log, and what a handler starts
    inherits neither pipe.
    """
    commands, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, answers


def _pipe(child_ends: ExitStack, own_ends: ExitStack, *, child_reads: bool) -> tuple[int, int]:
    """A pipe as (the child's end, our own end)."""
    reading, writing = os.pipe()
    child, own = (reading, writing) if child_reads else (writing, reading)
    child_ends.callback(os.close, child)
    own_ends.callback(os.close, own)
    return child, own
