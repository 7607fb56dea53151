"""The ring of packed records, and what a client keeps of calls."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable
from enum import Enum
from functools import partial
from struct import Struct
from types import FunctionType, ModuleType
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import tiedreq
from tests.observe.services import make_service
from tiedreq.core.call import CallCore
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import CopyId
from tiedreq.observe import client as client_observer
from tiedreq.observe import clock
from tiedreq.observe.callring import CallRing
from tiedreq.observe.replica import BATCH, ReplicaObserver
from tiedreq.observe.ring import Ring
from tiedreq.observe.stories import parse_call_id
from tiedreq.testing import LocalCluster

PAIR = Struct("<BQ")
"""Of 9 bytes, so that what is looked for stands at any address."""


def filled(length: int, numbers: Iterable[int]) -> Ring:
    ring = Ring(PAIR.size, length)
    for number in numbers:
        PAIR.pack_into(ring.block, ring.at, number % 251, number)
        ring.at += ring.size
        if ring.at == len(ring.block):
            ring.at, ring.full = 0, True
    return ring


@pytest.mark.parametrize(("length", "count"), [(5, 0), (5, 3), (5, 5), (5, 6), (5, 13), (1, 3), (7, 70)])
def test_the_newest_records_stay(length: int, count: int) -> None:
    ring = filled(length, range(count))
    expected = list(range(max(0, count - length), count))
    found = [number for number in range(count) for _ in ring.matching(PAIR, 1, number.to_bytes(8, "little"))]
    assert found == expected
    assert ring.oldest(PAIR) == ((expected[0] % 251, expected[0]) if expected else None)
    assert len(ring) == len(expected) and len(ring.block) == length * PAIR.size


@given(st.lists(st.sampled_from([0, 1, 2, 256, 257, 2**8 + 2**16, 2**56 + 1]), max_size=30), st.integers(1, 12))
def test_what_is_found_is_what_looking_at_each_finds(numbers: list[int], length: int) -> None:
    """Also where the bytes that are looked for stand across two records, or at another place in one."""
    ring, kept = filled(length, numbers), numbers[max(0, len(numbers) - length) :]
    for wanted in set(numbers):
        found = list(ring.matching(PAIR, 1, wanted.to_bytes(8, "little")))
        assert found == [(number % 251, number) for number in kept if number == wanted]


def test_several_of_one_call_come_oldest_first() -> None:
    ring = Ring(PAIR.size, 4)
    for mark in range(6):
        PAIR.pack_into(ring.block, ring.at, mark, 7)
        ring.at += ring.size
        if ring.at == len(ring.block):
            ring.at, ring.full = 0, True
    assert [mark for mark, _ in ring.matching(PAIR, 1, (7).to_bytes(8, "little"))] == [2, 3, 4, 5]


@pytest.mark.parametrize("records", [1, 10, 64, 100, 16_384])
async def test_counts_are_exact_whatever_the_ring_holds(autojump_clock: Any, records: int) -> None:
    """Records are counted some at a time: none twice, and none is overwritten before."""
    service = make_service()
    cluster = LocalCluster(service, replicas=1, slots=3)
    async with cluster as client:
        server, seen = cluster.handles["r0"]._server, 0
        server.observer = ReplicaObserver(server, service, cluster="test", records=records)
        for burst in (1, 62, 2, 130, 64, 7):
            async with trio.open_nursery() as nursery:
                for _ in range(burst):
                    nursery.start_soon(client.call, "nap", 0.01)
            seen += burst
            if burst != 2:
                picture = cluster.handles["r0"].snapshot()
                assert picture is not None
                nap = picture["methods"]["nap"]
                assert (nap["started"], nap["answered"], nap["service"]["count"]) == (seen, seen, seen)
                assert nap["busy_seconds"] == pytest.approx(0.01 * seen) == nap["service"]["sum"]
                assert nap["queue_wait"]["count"] == seen and nap["wasted"] == 0
        with trio.move_on_after(0.005):
            await client.call("nap", 1.0)
        await trio.sleep(0.1)
        wasted = cluster.handles["r0"].snapshot()
    assert wasted is not None and wasted["methods"]["nap"]["wasted"] == 1
    assert wasted["methods"]["nap"]["wasted_seconds"] == pytest.approx(0.005, abs=1e-3)


class Thing:
    """What a user's own ``accept`` holds on to."""

    def accept(self, value: Any) -> bool:
        return len(value) > 0


def held_by(*roots: object) -> dict[int, object]:
    """All that these hold, directly or not, but for what a program has once: classes, functions, modules."""
    found: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) not in found and not isinstance(one, (type, ModuleType, FunctionType, Enum)):
            found[id(one)] = one
            waiting += gc.get_referents(one)
    return found


def size_of(held: dict[int, object]) -> int:
    return sum(sys.getsizeof(one) for one in held.values())


