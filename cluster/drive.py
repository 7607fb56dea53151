"""Runs the traffic program beside the cluster and turns its report into the ``summary`` event.

The traffic has a process of its own, so that what it measures is not the launcher's own business. Not for the traffic
itself (``cluster.traffic``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from cluster.engines.local import Program
from cluster.output import Output
from cluster.summary import summary_event

STOP_SECONDS = 5.0

Executions = Callable[[], Awaitable[int]]


class TrafficDriver:
    """One run of traffic. ``message`` is its ``TrafficSpec``; ``executions`` counts handlers started so far.

    ``progress`` is its last report; ``ended`` is set when it has ended by itself or by ``stop``; ``failed`` says that
    it ended without a summary.
    """

    def __init__(self, message: dict[str, Any], output: Output, executions: Executions) -> None:
        self.progress: dict[str, Any] | None = None
        self.ended = trio.Event()
        self.failed = False
        self._message = message
        self._output = output
        self._executions = executions
        self._program: Program | None = None

    async def run(self) -> None:
        """Drive the traffic and report its summary. When this is cancelled, the program is ended at once."""
        before = await self._executions()
        program = self._program = Program("cluster.traffic", {})
        report: dict[str, Any] | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log, program)
                nursery.start_soon(program.send, self._message)
                async for message in program.messages():
                    if message.pop("event") == "progress":
                        self.progress = message
                    else:
                        report = message
                ending = await program.ended()
                nursery.cancel_scope.cancel()
        finally:
            program.kill()
        if report is None:
            self.failed = True
            self._output.note(f"traffic: {ending}")
        else:
            self._output.event(summary_event(report, await self._executions() - before))
        self.ended.set()

    async def stop(self) -> None:
        """Let calls under way end, see the summary out, and end the program."""
        with trio.move_on_after(STOP_SECONDS):
            if self._program is not None:
                await self._program.send({"do": "stop"})
                await self.ended.wait()

    async def _read_log(self, program: Program) -> None:
        async for line in program.log():
            self._output.log("traffic", line)
