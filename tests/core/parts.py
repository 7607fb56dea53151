"""What a ``Triangle`` is made of: methods, answers, a picker in order, messages under way, and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.core.invariants import UNSTOPPABLE
from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import CopyId, Identity, MethodInfo

ANSWER = e.Answer(b"answer")
BAD_ANSWER = e.Answer(b"unacceptable")
METHODS = (
    HeldMethod(MethodInfo("read", True, True, 60.0), None),
    HeldMethod(MethodInfo("scan", True, False, 60.0), None),
    HeldMethod(MethodInfo("charge", False, True, 60.0), None),
    HeldMethod(MethodInfo("lane", True, True, 60.0), 1),
)
assert {method.info.name for method in METHODS if not method.info.stoppable} == UNSTOPPABLE


class OrderedTable(ReplicaTable):
    """A table whose picker takes the replicas in a given order, so that a test says which replica has which rank."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.order = ""

    def choose(self, candidates: list[ReplicaView], now: float) -> ReplicaView | None:
        ranked = sorted(
            candidates,
            key=lambda view: (
                view.name not in self.order,
                self.order.index(view.name) if view.name in self.order else 0,
            ),
        )
        return ranked[0] if ranked else None


@dataclass(frozen=True)
class Flight:
    """A message on its way over one connection."""

    route: str
    link: int
    message: m.Message

    @property
    def copy(self) -> CopyId | None:
        copy = getattr(self.message, "copy", None)
        return copy if isinstance(copy, CopyId) else None


class Node:
    """A replica: its core, and what its driver knows."""

    def __init__(self, identity: Identity, core: ReplicaCore) -> None:
        self.identity = identity
        self.core = core
        self.frozen = False
        self.handlers: dict[CopyId, c.StartWork] = {}
        self.stopping: set[CopyId] = set()
        self.inbox: list[e.ReplicaEvent] = []
        self.links: dict[int, str] = {}
        self.partners: dict[int, Identity] = {}
        self.drained = False
