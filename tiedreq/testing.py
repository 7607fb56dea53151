"""A whole cluster in one process and in memory, for tests of your service.

``LocalCluster`` is for tests on Trio, ``AsyncioCluster`` and ``BlockingCluster`` are for others; ``pytest_plugin`` has
fixtures of all three. None uses sockets, so they work in virtual time (under ``trio.testing.MockClock``, with
``virtual_time=True``) as long as the handlers are ``async def``: a worker thread's time is real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

import trio

from tiedreq import aio, blocking
from tiedreq._bridge import Setting, new_loop
from tiedreq._loopthread import Loop
from tiedreq.core.checks import check_count
from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.policy import Auto, Policy
from tiedreq.net.client import Client
from tiedreq.net.connecting import connect
from tiedreq.net.edge import UserBlock
from tiedreq.net.memory import MemoryNetwork
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.net.shaping import DelayLine, constant
from tiedreq.net.transport import Transport
from tiedreq.service import Service
from tiedreq.units import LatencyLaw, LatencySpec, check_zone

_PORT = 7000
_REPLICAS_MAX = 64
_POLL_SECONDS = 0.01


class _Seat:
    """One process's view of a memory network: URLs are ``ws://NAME:7000``."""

    def __init__(self, network: MemoryNetwork, name: str, latency: float) -> None:
        self._network = network
        self._name = name
        self._latency = latency

    def _dial(self, url: str, timeout: float) -> AbstractAsyncContextManager[Transport]:
        return self._network.dial(self._name, url.removeprefix("ws://").partition(":")[0], timeout=timeout)

    @asynccontextmanager
    async def dial(self, url: str, *, timeout: float) -> AsyncIterator[Transport]:
        """See ``Network.dial``."""
        if not self._latency:
            async with self._dial(url, timeout) as transport:
                yield transport
            return
        line = DelayLine(constant(self._latency))
        async with line.dial(lambda: self._dial(url, timeout)) as transport:
            yield transport

    async def accept(
        self,
        listen: str,
        handler: Callable[[Transport], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See ``Network.accept``."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._network.serve, self._name, handler)
            task_status.started(f"ws://{self._name}:{_PORT}")


class _Life:
    """One run of a replica."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()


class LocalCluster:
    """Replicas of ``service`` in this process: ``async with LocalCluster(service, replicas=3) as client: …``.

    ``mesh_latency`` is the one-way latency between replicas, ``client_latency`` from the client to a replica (answers
    return at once), both in seconds; the former may be a ``LatencySpec``, ``parse_latency("1ms;a-b=5ms")``, of the
    ``zones`` in which replicas stand in turn. ``replicas`` are named ``r0``, ``r1`` …; ``handles`` maps names to
    ``ReplicaHandle``. ``network`` cuts, holds and partitions (the client's name there is ``client``); ``stop(name)``
    ends a replica at once, ``start(name)`` starts it again.
    """

    def __init__(
        self,
        service: Service,
        *,
        replicas: int = 3,
        slots: int = 8,
        mesh_latency: float | LatencySpec = 0.001,
        zones: Sequence[str] = (),
        client_latency: float = 0.0,
        policy: Policy | None = None,
        timeout: float = 10.0,
        limits: ReplicaLimits | None = None,
        client_limits: ClientLimits | None = None,
        debug: bool = True,
    ) -> None:
        self.names = [f"r{index}" for index in range(check_count("replicas", replicas, 1, _REPLICAS_MAX))]
        self.network = MemoryNetwork()
        self.handles: dict[str, ReplicaHandle] = {}
        self._service = service
        self._slots = slots
        spec = mesh_latency if isinstance(mesh_latency, LatencySpec) else LatencySpec(LatencyLaw(mesh_latency))
        self._latency = spec
        self._zones = tuple(check_zone(zone, field="zones") for zone in zones)
        self._client_latency = client_latency
        self._policy = policy
        self._timeout = timeout
        self._limits = limits
        self._client_limits = client_limits
        self._debug = debug
        self._lives: dict[str, _Life] = {}
        self._context: AbstractAsyncContextManager[Client] | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def urls(self) -> dict[str, str]:
        """The URL of every replica, by name."""
        return {name: f"ws://{name}:{_PORT}" for name in self.names}

    async def __aenter__(self) -> Client:
        if not trio.lowlevel.in_trio_run():
            raise BadOption("LocalCluster: Trio does not run here; on asyncio use AsyncioCluster")
        self._context = self._run()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[Client]:
        block = UserBlock()
        with block.outside():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for name in self.names:
                    await self.start(name)
                with block:
                    await self._mesh_up()
                    async with self.client() as client:
                        yield client
                nursery.cancel_scope.cancel()

    def client(
        self, *, name: str = "client", policy: Policy | None = None, zone: str = ""
    ) -> AbstractAsyncContextManager[Client]:
        """Another client of the same cluster, which is in ``zone``."""
        return connect(
            list(self.urls.values()),
            policy=policy if policy is not None else self._policy,
            timeout=self._timeout,
            limits=self._client_limits,
            network=_Seat(self.network, name, self._client_latency),
            zone=zone,
        )

    async def start(self, name: str) -> ReplicaHandle:
        """Start a replica that was stopped, once the former one has ended; it gets a new incarnation.

        Raises ``BadOption`` for one that runs and was not told to stop.
        """
        assert self._nursery is not None
        if name not in self.names:
            raise BadOption(f"name: {name!r} is none of {', '.join(self.names)}")
        former = self._lives.get(name)
        if former is not None:
            handle = self.handles.get(name)
            if not (former.scope.cancel_called or (handle is not None and handle.draining)):
                raise BadOption(f"name: {name!r} runs; stop it first")
            await former.ended.wait()
        started: ReplicaHandle = await self._nursery.start(self._serve, name)
        self.handles[name] = started
        return started

    async def _serve(self, name: str, *, task_status: trio.TaskStatus[ReplicaHandle]) -> None:
        life = self._lives[name] = _Life()
        try:
            with life.scope:
                await serve(
                    self._service,
                    name=name,
                    peers=self.urls,
                    slots=self._slots,
                    limits=self._limits,
                    mesh_latency=self._latency,
                    debug=self._debug,
                    network=_Seat(self.network, name, 0.0),
                    zone=self._zones[self.names.index(name) % len(self._zones)] if self._zones else "",
                    task_status=task_status,
                )
        finally:
            del self._lives[name]
            life.ended.set()

    def running(self, name: str) -> bool:
        """True until a replica was stopped, has drained, or failed."""
        return name in self._lives

    def stop(self, name: str) -> None:
        """End a replica at once, as a crash would. Nothing happens to one that has ended."""
        life = self._lives.get(name)
        if life is not None:
            life.scope.cancel()

    def _measured(self) -> bool:
        """True once every replica knows every other and the latency to it."""
        for handle in self.handles.values():
            status = handle.status()
            if status["mesh"]["links"] != "all":  # too many: they link when they have something to say
                continue
            links = status["links"]
            if len(links) < len(self.names) - 1 or any(link["notice_latency_ms"] is None for link in links.values()):
                return False
        return True

    async def _mesh_up(self) -> None:
        with trio.move_on_after(self._timeout):
            for _ in iter(self._measured, True):
                await trio.sleep(_POLL_SECONDS)


class _Elsewhere:
    """A ``LocalCluster`` (``local``) that runs in a thread of its own. What touches it goes through ``run``."""

    def __init__(self, service: Service, *, virtual_time: bool = False, **options: Any) -> None:
        self.local = LocalCluster(service, **options)
        self._virtual_time = virtual_time
        self._loop: Loop | None = None

    def _open(self) -> tuple[Setting, Loop]:
        if self._loop is not None:
            raise BadOption("cluster: it is open")
        local = self.local
        self._loop = new_loop(virtual_time=self._virtual_time)
        policy = local._policy if local._policy is not None else Auto()
        limits = local._client_limits if local._client_limits is not None else ClientLimits()
        return Setting(lambda: local, policy, local._timeout, limits), self._loop

    def _close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()


class BlockingCluster(_Elsewhere):
    """``with BlockingCluster(service, replicas=3) as client: …`` yields a ``tiedreq.blocking.Client``.

    The options are those of ``LocalCluster``. With ``virtual_time=True`` the replicas' clock stands still while nothing
    is under way, and jumps over waiting while a call is.
    """

    _client: blocking.Client | None = None

    def __enter__(self) -> blocking.Client:
        setting, loop = self._open()
        self._client = blocking.Client(setting, loop=loop)
        try:
            return self._client.__enter__()
        except BaseException:
            self._close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        self._close()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function(*args)``, plain or async, returns in the replicas' thread: ``run(local.network.heal)``."""
        if self._client is None:
            raise BadOption("cluster: it is not open")
        return self._client._do(function, *args)

    def stop(self, name: str) -> None:
        """End a replica at once, as a crash would."""
        self.run(self.local.stop, name)

    def start(self, name: str) -> None:
        """Start a replica that was stopped, once the former one has ended."""
        self.run(self.local.start, name)

    def sleep(self, seconds: float) -> None:
        """Let time pass at the replicas, for what goes on without a call."""
        self.run(trio.sleep, seconds)


class AsyncioCluster(_Elsewhere):
    """``async with AsyncioCluster(service, replicas=3) as client: …`` yields a ``tiedreq.aio.Client``.

    The options are those of ``BlockingCluster``.
    """

    _client: aio.Client | None = None
    _stack: ExitStack

    @contextmanager
    def beside(self) -> Iterator[aio.Client]:
        """The client where no event loop runs yet, or any number of them; its first call starts the replicas."""
        setting, loop = self._open()
        self._client = aio.Client(setting, loop=loop)
        try:
            yield self._client
        finally:
            self._client._end_session()
            self._close()

    async def __aenter__(self) -> aio.Client:
        self._stack = ExitStack()
        try:
            return await self._stack.enter_context(self.beside())
        except BaseException:
            self._stack.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
        self._stack.close()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function(*args)``, plain or async, returns in the replicas' thread: ``run(local.network.heal)``."""
        if self._client is None:
            raise BadOption("cluster: it is not open")
        return await self._client._do(function, *args)

    async def stop(self, name: str) -> None:
        """End a replica at once, as a crash would."""
        await self.run(self.local.stop, name)

    async def start(self, name: str) -> None:
        """Start a replica that was stopped, once the former one has ended."""
        await self.run(self.local.start, name)

    async def sleep(self, seconds: float) -> None:
        """Let time pass at the replicas, for what goes on without a call."""
        await self.run(trio.sleep, seconds)


__all__ = ["AsyncioCluster", "BlockingCluster", "LocalCluster"]
