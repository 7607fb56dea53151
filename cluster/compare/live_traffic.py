"""The users of a live run: calls at the times of a Poisson process whatever the answers, and what became of each.

Latency counts from the intended time of a call, however late it was sent; ``lateness`` says how late that was. A call
is known by its number in the run, which every copy carries as its key. All times are Trio's, in seconds.

Common random numbers: arrivals and the service times of first executions come from the same streams as in a simulated
run, so that with the same seed they are the same there.

Not for what the replicas did (``live_journal``), and not for the counters of a window (``live``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import trio

from cluster.compare.cell import Cell
from cluster.compare.live_journal import KINDS
from cluster.compare.tally import Distribution, Tally
from tiedreq.errors import CallError, TiedreqError
from tiedreq.net.client import Client
from tiedreq.net.opencall import OpenCall
from tiedreq.reply import Attempt, Reply
from tiedreq.sim.world import stream

__all__ = ["NO_WAIT", "Target", "Traffic", "winner_code"]

NO_WAIT = 0.0005
"""Shorter waits in a queue are what a process takes to look at its input, and count as none."""

NOBODY = -1
IN_A_ROW = 8
"""So many calls that are due are sent before anything else has its turn."""


class Target(NamedTuple):
    """What is called. Calls of the laboratory's own method bring a service time instead of ``arguments``."""

    method: str
    arguments: Any = None
    is_own: bool = False


