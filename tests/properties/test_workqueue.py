"""The work queue against a plain list; and what it costs to take a copy out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests._effort import lines_run
from tiedreq.core.events import CallerConnected, PeerConnected, PeerStarted, SubmitReceived
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.messages import Submit
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import CopyId, CopyKind, CopyState, Identity, MethodInfo
from tiedreq.core.workqueue import WorkQueue

LIMITS = {"one": 1, "two": 2}
METHODS = ("free", "loose", *LIMITS)
LANES = ("", *LIMITS)
methods = st.sampled_from(METHODS)
clients = st.sampled_from([1, 1, 1, 2, 3])


def lane(method: str) -> str:
    return method if method in LIMITS else ""


class QueueMachine(RuleBasedStateMachine):
    """Everything that may be done to a queue, done to a list of (method, copy) as well."""

    queue_had_several = False

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[str] = WorkQueue(LIMITS)
        self.waiting: list[tuple[str, CopyId]] = []
        self.running: list[tuple[str, int]] = []
        self.number = 0
        self.lane_turns: list[tuple[str, int]] = []  # by lane, since copies of several clients wait
        self.turns: list[tuple[int, str]] = []

    def _new(self, client: int) -> CopyId:
        self.number += 1
        return CopyId(client, self.number, 0, -1)

    @rule(method=methods, client=clients)
    def push(self, method: str, client: int) -> None:
        copy = self._new(client)
        self.queue.push(method, copy, str(copy))
        self.waiting.append((method, copy))

    @rule(method=methods, client=clients)
    def push_front(self, method: str, client: int) -> None:
        copy = self._new(client)
        self.queue.push_front(method, copy, str(copy))
        self.waiting.insert(0, (method, copy))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        method, copy = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.remove(method, copy)

    def _may_run(self, method: str) -> bool:
        return method not in LIMITS or [name for name, _ in self.running].count(method) < LIMITS[method]

    def _share(self, slots: int, name: str) -> int:
        """Of all slots, or of those of the method of that name; 0 where there are more clients than slots."""
        clients = {client for method, client in self.running if name in ("", method)}
        return slots // len(clients | {copy.client for method, copy in self.waiting if name in ("", method)})

    @staticmethod
    def _out_of(turns: list[tuple[Any, Any]], one: tuple[Any, Any]) -> tuple[Any, Any]:
        turns.remove(one)
        return one

    def _best(
        self, name: str, able: list[tuple[str, CopyId]], slots: int, whole: int
    ) -> tuple[bool, tuple[str, CopyId]]:
        """Of one lane the copy that is next, and whether its client has its share."""
        mine = [one for one in able if lane(one[0]) == name]
        own = self._share(LIMITS[name], name) if name else whole
        counts = Counter(client for _, client in self.running)
        here = Counter(client for method, client in self.running if name in ("", method))
        below = [one for one in mine if counts[one[1].client] < max(1, whole) and here[one[1].client] < max(1, own)]
        if below and not (whole and own):
            return False, min(below, key=lambda one: self.lane_turns.index((name, one[1].client)))
        return not below, (below or mine)[0]

    @rule(fairly=st.booleans(), slots=st.integers(1, 6))
    def take(self, fairly: bool, slots: int) -> None:
        running = self.queue.running(slots)
        for method, client in self.running:
            running.add(method, client)
        taken = self.queue.take(running if fairly else None)
        able = [(method, copy) for method, copy in self.waiting if self._may_run(method)]
        if not able:
            assert taken is None
            return
        chosen = able[0]
        if fairly and self.queue_had_several:
            whole = self._share(slots, "")
            best = [self._best(name, able, slots, whole) for name in LANES if any(lane(one[0]) == name for one in able)]
            turns = [client for client, _ in self.turns]
            ranks = {one: (beyond, 0 if beyond or whole else turns.index(one[1].client)) for beyond, one in best}
            chosen = min(ranks, key=lambda one: (*ranks[one], self.waiting.index(one)))
            self.lane_turns.append(self._out_of(self.lane_turns, (lane(chosen[0]), chosen[1].client)))
            self.turns.append(self._out_of(self.turns, (chosen[1].client, "")))
        assert taken == str(chosen[1])
        self.waiting.remove(chosen)
        self.running.append((chosen[0], chosen[1].client))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.queue.release(self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))[0])

    @invariant()
    def several_clients_are_noticed(self) -> None:
        """Until the queue is empty again."""
        if not self.waiting:
            self.queue_had_several = False
        elif len({copy.client for _, copy in self.waiting}) > 1:
            self.queue_had_several = True
        self._take_turns()
        assert self.queue.several == self.queue_had_several

    def _take_turns(self) -> None:
        """Who waits and did not has the last turn; who waits no more has none."""
        waiting = dict.fromkeys((lane(method), copy.client) for method, copy in self.waiting)
        self.lane_turns = [one for one in self.lane_turns if one in waiting]
        self.lane_turns += [one for one in waiting if one not in self.lane_turns]
        clients = dict.fromkeys((client, "") for _, client in waiting)
        self.turns = [one for one in self.turns if one in clients]
        self.turns += [one for one in clients if one not in self.turns]

    @invariant()
    def same_length_and_order(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert list(self.queue) == [str(copy) for _, copy in self.waiting]

    @invariant()
    def same_heads(self) -> None:
        heads = [[str(copy) for method, copy in self.waiting if lane(method) == name][:1] for name in LANES]
        assert list(self.queue.heads()) == [head for found in heads for head in found]


TestQueue = QueueMachine.TestCase


class Counted(CopyId):
    """A copy's identity that counts how often anybody looks at one."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def effort(action: Callable[[], object]) -> tuple[int, int]:
    """How many lines of Python ran and how often a copy's identity was looked at."""
    Counted.looks = 0
    return lines_run(action), Counted.looks


