"""What replicas wrote down of a live run, joined to the calls of its clients.

Executions are counted exactly, by the numbers of their calls, once the run is over.
"""

from __future__ import annotations

from collections import Counter

from cluster.compare.live_journal import RETURNED, UNTIED, Execution
from cluster.compare.live_traffic import Traffic, winner_code
from cluster.compare.tally import Tally

__all__ = ["Join"]


class Join:
    """Counts executions into a tally, call by call. The clock of executions is ``apart`` seconds before Trio's."""

    def __init__(self, tally: Tally, traffic: Traffic, apart: float) -> None:
        self._tally = tally
        self._winners = traffic.winners
        self._measured = range(traffic.first_measured, traffic.first_measured + tally.calls)
        self._window = traffic.window[0] + apart, traffic.window[1] + apart
        self._starts: Counter[int] = Counter()
        self._tied_starts: Counter[int] = Counter()
        self._returned: Counter[int] = Counter()
        self._used: set[int] = set()

    def take(self, replica: int, execution: Execution) -> None:
        """Count one execution of the replica with this index."""
        tally, call, seconds = self._tally, execution.call, execution.seconds
        tally.window_busy_seconds += max(
            0.0, min(execution.ended, self._window[1]) - max(execution.begun, self._window[0])
        )
        if call not in self._measured:
            return
        tally.executions += 1
        tally.busy_seconds += seconds
        self._starts[call] += 1
        tally.duplicates += self._starts[call] == 2
        if execution.rank != UNTIED:
            self._tied_starts[call] += 1
            tally.double_starts += self._tied_starts[call] == 2
        returned = execution.how == RETURNED
        if returned:
            self._returned[call] += 1
            tally.completed_twice += self._returned[call] == 2
        if returned and self._winners[call] == winner_code(replica, execution.kind) and call not in self._used:
            self._used.add(call)
        else:
            tally.wasted_seconds += seconds