async def test_what_calls_carry_is_not_kept(autojump_clock: Any) -> None:
    """Neither arguments nor answers, nor what is the user's own. A few calls are held for a moment, but large ones."""
    service, things = tiedreq.Service("carrier"), [Thing() for _ in range(30)]

    @service.method(idempotent=True)
    async def carry(ctx: tiedreq.Context, args: Any) -> Any:
        return args

    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        seen = client.observer
        assert seen is not None
        observers = [seen, *(cluster.handles[name]._server.observer for name in cluster.names)]
        policy = tiedreq.Tied(backup=None, stagger=0.0)
        for number, thing in enumerate(things):
            args = {"secret": f"{number} of it" * 10 ** (number % 5)}
            await client.call("carry", args, policy=policy, accept=thing.accept, metadata={"secret": "of it"})
            assert len(seen.fresh) < client_observer.BATCH
            assert all(len(core.request.payload) <= client_observer.HEAVY_BYTES for core, *_ in seen.fresh)
        await client.call("carry", {"secret": "of it"})
        assert len(seen.fresh) == 1
        await trio.sleep(0.3)  # no longer than this
        outside = ("_server", "_client", "lag", "pauses", "scope")
        for observer in observers:
            kept = [value for name, value in vars(observer).items() if name not in outside]
            held = held_by(*kept).values()
            assert not any(isinstance(one, (Thing, CallCore, SentCopy, CopyId)) for one in held)
            texts = [one for one in held if isinstance(one, str)]
            assert "carry" in texts and not any("of it" in one or "secret" in one for one in texts)
            assert not any(isinstance(one, bytes) for one in held)


async def test_what_is_kept_is_bounded_in_bytes(autojump_clock: Any) -> None:
    """As docs/operating.md has it, of a client and of a replica; however many calls there are, it does not grow."""
    service = make_service()
    cluster = LocalCluster(service, replicas=2, slots=64)
    async with cluster as client:
        observer, server = client.observer, cluster.handles["r0"]._server
        assert observer is not None
        observer.calls = CallRing(100)
        server.observer = ReplicaObserver(server, service, cluster="test", records=200)
        sizes: list[tuple[int, int]] = []
        for _ in range(6):
            async with trio.open_nursery() as nursery:
                for _ in range(150):
                    nursery.start_soon(partial(client.tied_call, "nap", 0.001, policy=tiedreq.Tied(stagger=0.0)))
            assert len(server.observer.retired) + len(server.observer.notes) < BATCH
            await trio.sleep(0.3)
            server.observer.digest()
            assert not observer.fresh and not server.observer.retired and not server.observer.notes
            rings = server.observer.ring, server.observer.notices
            sizes.append((size_of(held_by(observer.calls)), size_of(held_by(*rings))))
        assert len(observer.calls.copies) == 200 and sizes[-1][0] - sizes[0][0] < 100, "it does not grow"
        assert sizes[0][0] <= 200 * 120 + 2_000 and sizes[0][1] <= 200 * 120 + 2_000


async def test_a_call_that_lost_a_copy_is_forgotten_as_a_whole(autojump_clock: Any) -> None:
    """Where calls have many copies the copies' ring is full before that of the calls is."""
    policy = tiedreq.Hedged(tiedreq.Backup(after=0.01, min_after=0.0, budget=None, max_per_call=8, since="send"))
    async with LocalCluster(make_service(), replicas=12) as client:
        assert client.observer is not None
        client.observer.calls = CallRing(5)
        ids = [(await client.request("nap", 1.0, policy=policy)).call_id for _ in range(4)]
        recent = client.observer.snapshot()["recent"]
        assert [call["call_id"] for call in recent] == ids[-1:] and len(recent[0]["copies"]) == 9
        found = [client.observer.find(call) for text in ids if (call := parse_call_id(text)) is not None]
        assert [one is None for one in found] == [True, True, True, False]


