"""The processes that a live run starts: who they are, and how one of them is lost in the middle of the run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from cluster.compare.cell import Cell
from cluster.compare.live import ReplicaLost, run_cell

AGE_SECONDS = 6.0
"""So old are they when the traffic is under way."""
PATIENCE_SECONDS = 20.0


def children(module: str, parent: int | None = None) -> list[psutil.Process]:
    """Those that this process, or another, has started and that run ``module``."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if module in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def one_is_killed(module: str, of: int) -> Iterator[None]:
    """Meanwhile one of them is killed, as soon as there are as many and all of them are old enough."""

    def kill() -> None:
        patience = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < patience:
            found = children(module)
            if len(found) == of and min(process.create_time() for process in found) < time.time() - AGE_SECONDS:
                found[0].kill()
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        killer.join()


def check_that_a_loss_ends_the_run(cell: Cell, module: str, of: int) -> None:
    """One of so many processes is killed: the run tells of it, and leaves none behind."""
    lost = r"a replica was lost, and with it what it counted: r.: killed by SIGKILL"
    with one_is_killed(module, of), pytest.raises(ReplicaLost, match=lost):
        run_cell(cell, 1)
    assert children(module) == []
