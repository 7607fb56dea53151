"""The replicas of a live run: in real processes, linked to each other, for as long as a block runs.

Invariants: whatever way the block is left, Ctrl-C included, no process and no file is left; a replica that ends by
itself ends the run (``ReplicaLost``), since what it counted is gone. Not for what is done with them (``live``).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from cluster.compare.cell import Cell
from cluster.compare.live_settings import LabSettings
from cluster.config import UpConfig
from cluster.engines.base import Engine
from cluster.engines.local import LocalEngine
from cluster.engines.shared import SharedEngine
from cluster.state import hold
from cluster.supervisor import Cluster
from tiedreq.clusterfile import ClusterAddress
from tiedreq.units import LatencySpec

__all__ = ["ReplicaLost", "StartFailed", "live_replicas"]

APP = "cluster.compare.live_replica:service"
LOG_LINES_MAX = 20


class StartFailed(Exception):
    """The replicas could not be started; the message is what to show."""


class ReplicaLost(Exception):
    """A replica ended in the middle of a run."""


class _Listener:
    """What is heard of the cluster: the log of the replicas, shortened, and the loss of one."""

    def __init__(self) -> None:
        self.lost = trio.Event()
        self.story = ""
        self._lines = 0

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "replica_lost" and not self.lost.is_set():
            self.story = f"{event['replica']}: {event['reason']}"
            self.lost.set()

    def note(self, text: str) -> None:
        self._show(text)

    def log(self, name: str, line: str) -> None:
        self._show(f"{name} | {line}")

    def _show(self, line: str) -> None:
        self._lines += 1
        if self._lines <= LOG_LINES_MAX:
            print(line, file=sys.stderr)
        elif self._lines == LOG_LINES_MAX + 1:
            print("(more is not shown)", file=sys.stderr)


@asynccontextmanager
async def live_replicas(cell: Cell, seed: int) -> AsyncIterator[ClusterAddress]:
    """Start the replicas of a cell, all linked to each other.

    Raises ``BadOption`` for what a live run can't do, ``StartFailed``, and, out of the block, ``ReplicaLost``.
    """
    environments = {
        settings.replica: settings.environment()
        for settings in (LabSettings.of(cell, index, seed) for index in range(cell.replicas))
    }
    runner: Engine = LocalEngine() if cell.processes is None else SharedEngine(cell.processes)
    listener = _Listener()
    with tempfile.TemporaryDirectory(prefix="tiedreq-") as directory:
        config = UpConfig(
            replicas=cell.replicas,
            slots=cell.slots,
            app=APP,
            state_dir=Path(directory),
            zones=cell.zones,
            mesh_latency=None if cell.mesh_latency == LatencySpec() else cell.mesh_latency,
        )
        with hold(config.state_dir) as state:
            cluster = Cluster(config, state, listener, runner, environments.__getitem__)
            async with runner.running(listener.note), cluster.running():
                if not await cluster.ready():
                    assert cluster.start_failure is not None
                    keeper, fatal = cluster.start_failure
                    raise StartFailed(f"{keeper.name}: {fatal.story}")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch, listener)
                    yield cluster.address()
                    nursery.cancel_scope.cancel()


async def _watch(listener: _Listener) -> None:
    await listener.lost.wait()
    raise ReplicaLost(f"a replica was lost, and with it what it counted: {listener.story}")
