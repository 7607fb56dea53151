"""The life of one replica, whatever started it: serve, report, obey the control messages, drain.

``cluster.replica`` is a process of its own with pipes; with Ray it is a thread in an actor (``cluster.engines``).
The control messages are those of ``cluster.replica``. Not for how they are carried.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol

import trio

from cluster.config import DEMO_APP
from cluster.demo import live as demo
from cluster.engines.base import ReplicaSpec
from cluster.metrics import observe_replica
from cluster.slowing import Slowness
from tiedreq.core.limits import ReplicaLimits
from tiedreq.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.loading import load_service
from tiedreq.net.addresses import parse_url
from tiedreq.net.collecting import spare_the_loop
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.runner import drain_on_signals, end_within
from tiedreq.service import Service
from tiedreq.slowness import parse_pause
from tiedreq.units import LatencySpec, parse_latency

STATUS_SECONDS = 1.0
STATUS_SECONDS_UNLINKED = 0.05
_CANT_LISTEN = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
LAST_SECONDS = 2.0
"""After the launcher is gone, for how long tidying up may go on."""


class Sender(Protocol):
    """Takes what the replica answers."""

    async def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False when nobody is there any more."""
        ...


class Loaded(NamedTuple):
    """A service, and how much slower it is made."""

    service: Service
    slowness: Slowness


def load(spec: ReplicaSpec) -> Loaded:
    """The service that the replica is to serve. Raises ``AppError`` and ``BadOption``."""
    service = load_service(spec.app)
    slowness = Slowness(spec.slow)
    slowness.apply(service, but=demo.METHODS if spec.app == DEMO_APP else ())
    return Loaded(service, slowness)


async def live(
    spec: ReplicaSpec, loaded: Loaded, lines: AsyncIterator[dict[str, Any]], sender: Sender, *, signals: bool = True
) -> int:
    """Serve until drained, or until ``lines`` end; the exit code. ``signals``: SIGTERM and SIGINT drain."""
    latency = parse_latency(spec.mesh_latency) if spec.mesh_latency else None
    async with trio.open_nursery() as nursery:
        try:
            handle = await nursery.start(functools.partial(_serve, spec, loaded.service, latency, nursery.cancel_scope))
        except Exception as error:
            await sender.send(_start_failure(error, spec))
            return 1
        if spec.blocked:
            handle.set_blocked_peers(spec.blocked)
        if signals:
            await nursery.start(drain_on_signals, handle, spec.drain_timeout)
        port = parse_url(handle.url).address.port
        where = {"url": handle.url, "port": port, "observe": handle.observe_url}
        spare_the_loop()
        await sender.send({"event": "ready", "pid": os.getpid(), **where})
        reports = Reports(handle, sender)
        reports.peers = len(spec.peers) - 1 if spec.peers else None
        nursery.start_soon(_obey, lines, handle, reports, loaded.slowness, nursery.cancel_scope)
        nursery.start_soon(reports.run)
    with trio.move_on_after(LAST_SECONDS):
        await reports.send()
    return 0


async def _serve(
    spec: ReplicaSpec,
    service: Service,
    latency: LatencySpec | None,
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[ReplicaHandle],
) -> None:
    """Serve, and when that has ended, end everything."""
    await serve(
        service,
        name=spec.name,
        listen=f"[{spec.host}]:{spec.port}" if ":" in spec.host else f"{spec.host}:{spec.port}",
        peers=spec.peers,
        slots=spec.slots,
        token=spec.token,
        cluster=spec.cluster,
        drain_timeout=spec.drain_timeout,
        mesh_latency=latency,
        observe=observe_replica(spec.metrics_port),
        zone=spec.zone,
        limits=ReplicaLimits(**spec.limits),  # type: ignore[arg-type]
        task_status=task_status,
    )
    scope.cancel()


class Reports:
    """Tells the launcher how it goes: often until all links are up for the first time, then each second.

    ``peers`` is how many links there are to be, None while that is not known.
    """

    def __init__(self, handle: ReplicaHandle, sender: Sender) -> None:
        self.peers: int | None = None
        self._handle = handle
        self._sender = sender

    async def send(self, *, whole: bool = False) -> bool:
        """Send one report, a ``whole`` one with the snapshot, which costs more; True when all links are up."""
        status, snapshot = self._handle.status(), self._handle.snapshot() if whole else None
        await self._sender.send({"event": "status", "status": status, "snapshot": snapshot})
        on_use = status["mesh"]["links"] != "all"
        return self.peers is not None and (on_use or sum(link["up"] for link in status["links"].values()) >= self.peers)

    async def run(self) -> None:
        """Send reports until cancelled."""
        linked = False
        while True:
            linked = await self.send(whole=linked) or linked
            await trio.sleep(STATUS_SECONDS if linked else STATUS_SECONDS_UNLINKED)


async def _obey(
    lines: AsyncIterator[dict[str, Any]],
    handle: ReplicaHandle,
    reports: Reports,
    slowness: Slowness,
    scope: trio.CancelScope,
) -> None:
    """Do what the launcher says; when it says no more, end at once."""
    async for message in lines:
        match message:
            case {"do": "peers", "peers": dict(peers)}:
                handle.set_peers(peers)
                reports.peers = len(peers) - 1
            case {"do": "mesh_latency", "spec": str(text)}:
                handle.set_mesh_latency(parse_latency(text))
            case {"do": "blocked", "peers": list(peers)}:
                handle.set_blocked_peers(peers)
            case {"do": "slow", "factor": float(factor)}:
                slowness.factor = factor
                if (workload := demo.workload()) is not None:
                    workload.slow_factor = factor
            case {"do": "work", "service": str(law), "pause": pause}:
                if (workload := demo.workload()) is not None:
                    workload.law = parse_law(law)
                    workload.set_pause(parse_pause(pause) if pause else None)
            case {"do": "status"}:
                await reports.send()
            case {"do": "drain"}:
                handle.drain()
            case _:
                raise ValueError(f"unknown control message {str(message)[:200]}")
    end_within(LAST_SECONDS)
    scope.cancel()


def _start_failure(error: Exception, spec: ReplicaSpec) -> dict[str, Any]:
    if isinstance(error, BadOption):
        return fatal("option", str(error))
    unknown = isinstance(error, socket.gaierror)
    if isinstance(error, OSError) and (unknown or error.errno in _CANT_LISTEN):
        reason = (error.strerror or str(error)).lower()
        where = f"{spec.host} port {spec.port}" if error.filename is None else f"{error.filename} (metrics)"
        return fatal("address", f"can't listen at {where}: {reason}")
    return fatal("start", "".join(traceback.format_exception(error)).rstrip())


def fatal(kind: str, story: str) -> dict[str, Any]:
    """The message of a replica that can't start; ``kind`` as in ``cluster.replica``."""
    return {"event": "fatal", "kind": kind, "story": story}
