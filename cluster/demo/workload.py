"""Artificial work for experiments: it takes as long as a law says, longer at a slow replica, and stops in pauses.

A pause stops the whole replica, as a garbage collection does: all work in progress, however much of it, ends later by
the pause's length, and work that begins in a pause waits for its end. Pauses are drawn ahead from the seed, so an
execution knows its end when it begins and sleeps once; cancelling it ends it at once, in a pause too.

Only this work is stopped. Notices, heartbeats and the other methods go on, so a peer still hears that a copy started
(freezing a whole process is the business of signals, not of this module). Service times and pauses come from two
random streams: the same seed gives the same pauses under any load.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import trio

from tiedreq.laws import ServiceLaw
from tiedreq.slowness import PauseSchedule, PauseSpec


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What one execution took, in seconds: ``service`` in all, ``paused`` of it in pauses."""

    service: float
    paused: float


class Workload:
    """The artificial work of one replica. Make it inside Trio: the first pause's interval counts from then.

    ``stream`` names the replica's random streams together with ``seed``. ``law`` and ``slow_factor`` may be changed at
    any time, for the executions that begin from then on.
    """

    def __init__(self, law: ServiceLaw, *, slow_factor: float, pause: PauseSpec | None, seed: int, stream: str) -> None:
        self.law = law
        self.slow_factor = slow_factor
        self._times = Random(f"{seed}/{stream}/service")
        self._pause_times = Random(f"{seed}/{stream}/pause")
        self._pauses: PauseSchedule | None = None
        self.set_pause(pause)

    def set_pause(self, pause: PauseSpec | None) -> None:
        """From now on there are these pauses, or none, for the executions that begin from then on."""
        self._pauses = PauseSchedule(pause, self._pause_times, begin=trio.current_time()) if pause else None

    async def run(self, law: ServiceLaw, units: int, *, at_most: float) -> WorkDone:
        """Take ``units`` service times of ``law``, one after the other, and this replica's slowness.

        ``at_most`` (seconds) is how long anyone waits for it: longer work is not planned to its end.
        """
        begin = trio.current_time()
        work = self.slow_factor * sum(law.sample(self._times) for _ in range(units))
        work = max(0.0, min(work, at_most))
        end = begin + work if self._pauses is None else self._pauses.end_of(work, begin=begin)
        await trio.sleep_until(end)
        return WorkDone(service=end - begin, paused=end - begin - work)
