"""Replicas at addresses of a memory network that join, leave and move, and a source that says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

import tiedreq
from tests.net.bench import Journal, bench_service
from tiedreq.discovery import Members
from tiedreq.net.memory import MemoryNetwork
from tiedreq.testing import _Seat
from tiedreq.units import LatencyLaw, LatencySpec

PORT = 7000


def url(host: str) -> str:
    return f"ws://{host}:{PORT}"


class Board:
    """A source: what is put up is what everybody knows; each reader gets the latest."""

    def __init__(self, members: Members | None = None) -> None:
        self.members = members
        self._changed = trio.Event()

    def put(self, members: Members) -> None:
        self.members = members
        self._changed.set()
        self._changed = trio.Event()

    async def __aiter__(self) -> AsyncIterator[Members]:
        while True:
            changed = self._changed
            if self.members is not None:
                yield self.members
            await changed.wait()


class Life:
    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.handle: tiedreq.ReplicaHandle


class Place:
    """Where replicas live. ``lives`` are those that run, by host."""

    def __init__(self, nursery: trio.Nursery, board: Board, options: dict[str, Any]) -> None:
        self.network = MemoryNetwork()
        self.board = board
        self.journal = Journal()
        self.lives: dict[str, Life] = {}
        self.named = True
        self.complete = True
        self._nursery = nursery
        self._options = options

    async def start(self, name: str, host: str) -> Life:
        life = Life(name, host)
        life.handle = await self._nursery.start(self._serve, life)
        self.lives[host] = life
        return life

    async def _serve(self, life: Life, *, task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
        try:
            with life.scope:
                await tiedreq.serve(
                    bench_service(self.journal),
                    name=life.name,
                    advertise=url(life.host),
                    network=_Seat(self.network, life.host, 0.0),
                    mesh_latency=LatencySpec(LatencyLaw(0.001)),
                    task_status=task_status,
                    **({"discover": self.board} | self._options),
                )
        finally:
            life.ended.set()
            if self.lives.get(life.host) is life:
                del self.lives[life.host]

    def members(self, hosts: Iterable[str] | None = None) -> Members:
        chosen = self.lives if hosts is None else hosts
        names = {host: life.name if self.named else None for host, life in self.lives.items()}
        return Members.named(((names.get(host), url(host)) for host in chosen), complete=self.complete)

    def tell(self, hosts: Iterable[str] | None = None) -> None:
        """Put up who lives at these hosts, or at all."""
        self.board.put(self.members(hosts))

    def kill(self, host: str) -> None:
        self.lives[host].scope.cancel()

    def client(self, **options: Any):
        return tiedreq.connect(self.board, network=_Seat(self.network, "client", 0.0), **options)

    def links(self, host: str) -> set[str]:
        """The names of the peers that the replica at ``host`` has links to."""
        return {name for name, link in self.lives[host].handle.status()["links"].items() if link["up"]}

    def meshed(self, *hosts: str) -> bool:
        names = {self.lives[host].name for host in hosts}
        return all(self.links(host) >= names - {self.lives[host].name} for host in hosts)


@asynccontextmanager
async def place(*hosts: str, **options: Any) -> AsyncIterator[Place]:
    """Replicas named as their hosts, known to all."""
    async with trio.open_nursery() as nursery:
        found = Place(nursery, Board(), options)
        for host in hosts:
            await found.start(host, host)
        found.tell()
        yield found
        nursery.cancel_scope.cancel()


class Traffic:
    """Calls at a steady rate until stopped: how each ended."""

    def __init__(self, client: tiedreq.Client, *, seconds: float = 0.02, every: float = 0.02, method: str = "work"):
        self.client, self.seconds, self.every, self.method = client, seconds, every, method
        self.answers: list[str] = []
        self.errors: list[Exception] = []
        self.stopped = False

    async def _call(self) -> None:
        policy = tiedreq.Tied(backup=None) if self.method == "work" else tiedreq.Plain()
        try:
            self.answers.append(await self.client.call(self.method, self.seconds, policy=policy, timeout=5))
        except tiedreq.TiedreqError as error:
            self.errors.append(error)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while not self.stopped:
                nursery.start_soon(self._call)
                await trio.sleep(self.every)

    def since(self, mark: int) -> set[str]:
        """Who has answered since then."""
        return set(self.answers[mark:])
