"""The cluster as a whole: all replicas up, peers told, cluster file written, deaths reported, everything ended.

Invariants: the cluster file is written before the ready event, and again before a restart is reported, or as soon as
there is room on the disk; whatever way ``running`` is left, no replica's process is left. Not for a single replica's
lives (``cluster.keeper``), and not for traffic (``cluster.drive``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

import trio

from cluster.config import UpConfig
from cluster.engines.base import Engine, ReplicaSpec
from cluster.faults import Faults
from cluster.keeper import Fatal, Keeper
from cluster.metrics import write_targets
from cluster.refusal import ControlRefused
from cluster.state import StateDirectory
from tiedreq.clusterfile import ClusterAddress, ReplicaAddress
from tiedreq.net.addresses import Address, parse_url
from tiedreq.units import LatencySpec, format_duration

MESH_SECONDS = 2.0
FRESH_SECONDS = 1.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Listener(Protocol):
    """Who hears what happens to the cluster. All methods are synchronous."""

    def event(self, event: dict[str, Any]) -> None:
        """A replica was lost, or restarted."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def log(self, name: str, line: str) -> None:
        """A line that a replica logged."""


class Cluster:
    """The replicas of one launcher; ``Owner`` of their keepers.

    ``environment`` says, by a replica's name, what to add to its environment: asked again at each start.
    ``start_failure`` is set when a replica could not be started in the first place. ``dashboard`` is the URL for the
    cluster file.
    """

    def __init__(
        self,
        config: UpConfig,
        state: StateDirectory,
        output: Listener,
        engine: Engine,
        environment: Callable[[str], Mapping[str, str]],
        faults: Faults | None = None,
    ) -> None:
        self.start_failure: tuple[Keeper, Fatal] | None = None
        self.all_failed = trio.Event()
        self.faults = Faults(config.mesh_latency) if faults is None else faults
        self.dashboard: str | None = None
        self._config = config
        self._state = state
        self._output = output
        self._environment = environment
        self._token = secrets.token_urlsafe(32)
        self.name = f"{config.engine}-{secrets.token_hex(4)}"
        self._pid = os.getpid()
        self._started = trio.Event()
        self._meshed = trio.Event()
        self._news = trio.Event()
        self._is_ready = False
        self._unwritten = False
        self._lost_at: dict[str, float] = {}
        self._engine = engine
        self._nursery: trio.Nursery | None = None
        self._joining: dict[str, tuple[Keeper, trio.Event]] = {}
        self._not_joined: dict[str, Fatal] = {}
        self._executions_gone = 0
        self.keepers = tuple(Keeper(self._spec(index, name), engine, self) for index, name in enumerate(config.names))

    def _spec(self, index: int, name: str) -> ReplicaSpec:
        config = self._config
        return ReplicaSpec(
            name=name,
            app=config.app,
            host=config.replica_host,
            port=config.listen_port(index),
            cluster=self.name,
            token=self._token,
            slots=config.slots,
            drain_timeout=config.drain_timeout,
            metrics_port=config.metrics_port + index if config.metrics_port else 0,
            zone=config.zone(index),
            limits=asdict(config.limits),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the replicas, all at once; when it is left, none is left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for keeper in self.keepers:
                nursery.start_soon(keeper.run, name=f"keeper of {keeper.name}")
            try:
                yield
            finally:
                for keeper in [*self.keepers, *(keeper for keeper, _ in self._joining.values())]:
                    keeper.kill()
                nursery.cancel_scope.cancel()

    async def ready(self) -> bool:
        """Wait until every replica is up and linked to the others; False with ``start_failure`` when one can't be.

        Nor is it ready when the cluster file can't be written.
        """
        await self._started.wait()
        if self.start_failure is not None:
            return False
        peers = self._peers_message()
        with trio.move_on_after(MESH_SECONDS) as patience:
            async with trio.open_nursery() as nursery:
                for keeper in self.keepers:
                    nursery.start_soon(keeper.send, peers)
                await self._meshed.wait()
        if patience.cancelled_caught:
            self._output.note(f"not all replicas are linked to each other after {format_duration(MESH_SECONDS)}")
        try:
            self._write_files()
        except OSError as error:
            story = f"{self._state.cluster_file} can't be written: {error.strerror}"
            self.start_failure = self.keepers[0], Fatal("state", story)
            return False
        self._is_ready = True
        return True

    async def drain(self) -> None:
        """End all replicas in good order, or at once where the drain time-out is over."""
        for name in await self._drain_all(self.keepers):
            self._output.note(
                f"{name} did not drain within {format_duration(self._config.drain_timeout)} and was killed"
            )

    # ---- more or fewer ----------------------------------------------------------------------------------------

    async def scale(self, count: int) -> list[str]:
        """Have ``count`` replicas: start more, or drain those with the highest numbers. Who is there runs on.

        Returns the names of those that came or went. Raises ``BadOption`` for a number that can't be had, and
        ``ControlRefused`` when one could not be started or had to be killed; the others have come or gone then.
        """
        config = replace(self._config, replicas=count)
        before = len(self.keepers)
        if count >= before:
            missing = config.missing([keeper.name for keeper in self.keepers])
            names = tuple(name for _, name in missing)
            async with trio.open_nursery() as nursery:
                for index, name in missing:
                    nursery.start_soon(self._join, Keeper(self._spec(index, name), self._engine, self))
        else:
            names = tuple(keeper.name for keeper in self.keepers[count:])
        leaving = list(self.keepers[count:])
        self._set_members(self.keepers[:count])
        late = await self._drain_all(leaving)
        for keeper in leaving:
            self._executions_gone += keeper.executions
            self._lost_at.pop(keeper.name, None)
            self._output.event({"event": "replica_left", "replica": keeper.name, "pid": keeper.pid})
        failed = {name: self._not_joined.pop(name) for name in names if name in self._not_joined}
        if failed:
            raise ControlRefused("; ".join(f"{name}: {fatal.story}" for name, fatal in failed.items()))
        if late:
            timeout = format_duration(self._config.drain_timeout)
            raise ControlRefused(f"{', '.join(late)} did not drain within {timeout} and had to be killed")
        return list(names)

    async def _join(self, keeper: Keeper) -> None:
        """Start one more replica; it is a member as soon as it is up."""
        assert self._nursery is not None
        over = trio.Event()
        self._joining[keeper.name] = keeper, over
        self._nursery.start_soon(keeper.run, name=f"keeper of {keeper.name}")
        await over.wait()

    def _set_members(self, keepers: Iterable[Keeper]) -> None:
        """These are all members now: everybody is told, clients first."""
        self.keepers = tuple(sorted(keepers, key=lambda keeper: int(keeper.name.removeprefix("r"))))
        self._config = replace(self._config, replicas=len(self.keepers))
        self._write()
        self._tell_peers()

    async def _drain_all(self, keepers: Iterable[Keeper]) -> list[str]:
        """End these replicas in good order; the names of those that had to be killed."""
        late: list[str] = []

        async def drain(keeper: Keeper) -> None:
            if not await keeper.drain(self._config.drain_timeout):
                late.append(keeper.name)

        async with trio.open_nursery() as nursery:
            for keeper in keepers:
                nursery.start_soon(drain, keeper)
        return late

    @property
    def drain_timeout(self) -> float:
        """Seconds that running calls may take when a replica drains."""
        return self._config.drain_timeout

    def check_names(self, spec: LatencySpec) -> None:
        """Raises ``BadOption`` for a latency that names a replica which is none."""
        self._config.check_latency(spec, "spec")

    async def linked_within(self, keeper: Keeper, seconds: float) -> bool:
        """Wait until the replica is up and linked to all others that are; False when it takes longer."""
        with trio.move_on_after(seconds):
            while not self._is_up_and_linked(keeper):
                await self._news.wait()
            return True
        return False

    def _is_up_and_linked(self, keeper: Keeper) -> bool:
        if keeper.state != "up" or keeper.status is None:
            return False
        if _opens_on_use(keeper.status):
            return True
        links = keeper.status["links"]
        others = [other for other in self.keepers if other.state == "up" and other is not keeper and not other.frozen]
        cut = self.faults.cut_from(keeper.name)
        return all(
            (other.name in links and links[other.name]["up"])
            or other.name in cut
            or keeper.name in self.faults.cut_from(other.name)
            for other in others
        )

    async def executions(self) -> int:
        """How many handlers have started at all replicas, asked just now."""
        waiting = [keeper for keeper in self.keepers if keeper.state == "up"]
        before = {keeper.name: keeper.status for keeper in waiting}
        with trio.move_on_after(FRESH_SECONDS):
            async with trio.open_nursery() as nursery:
                for keeper in waiting:
                    nursery.start_soon(keeper.send, {"do": "status"})
            while any(keeper.status is before[keeper.name] and keeper.state == "up" for keeper in waiting):
                await self._news.wait()
        return self._executions_gone + sum(keeper.executions for keeper in self.keepers)

    # ---- what keepers tell ------------------------------------------------------------------------------------

    def came_up(self, keeper: Keeper) -> None:
        """See ``Owner``."""
        if keeper.name in self._joining:
            _, over = self._joining.pop(keeper.name)
            self._set_members([*self.keepers, keeper])
            url = self._url(keeper)
            self._output.event({"event": "replica_joined", "replica": keeper.name, "url": url, "pid": keeper.pid})
            over.set()
        elif self._is_ready:
            self._write()
            if keeper.moved:
                self._tell_peers()
            now = trio.current_time()
            seconds = now - self._lost_at.pop(keeper.name, now)
            self._output.event(
                {
                    "event": "replica_restarted",
                    "replica": keeper.name,
                    "url": self._url(keeper),
                    "pid": keeper.pid,
                    "seconds": round(seconds, 3),
                }
            )
        elif all(other.state == "up" for other in self.keepers):
            self._started.set()

    def went_down(self, keeper: Keeper, pid: int, reason: str) -> None:
        """See ``Owner``."""
        self._lost_at.setdefault(keeper.name, trio.current_time())
        state = "failed" if keeper.state == "failed" else "restarting"
        self._output.event(
            {"event": "replica_lost", "replica": keeper.name, "pid": pid, "reason": reason, "state": state}
        )
        if keeper.state == "failed":
            if not self._is_ready:
                self.never_came_up(keeper, Fatal("died", reason))
            if all(other.state == "failed" for other in self.keepers):
                self.all_failed.set()

    def left(self, keeper: Keeper) -> None:
        """See ``Owner``."""
        self._lost_at.setdefault(keeper.name, trio.current_time())
        if keeper.state == "drained":
            self._output.event({"event": "replica_drained", "replica": keeper.name, "pid": keeper.pid})

    def never_came_up(self, keeper: Keeper, fatal: Fatal) -> None:
        """See ``Owner``."""
        if keeper.name in self._joining:
            _, over = self._joining.pop(keeper.name)
            self._not_joined[keeper.name] = fatal
            over.set()
            return
        if self.start_failure is None:
            self.start_failure = keeper, fatal
        self._started.set()

    def said(self, keeper: Keeper, line: str) -> None:
        """See ``Owner``."""
        self._output.log(keeper.name, line)

    def reported(self, keeper: Keeper) -> None:
        """See ``Owner``."""
        if not self._meshed.is_set() and all(self._is_linked(other.status) for other in self.keepers):
            self._meshed.set()
        if self._unwritten:
            self._write()
        self._news.set()
        self._news = trio.Event()

    def present(self, spec: ReplicaSpec) -> ReplicaSpec:
        """See ``Owner``."""
        return replace(self.faults.present(spec), peers={**self.peers()}, environment=self._environment(spec.name))

    def peers(self) -> Mapping[str, str]:
        """The addresses of all replicas by name, as far as they are known."""
        return {keeper.name: self._url(keeper) for keeper in self.keepers if keeper.url is not None}

    def _peers_message(self) -> dict[str, Any]:
        return {"do": "peers", "peers": {**self.peers()}}

    def _tell_peers(self) -> None:
        """Tell all replicas where the others are now."""
        for keeper in self.keepers:
            keeper.post(self._peers_message())

    def _is_linked(self, status: dict[str, Any] | None) -> bool:
        if status is None or _opens_on_use(status):
            return status is not None
        return bool(sum(link["up"] for link in status["links"].values()) == len(self.keepers) - 1)

    def _url(self, keeper: Keeper) -> str:
        """The replica's URL as everybody on this host can use it."""
        assert keeper.url is not None
        target = parse_url(keeper.url)
        host, port = target.address
        return f"ws://{Address(_WILDCARDS.get(host, host), port)}"

    def address(self) -> ClusterAddress:
        """What a client needs to connect. Only when ``ready``."""
        replicas = tuple(ReplicaAddress(self._url(keeper), keeper.name, keeper.pid) for keeper in self.keepers)
        return ClusterAddress(
            replicas, self.name, self._token, str(self._state.cluster_file), self._pid, self.dashboard
        )

    def _write(self) -> None:
        """Write the files, or say once why they can't be; ``reported`` tries again."""
        try:
            self._write_files()
        except OSError as error:
            if not self._unwritten:
                self._output.note(
                    f"{self._state.cluster_file} can't be written for now: {error.strerror}; "
                    "calls go on, and it is tried again until it can be"
                )
            self._unwritten = True
        else:
            self._unwritten = False

    def _write_files(self) -> None:
        self._state.write(self.address())
        shown = {keeper.name: keeper.observe_url for keeper in self.keepers}
        write_targets(self._state.targets, {name: url for name, url in shown.items() if url is not None})


def _opens_on_use(status: Mapping[str, Any]) -> bool:
    """Whether a replica has so many peers that it links to them only when it has something to say."""
    return bool(status["mesh"]["links"] != "all")
