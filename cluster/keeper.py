"""Keeps one replica running: starts it, starts it again at its old address when it has ended, gives up in the end.

Invariants: at most one process of a replica exists at a time; when ``run`` has ended, however, none does. A replica
that ended ``DEATHS_MAX`` times within ``DEATHS_SECONDS`` and then once more stays down, as does one that was drained by
order, until it is ordered to start again; an ordered end is no death. Not for what concerns the cluster as a whole
(``cluster.supervisor``), and not for how a process is started (``cluster.engines``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import trio

from cluster.engines.base import Engine, ReplicaProcess, ReplicaSpec
from cluster.lines import BadLine
from cluster.refusal import ControlRefused

DEATHS_MAX = 3
DEATHS_SECONDS = 10.0
LAST_WORDS_SECONDS = 0.5
SILENT_SECONDS = 3.0
GRACE_SECONDS = 2.0
"""Beyond the drain time-out, for what comes after the handlers' end."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """Why a replica could not start: ``kind`` as in ``cluster.replica``, or ``died``, or ``state`` for the launcher."""

    kind: str
    story: str


class Owner(Protocol):
    """Who has the keepers, and hears from them. All methods are synchronous."""

    def came_up(self, keeper: Keeper) -> None:
        """The replica accepts calls."""

    def went_down(self, keeper: Keeper, pid: int, reason: str) -> None:
        """A replica that was up has ended, or could not be started again; ``keeper.state`` says what follows."""

    def left(self, keeper: Keeper) -> None:
        """A replica was drained by order and has ended; ``keeper.state`` says whether it is started again."""

    def never_came_up(self, keeper: Keeper, fatal: Fatal) -> None:
        """The replica could not be started in the first place, and is not tried again."""

    def said(self, keeper: Keeper, line: str) -> None:
        """A line of the replica's log."""

    def reported(self, keeper: Keeper) -> None:
        """A new ``keeper.status`` is there."""

    def present(self, spec: ReplicaSpec) -> ReplicaSpec:
        """``spec`` with what has changed since the replica was last started: peers, latency and the like."""


