"""The queue in front of a replica's slots: first come, first served, with lanes for methods that have a limit.

Every copy waits in one lane; all copies of methods without a limit of their own share one. Pushing, removing and
taking the oldest cost the same whatever the length (on average, where something is made anew now and then). The length
is counted from the lanes themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from tiedreq.core.types import CopyId

ItemT = TypeVar("ItemT")
STALE_MIN = 64
"""So many places of removed items may be left in a lane, whatever its length."""


class Lane(Generic[ItemT]):
    """Items in order. ``items`` is what waits; ``order`` has the names of all of it, and of what was removed since.

    Names that a lane has no item for are passed over, and swept out when they are more than half of all. So removing an
    item touches nothing but its own entry.
    """

    __slots__ = ("items", "order")

    def __init__(self) -> None:
        self.items: dict[CopyId, ItemT] = {}
        self.order: deque[CopyId] = deque()

    def first(self) -> CopyId:
        """The name of the oldest item. There must be one."""
        order, items = self.order, self.items
        while order[0] not in items:
            order.popleft()
        return order[0]

    def take(self) -> ItemT:
        """Take out the oldest item. There must be one."""
        order, items = self.order, self.items
        while (copy := order.popleft()) not in items:
            pass
        return items.pop(copy)

    def remove(self, copy: CopyId) -> None:
        """Take out an item. Raises ``KeyError`` when it is not there."""
        del self.items[copy]
        if len(self.order) > 2 * len(self.items) + STALE_MIN:
            self.order = deque(self.names())

    def names(self) -> list[CopyId]:
        """The names of all items, oldest first. (One that came, went, and came again has its first place.)"""
        items = self.items
        return list(dict.fromkeys(copy for copy in self.order if copy in items))


class WorkQueue(Generic[ItemT]):
    """First come, first served over lanes. ``limits`` maps a lane's name to how many of it may run at once."""

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = dict(limits)
        self._running = dict.fromkeys(self._limits, 0)
        self._limited = bool(limits)
        self._shared: Lane[ItemT] = Lane()
        self._lanes = {"": self._shared}
        self._lanes.update((name, Lane()) for name in limits)
        self._places: dict[CopyId, int] = {}  # where there are several lanes, what came first
        self._last = 0
        self._first = 0

    def __len__(self) -> int:
        if self._limited:
            return sum(len(lane.items) for lane in self._lanes.values())
        return len(self._shared.items)

    def __bool__(self) -> bool:
        if self._limited:
            return any(lane.items for lane in self._lanes.values())
        return bool(self._shared.items)

    def __iter__(self) -> Iterator[ItemT]:
        """Everything that waits, oldest first."""
        waiting = [(copy, lane.items[copy]) for lane in self._lanes.values() for copy in lane.names()]
        if self._limited:
            waiting.sort(key=lambda entry: self._places[entry[0]])
        return iter([item for _, item in waiting])

    def _lane(self, method: str) -> Lane[ItemT]:
        return self._lanes[method] if method in self._limits else self._shared

    def push(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` at the end."""
        lane = self._shared
        if self._limited:
            lane = self._lane(method)
            self._last += 1
            self._places[copy] = self._last
        lane.items[copy] = item
        lane.order.append(copy)

    def push_front(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` before everything that waits."""
        if self._limited:
            self._first -= 1
            self._places[copy] = self._first
        lane = self._lane(method)
        lane.items[copy] = item
        lane.order.appendleft(copy)

    def remove(self, method: str, copy: CopyId) -> None:
        """Take ``copy`` out wherever it stands. Raises ``KeyError`` when it is not waiting."""
        if self._limited:
            del self._places[copy]
        self._lane(method).remove(copy)

    def _open(self, name: str) -> bool:
        return name not in self._limits or self._running[name] < self._limits[name]

    def take(self) -> ItemT | None:
        """Take out the oldest item whose lane may run one more, and count it as running."""
        if not self._limited:
            return self._shared.take() if self._shared.items else None
        best = None
        best_name, best_place = "", 0
        for name, lane in self._lanes.items():
            if lane.items and self._open(name):
                copy = lane.first()
                if best is None or self._places[copy] < best_place:
                    best, best_name, best_place = copy, name, self._places[copy]
        if best is None:
            return None
        if best_name in self._running:
            self._running[best_name] += 1
        del self._places[best]
        return self._lanes[best_name].take()

    def release(self, method: str) -> None:
        """An execution of ``method`` has ended."""
        if method in self._running:
            self._running[method] -= 1

    def heads(self) -> Iterator[ItemT]:
        """The oldest item of each lane."""
        for lane in self._lanes.values():
            if lane.items:
                yield lane.items[lane.first()]
