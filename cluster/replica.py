"""The child program that is one replica: ``python -m cluster.replica``, started by an engine.

Control messages come on standard input, answers go out on standard output, logs to standard error.

* in: ``{"do": "serve", …}`` first (``ReplicaSpec``), then ``{"do": "peers", "peers": {name: url}}``,
  ``{"do": "mesh_latency", "spec": TEXT}``, ``{"do": "blocked", "peers": [name…]}``, ``{"do": "slow", "factor": F}``,
  ``{"do": "work", "service": LAW, "pause": SPEC or null}`` (the demo's), ``{"do": "status"}`` (answered at once),
  ``{"do": "drain"}``
* out: ``{"event": "ready", "url", "port", "pid", "observe"}``, ``{"event": "status", "status", "snapshot"}`` each
  second (when asked for, and while links come up, without a snapshot), and
  ``{"event": "fatal", "kind": "app" | "option" | "address" | "start", "story": TEXT}``

Invariants: when the launcher is gone, so is this program: the kernel kills it, or the end of the control pipe ends it.
SIGTERM and SIGINT drain, a second one ends at once. Nothing that the service prints, reads or starts touches the pipes.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

import trio

from cluster.config import DEMO_APP
from cluster.demo import live
from cluster.engines.base import ReplicaSpec
from cluster.engines.local import die_with_launcher, take_control_pipes
from cluster.lines import LineSender, MessageReader, encode, read_first_line
from cluster.metrics import observe_replica
from cluster.slowing import Slowness
from tiedreq.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.loading import AppError, load_service
from tiedreq.net.addresses import parse_url
from tiedreq.net.collecting import spare_the_loop
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.runner import drain_on_signals, end_within
from tiedreq.service import Service
from tiedreq.slowness import parse_pause
from tiedreq.units import LatencySpec, parse_latency

STATUS_SECONDS = 1.0
STATUS_SECONDS_UNLINKED = 0.05
LAST_SECONDS = 2.0
"""After the launcher is gone, for how long tidying up may go on."""


def main() -> int:
    """Run one replica until it is drained; the exit code."""
    die_with_launcher()
    commands, answers = take_control_pipes()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    first, rest = read_first_line(commands)
    if first is None:
        return 1
    spec = ReplicaSpec.from_message(first)
    try:
        service = load_service(spec.app)
    except (AppError, BadOption) as error:
        os.write(answers, encode(_fatal("app", getattr(error, "story", str(error)))))
        return 2
    slowness = Slowness(spec.slow)
    slowness.apply(service, but=live.METHODS if spec.app == DEMO_APP else ())
    return trio.run(_run, spec, service, slowness, commands, answers, rest)


async def _run(
    spec: ReplicaSpec, service: Service, slowness: Slowness, commands: int, answers: int, rest: bytes
) -> int:
    sender = LineSender(trio.lowlevel.FdStream(answers))
    latency = parse_latency(spec.mesh_latency) if spec.mesh_latency else None
    async with trio.open_nursery() as nursery:
        lines = MessageReader(trio.lowlevel.FdStream(commands), rest=rest)
        try:
            handle = await nursery.start(functools.partial(_serve, spec, service, latency, nursery.cancel_scope))
        except Exception as error:
            await sender.send(_start_failure(error, spec))
            return 1
        if spec.blocked:
            handle.set_blocked_peers(spec.blocked)
        await nursery.start(drain_on_signals, handle, spec.drain_timeout)
        port = parse_url(handle.url).address.port
        where = {"url": handle.url, "port": port, "observe": handle.observe_url}
        spare_the_loop()
        await sender.send({"event": "ready", "pid": os.getpid(), **where})
        reports = Reports(handle, sender)
        reports.peers = len(spec.peers) - 1 if spec.peers else None
        nursery.start_soon(_obey, lines, handle, reports, slowness, nursery.cancel_scope)
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
        task_status=task_status,
    )
    scope.cancel()


class Reports:
    """Tells the launcher how it goes: often until all links are up for the first time, then each second.

    ``peers`` is how many links there are to be, None while that is not known.
    """

    def __init__(self, handle: ReplicaHandle, sender: LineSender) -> None:
        self.peers: int | None = None
        self._handle = handle
        self._sender = sender

    async def send(self, *, whole: bool = False) -> bool:
        """Send one report, a ``whole`` one with the snapshot, which costs more; True when all links are up."""
        status, snapshot = self._handle.status(), self._handle.snapshot() if whole else None
        await self._sender.send({"event": "status", "status": status, "snapshot": snapshot})
        return self.peers is not None and sum(link["up"] for link in status["links"].values()) >= self.peers

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
                if (workload := live.workload()) is not None:
                    workload.slow_factor = factor
            case {"do": "work", "service": str(law), "pause": pause}:
                if (workload := live.workload()) is not None:
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
        return _fatal("option", str(error))
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
        reason = os.strerror(error.errno).lower()
        where = f"{spec.host} port {spec.port}" if error.filename is None else f"{error.filename} (metrics)"
        return _fatal("address", f"can't listen at {where}: {reason}")
    return _fatal("start", "".join(traceback.format_exception(error)).rstrip())


def _fatal(kind: str, story: str) -> dict[str, Any]:
    return {"event": "fatal", "kind": kind, "story": story}


if __name__ == "__main__":
    sys.exit(main())
