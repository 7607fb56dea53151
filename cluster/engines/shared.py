"""Several replicas in each child program, on one event loop: for many replicas on few cores.

Each replica has its own listener, links, core and slots, and real websockets to the others; they share a process, so
that one pass of its loop serves what has come for all of them. What belongs to the process they share as well: its
processor time, its memory, its pauses and its end. So nothing can stop or kill one of them alone.

The children speak the control messages of ``cluster.replica``, each in an envelope: ``{"to": NAME, "message": …}``,
``{"from": NAME, "message": …}`` and, once a replica has ended, ``{"from": NAME, "ended": CODE}``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from cluster.engines.base import ReplicaSpec
from cluster.engines.local import LocalEngine, Program, ending_in_words
from cluster.lines import BadLine

__all__ = ["SharedEngine"]

MODULE = "cluster.shared_replicas"
LAST_WORDS_SECONDS = 1.0


class Member:
    """One replica of a child program. See ``ReplicaProcess``."""

    def __init__(self, name: str, environment: Mapping[str, str], group: Group) -> None:
        self.name = name
        self.over = trio.Event()
        self.ending = ""
        self.heard, self._messages = trio.open_memory_channel[dict[str, Any]](math.inf)
        self.logged, self._log = trio.open_memory_channel[str](math.inf)
        self._environment = environment
        self._group = group

    @property
    def pid(self) -> int:
        """That of the program."""
        return self._group.program.pid

    async def send(self, message: Mapping[str, Any]) -> bool:
        """See ``ReplicaProcess``. What it is to be comes with its environment."""
        if self.over.is_set():
            return False
        if message["do"] == "serve":
            message = {**message, "environment": dict(self._environment)}
        return await self._group.program.send({"to": self.name, "message": message})

    def messages(self) -> AsyncIterator[dict[str, Any]]:
        """See ``ReplicaProcess``."""
        return self._messages

    def log(self) -> AsyncIterator[str]:
        """What the program logs comes under the name of its first replica that lives."""
        return self._log

    def freeze(self) -> None:
        """Stop the program, and so all of its replicas."""
        self._group.program.freeze()

    def thaw(self) -> None:
        """Let the program go on."""
        self._group.program.thaw()

    async def ended(self) -> str:
        """See ``ReplicaProcess``."""
        await self.over.wait()
        return self.ending

    def end(self, ending: str) -> None:
        """It has ended, in these words; nothing more comes of it."""
        if not self.over.is_set():
            self.ending = ending
            self.heard.close()
            self.logged.close()
            self.over.set()

    def kill(self) -> None:
        """See ``ReplicaProcess``. One that has not ended takes the whole program with it."""
        self._group.leave(self)


class Group:
    """A child program and its replicas."""

    def __init__(self) -> None:
        self.program = Program(MODULE, {})
        self.members: dict[str, Member] = {}
        self.over = False

    def leave(self, member: Member) -> None:
        """End the program unless it has others that go on."""
        if not member.over.is_set() or all(other.over.is_set() for other in self.members.values()):
            self.over = True
            self.program.kill()

    async def run(self) -> None:
        """Hand on what the program says, until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._limit_last_words, nursery.cancel_scope)
            async with trio.open_nursery() as readers:
                readers.start_soon(self._read_log)
                readers.start_soon(self._read_messages)
            await self.program.ended()
            nursery.cancel_scope.cancel()
        reason = await self.program.ended()
        self.over = True
        self.program.kill()
        for member in self.members.values():
            member.end(reason)

    async def _limit_last_words(self, scope: trio.CancelScope) -> None:
        """What it has started may hold its pipes open."""
        await self.program.ended()
        self.over = True
        await trio.sleep(LAST_WORDS_SECONDS)
        scope.cancel()

    async def _read_log(self) -> None:
        async for line in self.program.log():
            for member in self.members.values():
                if not member.over.is_set():
                    member.logged.send_nowait(line)
                    break

    async def _read_messages(self) -> None:
        try:
            async for envelope in self.program.messages():
                member = self.members[envelope["from"]]
                if "ended" in envelope:
                    member.end(ending_in_words(envelope["ended"]))
                elif not member.over.is_set():
                    member.heard.send_nowait(envelope["message"])
        except BadLine as error:
            for member in self.members.values():
                member.end(f"its program spoke nonsense on its control pipe: {error}")
            self.program.kill()


class SharedEngine:
    """Replicas share ``processes`` child programs of this host, by turns. See ``Engine``.

    A program that has ended is not started again: its replicas are started together in another one.
    """

    start_seconds = LocalEngine.start_seconds

    def __init__(self, processes: int) -> None:
        self._groups: list[Group | None] = [None] * processes
        self._places: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self, note: Callable[[str], None]) -> AsyncIterator[None]:
        """See ``Engine``."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                for group in self._groups:
                    if group is not None:
                        group.program.kill()
                nursery.cancel_scope.cancel()

    async def ready(self, cluster: str) -> str:
        """See ``Engine``."""
        return ""

    def start(self, spec: ReplicaSpec) -> Member:
        """See ``Engine``."""
        assert self._nursery is not None, "not running"
        place = self._places.setdefault(spec.name, len(self._places) % len(self._groups))
        group = self._groups[place]
        if group is None or group.over:
            group = self._groups[place] = Group()
            self._nursery.start_soon(group.run)
        member = group.members[spec.name] = Member(spec.name, spec.environment, group)
        return member
