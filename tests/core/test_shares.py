"""A client's share of a replica's slots, of a method's slots, and what passes it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests._effort import lines_run
from tiedreq.core.commands import ReplicaCommand, SendPeer, StartWork
from tiedreq.core.events import (
    Answer,
    CallerConnected,
    ClaimGranted,
    InputSettled,
    PeerConnected,
    SubmitReceived,
    WorkFinished,
)
from tiedreq.core.messages import Claim, Submit
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity, MethodInfo
from tiedreq.core.workqueue import WorkQueue

HERE, PEER = Identity("b", 1), Identity("a", 2)
FLOOD, MODEST = 7, 8


class Bench:
    """One replica, a peer of it, and two clients. ``work`` has no limit of its own, ``few`` has one of two."""

    def __init__(self, slots: int, *, stoppable: bool = True) -> None:
        methods = [
            HeldMethod(MethodInfo("work", True, stoppable, 60.0), None),
            HeldMethod(MethodInfo("few", True, stoppable, 60.0), 2),
        ]
        self.core = ReplicaCore(HERE, methods, slots=slots)
        self.core.step(CallerConnected(1, FLOOD), 0.0)
        self.core.step(CallerConnected(2, MODEST), 0.0)
        self.core.step(PeerConnected(3, PEER), 0.0)
        self.running: list[CopyId] = []
        self.peer: list[object] = []
        self._number = 0
        self._links = {FLOOD: 1, MODEST: 2}

    def submit(self, client: int, method: str = "work", *, rank: int = UNTIED, exclusive: bool = False) -> CopyId:
        self._number += 1
        copy = CopyId(client, self._number, 0, rank)
        partners = () if rank == UNTIED else (HERE, PEER) if rank == 0 else (PEER, HERE)
        kind = CopyKind.FIRST if rank == UNTIED else CopyKind.TIE
        submit = Submit(copy, kind, method, b"", 30.0, partners, True, exclusive, False, None, ())
        self._see(self.core.step(SubmitReceived(self._links[client], submit), 0.0))
        return copy

    def connect(self, client: int) -> None:
        self.core.step(CallerConnected(client - FLOOD + 10, client), 0.0)
        self._links[client] = client - FLOOD + 10

    def settle(self) -> None:
        self._see(self.core.step(InputSettled(), 0.0))

    def finish(self) -> CopyId:
        """The oldest execution ends, and what is next starts."""
        copy = self.running.pop(0)
        self._see(self.core.step(WorkFinished(copy, Answer(b"")), 0.0))
        self.settle()
        return copy

    def grant(self) -> None:
        for message in list(self.peer):
            if isinstance(message, Claim):
                self._see(self.core.step(ClaimGranted(3, message.copy), 0.0))

    def _see(self, commands: list[ReplicaCommand]) -> None:
        self.running += [command.submit.copy for command in commands if isinstance(command, StartWork)]
        self.peer += [command.message for command in commands if isinstance(command, SendPeer)]


def ended_before(bench: Bench, copy: CopyId) -> int:
    """How many executions end before this copy starts."""
    count = 0
    while copy not in bench.running:
        bench.finish()
        count += 1
    return count


@pytest.mark.parametrize("method", ["work", "few"])
def test_a_flood_makes_nobody_wait_whose_share_is_free(method: str) -> None:
    """Also one of a method that has fewer slots than the replica: its slots are shared out as well."""
    bench = Bench(8)
    for _ in range(200):
        bench.submit(FLOOD, method)
    bench.settle()
    copy = bench.submit(MODEST, method)
    assert ended_before(bench, copy) == 1


def test_who_has_a_share_of_a_method_may_have_more_of_the_others() -> None:
    bench = Bench(8)
    for _ in range(200):
        bench.submit(FLOOD, "few")
    bench.submit(MODEST, "few")
    for _ in range(4):
        bench.submit(FLOOD, "work")
    bench.settle()
    methods = Counter(bench.core._executions[copy].submit.method for copy in bench.running)
    assert methods == {"few": 2, "work": 4} and bench.core.free_slots == 2
    assert Counter(copy.client for copy in bench.running) == {FLOOD: 5, MODEST: 1}


@pytest.mark.parametrize("others", [0, 50])
def test_a_flood_of_granted_copies_makes_nobody_wait_either(others: int) -> None:
    """All of them are claimed as soon as a slot is free, and granted: they stand at the head of the queue."""
    bench = Bench(2)
    for _ in range(200):
        bench.submit(FLOOD, rank=1, exclusive=True)
    for _ in range(others):
        bench.submit(FLOOD)
    bench.settle()
    bench.grant()
    bench.settle()
    copy = bench.submit(MODEST)
    assert ended_before(bench, copy) == 1


def test_a_granted_copy_comes_before_the_others_of_its_client() -> None:
    bench = Bench(2)
    copy = bench.submit(FLOOD, rank=1, exclusive=True)
    for _ in range(50):
        bench.submit(FLOOD)
    for _ in range(50):
        bench.submit(MODEST)
    bench.settle()
    bench.grant()
    assert ended_before(bench, copy) <= 2


@pytest.mark.parametrize(("slots", "method"), [(1, "work"), (2, "work"), (8, "few")])
def test_more_clients_than_slots_take_turns(slots: int, method: str) -> None:
    """Nobody's share is a whole slot: who has just had one is not next again because its copies came first."""
    bench = Bench(slots)
    floods = [FLOOD, *range(MODEST + 1, MODEST + 2 + slots % 8)]
    for flood in floods[1:]:
        bench.connect(flood)
    for flood in floods:
        for _ in range(100):
            bench.submit(flood, method)
    bench.settle()
    for _ in range(4):
        copy = bench.submit(MODEST, method)
        assert ended_before(bench, copy) <= len(floods) + 1
    started = Counter(bench.finish().client for _ in range(10 * len(floods)))
    assert all(started[flood] >= 8 for flood in floods), "the others have their turns meanwhile"


def test_who_has_two_copies_out_takes_nobody_elses_turns() -> None:
    bench = Bench(1)
    for _ in range(100):
        bench.submit(FLOOD)
    bench.submit(MODEST)
    bench.submit(MODEST)
    bench.settle()
    ended: Counter[int] = Counter()
    for _ in range(40):
        client = bench.finish().client
        ended[client] += 1
        if client == MODEST:
            bench.submit(MODEST)
    assert ended.keys() == {FLOOD, MODEST} and min(ended.values()) >= 18


def test_clients_that_come_and_go_leave_nothing() -> None:
    bench = Bench(1)
    for _ in range(600):
        bench.submit(FLOOD)
    bench.settle()
    for client in range(1000, 1500):
        bench.connect(client)
        bench.submit(client)
        bench.finish()
    shares = bench.core._queue._shares
    waiting = {held.id.client for held in bench.core._queue}
    assert shares is not None and len(waiting) < 50
    assert shares._turns.keys() == shares._clients.keys() == shares._waiting[""].keys() == waiting


def test_a_choice_among_many_clients_costs_what_one_among_few_does() -> None:
    def spent(clients: int) -> int:
        queue: WorkQueue[int] = WorkQueue({})
        for number in range(3 * clients):
            queue.push("work", CopyId(number % clients, number, 0, UNTIED), number)
        running = queue.running(8)
        for client in range(7):
            running.add("work", client)
        taken: list[int | None] = []
        spent = lines_run(lambda: taken.append(queue.take(running)))
        assert taken == [7]
        return spent

    assert spent(10) == spent(1000)
