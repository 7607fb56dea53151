"""What one replica did in the last seconds: the difference of two of its snapshots.

A replica that was started again counts from 0, which its incarnation tells; the window then begins anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiedreq.observe.histogram import BOUNDS, quantile

WINDOW_SECONDS = 10.0
_NOTHING = [0] * (len(BOUNDS) + 1)


class MethodDelta(NamedTuple):
    """Of one method at one replica, over ``seconds``. ``service`` and ``wait`` are counts over histogram bounds."""

    seconds: float
    started: int
    ended: int
    busy: float
    wasted: float
    service_sum: float
    service: list[int]
    wait: list[int]

    @property
    def answered(self) -> int:
        """Executions that answered or failed."""
        return sum(self.service)

    def plus(self, other: MethodDelta) -> MethodDelta:
        """Both together, as of one replica; ``seconds`` is the longer time."""
        return MethodDelta(
            max(self.seconds, other.seconds),
            self.started + other.started,
            self.ended + other.ended,
            self.busy + other.busy,
            self.wasted + other.wasted,
            self.service_sum + other.service_sum,
            [one + two for one, two in zip(self.service, other.service, strict=True)],
            [one + two for one, two in zip(self.wait, other.wait, strict=True)],
        )

    @property
    def service_mean(self) -> float | None:
        """Mean service time in seconds; None without executions."""
        return self.service_sum / self.answered if self.answered else None

    def service_quantile(self, share: float) -> float | None:
        """A quantile of the service time in seconds."""
        return quantile(self.service, share)

    def wait_quantile(self, share: float) -> float | None:
        """A quantile of the wait in the queue in seconds."""
        return quantile(self.wait, share)


NO_DELTA = MethodDelta(0.0, 0, 0, 0.0, 0.0, 0.0, _NOTHING, _NOTHING)


class Window:
    """The snapshots of one replica over the last ``WINDOW_SECONDS``."""

    def __init__(self) -> None:
        self._snapshots: deque[Mapping[str, Any]] = deque()

    @property
    def latest(self) -> Mapping[str, Any] | None:
        """The last snapshot; None when nothing is known of the process of this moment."""
        return self._snapshots[-1] if self._snapshots else None

    def take(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take a snapshot, perhaps again the one before; None: the replica has none now."""
        if snapshot is None:
            self._snapshots.clear()
            return
        if self._snapshots and self._snapshots[-1]["incarnation"] != snapshot["incarnation"]:
            self._snapshots.clear()
        if not self._snapshots or snapshot["time"] > self._snapshots[-1]["time"]:
            self._snapshots.append(snapshot)
        while len(self._snapshots) > 2 and self._snapshots[1]["time"] <= snapshot["time"] - WINDOW_SECONDS:
            self._snapshots.popleft()

    def counted(self, name: str) -> float:
        """By how much a counter grew."""
        return float(self._last["counters"][name] - self._first["counters"][name]) if self._snapshots else 0.0

    @property
    def seconds(self) -> float:
        """How long the window is now."""
        return float(self._last["time"] - self._first["time"]) if self._snapshots else 0.0

    def methods(self) -> dict[str, MethodDelta]:
        """What was done, by method; methods that nobody ever called are left out."""
        if not self._snapshots:
            return {}
        before, now = self._first["methods"], self._last["methods"]
        return {name: self._delta(before[name], now[name]) for name in now if now[name]["started"] and name in before}

    def total(self) -> MethodDelta:
        """All methods together."""
        total = NO_DELTA
        for delta in self.methods().values():
            total = total.plus(delta)
        return total

    def _delta(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> MethodDelta:
        def ended(method: Mapping[str, Any]) -> int:
            return int(method["answered"] + method["failed"] + method["wasted"])

        def counts(which: str) -> list[int]:
            return [one - two for one, two in zip(now[which]["counts"], before[which]["counts"], strict=True)]

        return MethodDelta(
            self.seconds,
            now["started"] - before["started"],
            ended(now) - ended(before),
            now["busy_seconds"] - before["busy_seconds"],
            now["wasted_seconds"] - before["wasted_seconds"],
            now["service"]["sum"] - before["service"]["sum"],
            counts("service"),
            counts("queue_wait"),
        )

    @property
    def _first(self) -> Mapping[str, Any]:
        return self._snapshots[0]

    @property
    def _last(self) -> Mapping[str, Any]:
        return self._snapshots[-1]