class Root:
    """A root call of a fan-out: it has its answer when all of its calls have."""

    __slots__ = ("failed", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.failed = False


class Traffic:
    """All calls of one run. It fills what a client can know of a tally.

    ``winners`` has, for each call by its number, who gave the answer that was taken (``winner_code``), or ``NOBODY``.
    Those of the calls from ``first_measured`` up to ``calls_made`` are measured.
    """

    def __init__(self, cell: Cell, seed: int, clients: list[Client], target: Target) -> None:
        self.tally = Tally()
        self.lateness = Distribution()
        self.winners: array[int] = array("i")
        self.first_measured = 0
        self.open_calls = 0
        self.window = (0.0, float("inf"))
        self._cell = cell
        self._clients = clients
        self._target = target
        self._arrivals = stream(seed, "arrivals")
        self._times = stream(seed, "service")
        self._replicas = {f"r{index}": index for index in range(cell.replicas)}
        self._calls_left = float("inf") if cell.calls is None else cell.calls
        self._idle = trio.Event()
        self._pending: dict[int, tuple[Client, OpenCall]] = {}
        self._failed: Exception | None = None

    @property
    def calls_made(self) -> int:
        """How many calls were made so far, measured or not."""
        return len(self.winners)

    async def make_calls(self, nursery: trio.Nursery, begin: float) -> None:
        """Make calls from ``begin`` on, the warm-up first, until the measured window ends; that closes it."""
        cell = self._cell
        opens = begin + cell.warmup
        closes = float("inf") if cell.duration is None else opens + cell.duration
        self.window = opens, closes
        if cell.workers:
            await self._closed_loop(nursery, begin)
        else:
            await self._open_loop(nursery, begin, closes)
        self.window = opens, min(closes, trio.current_time())

    async def ended(self) -> None:
        """Wait until every call has its outcome. Raises what went wrong when one was counted."""
        while self.open_calls and self._failed is None:
            self._idle = trio.Event()
            await self._idle.wait()
        self._check()

    # ---- arrivals ---------------------------------------------------------------------------------------------

    async def _open_loop(self, nursery: trio.Nursery, begin: float, closes: float) -> None:
        assert self._cell.rate is not None
        nursery.start_soon(self._cancel_pending)
        rate = self._cell.rate / self._cell.fan_out
        at, in_a_row = begin, 0
        while self._calls_left > 0 and (at := at + self._arrivals.expovariate(rate)) < closes:
            if at > trio.current_time():
                in_a_row = 0
                await trio.sleep_until(at)
            elif in_a_row >= IN_A_ROW:
                in_a_row = 0
                await trio.lowlevel.checkpoint()
            root = Root(self._cell.fan_out) if self._cell.fan_out > 1 else None
            self._check()
            for _ in range(self._cell.fan_out):
                self._begin(*self._next_call(at), at, root)
            in_a_row += self._cell.fan_out
        if self._calls_left > 0:
            await trio.sleep_until(closes)

    async def _cancel_pending(self) -> None:
        """End with all calls that have no outcome yet, when cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            pending, self._pending = self._pending, {}
            for client, call in pending.values():
                call.told = None
                client.cancel(call)

    async def _closed_loop(self, nursery: trio.Nursery, begin: float) -> None:
        await trio.sleep_until(begin)
        async with trio.open_nursery() as workers:
            for _ in range(self._cell.workers):
                workers.start_soon(self._work)

    async def _work(self) -> None:
        while self._calls_left > 0:
            now = trio.current_time()
            await self._call(*self._next_call(now), now, None)

    def _next_call(self, intended: float) -> tuple[int, bool, Any]:
        """The number of a call that is made now, whether it is measured, and its arguments."""
        number = self.calls_made
        self.winners.append(NOBODY)
        self.open_calls += 1
        opens, closes = self.window
        measured = opens <= intended < closes and self._calls_left > 0
        if measured:
            if not self.tally.calls:
                self.first_measured = number
            self._calls_left -= 1
            self.tally.calls += 1
            self.tally.offered += 1
        own = self._target.is_own
        return number, measured, self._cell.service.sample(self._times) if own else self._target.arguments

    # ---- calls ------------------------------------------------------------------------------------------------

    def _begin(self, number: int, measured: bool, arguments: Any, intended: float, root: Root | None) -> None:
        """Make a call for which no task waits: what a task for each costs is not what is measured."""
        client = self._clients[number % len(self._clients)]
        sent = trio.current_time()
        self.lateness.add(sent - intended)
        over = partial(self._over, number, measured, intended, sent, root)
        try:
            call = client.begin(self._target.method, arguments, timeout=self._cell.timeout, key=str(number))
        except TiedreqError as error:
            over(None, _attempts(error))
            return
        if call.outcome is None:
            self._pending[number] = client, call
            call.told = partial(self._told, number, call, over)
        else:
            self._told(number, call, over)

    def _told(self, number: int, call: OpenCall, over: Callable[[Reply | None, tuple[Attempt, ...]], None]) -> None:
        """A call has its outcome. What raises here is this program's fault, not the link's, which brought the news."""
        self._pending.pop(number, None)
        try:
            self._hear(call, over)
        except Exception as error:
            self._failed = error
            self._idle.set()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _hear(self, call: OpenCall, over: Callable[[Reply | None, tuple[Attempt, ...]], None]) -> None:
        try:
            call.check()
        except TiedreqError as error:
            over(None, _attempts(error))
        else:
            reply = call.reply(trio.current_time())
            over(reply, reply.attempts)

    async def _call(self, number: int, measured: bool, arguments: Any, intended: float, root: Root | None) -> None:
        client = self._clients[number % len(self._clients)]
        sent = trio.current_time()
        self.lateness.add(sent - intended)
        reply: Reply | None = None
        try:
            reply = await client.request(self._target.method, arguments, timeout=self._cell.timeout, key=str(number))
            attempts = reply.attempts
        except TiedreqError as error:
            attempts = _attempts(error)
        self._over(number, measured, intended, sent, root, reply, attempts)

    def _over(
        self,
        number: int,
        measured: bool,
        intended: float,
        sent: float,
        root: Root | None,
        reply: Reply | None,
        attempts: tuple[Attempt, ...],
    ) -> None:
        now = trio.current_time()
        self.open_calls -= 1
        if not self.open_calls:
            self._idle.set()
        if self.window[0] <= now < self.window[1]:
            self.tally.achieved += 1
        if reply is not None:
            self.winners[number] = winner_code(self._replicas[reply.replica], KINDS.index(reply.kind))
        if measured:
            self._count(reply, attempts, sent - intended)
            self._count_latency(root, now - intended, reply is not None)

    def _count(self, reply: Reply | None, attempts: tuple[Attempt, ...], late: float) -> None:
        tally = self.tally
        tally.backups_sent += sum(attempt.kind == "backup" for attempt in attempts)
        tally.ties += any(attempt.rank is not None for attempt in attempts)
        if reply is None:
            tally.errors += 1
            return
        tally.answered += 1
        tally.backups_won += reply.kind == "backup"
        waited = reply.queue_wait if reply.queue_wait > NO_WAIT else 0.0
        tally.queue_wait.add(waited)
        before = late + next(a.sent for a in attempts if a.end == "done" and a.replica == reply.replica)
        tally.wait.add(waited + (before if before > NO_WAIT else 0.0))

    def _count_latency(self, root: Root | None, latency: float, answered: bool) -> None:
        tally = self.tally
        if root is None:
            if answered:
                tally.latency.add(latency)
            return
        root.left -= 1
        root.failed |= not answered
        if answered:
            tally.sub_latency.add(latency)
        if root.left == 0 and not root.failed:
            tally.roots += 1
            tally.latency.add(latency)


def _attempts(error: TiedreqError) -> tuple[Attempt, ...]:
    return error.attempts if isinstance(error, CallError) else ()


def winner_code(replica: int, kind: int) -> int:
    """One number for the replica and the kind of the copy that won."""
    return replica * len(KINDS) + kind
