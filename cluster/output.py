"""What the launcher says: events on standard output, everything else on standard error, a live table on a terminal.

Invariants: nothing is on standard output before the ready line; an event is never lost, and a log line is lost only
when nobody reads (then their number is told); nobody who doesn't read stops the launcher: a thread for each of the two
outputs writes, and waits if it must.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from tiedreq.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

LOG_LINES_MAX = 2_000
CLOSE_SECONDS = 2.0
WIDTH_WITHOUT_TERMINAL = 140

Job = Callable[[], None]


class Writer:
    """A thread that does jobs one after the other. A job that finds its reader gone is skipped."""

    def __init__(self, name: str, waiting_max: int) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(waiting_max)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> bool:
        """Have the job done; False when too many wait already."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self, timeout: float) -> bool:
        """Wait until all is done; False when it could not be done in time."""
        try:
            self._jobs.put(None, timeout=timeout)
        except queue.Full:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except (OSError, ValueError):  # ValueError: the file is closed
                continue


class Output:
    """The launcher's two outputs. ``json_events``: one JSON object a line on standard output instead of words."""

    def __init__(self, *, json_events: bool = False, out: TextIO | None = None, error: TextIO | None = None) -> None:
        self._json = json_events
        self._out = sys.stdout if out is None else out
        self._error = sys.stderr if error is None else error
        self._events = Writer("standard output", 0)
        self._log = Writer("standard error", LOG_LINES_MAX)
        self._lost = 0
        self._console: Console | None = None
        self._live: Live | None = None

    @property
    def wants_table(self) -> bool:
        """True when a person looks at standard error, and events don't go to the same screen as JSON."""
        return self._error.isatty() and not (self._json and self._out.isatty())

    def event(self, event: dict[str, Any], *, try_line: str = "") -> None:
        """Report an event; ``try_line`` is what to paste after the ready line."""
        if self._json:
            self._print_out(json.dumps(event))
        elif event["event"] == "ready":
            self._print_out(ready_line(event))
            if try_line:
                self._print_out(f"try: {try_line}")
        elif event["event"] == "summary":
            self.show(lambda: _summary(event))
        else:
            self.note(in_words(event))

    def note(self, text: str) -> None:
        """A line of the launcher's own on standard error."""
        self._print_error(f"cluster.up: {text}")

    def raw(self, text: str) -> None:
        """Text for standard error as it is, such as a traceback."""
        self._print_error(text)

    def log(self, name: str, line: str) -> None:
        """A line that a child logged."""
        self._print_error(f"{name} | {line}")

    def show(self, render: Callable[[], RenderableType]) -> None:
        """Print what ``render`` makes on standard error."""
        self._log.put(lambda: self._rich().print(render()))

    def table(self, render: Callable[[], RenderableType]) -> None:
        """Show what ``render`` makes as the live table, in place of the one before."""
        self._log.put(lambda: self._update(render()))

    def close(self) -> bool:
        """End the table and write what waits; False when somebody doesn't read and it could not be done."""
        self._log.put(self._end_table)
        done = [writer.close(CLOSE_SECONDS) for writer in (self._events, self._log)]
        return all(done)

    def _print_out(self, line: str) -> None:
        def job() -> None:
            self._out.write(f"{line}\n")
            self._out.flush()

        self._events.put(job)

    def _print_error(self, text: str) -> None:
        lost = self._lost
        if not self._log.put(lambda: self._write_error(text, lost)):
            self._lost += 1
        elif lost:
            self._lost = 0

    def _write_error(self, text: str, lost: int) -> None:
        if lost:
            self._write_error(f"cluster.up: {lost} lines were not shown, nobody read them", 0)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        self._error.write(f"{text}\n")
        self._error.flush()

    # Everything below runs in the thread of standard error.

    def _rich(self) -> Console:
        if self._console is None:
            from rich.console import Console  # late: replicas start while it is imported

            width = None if self._error.isatty() else WIDTH_WITHOUT_TERMINAL
            self._console = Console(file=self._error, width=width, emoji=False)
        return self._console

    def _update(self, table: RenderableType) -> None:
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._rich(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def _end_table(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def ready_line(event: dict[str, Any]) -> str:
    """``ready 4 replicas, dashboard http://… state DIR``."""
    dashboard = f", dashboard {event['dashboard']}" if event["dashboard"] else ""
    return f"ready {event['replicas']} replicas{dashboard} state {event['state']}"


def in_words(event: dict[str, Any]) -> str:
    """An event as a line for people."""
    match event:
        case {"event": "replica_lost", "state": "failed"}:
            return f"{event['replica']} (process {event['pid']}) {event['reason']}: too often, it stays down"
        case {"event": "replica_lost"}:
            return f"{event['replica']} (process {event['pid']}) {event['reason']}: starting it again"
        case {"event": "replica_restarted"}:
            took = format_duration(round(event["seconds"], 3))
            return f"{event['replica']} is back at {event['url']} (process {event['pid']}) after {took}"
        case {"event": "replica_drained"}:
            return f"{event['replica']} (process {event['pid']}) has drained and stays down until it is restarted"
        case {"event": "replica_joined"}:
            return f"{event['replica']} joined at {event['url']} (process {event['pid']})"
        case {"event": "replica_left"}:
            return f"{event['replica']} (process {event['pid']}) has drained and left"
        case {"event": "stopped"}:
            return f"stopped: {event['reason']}"
    return json.dumps(event)


def _summary(event: dict[str, Any]) -> RenderableType:
    from cluster.table import summary_table

    return summary_table(event)
