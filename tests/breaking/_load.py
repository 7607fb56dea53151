"""Open-loop load whose every call is remembered."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import trio

import tiedreq
from tests.breaking._history import Outcome
from tiedreq import Backup, Policy, Tied

TIED = Tied(backup=Backup(after=0.05))
_numbers = count(1)


class Load:
    """Calls of ``square`` at ``rate`` per second, sent whatever becomes of those before."""

    def __init__(
        self,
        client: tiedreq.Client,
        rate: float,
        *,
        policy: Policy = TIED,
        timeout: float = 5.0,
        nursery: trio.Nursery,
        **args: Any,
    ) -> None:
        self.client = client
        self.outcomes: list[Outcome] = []
        self.sent: list[int] = []
        self.over = trio.Event()
        self._rate = rate
        self._policy = policy
        self._timeout = timeout
        self._args = args
        self._generating = trio.CancelScope()
        nursery.start_soon(self._run)

    async def end(self) -> None:
        """Send no more and wait for every outcome."""
        self._generating.cancel()
        await self.over.wait()

    def answered_since(self, begin: float) -> dict[str, int]:
        """How many answers each replica gave to calls that were made after ``begin``."""
        found: dict[str, int] = {}
        for outcome in self.outcomes:
            if outcome.replica is not None and outcome.began >= begin:
                found[outcome.replica] = found.get(outcome.replica, 0) + 1
        return found

    async def answered_by(self, replica: str, begin: float) -> bool:
        """Whether it has answered a call that was made after ``begin``."""
        return replica in self.answered_since(begin)

    async def _run(self) -> None:
        rng, at = Random(1), trio.current_time()
        async with trio.open_nursery() as nursery:
            with self._generating:
                while True:
                    at += rng.expovariate(self._rate)
                    await trio.sleep_until(at)
                    number = next(_numbers)
                    self.sent.append(number)
                    nursery.start_soon(self._call, number)
        self.over.set()

    async def _call(self, number: int) -> None:
        began = trio.current_time()
        value = error = call_id = replica = None
        try:
            args = {"number": number, **self._args}
            reply = await self.client.request("square", args, policy=self._policy, timeout=self._timeout)
        except tiedreq.CallError as failure:
            error, call_id, attempts = type(failure).__name__, failure.call_id, failure.attempts
        else:
            value, call_id, replica, attempts = reply.value, reply.call_id, reply.replica, reply.attempts
        copies = tuple(attempt.replica for attempt in attempts)
        self.outcomes.append(Outcome(number, call_id, value, error, replica, began, trio.current_time(), copies))
