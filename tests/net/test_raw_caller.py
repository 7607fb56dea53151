"""A replica against a caller that does what no client does: each bad message costs that caller its link, at most."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service
from tests.net.raw import NONCE, RawLink, identities, raw_link, seat
from tiedreq import ReplicaLimits, Tied
from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import (
    Cancel,
    Draining,
    Ended,
    Failed,
    Granted,
    Message,
    Report,
    Result,
    Started,
    Submit,
)
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState, Identity, Load
from tiedreq.testing import LocalCluster
from tiedreq.wire.packing import packers

LOAD = Load(0, 1, 1, 0.0)


@asynccontextmanager
async def raw_caller(
    journal: Journal | None = None, *, replicas: int = 2, slots: int = 2, limits: ReplicaLimits | None = None
) -> AsyncIterator[tuple[RawLink, tiedreq.Client, LocalCluster]]:
    """A raw link to ``r0``; afterwards the cluster must serve everybody else, with nothing left."""
    cluster = LocalCluster(bench_service(journal), replicas=replicas, slots=slots, limits=limits)
    async with cluster as client:
        async with raw_link(seat(cluster), cluster.urls["r0"]) as raw:
            yield raw, client, cluster
        for _ in range(slots + 1):
            assert await client.tied_call("work", 0.1) in cluster.names
        await assert_idle(cluster, client)


def bystander(client: tiedreq.Client, found: list[str]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        found.append(await client.call("work", {"r0": 2.0, "else": 2.0}))

    return call


async def ended(raw: RawLink, number: int) -> Ended:
    await trio.sleep(1)
    (message,) = raw.of(Ended, number)
    assert isinstance(message, Ended)
    return message


async def test_the_plain_way(autojump_clock: MockClock) -> None:
    async with raw_caller() as (raw, _, _):
        raw.send(raw.submit(1, args=0.5))
        await trio.sleep(1)
        assert [type(message) for message in raw.messages if not isinstance(message, Report)] == [Started, Result]
        (result,) = raw.of(Result)
        assert result.service_time == pytest.approx(0.5)


async def test_what_may_not_run_twice_is_refused_again_at_the_replica(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with raw_caller(journal) as (raw, _, cluster):
        partners = identities(cluster, "r0", "r1")
        raw.send(
            raw.tied(1, 0, partners, method="once"),
            raw.tied(2, 0, partners, method="once", exclusive=True),
            raw.submit(3, "once", kind=CopyKind.BACKUP),
            raw.submit(4, "once", kind=CopyKind.TIE),
            raw.tied(5, 1, tuple(reversed(partners)), method="once", yield_=False),
        )
        await trio.sleep(1)
        causes = {number: raw.of(Ended, number)[0].cause for number in (1, 2, 3, 5)}
        assert set(causes.values()) == {Cause.NOT_IDEMPOTENT}
        assert {message.state for message in raw.of(Ended)} == {CopyState.REFUSED}
        assert [run.call.rpartition("-")[2] for run in journal.runs] in ([], ["4"]), "an untied copy is one copy"


async def test_unknown_methods_and_bad_payloads_are_answered(autojump_clock: MockClock) -> None:
    async with raw_caller() as (raw, _, _):
        raw.send(
            raw.submit(1, "nothing"),
            raw.submit(2, payload=b""),
            raw.submit(3, payload=b"\x91" * 100_000),
            raw.submit(4, payload=b"\xc1"),
            raw.submit(5, payload=packers.pack(1) + b"\x00"),
            raw.submit(6, payload=b"\xdd\xff\xff\xff\xff"),
            raw.submit(7, payload=b"\xd9\x02\xff\xff"),
            raw.submit(8, payload=b"\xc7\x0c\xff" + bytes(12)),
            raw.submit(9, payload=b"\x82\x01\x02\x01\x03"),
        )
        await trio.sleep(1)
        assert raw.of(Ended, 1)[0].cause is Cause.UNKNOWN_METHOD
        for number in range(2, 10):
            (failed,) = raw.of(Failed, number)
            assert (failed.code, failed.retryable) == ("bad_payload", False)
        assert not raw.downs


async def test_time_that_is_over_and_time_that_has_no_end(autojump_clock: MockClock) -> None:
    async with raw_caller() as (raw, _, cluster):
        raw.send(raw.submit(1, remaining=0.0), raw.submit(2, args=500.0, remaining=1e6))
        assert (await ended(raw, 1)).state is CopyState.EXPIRED
        await trio.sleep(60)
        assert raw.of(Ended, 2)[0].state is CopyState.EXPIRED, "the method's own limit holds"
        assert cluster.handles["r0"].status()["running"] == 0


BROKEN: dict[str, Callable[[RawLink, tuple[Identity, ...]], Message]] = {
    "another caller's copy": lambda raw, two: raw.submit(1, copy=CopyId(NONCE + 1, 1, 0, UNTIED)),
    "partners of an untied copy": lambda raw, two: raw.submit(1, partners=two),
    "a tie without partners": lambda raw, two: raw.submit(1, copy=raw.copy(1, 0, 0)),
    "a rank beyond the tie": lambda raw, two: raw.tied(1, 5, two),
    "the rank of another replica": lambda raw, two: raw.tied(1, 1, two),
    "another incarnation": lambda raw, two: raw.tied(1, 0, (Identity("r0", 5), two[1])),
    "one replica twice": lambda raw, two: raw.tied(1, 0, (two[0], two[0])),
    "one replica in two incarnations": lambda raw, two: raw.tied(1, 0, (two[0], Identity("r0", 5))),
    "a result": lambda raw, two: Result(raw.copy(1), b"\xc0", 0.0, 0.0, LOAD),
    "a failure": lambda raw, two: Failed(raw.copy(1), "x", "", b"", False, 0.0, 0.0, LOAD),
    "an end": lambda raw, two: Ended(raw.copy(1), CopyState.DROPPED, Cause.STARTED, 0.0, 0.0, LOAD),
    "a notice": lambda raw, two: Started(raw.copy(1, 0, 1), 1.0, None),
    "a grant": lambda raw, two: Granted(raw.copy(1, 0, 1)),
    "draining": lambda raw, two: Draining(),
    "a report": lambda raw, two: Report(()),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_rule_ends_that_link_alone(autojump_clock: MockClock, broken: str) -> None:
    journal = Journal()
    async with raw_caller(journal) as (raw, client, cluster), trio.open_nursery() as nursery:
        found: list[str] = []
        for _ in range(2):
            nursery.start_soon(bystander(client, found))
        raw.send(raw.submit(100, args=20.0), raw.submit(101, args=20.0), raw.submit(102, args=20.0))
        await trio.sleep(0.5)
        await raw.send_unchecked(raw.submit(103, args=20.0), BROKEN[broken](raw, identities(cluster, "r0", "r1")))
        await trio.sleep(1)
        assert [down.code for down in raw.downs] == ["protocol"] and raw.downs[0].by_peer
        gone = [run for run in journal.runs if run.call.startswith(f"{NONCE:016x}")]
        assert all(run.end == "cancelled" for run in gone), "what it had asked for is stopped"
        await trio.sleep(3)
        assert len(found) == 2, "the calls of others go on"


async def test_bytes_that_are_no_frame(autojump_clock: MockClock) -> None:
    frames = (
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x90",
        b"\x91\x91\xc7\x0c\xff" + bytes(12),
        packers.pack([[20, 1]]),
        bytes(300_000),
    )
    async with raw_caller() as (raw, client, _):
        for count, frame in enumerate(frames, 1):
            assert raw.transport is not None and raw.link is not None
            await raw.transport.send_frame(frame)
            await trio.sleep(5)
            assert [down.code for down in raw.downs] == ["protocol"] * count
            assert len(raw.ups) == count + 1, "an honest dialer comes back"
            assert await client.call("work", 0.01)


async def test_the_same_submit_again_changes_nothing(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with raw_caller(journal) as (raw, _, cluster):
        submit = raw.submit(1, args=1.0)
        raw.send(submit, submit)
        await trio.sleep(0.5)
        raw.send(submit)
        await trio.sleep(1)
        raw.send(submit)
        await trio.sleep(1)
        assert len(journal) == len(raw.of(Result)) == 1
        # A second copy of one tie at one replica is refused.
        partners = identities(cluster, "r0", "r1")
        raw.send(raw.tied(2, 0, partners, args=1.0), raw.tied(2, 1, tuple(reversed(partners)), args=1.0))
        await trio.sleep(2)
        assert len(journal) == 2
        assert raw.of(Ended, 2)[0].cause is Cause.DUPLICATE


async def test_cancels_that_come_early_late_and_for_nothing(autojump_clock: MockClock) -> None:
    journal = Journal()
    async with raw_caller(journal, slots=1) as (raw, _, cluster):
        raw.send(raw.cancel(1), raw.submit(1, args=5.0))
        assert (await ended(raw, 1)).state is CopyState.CANCELLED
        raw.send(raw.submit(2, args=5.0), raw.submit(3, args=5.0), raw.cancel(2), raw.cancel(3), raw.cancel(3))
        await trio.sleep(1)
        assert {raw.of(Ended, number)[0].state for number in (2, 3)} == {CopyState.CANCELLED}
        assert all(run.end == "cancelled" for run in journal.runs)
        raw.send(raw.submit(4))
        await trio.sleep(1)
        raw.send(raw.cancel(4), Cancel(CopyId(99, 99, 0, UNTIED)))
        await trio.sleep(1)
        assert len(raw.of(Result, 4)) == 1 and not raw.downs
        assert cluster.handles["r0"].status()["free"] == 1


async def test_early_cancels_are_bounded(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(cancel_markers_per_caller_max=100)
    async with raw_caller(limits=limits) as (raw, _, cluster):
        for number in range(1000):
            raw.send(raw.cancel(number))
        await trio.sleep(1)
        assert cluster.handles["r0"].sizes()["cancel_markers"] == 100
        raw.send(raw.submit(0), raw.submit(999))
        await trio.sleep(1)
        assert len(raw.of(Result, 0)) == 1, "evicted: the cancel is forgotten, the copy runs"
        assert raw.of(Ended, 999)[0].state is CopyState.CANCELLED


async def test_a_full_queue_refuses_with_a_hint(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(queue_length_max=5)
    async with raw_caller(slots=1, limits=limits) as (raw, _, cluster):
        for number in range(10):
            raw.send(raw.submit(number, args=1.0))
        await trio.sleep(0.5)
        refused = raw.of(Ended)
        assert {message.cause for message in refused} == {Cause.FULL}
        assert all(message.retry_after > 0 for message in refused)
        assert cluster.handles["r0"].sizes()["queue"] == 4
        await trio.sleep(10)
        assert len(raw.of(Result)) + len(refused) == 10


async def test_one_caller_may_not_hold_everything(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(copies_per_caller_max=3)
    async with raw_caller(slots=1, limits=limits) as (raw, client, _):
        raw.send(*[raw.submit(number, args=1.0) for number in range(6)])
        await trio.sleep(0.5)
        assert [message.cause for message in raw.of(Ended)] == [Cause.FULL] * 3
        assert await client.call("work", 0.1) in ("r0", "r1")
        await trio.sleep(5)


async def test_early_notices_are_bounded_and_go_with_their_peer(autojump_clock: MockClock) -> None:
    """B02: notices whose copies never come, from a peer that then dies."""
    limits = ReplicaLimits(markers_per_peer_max=1000, marker_age_max=5.0)
    cluster = LocalCluster(bench_service(), replicas=2, limits=limits)
    side = LinkSide("tiedreq", "replica", "a0", 99)
    async with cluster as client:
        handle = cluster.handles["r0"]
        async with raw_link(seat(cluster), cluster.urls["r0"], side=side) as peer:
            for start in range(0, 20_000, 500):
                peer.send(*[Started(CopyId(5, number, 0, 0), 60.0, None) for number in range(start, start + 500)])
                await trio.sleep(0.01)
            await trio.sleep(1)
            assert handle.sizes()["markers"] == 1000
            assert handle.status()["notices"] == 20_000
        await trio.sleep(1)
        assert handle.sizes()["markers"] == 0
        async with raw_link(seat(cluster), cluster.urls["r0"], side=side) as peer:
            peer.send(*[Started(CopyId(5, number, 0, 0), 60.0, None) for number in range(500)])
            await trio.sleep(4)
            assert handle.sizes()["markers"] == 500
            await trio.sleep(2)
            assert handle.sizes()["markers"] == 0, "no marker is older than its limit"
        assert await client.tied_call("work") in cluster.names
        await assert_idle(cluster, client)


async def test_a_notice_that_overtakes_its_copy_drops_it(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=1)
    side = LinkSide("tiedreq", "replica", "a0", 99)
    async with cluster:
        url, partners = cluster.urls["r0"], (Identity("a0", 99), *identities(cluster, "r0"))
        async with raw_link(seat(cluster), url, side=side) as peer, raw_link(seat(cluster), url) as caller:
            peer.send(Started(CopyId(NONCE, 1, 0, 0), 5.0, None), Started(CopyId(NONCE, 2, 0, 0), 5.0, None))
            await trio.sleep(0.1)
            caller.send(caller.tied(1, 1, partners))
            assert (await ended(caller, 1)).cause is Cause.STARTED
            # From a replica that the tie does not name, a notice says nothing.
            stranger = (Identity("b7", 1), partners[1])
            caller.send(caller.tied(2, 1, stranger))
            await trio.sleep(1)
            assert len(caller.of(Result, 2)) == len(journal) == 1


async def test_forged_notices_for_the_copies_of_others(autojump_clock: MockClock) -> None:
    """B42: only the partner that a copy names can drop it. (Nothing true is said here: the mesh is held.)"""
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2, slots=1, mesh_latency=0.001)
    policy = Tied(backup=None, stagger=0.0)
    side = LinkSide("tiedreq", "replica", "a0", 99)
    async with cluster as client, raw_link(seat(cluster), cluster.urls["r0"], side=side) as forger:
        cluster.network.partition(["r0"], ["r1"])
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(partial(client.tied_call, "work", 0.5, policy=policy))
            await trio.sleep(0.1)
            status = cluster.handles["r0"].status
            waiting = status()["queue"]
            assert waiting == 9
            for number in range(1, 11):
                for rank in (0, 1):
                    forger.send(Started(CopyId(client.nonce, number, 0, rank), 5.0, None))
            await trio.sleep(0.1)
            assert (status()["queue"], status()["dropped_by_peer"], status()["running"]) == (waiting, 0, 1)
        assert client.stats()["answered"] == 10 and client.stats()["failovers"] == 0
        cluster.network.heal()
        await assert_idle(cluster, client)


async def test_a_peer_that_sends_what_only_callers_send(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    side = LinkSide("tiedreq", "replica", "a0", 99)
    async with cluster as client, raw_link(seat(cluster), cluster.urls["r0"], side=side) as peer:
        peer.send(peer.submit(1))
        await trio.sleep(0.1)
        assert [down.code for down in peer.downs] == ["protocol"]
        assert await client.tied_call("work") in cluster.names


SIDES = {
    "another cluster": (LinkSide("other", "client", "raw", NONCE), "AuthRefused", "another cluster"),
    "a newer protocol": (LinkSide("tiedreq", "client", "raw", NONCE, 50, 60), "VersionMismatch", "50 to 60"),
    "its own name": (LinkSide("tiedreq", "replica", "r0", 5), "ConnectError", "r0"),
    "the wrong direction": (LinkSide("tiedreq", "replica", "z9", 5), "ConnectError", "lower name dials"),
}


@pytest.mark.parametrize("name", SIDES)
async def test_who_does_not_belong_is_told_why(autojump_clock: MockClock, name: str) -> None:
    side, kind, match = SIDES[name]
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        async with raw_link(seat(cluster), cluster.urls["r0"], side=side) as raw:
            assert type(raw.failures[0]).__name__ == kind and match in str(raw.failures[0])
            assert not raw.ups
        assert await client.call("work") in cluster.names
        await assert_idle(cluster, client)


async def test_a_bad_token_is_one_clear_error() -> None:
    service = bench_service()
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            await tiedreq.serve(service, name="a", token="right token", task_status=task_status)

        handle: tiedreq.ReplicaHandle = await nursery.start(serve)
        for token in ("wrong token", None):
            with pytest.raises(tiedreq.AuthRefused, match="token") as caught:
                async with tiedreq.connect([handle.url], token=token, timeout=5):
                    raise AssertionError("it must not come in")
            assert "right token" not in str(caught.value)
        async with tiedreq.connect([handle.url], token="right token") as client:
            assert await client.call("work") == "a"
        nursery.cancel_scope.cancel()


def test_a_submit_has_these_fields() -> None:
    assert Submit._fields[:4] == ("copy", "kind", "method", "payload")
