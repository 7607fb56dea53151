"""The queue in front of a replica's slots: first come, first served, with lanes for methods that have a limit.

Every copy waits in one lane; all copies of methods without a limit of their own share one. Pushing, removing and
taking the oldest cost the same whatever the length. The length is counted from the lanes themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from tiedreq.core.types import CopyId

ItemT = TypeVar("ItemT")


class WorkQueue(Generic[ItemT]):
    """First come, first served over lanes. ``limits`` maps a lane's name to how many of it may run at once."""

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = dict(limits)
        self._running = dict.fromkeys(self._limits, 0)
        self._limited = bool(limits)
        self._shared: OrderedDict[CopyId, tuple[int, ItemT]] = OrderedDict()
        self._lanes = {"": self._shared}
        self._lanes.update((name, OrderedDict()) for name in limits)
        self._sequence = 0
        self._first = 0

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values())) if self._limits else len(self._shared)

    def __bool__(self) -> bool:
        return any(self._lanes.values()) if self._limited else bool(self._shared)

    def __iter__(self) -> Iterator[ItemT]:
        """Everything that waits, oldest first."""
        waiting = [entry for lane in self._lanes.values() for entry in lane.values()]
        waiting.sort(key=lambda entry: entry[0])
        return iter([item for _, item in waiting])

    def _lane(self, method: str) -> OrderedDict[CopyId, tuple[int, ItemT]]:
        return self._lanes[method] if method in self._limits else self._shared

    def push(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` at the end."""
        self._sequence += 1
        self._lane(method)[copy] = (self._sequence, item)

    def push_front(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` before everything that waits."""
        self._first -= 1
        lane = self._lane(method)
        lane[copy] = (self._first, item)
        lane.move_to_end(copy, last=False)

    def remove(self, method: str, copy: CopyId) -> None:
        """Take ``copy`` out wherever it stands. Raises ``KeyError`` when it is not waiting."""
        del self._lane(method)[copy]

    def _open(self, name: str) -> bool:
        return name not in self._limits or self._running[name] < self._limits[name]

    def take(self) -> ItemT | None:
        """Take out the oldest item whose lane may run one more, and count it as running."""
        if not self._limits:
            return self._shared.popitem(last=False)[1][1] if self._shared else None
        best = None
        best_name = ""
        for name, lane in self._lanes.items():
            if lane and self._open(name):
                copy = next(iter(lane))
                if best is None or lane[copy][0] < best:
                    best, best_name = lane[copy][0], name
        if best is None:
            return None
        if best_name in self._running:
            self._running[best_name] += 1
        return self._lanes[best_name].popitem(last=False)[1][1]

    def release(self, method: str) -> None:
        """An execution of ``method`` has ended."""
        if method in self._running:
            self._running[method] -= 1

    def heads(self) -> Iterator[ItemT]:
        """The oldest item of each lane."""
        for lane in self._lanes.values():
            if lane:
                yield next(iter(lane.values()))[1]
