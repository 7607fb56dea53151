"""Replicas that come, go, move and hang in any order: no call fails, and in the end all members are linked."""

from __future__ import annotations

from random import Random

import pytest
import trio

from tests.membership.moving import Place, Traffic, place
from tiedreq.core.limits import ReplicaLimits
from tiedreq.net.mesh import LEAVE_SECONDS

pytestmark = pytest.mark.system

NAMES = "abcde"


class Storm:
    """Changes drawn by ``random``. ``there`` are the hosts of the members; ``x`` stays, so that calls have a place."""

    def __init__(self, found: Place, random: Random) -> None:
        self.found, self.random = found, random
        self.there = ["x"]
        self._hosts = 0

    async def start(self, name: str) -> None:
        self._hosts += 1
        host = f"h{self._hosts}"
        await self.found.start(name, host)
        self.there.append(host)

    def named(self, host: str) -> str:
        return self.found.lives[host].name

    async def change(self) -> None:
        others = [host for host in self.there if host != "x"]
        free = [name for name in NAMES if name not in map(self.named, others)]
        match self.random.choice(["join", "leave", "crash", "move", "move", "silent"]):
            case "join" if free:
                await self.start(self.random.choice(free))
            case "leave" if others:
                self.there.remove(host := self.random.choice(others))
                self.found.lives[host].handle.drain()
            case "crash" if others:
                self.there.remove(host := self.random.choice(others))
                self.found.kill(host)
            case "move" | "silent" as how if others:
                self.there.remove(host := self.random.choice(others))
                name = self.named(host)
                if how == "silent":
                    self.found.network.partition([host], [*self.found.lives, "client"])
                elif self.random.random() < 0.5:
                    self.found.kill(host)
                await self.start(name)
        if self.random.random() < 0.2:
            self.found.tell(self.random.sample(self.there, self.random.randint(1, len(self.there))))
            await trio.sleep(self.random.random())
        self.found.tell(self.there)

    def why(self) -> str:
        """What is there, to be shown where it should be something else."""
        return "; ".join(
            f"{host} is {self.named(host)}: {self.found.lives[host].handle.status()['links']}" for host in self.there
        )

    def calm(self, on_use: bool) -> bool:
        """Every member is linked to every other one, and to nobody else; on use: to nobody who is not a member."""
        names = {self.named(host) for host in self.there}
        incarnations = {self.named(host): self.found.lives[host].handle.identity.incarnation for host in self.there}
        for host in self.there:
            server = self.found.lives[host].handle._server
            if not on_use and self.found.links(host) != names - {self.named(host)}:
                return False
            if any(link.peer.incarnation != incarnations.get(name) for name, link in server.mesh.items()):
                return False
            if {peer.name for peer in server.core._links} != set(server.mesh):
                return False
        return True


@pytest.mark.parametrize("named, on_use", [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("seed", range(2))
async def test_calm_after_any_storm(autojump_clock, seed: int, named: bool, on_use: bool) -> None:
    limits = ReplicaLimits(mesh_full_max=1 if on_use else 16, mesh_idle=1.0)
    async with place("x", limits=limits, drain_timeout=2.0) as found:
        found.named = named
        storm = Storm(found, Random(seed))
        found.tell(["x"])
        async with found.client() as client, trio.open_nursery() as nursery:
            load = Traffic(client, every=0.04)
            nursery.start_soon(load.run)
            for _ in range(12):
                await storm.change()
                await trio.sleep(storm.random.random())
            load.stopped = True
        assert not load.errors and len(load.answers) > 50
        for host in found.lives.keys() - storm.there:  # whose place another one has taken, in the end they go
            found.kill(host)
        with trio.move_on_after(LEAVE_SECONDS + 10):
            while not storm.calm(on_use):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.2)
        assert storm.calm(on_use), storm.why()
        async with found.client() as client:
            load = Traffic(client, every=0.02)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                await trio.sleep(1)
                load.stopped = True
            assert not load.errors and load.since(0) <= {storm.named(host) for host in storm.there}
