"""The state directory: who holds it, and the cluster file in it.

Invariants: one launcher holds a directory at a time, and holds it exactly as long as it lives (a file lock, which goes
with the process); a cluster file is complete or not there; one that a launcher left behind when it was killed names a
process that is gone, and goes with the next start. So does the control file (``cluster.control_file``).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.control_file import CONTROL_FILE
from cluster.metrics import TARGETS_FILE
from tiedreq.clusterfile import ClusterAddress, write_cluster_file

CLUSTER_FILE = "cluster.json"
LOCK_FILE = "lock"
INDEX_FILE = "demo.sqlite"


class StateInUse(Exception):
    """Another launcher holds the state directory, or it can't be used."""


class StateDirectory:
    """A state directory that this process holds; made by ``hold``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster_file = path / CLUSTER_FILE
        self.index = path / INDEX_FILE
        self.targets = path / TARGETS_FILE

    def write(self, address: ClusterAddress) -> None:
        """Put the cluster file in place of the one before."""
        write_cluster_file(self.cluster_file, address)

    def clear(self) -> None:
        """Take the cluster file away, the control file, and the list of where metrics are."""
        self.cluster_file.unlink(missing_ok=True)
        (self.path / CONTROL_FILE).unlink(missing_ok=True)
        self.targets.unlink(missing_ok=True)


@contextmanager
def hold(path: Path) -> Iterator[StateDirectory]:
    """Hold the state directory at ``path``, which is made if need be; its cluster file goes at the end.

    Raises ``StateInUse``.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateInUse(f"state directory {path}: can't be used: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StateInUse(
                f"state directory {path}: a cluster is up in it ({who}); stop that one or name another by --state-dir"
            ) from None
        state = StateDirectory(path)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            state.clear()
        except OSError as error:
            raise StateInUse(f"state directory {path}: can't be written: {error.strerror}") from None
        try:
            yield state
        finally:
            with suppress(OSError):
                state.clear()
    finally:
        os.close(descriptor)
