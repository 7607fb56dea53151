"""The ring of packed records, and what a client keeps of calls."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest
import trio

import tiedreq
from tests.observe.services import make_service
from tiedreq.observe.ring import Ring
from tiedreq.testing import LocalCluster

NUMBER = Struct("<I")


def filled(length: int, count: int) -> Ring:
    ring = Ring(NUMBER.size, length)
    for number in range(count):
        NUMBER.pack_into(ring.block, ring.at, number)
        ring.at += ring.size
        if ring.at == len(ring.block):
            ring.at, ring.full = 0, True
    return ring


@pytest.mark.parametrize(("length", "count"), [(5, 0), (5, 3), (5, 5), (5, 6), (5, 13), (1, 3), (7, 70)])
def test_the_newest_records_stay_in_order(length: int, count: int) -> None:
    ring = filled(length, count)
    expected = list(range(max(0, count - length), count))
    assert [number for (number,) in ring.unpacked(NUMBER)] == expected
    assert len(ring) == len(expected) and len(ring.block) == length * NUMBER.size


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
