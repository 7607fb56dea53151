"""The launcher's side of the Ray engine: a child program that is Ray's driver, and a view of each actor through it.

Not for Ray itself, which is imported by the child alone (``cluster.engines.on_ray.driver``).
"""

from __future__ import annotations

import errno
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import trio

from cluster.engines.base import EngineUnavailable, ReplicaSpec
from cluster.engines.local import Program
from cluster.engines.on_ray import MISSING, is_installed
from cluster.lines import BadLine

CLOSE_SECONDS = 10.0
KILLED_SECONDS = 10.0
"""After a kill, for how long the driver's word is waited for."""
DRIVER = "cluster.engines.on_ray.driver"
LOG_LINES = 20
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """``address`` of the Ray cluster, ``auto``, or None for one of this host alone; ``cpus`` that each replica takes.

    ``names`` are those of all replicas; ``steady``: replicas listen at the ports they are told, or not at all.
    """

    address: str | None
    names: tuple[str, ...]
    cpus: float
    steady: bool

    @property
    def cpus_here(self) -> int | None:
        """CPUs that a Ray of this host alone is said to have, so that all replicas fit; None: those it has."""
        needed = math.ceil(len(self.names) * self.cpus)
        return None if self.address is not None else max(needed, 1)


class RayReplica:
    """A replica that is an actor. See ``ReplicaProcess``. ``pid`` is 0 until it has been placed."""

    def __init__(self, number: int, post: Callable[[Mapping[str, Any]], bool]) -> None:
        self.pid = 0
        self.node = ""
        self._number = number
        self._post = post
        self._messages, self._messages_read = trio.open_memory_channel[dict[str, Any]](math.inf)
        self._lines, self._lines_read = trio.open_memory_channel[str](math.inf)
        self._ended = trio.Event()
        self._killed = trio.Event()
        self._how = ""

    async def send(self, message: Mapping[str, Any]) -> bool:
        """See ``ReplicaProcess``. The spec itself was sent when it was started."""
        await trio.lowlevel.checkpoint()
        if self._ended.is_set():
            return False
        return message["do"] == "serve" or self._post({"do": "tell", "id": self._number, "message": dict(message)})

    def messages(self) -> AsyncIterator[dict[str, Any]]:
        """See ``ReplicaProcess``."""
        return self._messages_read

    def log(self) -> AsyncIterator[str]:
        """See ``ReplicaProcess``."""
        return self._lines_read

    def freeze(self) -> None:
        """See ``ReplicaProcess``."""
        self._post({"do": "freeze", "id": self._number})

    def thaw(self) -> None:
        """See ``ReplicaProcess``."""
        self._post({"do": "thaw", "id": self._number})

    async def ended(self) -> str:
        """See ``ReplicaProcess``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_after_kill)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        return self._how

    def kill(self) -> None:
        """See ``ReplicaProcess``."""
        if not self._ended.is_set():
            self._post({"do": "kill", "id": self._number})
        self._killed.set()

    async def _give_up_after_kill(self) -> None:
        await self._killed.wait()
        await trio.sleep(KILLED_SECONDS)
        self.end("killed; Ray has not confirmed it")

    # ---- what the engine hears of it --------------------------------------------------------------------------

    def take(self, event: Mapping[str, Any]) -> None:
        """An event of the driver about this replica."""
        match event:
            case {"event": "started"}:
                self.pid, self.node = event["pid"], event["node"]
            case {"event": "said"} if not self._ended.is_set():
                self._messages.send_nowait(event["message"])
            case {"event": "logged"} if not self._ended.is_set():
                self._lines.send_nowait(event["line"])
            case {"event": "ended"}:
                self.end(event["how"])

    def end(self, how: str) -> None:
        """It has ended. Only the first word about that counts."""
        if not self._ended.is_set():
            self._how = how
            self._ended.set()
            self._messages.close()
            self._lines.close()


class RayEngine:
    """Replicas are actors on the nodes of a Ray cluster. See ``Engine``."""

    start_seconds = 180.0
    """The cluster may have to find room, or to grow."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._numbers = count(1)
        self._replicas: dict[int, RayReplica] = {}
        self._outgoing: trio.MemorySendChannel[Mapping[str, Any]] | None = None
        self._opened = trio.Event()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._refused = ""
        self._over = False
        self._closing = False

    @asynccontextmanager
    async def running(self, note: Callable[[str], None]) -> AsyncIterator[None]:
        """See ``Engine``."""
        if not is_installed():
            raise EngineUnavailable(MISSING)
        program = Program(DRIVER, {})
        send, receive = trio.open_memory_channel[Mapping[str, Any]](math.inf)
        self._outgoing = send
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, program, receive)
                nursery.start_soon(self._read_log, program)
                nursery.start_soon(self._attend, program, note)
                try:
                    yield
                finally:
                    self._closing = True
                    with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS):
                        self._post({"do": "close"})
                        await program.ended()
                    nursery.cancel_scope.cancel()
        finally:
            program.kill()

    async def ready(self, cluster: str) -> str:
        """See ``Engine``."""
        options = self._options
        self._post(
            {
                "do": "open",
                "address": options.address,
                "cluster": cluster,
                "replicas": len(options.names),
                "cpus": options.cpus,
                "cpus_here": options.cpus_here,
                "steady": options.steady,
            }
        )
        await self._opened.wait()
        return self._refused

    def start(self, spec: ReplicaSpec) -> RayReplica:
        """See ``Engine``."""
        if self._over:
            raise OSError(errno.EPIPE, "Ray is gone")
        number, names = next(self._numbers), self._options.names
        replica = self._replicas[number] = RayReplica(number, self._post)
        self._post(
            {
                "do": "start",
                "id": number,
                "index": names.index(spec.name) if spec.name in names else None,
                "spec": spec.message(),
                "environment": dict(spec.environment),
            }
        )
        return replica

    def _post(self, message: Mapping[str, Any]) -> bool:
        if self._outgoing is None or self._over:
            return False
        self._outgoing.send_nowait(message)
        return True

    async def _write(self, program: Program, outgoing: trio.MemoryReceiveChannel[Mapping[str, Any]]) -> None:
        async for message in outgoing:
            if not await program.send(message):
                return

    async def _read_log(self, program: Program) -> None:
        """Keep the last lines: Ray says much, and it matters only when the driver ends by itself."""
        async for line in program.log():
            if line.strip():
                self._log.append(ANSI.sub("", line.strip()))

    async def _attend(self, program: Program, note: Callable[[str], None]) -> None:
        """Pass on what the driver says; when it has ended, so have all replicas."""
        try:
            async for event in program.messages():
                self._take(event, note)
        except BadLine as error:
            self._refused = f"the driver of Ray spoke nonsense: {error}"
        how = await program.ended()
        self._over = True
        if not self._closing:
            for line in () if self._refused else self._log:
                note(f"Ray: {line}")
            self._refused = self._refused or f"the driver of Ray has ended ({how})"
            if self._opened.is_set():
                note(f"Ray is gone, and the replicas with it: its driver has ended ({how})")
        self._opened.set()
        for replica in list(self._replicas.values()):
            replica.end("was lost with Ray")

    def _take(self, event: Mapping[str, Any], note: Callable[[str], None]) -> None:
        match event:
            case {"event": "open"}:
                if self._options.address is not None and event["strategy"] != "STRICT_SPREAD":
                    nodes = "one node" if event["nodes"] == 1 else f"{event['nodes']} nodes"
                    note(f"the Ray cluster has {nodes} with room: some replicas share one")
                self._opened.set()
            case {"event": "refused"}:
                self._refused = event["story"]
                self._opened.set()
            case {"event": "note"}:
                note(event["text"])
            case {"id": int(number)}:
                replica = self._replicas.get(number)
                if replica is not None:
                    replica.take(event)
                if event["event"] == "ended":
                    self._replicas.pop(number, None)
