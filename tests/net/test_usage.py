"""What a caller does wrong is told before a byte is sent, and leaves nothing behind."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, left_in
from tiedreq import Backup, BadOption, ClientLimits, Hedged, Plain, ReplicaLimits, Tied, UnsafeToDuplicate
from tiedreq.testing import LocalCluster

SURROGATE = "\ud800"


async def refused(
    client: tiedreq.Client, error: type[Exception], match: str, method: Any = "work", **options: Any
) -> None:
    """The call is refused with ``error``, and nothing was sent or is left."""
    before = client.stats()["copies_sent"]
    with pytest.raises(error, match=match):
        await client.request(method, **options)
    assert client.stats()["copies_sent"] == before
    assert client.stats()["in_flight"] == 0


@pytest.mark.parametrize(
    "policy",
    [Tied(backup=None), Tied(backup=None, exclusive=True), Hedged(Backup(after=0.1, since="send"))],
    ids=["tied", "exclusive", "hedged"],
)
async def test_what_may_not_run_twice_is_refused_before_anything_is_sent(
    autojump_clock: MockClock, policy: tiedreq.Policy
) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=3, policy=policy)
    async with cluster as client:
        await refused(client, UnsafeToDuplicate, "not declared idempotent.*Nothing was sent", "once", policy=policy)
        # The client's own policy is no demand: one copy goes out.
        assert await client.call("once") in cluster.names
        assert [run.kind for run in journal.runs] == ["first"] and journal.runs[0].rank is None
        with pytest.raises(UnsafeToDuplicate):
            await client.tied_call("once")
        with pytest.raises(UnsafeToDuplicate):
            await client.hedged_call("once", policy=Hedged(Backup(after=0.1, since="send")))
        assert await client.call("once", policy=Plain()) in cluster.names
        assert len(journal) == 2


BAD: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "no such method": (tiedreq.UnknownMethod, "'nothing'.*Methods: blob", {"method": "nothing"}),
    "empty method": (tiedreq.UnknownMethod, "''", {"method": ""}),
    "method that is no text": (BadOption, "method", {"method": 5}),
    "a handler as method": (BadOption, "method", {"method": bench_service}),
    "method with surrogate": (tiedreq.UnknownMethod, "ud800", {"method": SURROGATE}),
    "args that can't be packed": (BadOption, r"args\[\"a\"\]", {"args": {"a": object()}}),
    "args with a surrogate": (BadOption, "args", {"args": SURROGATE}),
    "args too deep": (BadOption, "args", {"args": eval("[" * 60 + "]" * 60)}),
    "args too large": (tiedreq.TooLarge, "args: .* limit of 100000", {"args": bytes(100_001)}),
    "timeout below 0": (BadOption, "timeout", {"timeout": -1}),
    "empty key": (BadOption, "key", {"key": ""}),
    "long key": (BadOption, "key", {"key": "k" * 257}),
    "key that is no text": (BadOption, "key", {"key": b"k"}),
    "key with a surrogate": (BadOption, "key", {"key": SURROGATE}),
    "metadata that is no dict": (BadOption, "metadata", {"metadata": [("a", "b")]}),
    "metadata with a number": (BadOption, "metadata", {"metadata": {"a": 1}}),
    "metadata with a bad key": (BadOption, "metadata", {"metadata": {"a\nb": "c"}}),
    "metadata with an empty key": (BadOption, "metadata", {"metadata": {"": "c"}}),
    "metadata with a surrogate": (BadOption, "metadata", {"metadata": {"a": SURROGATE}}),
    "metadata with a surrogate as key": (BadOption, "metadata", {"metadata": {SURROGATE: "a"}}),
    "metadata with a text direction as key": (BadOption, "metadata", {"metadata": {"a\u202eb": "c"}}),
    "too much metadata": (BadOption, "metadata", {"metadata": {str(n): "" for n in range(17)}}),
    "long metadata": (BadOption, "metadata", {"metadata": {"a": "v" * 1025}}),
    "a policy's class": (BadOption, "Tied\\(\\)", {"policy": Tied}),
    "no policy": (BadOption, "policy", {"policy": "tied"}),
    "accept that can't be called": (BadOption, "accept", {"accept": True}),
    "accept that is async": (BadOption, "accept", {"accept": bench_service().methods["work"].handler}),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_options(autojump_clock: MockClock, case: str) -> None:
    error, match, options = BAD[case]
    cluster = LocalCluster(bench_service(), replicas=2, limits=ReplicaLimits(payload_bytes_max=100_000))
    async with cluster as client:
        await refused(client, error, match, **{"method": "work", **options})
        assert await client.tied_call("work") in cluster.names
        await assert_idle(cluster, client)


async def test_the_edges_of_what_is_allowed(autojump_clock: MockClock) -> None:
    seen: list[tiedreq.Context] = []
    service = bench_service()

    @service.method(idempotent=True)
    async def look(ctx: tiedreq.Context, args: Any) -> Any:
        seen.append(ctx)
        return args

    class Text(StrEnum):
        LOOK = "look"

    metadata = {"k" * 62 + f"{n:02}": "\N{PILE OF POO}" * 1024 for n in range(16)}
    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        key = "\N{PILE OF POO}\n" * 128
        assert await client.tied_call(Text.LOOK, key=key, metadata=metadata) is None
        assert (seen[0].key, dict(seen[0].metadata)) == (key, metadata)
        assert await client.call("look", {"a": (1, 2)}, metadata={}) == {"a": [1, 2]}
        assert seen[1].key is None and seen[1].metadata == {}


async def test_args_at_the_limit_and_one_byte_over(autojump_clock: MockClock) -> None:
    limits = ReplicaLimits(payload_bytes_max=100_000)
    cluster = LocalCluster(bench_service(), replicas=2, limits=limits)
    async with cluster as client:
        with pytest.raises(tiedreq.TooLarge) as caught:
            await client.tied_call("size", bytes(100_000))
        assert (caught.value.limit, caught.value.field) == (100_000, "args")
        assert await client.tied_call("size", bytes(100_000 - 5)) == 100_000 - 5
    cluster = LocalCluster(bench_service(), replicas=1, client_limits=ClientLimits(payload_bytes_max=2000))
    async with cluster as client:
        with pytest.raises(tiedreq.TooLarge, match="limit of 2000"):
            await client.call("size", bytes(2000))
        assert await client.call("size", bytes(1900)) == 1900


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None)], ids=["plain", "tied"])
@pytest.mark.parametrize("size", [1_500, 70_000, 3_000_000])
async def test_a_result_larger_than_the_client_takes(
    autojump_clock: MockClock, size: int, policy: tiedreq.Policy
) -> None:
    """One clear error at the caller; the link lives, and so do the calls beside it."""
    limits = ClientLimits(payload_bytes_max=1024)
    cluster = LocalCluster(bench_service(), replicas=2, client_limits=limits)
    async with cluster as client:
        async with trio.open_nursery() as nursery:
            found: list[str] = []

            async def beside() -> None:
                found.append(await client.call("work", 1.0))

            nursery.start_soon(beside)
            await trio.sleep(0.1)
            with pytest.raises(tiedreq.RemoteFailure, match="1024") as caught:
                await client.call("blob", size, policy=policy)
            assert caught.value.code == "too_large"
        assert found and client.stats()["failovers"] == 0
        await assert_idle(cluster, client)


@pytest.mark.parametrize("policy", [Plain(), Tied(backup=None)], ids=["plain", "tied"])
async def test_a_result_larger_than_the_replica_sends(autojump_clock: MockClock, policy: tiedreq.Policy) -> None:
    cluster = LocalCluster(bench_service(), replicas=2, limits=ReplicaLimits(payload_bytes_max=100_000))
    async with cluster as client:
        with pytest.raises(tiedreq.RemoteFailure, match=r"100001 bytes.*100000") as caught:
            await client.call("blob", 100_001 - 5, policy=policy)
        assert caught.value.code == "too_large" and client.stats()["failovers"] == 0
        assert len(await client.call("blob", 100_000 - 5, policy=policy)) == 100_000 - 5
        await assert_idle(cluster, client)


async def test_calls_in_flight_have_a_limit(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2, client_limits=ClientLimits(calls_in_flight_max=3))
    async with cluster as client:
        found = await gather(*[lambda: client.tied_call("work", 0.1)] * 5)
        assert sorted(type(each).__name__ for each in found) == ["Overloaded"] * 2 + ["str"] * 3
        assert await client.call("work") in cluster.names
        await assert_idle(cluster, client)


async def test_tied_call_without_a_policy_ties(autojump_clock: MockClock) -> None:
    journal = Journal()
    cluster = LocalCluster(bench_service(journal), replicas=2)
    async with cluster as client:
        await client.tied_call("work", policy=None)
        await client.tied_call("work", policy=Plain())
        assert [run.rank for run in journal.runs] == [0, None]
        assert client.stats()["ties"] == 1


async def test_hedged_call_learns_its_delay_unless_it_is_given_one(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        assert await client.hedged_call("work") in cluster.names
        assert await client.hedged_call("work", policy=Hedged(Backup(after=0.1, since="send"))) in cluster.names


async def test_bind_calls_the_method_of_that_name(autojump_clock: MockClock) -> None:
    service = bench_service()

    @service.method(idempotent=True)
    async def double(ctx: tiedreq.Context, args: Any) -> Any:
        """Twice as much."""
        return 2 * args

    cluster = LocalCluster(service, replicas=2)
    async with cluster as client:
        bound = client.bind(double)
        assert (bound.__name__, bound.__doc__) == ("double", "Twice as much.")
        assert await bound(4) == await bound(4, policy=Tied(backup=None)) == 8
        for bad in (3, object()):
            with pytest.raises(BadOption, match="handler"):
                client.bind(bad)  # type: ignore[arg-type]


async def test_a_closed_client_says_so(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        async with cluster.client(name="second") as second:
            pass
        with pytest.raises(BadOption, match="closed"):
            await second.call("work")
        assert await second.replica_status() == {}
        assert not left_in(second) and await client.call("work")


async def test_a_replica_that_promises_what_it_does_not_keep(autojump_clock: MockClock) -> None:
    """A method table that has changed since the hello: the caller learns it from the replica, once."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        for handle in cluster.handles.values():
            held = handle._server.core._methods
            held["work"] = held["work"]._replace(info=held["work"].info._replace(idempotent=False))
            del held["size"]
        with pytest.raises(UnsafeToDuplicate, match="replica says"):
            await client.tied_call("work")
        with pytest.raises(tiedreq.UnknownMethod, match="does not serve"):
            await client.call("size", b"")
        assert await client.call("work", policy=Plain()) in cluster.names
        assert client.stats()["failovers"] == 0
        await assert_idle(cluster, client)