class Keeper:
    """One replica of the cluster, over all its processes.

    ``state`` is ``starting``, ``up``, ``draining``, ``drained``, ``failed`` or ``stopped``. ``url`` is known once it
    was up, and ``moved`` says that it is another than before; ``status`` and ``snapshot`` are its last report;
    ``frozen``: its process was stopped where it was.
    """

    def __init__(self, spec: ReplicaSpec, engine: Engine, owner: Owner) -> None:
        self.name = spec.name
        self.state = "starting"
        self.url: str | None = None
        self.observe_url: str | None = None
        self.moved = False
        self.pid = 0
        self.status: dict[str, Any] | None = None
        self.snapshot: dict[str, Any] | None = None
        self.gone = trio.Event()
        self.frozen = False
        self._spec = spec
        self._engine = engine
        self._owner = owner
        self._process: ReplicaProcess | None = None
        self._fatal: Fatal | None = None
        self._stopping = False
        self._then: str | None = None
        self._over = trio.Event()
        self._wanted = trio.Event()
        self._posts: dict[str, Mapping[str, Any]] = {}
        self._posted = trio.Event()
        self._deaths: deque[float] = deque()
        self._heard = 0.0
        self._executions_before = 0

    @property
    def executions(self) -> int:
        """How many handlers its processes have started, as far as they could tell."""
        return self._executions_before + (self.status["started"] if self.status else 0)

    @property
    def shown_state(self) -> str:
        """The state for people: ``silent`` when a running replica has not reported for some time."""
        if self.state == "up":
            silent = trio.current_time() - self._heard > SILENT_SECONDS
            return "paused" if self.frozen else "silent" if silent else "up"
        return self.state

    async def run(self) -> None:
        """Run one process after the other until told to stop, or until it is no use."""
        try:
            while True:
                reason = await self._live()
                if self._stopping:
                    self.state = "stopped"
                    return
                if self._then is not None:
                    self.state = self._then
                    self._owner.left(self)
                elif self.url is None:
                    self.state = "failed"
                    self._owner.never_came_up(self, self._fatal or Fatal("died", f"ended at its start: {reason}"))
                    return
                else:
                    self._count_death()
                    self._owner.went_down(self, self.pid, self._fatal.story if self._fatal else reason)
                if self.state != "starting":
                    await self._wanted.wait()
                    if self._stopping:
                        return
        finally:
            self.gone.set()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a control message to the process of this moment, if there is one."""
        if self._process is not None:
            await self._process.send(message)

    def post(self, message: Mapping[str, Any]) -> None:
        """Have a control message sent to the process of this moment, without waiting.

        It takes the place of one of the same kind that a frozen process has not read yet. A process that starts has
        its news from ``Owner.present``.
        """
        self._posts[message["do"]] = message
        self._posted.set()

    async def leave(self, timeout: float, *, again: bool) -> bool:
        """Drain the process and either start another or stay down; False when it had to be killed.

        Returns when it has ended. Raises ``ControlRefused`` for a replica that is not up.
        """
        self.must_be("up")
        over = self._over
        self._then, self.state = ("starting" if again else "drained"), "draining"
        with trio.move_on_after(timeout + GRACE_SECONDS):
            await self.send({"do": "drain"})
            await over.wait()
            return True
        if self._process is not None and not over.is_set():
            self._process.kill()
        await over.wait()
        return False

    def start_again(self) -> None:
        """Start one that was drained or has failed. Raises ``ControlRefused`` for any other."""
        self.must_be("drained", "failed")
        self._deaths.clear()
        self.state = "starting"
        self._wanted.set()

    def crash(self) -> None:
        """End its process as a crash would: another is started. Raises ``ControlRefused`` when there is none."""
        self.must_be("starting", "up", "draining")
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        """Stop its process where it is. Raises ``ControlRefused`` for a replica that is not up."""
        self.must_be("up")
        if self._process is not None:
            self._process.freeze()
            self.frozen = True

    def thaw(self) -> None:
        """Let its process go on, if it was stopped."""
        if self._process is not None and self.frozen:
            self._process.thaw()
            self._heard = trio.current_time()
        self.frozen = False

    def must_be(self, *states: str) -> None:
        """Raises ``ControlRefused`` for a replica in another state, or one that is frozen."""
        if self.frozen and states == ("up",):
            raise ControlRefused(f"{self.name} is paused: resume it first")
        if self.state not in states:
            raise ControlRefused(f"{self.name} is {self.state}, not {' or '.join(states)}")

    async def drain(self, timeout: float) -> bool:
        """End it: let it finish within ``timeout`` seconds if it is up; False when it had to be killed."""
        self._stopping = True
        self._wanted.set()
        self.thaw()
        willing = self.state in ("up", "draining")
        if willing:
            self.state = "draining"
            with trio.move_on_after(timeout + GRACE_SECONDS):
                await self.send({"do": "drain"})
                await self.gone.wait()
                return True
        self.kill()
        await self.gone.wait()
        return not willing

    def kill(self) -> None:
        """End its process at once; no other follows."""
        self._stopping = True
        self._wanted.set()
        if self._process is not None:
            self._process.kill()

    async def _live(self) -> str:
        """The life of one process; in words, how it ended."""
        self._fatal, self._then, self.frozen = None, None, False
        self._wanted, self._over = trio.Event(), trio.Event()
        if self._stopping:
            return "not wanted any more"
        spec = self._owner.present(self._spec)
        self._posts.clear()
        try:
            process = self._process = self._engine.start(spec)
        except OSError as error:
            return f"can't be started: {error.strerror}"
        self.pid = process.pid
        up, last_line, last_message = trio.Event(), trio.Event(), trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, process, spec)
                nursery.start_soon(self._read_log, process, last_line)
                nursery.start_soon(self._read_messages, process, up, last_message)
                nursery.start_soon(self._limit_start, process, up)
                reason = await process.ended()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await last_line.wait()
                    await last_message.wait()
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            self._process = None
            self.frozen = False
            self._over.set()
            self._executions_before, self.status, self.snapshot = self.executions, None, None
        return reason

    async def _tell(self, process: ReplicaProcess, spec: ReplicaSpec) -> None:
        await process.send(spec.message())
        while True:
            self._posted = trio.Event()
            while self._posts:
                await process.send(self._posts.pop(next(iter(self._posts))))
            await self._posted.wait()

    async def _read_log(self, process: ReplicaProcess, done: trio.Event) -> None:
        async for line in process.log():
            self._owner.said(self, line)
        done.set()

    async def _read_messages(self, process: ReplicaProcess, up: trio.Event, done: trio.Event) -> None:
        try:
            async for message in process.messages():
                self._take(message, up)
        except BadLine as error:
            self._fatal = Fatal("died", f"spoke nonsense on its control pipe: {error}")
            process.kill()
        done.set()

    def _take(self, message: dict[str, Any], up: trio.Event) -> None:
        match message:
            case {"event": "ready"}:
                self._heard = trio.current_time()
                self.moved = self.url not in (None, message["url"])
                self.url = message["url"]
                self.pid = message["pid"]
                self.observe_url = message.get("observe")
                self._spec = replace(self._spec, port=message["port"])
                self.state = "draining" if self._stopping else "up"
                up.set()
                self._owner.came_up(self)
            case {"event": "status"}:
                self._heard = trio.current_time()
                self.status = message["status"]
                self.snapshot = message["snapshot"] or self.snapshot
                self._owner.reported(self)
            case {"event": "fatal"}:
                self._fatal = Fatal(message["kind"], message["story"])

    async def _limit_start(self, process: ReplicaProcess, up: trio.Event) -> None:
        seconds = self._engine.start_seconds
        with trio.move_on_after(seconds):
            await up.wait()
            return
        self._fatal = Fatal("died", f"was not ready after {seconds:g} s")
        process.kill()

    def _count_death(self) -> None:
        now = trio.current_time()
        self._deaths.append(now)
        while now - self._deaths[0] > DEATHS_SECONDS:
            self._deaths.popleft()
        self.state = "failed" if len(self._deaths) > DEATHS_MAX else "starting"
