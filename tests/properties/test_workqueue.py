"""The work queue against a plain list."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tiedreq.core.types import CopyId
from tiedreq.core.workqueue import WorkQueue

LIMITS = {"one": 1, "two": 2}
METHODS = ("free", "loose", *LIMITS)
LANES = ("", *LIMITS)
methods = st.sampled_from(METHODS)


def lane(method: str) -> str:
    return method if method in LIMITS else ""


class QueueMachine(RuleBasedStateMachine):
    """Everything that may be done to a queue, done to a list of (method, copy) as well."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[str] = WorkQueue(LIMITS)
        self.waiting: list[tuple[str, CopyId]] = []
        self.running: list[str] = []
        self.number = 0

    def _new(self) -> CopyId:
        self.number += 1
        return CopyId(1, self.number, 0, -1)

    @rule(method=methods)
    def push(self, method: str) -> None:
        copy = self._new()
        self.queue.push(method, copy, str(copy))
        self.waiting.append((method, copy))

    @rule(method=methods)
    def push_front(self, method: str) -> None:
        copy = self._new()
        self.queue.push_front(method, copy, str(copy))
        self.waiting.insert(0, (method, copy))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        method, copy = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.remove(method, copy)

    @rule()
    def take(self) -> None:
        taken = self.queue.take()
        for index, (method, copy) in enumerate(self.waiting):
            if method not in LIMITS or self.running.count(method) < LIMITS[method]:
                assert taken == str(copy)
                del self.waiting[index]
                self.running.append(method)
                return
        assert taken is None

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.queue.release(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @invariant()
    def same_length_and_order(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert list(self.queue) == [str(copy) for _, copy in self.waiting]

    @invariant()
    def same_heads(self) -> None:
        heads = [[str(copy) for method, copy in self.waiting if lane(method) == name][:1] for name in LANES]
        assert list(self.queue.heads()) == [head for found in heads for head in found]


TestQueue = QueueMachine.TestCase