async def test_notices_have_their_times_and_peers(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not digested before their link is lost."""
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall)
    cluster = LocalCluster(make_service(), replicas=2, mesh_latency=0.01)
    async with cluster as client:
        await client.tied_call("nap", 0.001)  # the first records are digested one by one
        await trio.sleep(0.3)
        began = trio.current_time()
        reply = await client.request("nap", 0.1, policy=tiedreq.Tied(backup=None, stagger=0.0))
        said = cluster.handles[reply.replica]._server.observer
        other = next(name for name in cluster.names if name != reply.replica)
        assert said is not None
        cluster.stop(other)
        await trio.sleep(2.0)
        call = parse_call_id(reply.call_id)
        assert call is not None
        told = [event for event in said.story(call)["events"] if event["what"] == "notice sent"]
        assert {event["peer"] for event in told} == {other}
        assert told[0]["at"] - clock.offset() == pytest.approx(began, abs=0.02)


async def test_a_call_with_many_copies_is_kept_as_it_was(autojump_clock: Any) -> None:
    policy = tiedreq.Hedged(tiedreq.Backup(after=0.01, min_after=0.0, budget=None, max_per_call=8, since="send"))
    async with LocalCluster(make_service(), replicas=12) as client:
        reply = await client.request("nap", 1.0, policy=policy)
        assert client.observer is not None
        picture = client.observer.snapshot()
    (call,), (row,) = picture["recent"], picture["methods"]
    assert call["call_id"] == reply.call_id and len(call["copies"]) == len(reply.attempts) > 5
    assert row["copies"] == row["executions"] == len(reply.attempts) and row["duplicate_executions"] == 1
    for copy, attempt in zip(call["copies"], reply.attempts, strict=True):
        assert (copy["replica"], copy["kind"], copy["rank"]) == (attempt.replica, attempt.kind, attempt.rank)
        assert copy["sent"] == pytest.approx(attempt.sent) and copy["started"] == pytest.approx(attempt.started)
        assert (copy["ended"] is None) == (attempt.ended is None)
        assert copy["end"] == (attempt.end or "lost the race")


@pytest.mark.parametrize("count", [254, 255, 256, 1_000, 70_000])
async def test_a_call_of_very_many_copies_does_no_harm(autojump_clock: Any, count: int) -> None:
    """With ``rounds_max`` in the thousands a call can have them. It is kept as long as the ring has room for it."""
    async with LocalCluster(make_service(), replicas=2) as client:
        seen = client.observer
        assert seen is not None
        await client.call("nap", 0.001)
        ((core, *_),) = seen.fresh
        ((first, sent),) = core.copies.items()
        for serial in range(1, count):
            core.copies[first._replace(round=serial)] = sent
        call = core.request.id
        sent.round = count
        view = seen.find(call)
        assert seen.snapshot()["methods"][0]["copies"] == count
        await client.call("nap", 0.001)
        assert seen.snapshot()["recent"][-1]["outcome"] == "answered"
    assert (view is not None and len(view["copies"]) == count) == (count <= 2_000)


async def test_a_cancelled_call_is_counted_without_a_frame(autojump_clock: Any) -> None:
    async with LocalCluster(make_service(), replicas=1) as client:
        with trio.move_on_after(0.1):
            await client.call("nap", 50.0)
        await trio.sleep(1.0)
        assert client.observer is not None
        assert client.observer.snapshot()["recent"][0]["outcome"] == "cancelled"


async def test_each_failure_that_is_remembered_has_its_code(autojump_clock: Any) -> None:
    """Of calls with one copy the ring holds twice as many."""
    service = tiedreq.Service("refusing")

    @service.method(idempotent=True)
    async def refuse(ctx: tiedreq.Context, args: Any) -> None:
        raise tiedreq.Failure("never", "not today")

    async with LocalCluster(service, replicas=1) as client:
        assert client.observer is not None
        client.observer.calls = CallRing(5)
        for _ in range(15):
            with pytest.raises(tiedreq.RemoteFailure):
                await client.call("refuse")
        recent = client.observer.snapshot()["recent"]
    assert [(call["outcome"], call["code"]) for call in recent] == [("failed", "never")] * 10


async def test_large_details_of_a_failure_are_not_held(autojump_clock: Any) -> None:
    service = tiedreq.Service("refusing")

    @service.method(idempotent=True)
    async def refuse(ctx: tiedreq.Context, size: int) -> None:
        raise tiedreq.Failure("never", "not today", details="x" * size)

    async with LocalCluster(service, replicas=1) as client:
        assert client.observer is not None
        for size, held in ((100, 1), (client_observer.HEAVY_BYTES, 0)):
            with pytest.raises(tiedreq.RemoteFailure):
                await client.call("refuse", size)
            assert len(client.observer.fresh) == held


async def test_who_watches_can_not_keep_a_call_from_its_outcome(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalCluster(make_service(), replicas=2) as client:
        seen = client.observer
        assert seen is not None
        with monkeypatch.context() as broken:
            broken.setattr(seen.calls, "copies", None)
            for _ in range(client_observer.BATCH):
                assert await client.call("nap", 0.001, timeout=5.0) in {"r0", "r1"}
            assert not seen.fresh, "what could not be kept is not tried again"
        assert await client.call("nap", 0.001, timeout=5.0) in {"r0", "r1"}


async def test_what_a_replica_could_not_keep_is_not_tried_again(autojump_clock: Any) -> None:
    cluster = LocalCluster(make_service(), replicas=1)
    async with cluster as client:
        await client.call("nap", 0.001)
        observer = cluster.handles["r0"]._server.observer
        assert observer is not None
        observer.digest()
        ring, observer.ring = observer.ring, None  # type: ignore[assignment]
        observer.retired.append((1.0, 0.5, 0.6, "nap", 0, 0, 0, 1, 2, 0, -1))  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            observer.digest()
        assert not observer.retired and not observer.notes
        observer.ring = ring
        await client.call("nap", 0.001)
        assert client.observer is not None and client.observer.snapshot()["methods"][0]["calls"] == 2


async def test_a_client_that_is_closed_holds_nothing_of_its_last_calls(autojump_clock: Any) -> None:
    async with LocalCluster(make_service(), replicas=2) as client:
        seen = client.observer
        assert seen is not None
        for _ in range(3):
            await client.call("nap", 0.001)
        assert seen.fresh
    assert not seen.fresh and len(seen.calls.copies) >= 3