async def test_many_of_the_largest_args_at_once(autojump_clock: MockClock) -> None:
    """What leaves in chunks at the same time stays within what a replica of smaller limits keeps."""
    largest = 40 * 65_504 - 64
    cluster = LocalCluster(bench_service(), replicas=1, limits=ReplicaLimits(payload_bytes_max=largest))
    async with cluster as client:
        for size in range(largest - 60, largest - 4, 4):
            found = await gather(*[lambda size=size: client.call("size", bytes(size))] * 4)
            assert found == [size] * 4
        assert client.stats()["failovers"] == 0
        await assert_idle(cluster, client)


async def test_a_replica_that_takes_less_comes_late(autojump_clock: MockClock) -> None:
    """The call was checked against the replicas of its time; one that takes less is no place for its failover."""
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster as client:
        cluster.stop("r1")
        await trio.sleep(1)
        found: list[object] = []

        async def large() -> None:
            found.extend(await gather(lambda: client.call("size", bytes(1_100_000), timeout=20)))

        async with trio.open_nursery() as nursery:
            cluster.stop("r0")
            await trio.sleep(0.5)
            cluster._limits = ReplicaLimits(payload_bytes_max=1_000_000)
            with pytest.raises(tiedreq.DeadlineExceeded):
                await client.call("work", timeout=1)
            nursery.start_soon(large)
            await trio.sleep(0.1)
            await cluster.start("r1")
        assert isinstance(found[0], tiedreq.TooLarge | tiedreq.Overloaded)
        await cluster.start("r0")
        await trio.sleep(3)
        assert await client.tied_call("work") in cluster.names
        await assert_idle(cluster, client)
