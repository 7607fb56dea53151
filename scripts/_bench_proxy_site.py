"""The processes of `scripts/bench_proxy` and the ways to ask them: replicas, sidecars, fronts."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import trio

from tiedreq.proxy.upstream import HttpClient, UpstreamError, dial_tcp

SCRIPTS = Path(__file__).resolve().parent
REPLICAS = 4
START_SECONDS = 60.0
SIDECARS, DIRECT = "sidecars", "direct"
AT_SIDECAR, BESIDE = "at a sidecar", "sidecars, beside"


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def process(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block."""
    child = subprocess.Popen(
        command, cwd=SCRIPTS, env=os.environ | environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield child
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            os.killpg(child.pid, number)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(ports: list[int]) -> None:
    """Wait until something listens at each port. Raises ``TimeoutError``."""
    limit = time.monotonic() + START_SECONDS
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                if time.monotonic() > limit:
                    raise TimeoutError(f"nothing listens at port {port} after {START_SECONDS:g} s") from None
                time.sleep(0.1)


class Mesh:
    """Sidecars beside the replicas, and a front: their processes and ports.

    ``package`` is where another tiedreq is. With ``at_sidecar`` the first sidecar is a front as well.
    """

    def __init__(
        self, upstreams: list[int], slots: int, stack: ExitStack, package: Path | None, *, at_sidecar: bool
    ) -> None:
        *mesh, self.front, self.sidecar = free_ports(len(upstreams) + 2)
        self.at_sidecar = at_sidecar
        self.pids: list[int] = []
        environment = {} if package is None else {"PYTHONPATH": str(package)}
        tiedreq = [sys.executable, "-m", "tiedreq"]
        quiet = ["--log-level", "error"]
        peers = ",".join(f"r{number}=ws://127.0.0.1:{port}" for number, port in enumerate(mesh))
        for number, (port, upstream) in enumerate(zip(mesh, upstreams, strict=True)):
            where = ["--upstream", f"http://127.0.0.1:{upstream}", "--listen", f"127.0.0.1:{port}", "--peers", peers]
            sidecar = ["--name", f"r{number}", "--slots", str(slots)]
            if at_sidecar and not number:
                sidecar += ["--http", f"127.0.0.1:{self.sidecar}"]
            command = [*tiedreq, "proxy", *where, *sidecar, *quiet]
            self.pids.append(stack.enter_context(process(command, **environment)).pid)
        wait_for(mesh)
        replicas = ",".join(f"ws://127.0.0.1:{port}" for port in mesh)
        front = ["front", "--listen", f"127.0.0.1:{self.front}", "--replicas", replicas]
        self.pids.append(stack.enter_context(process([*tiedreq, *front, *quiet], **environment)).pid)
        wait_for([self.front])


class Site:
    """The replicas' processes and ports, and what stands before them."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.ports = free_ports(REPLICAS)
        self.groups: list[int] = []
        for port in self.ports:
            command = shlex.split(options.command.format(port=port))
            self.groups.append(stack.enter_context(process(command, SLOTS=str(options.slots))).pid)
        wait_for(self.ports)
        self.mesh = Mesh(self.ports, options.slots, stack, None, at_sidecar=options.at_sidecar)
        self.beside: Mesh | None = None
        if options.beside is not None:
            self.beside = Mesh(self.ports, options.slots, stack, options.beside, at_sidecar=False)

    @property
    def front(self) -> int:
        """The port of the front."""
        return self.mesh.front

    def ways(self) -> dict[str, list[int]]:
        """The ports of all ways in, by name."""
        found = {DIRECT: self.ports, SIDECARS: [self.front]}
        if self.mesh.at_sidecar:
            found[AT_SIDECAR] = [self.mesh.sidecar]
        if self.beside is not None:
            found[BESIDE] = [self.beside.front]
        return found

    async def ready(self, path: str) -> None:
        """Wait until a request is answered by each way in."""
        for ports in self.ways().values():
            for port in ports:
                await Plain([port]).ready(path)


class Plain:
    """Requests to ports of this host, one chosen at random for each."""

    def __init__(self, ports: list[int]) -> None:
        self._host = [(b"host", b"127.0.0.1")]
        self._clients = [HttpClient(dial_tcp("127.0.0.1", port, 5.0), idle_max=64) for port in ports]
        self._random = Random(1)

    async def ask(self, path: str) -> None:
        """Make one request. Raises ``UpstreamError``."""
        await self.text(self._random.choice(self._clients), path)

    async def ready(self, path: str) -> None:
        """Wait until a request is answered."""
        with trio.fail_after(START_SECONDS):
            while True:
                try:
                    return await self.ask(path)
                except UpstreamError:
                    await trio.sleep(0.2)

    async def text(self, client: HttpClient, path: str) -> bytes:
        """The body of an answer. Raises ``UpstreamError`` for any status but 200."""
        response = await client.send(b"GET", path.encode(), self._host, b"", repeat=True)
        try:
            body = b""
            while part := await response.receive():
                body += part
        finally:
            await response.aclose()
        if response.status != 200:
            raise UpstreamError(f"status {response.status}: {body!r}")
        return body

    async def executions(self) -> int:
        """How many handlers have begun at all of them, where they tell."""
        return sum([int(await self.text(client, "/count")) for client in self._clients])
