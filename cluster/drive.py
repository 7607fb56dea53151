"""Runs the traffic program beside the cluster and turns its report into the ``summary`` event.

The traffic has a process of its own, so that what it measures is not the launcher's own business. It begins with the
cluster, or when somebody first asks for it, and its load can be changed while it runs. Not for the traffic itself
(``cluster.traffic``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

import trio

from cluster.engines.local import Program
from cluster.load import Load, TrafficSpec
from cluster.output import Output
from cluster.refusal import ControlRefused
from cluster.summary import summary_event

STOP_SECONDS = 5.0

Executions = Callable[[], Awaitable[int]]


class TrafficDriver:
    """The traffic of a cluster, one run at a time. ``executions`` counts handlers started so far.

    ``begin``: it begins at once, and is over when it ends; otherwise it begins when somebody asks for it, as often as
    need be. ``load`` is what is driven, or would be; ``progress`` the program's last report, ``client`` what its client
    last said of itself. ``ended`` is set when it is over; ``failed`` says that it ended without a summary.
    """

    def __init__(self, spec: TrafficSpec, output: Output, executions: Executions, *, begin: bool) -> None:
        self.load = spec.load
        self.progress: dict[str, Any] | None = None
        self.client: dict[str, Any] | None = None
        self.ended = trio.Event()
        self.failed = False
        self._spec = spec
        self._once = begin
        self._races: list[dict[str, Any]] = []
        self._races_asked = False
        self._output = output
        self._executions = executions
        self._program: Program | None = None
        self._asked = trio.Event()
        if begin:
            self._asked.set()

    @property
    def running(self) -> bool:
        """True while its program runs."""
        return self._program is not None

    async def run(self) -> None:
        """Drive the traffic when it is asked for. When this is cancelled, the program is ended at once."""
        while not self.ended.is_set():
            await self._asked.wait()
            if not self._once and self.load.rate <= 0:
                self._asked = trio.Event()
                continue
            await self._run()
            if self._once:
                self.ended.set()

    async def _run(self) -> None:
        """One run, and the report of its summary."""
        before = await self._executions()
        program = self._program = Program("cluster.traffic", {})
        report: dict[str, Any] | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log, program)
                nursery.start_soon(self._tell, program)
                async for message in program.messages():
                    report = self._take(message) or report
                ending = await program.ended()
                nursery.cancel_scope.cancel()
        finally:
            program.kill()
            self._program = self.progress = self.client = None
        if report is not None:
            self._output.event(summary_event(report, await self._executions() - before))
        else:
            self.failed = True
            self._output.note(f"traffic: {ending}")

    def _take(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """One message; what it says if it is the last report."""
        match message.pop("event"):
            case "progress":
                self.progress = message
            case "client":
                self.client = message
            case "races":
                self._races = message["races"]
            case _:
                return message
        return None

    def adjust(self, load: Load) -> None:
        """Drive this load from now on; traffic that does not run begins. Raises ``ControlRefused`` when it is over."""
        if self.ended.is_set():
            raise ControlRefused("the traffic is over; it begins again only with the cluster")
        self.load = load
        if self._program is not None or load.rate > 0:
            self._asked.set()

    def ask_for_races(self) -> None:
        """Have the program look up the timelines of some calls that it has just made."""
        if self._program is not None:
            self._races_asked = True
            self._asked.set()

    def take_races(self) -> list[dict[str, Any]]:
        """The timelines that have come since the last time, each as ``cluster.racing`` makes it."""
        races, self._races = self._races, []
        return races

    async def stop(self) -> None:
        """Let calls under way end, see the summary out, and end the program."""
        self._once = True
        with trio.move_on_after(STOP_SECONDS):
            if self._program is not None:
                await self._program.send({"do": "stop"})
                await self.ended.wait()

    async def _tell(self, program: Program) -> None:
        """The first message, and one more whenever the load was changed."""
        told = self.load
        await program.send(replace(self._spec, load=told).message())
        while True:
            self._asked = trio.Event()
            if self.load == told and not self._races_asked:
                await self._asked.wait()
            if self._races_asked:
                self._races_asked = False
                await program.send({"do": "races"})
            if self.load != told:
                told = self.load
                await program.send({"do": "adjust", "load": asdict(told)})

    async def _read_log(self, program: Program) -> None:
        async for line in program.log():
            self._output.log("traffic", line)
