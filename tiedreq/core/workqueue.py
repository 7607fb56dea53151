"""The queue in front of a replica's slots: first come, first served, with lanes for methods that have a limit.

Every copy waits in one lane; all copies of methods without a limit of their own share one. Pushing, removing and
taking the oldest cost the same whatever the length (on average, where something is made anew now and then). The length
is counted from the lanes themselves.

While copies of several clients wait, a client that runs as many as its share of the slots, or of a method's, lets
others pass, and more clients than slots take turns (``core.shares``). With one client that changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from tiedreq.core.shares import Running, Shares
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

    def remove(self, copy: CopyId) -> ItemT:
        """Take out an item. Raises ``KeyError`` when it is not there."""
        item = self.items.pop(copy)
        if len(self.order) > 2 * len(self.items) + STALE_MIN:
            self.order = deque(self.names())
        return item

    def names(self) -> list[CopyId]:
        """The names of all items, oldest first. (One that came, went, and came again has its first place.)"""
        items = self.items
        return list(dict.fromkeys(copy for copy in self.order if copy in items))


class WorkQueue(Generic[ItemT]):
    """First come, first served over lanes. ``limits`` maps a lane's name to how many of it may run at once.

    ``limited``: there are such lanes. ``shared`` is what waits in the lane of all other methods: for who has to know
    whether anything does, and can't afford a call for it.
    """

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = dict(limits)
        self._running = dict.fromkeys(self._limits, 0)
        self.limited = bool(limits)
        self._shared: Lane[ItemT] = Lane()
        self.shared = self._shared.items
        self._lanes = {"": self._shared}
        self._lanes.update((name, Lane()) for name in limits)
        self._places: dict[CopyId, int] = {}  # of what was put before all else; and of all, where there are lanes
        self._last = 0
        self._first = 0
        self._client = 0  # whose copies wait, as long as there are no shares
        self._shares: Shares | None = None

    def __len__(self) -> int:
        if self.limited:
            return sum(len(lane.items) for lane in self._lanes.values())
        return len(self._shared.items)

    def __bool__(self) -> bool:
        if self.limited:
            return any(lane.items for lane in self._lanes.values())
        return bool(self._shared.items)

    def __iter__(self) -> Iterator[ItemT]:
        """Everything that waits, oldest first."""
        waiting = [(copy, lane.items[copy]) for lane in self._lanes.values() for copy in lane.names()]
        if self.limited:
            waiting.sort(key=lambda entry: self._places[entry[0]])
        return iter([item for _, item in waiting])

    @property
    def several(self) -> bool:
        """True from when copies of more than one client wait until nothing does."""
        return self._shares is not None

    def _name(self, method: str) -> str:
        return method if method in self._limits else ""

    def _lane(self, method: str) -> Lane[ItemT]:
        return self._lanes[method] if method in self._limits else self._shared

    def push(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` at the end."""
        lane = self._shared
        if self.limited:
            lane = self._lane(method)
            self._last += 1
            self._places[copy] = self._last
        if self._shares is not None or copy[0] != self._client:
            self._share(method, copy)
        lane.items[copy] = item
        lane.order.append(copy)

    def push_front(self, method: str, copy: CopyId, item: ItemT) -> None:
        """Put ``item`` before everything that waits; but a client that has its share lets others pass all the same."""
        self._first -= 1
        self._places[copy] = self._first
        if self._shares is not None or copy[0] != self._client:
            self._share(method, copy)
        lane = self._lane(method)
        lane.items[copy] = item
        lane.order.appendleft(copy)

    def remove(self, method: str, copy: CopyId) -> None:
        """Take ``copy`` out wherever it stands. Raises ``KeyError`` when it is not waiting."""
        self._lane(method).remove(copy)
        if self._places or self._shares is not None:
            self._forget(self._name(method), copy)

    def _forget(self, name: str, copy: CopyId) -> None:
        self._places.pop(copy, None)
        if self._shares is not None:
            self._shares.remove(name, copy)
            if not self:
                self._shares = None

    def _share(self, method: str, copy: CopyId) -> None:
        """Enter a copy that comes; if it is the first of another client than all that wait, those too."""
        if self._shares is None:
            if not self:
                self._client = copy[0]
                return
            self._shares = Shares(self._lanes)
            for name, lane in self._lanes.items():
                for one in lane.names():
                    self._shares.add(name, one, self._place(one))
        self._shares.add(self._name(method), copy, self._place(copy))

    def _place(self, copy: CopyId) -> int:
        """Of a copy that has been put before all else, or among lanes, what it was given then; else the next one."""
        place = self._places.get(copy)
        if place is None:
            self._last += 1
            place = self._last
        return place

    def _open(self, name: str) -> bool:
        return name not in self._limits or self._running[name] < self._limits[name]

    def running(self, slots: int) -> Running:
        """For who calls ``take``, to count there what each client runs."""
        return Running(slots, self._limits)

    def take(self, running: Running | None = None) -> ItemT | None:
        """Take out the oldest item whose lane may run one more, and count it as running.

        With ``running``, what each client runs, that of a client which has its share lets others pass.
        """
        if not self.limited and self._shares is None:
            if not self._shared.items:
                return None
            if self._places:
                self._places.pop(self._shared.first(), None)
            return self._shared.take()
        heads = [(name, lane.first()) for name, lane in self._lanes.items() if lane.items and self._open(name)]
        chosen: tuple[str, CopyId] | None
        if self._shares is not None:
            chosen = self._shares.choose(heads, running)
        else:
            chosen = min(heads, key=lambda head: self._places[head[1]], default=None)
        if chosen is None:
            return None
        name, copy = chosen
        if name in self._running:
            self._running[name] += 1
        item = self._lanes[name].remove(copy)
        self._forget(name, copy)
        return item

    def snapshot(self) -> tuple[object, ...] | None:
        """What choices depend on beyond what waits and runs, as plain values; None while one client's copies wait."""
        return None if self._shares is None else self._shares.snapshot()

    def release(self, method: str) -> None:
        """An execution of ``method`` has ended."""
        if method in self._running:
            self._running[method] -= 1

    def heads(self) -> Iterator[ItemT]:
        """The oldest item of each lane."""
        for lane in self._lanes.values():
            if lane.items:
                yield lane.items[lane.first()]