def test_what_leaves_the_queue_costs_the_same_whatever_its_length() -> None:
    def removal(length: int, method: str, place: int) -> tuple[int, int]:
        queue: WorkQueue[int] = WorkQueue(LIMITS)
        copies = [Counted(1, number, 0, -1) for number in range(length)]
        for copy in copies:
            queue.push(method, copy, copy.number)
        spent = effort(lambda: queue.remove(method, copies[place]))
        assert len(queue) == length - 1
        return spent

    for method in ("free", "one"):
        spent = {removal(length, method, place) for length in (10, 2_000) for place in (0, length // 2, length - 1)}
        assert len(spent) == 1 and min(spent) > (0, 0)


def test_dropping_a_copy_costs_the_same_whatever_the_queue_of_its_replica() -> None:
    def drop(length: int, place: int) -> tuple[int, int]:
        limits = ReplicaLimits(queue_length_max=5_000, copies_per_caller_max=5_000)
        here, peer = Identity("a", 1), Identity("b", 2)
        core = ReplicaCore(here, [HeldMethod(MethodInfo("work", True, True, 60.0), None)], slots=1, limits=limits)
        core.step(CallerConnected(1, 7), 0.0)
        core.step(PeerConnected(2, peer), 0.0)
        copies = [Counted(7, number, 0, 0) for number in range(length)]
        for copy in copies:
            given = (copy, CopyKind.FIRST, "work", b"", 10.0, (here, peer), True, False, False, None, ())
            core.step(SubmitReceived(1, Submit(*given)), 0.0)
        news = PeerStarted(2, Counted(7, place, 0, 1), 10.0)
        spent = effort(lambda: core.step(news, 0.0))
        assert core.queue_length == length - 1 and core.copy_state(copies[place]) == CopyState.DROPPED
        return spent

    spent = {drop(length, place) for length in (10, 2_000) for place in (0, length // 2, length - 1)}
    assert len(spent) == 1 and min(spent) > (0, 0)
