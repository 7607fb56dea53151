"""The ring of packed records, and what a client keeps of calls."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe import clock
from tiedreq.observe.replica import ReplicaObserver
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


async def test_what_a_call_carries_is_not_kept(autojump_clock: Any) -> None:
    """However few calls there are, nothing large is held beyond the frame that ends its call."""
    service = tiedreq.Service("carrier")

    @service.method(idempotent=True)
    async def carry(ctx: tiedreq.Context, args: Any) -> Any:
        return args if isinstance(args, bytes) else bytes(args)

    async with LocalCluster(service, replicas=1) as client:
        assert client.observer is not None
        for args in (bytes(100_000), 100_000):
            await client.call("carry", args)
            assert not client.observer.fresh
        await client.call("carry", 10)
        assert len(client.observer.fresh) == 1
        assert client.observer.snapshot()["methods"][0]["calls"] == 3 and not client.observer.fresh


async def test_what_a_copy_carries_is_not_kept(autojump_clock: Any) -> None:
    """The same at the replica, where arguments are large; and what is held is digested within a quarter of a second."""
    service = tiedreq.Service("carrier")

    @service.method(idempotent=True)
    async def carry(ctx: tiedreq.Context, args: Any) -> None:
        pass

    cluster = LocalCluster(service, replicas=1)
    async with cluster as client:
        observer = cluster.handles["r0"]._server.observer
        assert observer is not None
        await client.call("carry", 1)
        await client.call("carry", bytes(100_000))
        assert not observer.retired and len(observer.ring) == 2
        await client.call("carry", bytes(100))
        assert len(observer.retired) == 1 and len(observer.ring) == 2
        await trio.sleep(0.3)
        assert not observer.retired and len(observer.ring) == 3
        await client.call("carry", 1)
        assert (await client.inquire("snapshot"))["r0"]["methods"]["carry"]["answered"] == 4, "what waits is counted"


async def test_notices_have_their_times_and_peers(autojump_clock: Any) -> None:
    """Also those that are not digested before their link is lost."""
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


async def test_a_cancelled_call_is_counted_without_a_frame(autojump_clock: Any) -> None:
    async with LocalCluster(make_service(), replicas=1) as client:
        with trio.move_on_after(0.1):
            await client.call("nap", 50.0)
        await trio.sleep(1.0)
        assert client.observer is not None and not client.observer.fresh
        assert client.observer.snapshot()["recent"][0]["outcome"] == "cancelled"
