"""Small cases for the exhaustive search, each aimed at some rules: a broken core shows in seconds."""

from __future__ import annotations

from tests.exhaustive.case import STAGGERED, TIE, Case
from tiedreq.core.policy import Backup, Hedged, Tied

SECONDS_MAX = 20.0
EXCLUSIVE = Tied(stagger=0.0, backup=None, exclusive=True)
EXCLUSIVE_THREE = Tied(stagger=0.0, backup=None, exclusive=True, copies=3)
WITH_BACKUP = Tied(stagger=0.0, backup=Backup(after=1.0))
LOSSES = ("crash", "cut", "drain")

CARELESS = ("careless",)
"""Cases in which replicas say that the method may not run twice, and the caller does not care."""

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("tied"),
        Case("given up", faults=1, kinds=("cancel", "deadline", "expire")),
        Case("staggered", policies=(STAGGERED,)),
        Case("staggered, full", faults=1, kinds=("fill",), busy=True, queue_max=1, policies=(STAGGERED,)),
        Case("staggered, cut", faults=1, kinds=("cut", "crash"), policies=(STAGGERED,)),
        Case("turned down", faults=1, kinds=("unacceptable", "raise")),
        Case("busy, drained", faults=1, kinds=("drain",), busy=True),
        Case("busy, full", faults=1, kinds=("fill",), busy=True, queue_max=1),
        Case("threads", stoppable=False, busy=True),
        Case("markers that go", faults=1, kinds=("evict", "age"), markers_max=1),
        Case("a liar", faults=1, kinds=("forge",)),
        Case("repeated", faults=1, kinds=("repeat",)),
        Case("a link cut", faults=1, kinds=("cut",)),
        Case("a link cut, late letters", faults=1, kinds=("cut",), late=True, rounds_max=1),
        Case("backup, rank 0 frozen", faults=1, kinds=("freeze",), policies=(WITH_BACKUP,), replicas=3),
        Case("backup", policies=(WITH_BACKUP,), replicas=3),
        Case("threads that can be stopped", stoppable=False, becomes_stoppable=True),
        Case("may not run twice", faults=1, kinds=LOSSES, idempotent=False),
        Case("careless", policies=(TIE,)),
        Case("a stream", stream=1),
        Case("exclusive", policies=(EXCLUSIVE,)),
        Case("exclusive, three", policies=(EXCLUSIVE_THREE,), replicas=3, busy=True),
        Case("exclusive, a loss", faults=1, kinds=LOSSES, policies=(EXCLUSIVE,)),
        Case("hedged, a loss", faults=1, kinds=LOSSES, policies=(Hedged(Backup(after=1.0, since="send")),)),
    )
}
