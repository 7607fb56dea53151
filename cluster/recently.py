"""The calls of the last seconds, by method: what a dashboard shows while the traffic goes on.

Percentiles are exact over the samples that are kept, the latest ``SAMPLES_MAX`` of each method at most. Latencies
count from the intended sending. Not for the summary of a run (``cluster.histogram``), which forgets nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

WINDOW_SECONDS = 10.0
SAMPLES_MAX = 5_000
CURVE = (0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 100.0)
"""The percentiles of a latency curve."""


class _Call(NamedTuple):
    ended: float
    latency: float
    executions: int
    answered: bool


class Recently:
    """Takes each call as it ends."""

    def __init__(self) -> None:
        self._calls: dict[str, deque[_Call]] = {}

    def add(self, method: str, ended: float, latency: float, executions: int, answered: bool) -> None:
        """A call ended at ``ended`` (seconds, on any clock), of which so many copies are known to have started."""
        calls = self._calls.setdefault(method, deque(maxlen=SAMPLES_MAX))
        calls.append(_Call(ended, latency, executions, answered))

    def view(self, now: float) -> dict[str, Any]:
        """By method: ``calls``, ``errors``, ``duplicate_execution_rate`` and the ``curve``, pairs of percent and ms.

        A method without calls in the window is left out.
        """
        shown: dict[str, Any] = {}
        for method, calls in self._calls.items():
            while calls and calls[0].ended < now - WINDOW_SECONDS:
                calls.popleft()
            if calls:
                shown[method] = _view(calls)
        return shown


def _view(calls: deque[_Call]) -> dict[str, Any]:
    latencies = sorted(call.latency for call in calls)
    last = len(latencies) - 1
    return {
        "calls": len(calls),
        "errors": sum(not call.answered for call in calls),
        "duplicate_execution_rate": sum(call.executions > 1 for call in calls) / len(calls),
        "curve": [[percent, 1000 * latencies[round(percent / 100 * last)]] for percent in CURVE],
    }
