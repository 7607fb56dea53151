"""The users of a live run, in virtual time, with replicas in memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from cluster.compare.cell import Cell
from cluster.compare.live_journal import KINDS
from cluster.compare.live_links import ShapedNetwork
from cluster.compare.live_traffic import NOBODY, Target, Traffic, winner_code
from tiedreq import Backup, Failure, Hedged, Plain, Tied
from tiedreq.core.policy import Policy
from tiedreq.net.connecting import connect
from tiedreq.sim.world import stream
from tiedreq.testing import LocalCluster, _Seat
from tiedreq.units import parse_latency

SERVICE_SECONDS = 0.010


def slow_service(failing: int = 0) -> tiedreq.Service:
    """``work`` takes ``SERVICE_SECONDS``, but half a second as the first copy of every tenth call; some calls fail."""
    service = tiedreq.Service("slow")

    @service.method(idempotent=True)
    async def work(ctx: tiedreq.Context, args: Any) -> None:
        number = int(ctx.key or 0)
        await trio.sleep(0.5 if number % 10 == 0 and ctx.kind != "backup" else SERVICE_SECONDS)
        if failing and number % failing == 0:
            raise Failure("no", "no")

    return service


async def drive(
    cell: Cell, *, policy: Policy | None = None, failing: int = 0, clients: int = 1, leave_after: float | None = None
) -> Traffic:
    cluster = LocalCluster(slow_service(failing), replicas=cell.replicas, slots=cell.slots, policy=policy or Plain())
    async with cluster as first, cluster.client(name="another") as second:
        traffic = Traffic(cell, 1, [first, second][:clients], Target("work"))
        async with trio.open_nursery() as nursery:
            await traffic.make_calls(nursery, trio.current_time() + 1.0)
            with trio.move_on_after(60.0 if leave_after is None else leave_after):
                await traffic.ended()
            nursery.cancel_scope.cancel()
    return traffic


def cell(**changes: Any) -> Cell:
    return Cell(replicas=3, slots=100, rate=100.0, warmup=1.0, duration=3.0).but(**changes)


async def test_calls_come_at_the_times_of_the_simulated_run(autojump_clock: MockClock) -> None:
    traffic = await drive(cell())
    tally, rng = traffic.tally, stream(1, "arrivals")
    at, times = 0.0, []
    while (at := at + rng.expovariate(100.0)) < 4.0:
        times.append(at)
    measured = [at for at in times if at >= 1.0]
    assert traffic.calls_made == len(times) and traffic.first_measured == len(times) - len(measured)
    assert tally.calls == tally.offered == tally.answered == tally.latency.count == len(measured)
    assert traffic.lateness.longest < 1e-6
    numbers = range(traffic.first_measured, traffic.calls_made)
    slow = sum(number % 10 == 0 for number in numbers)
    assert tally.latency.total == pytest.approx(0.5 * slow + SERVICE_SECONDS * (len(numbers) - slow))
    assert abs(tally.achieved - tally.offered) < 60 and tally.errors == 0


async def test_latency_counts_from_the_intended_time(autojump_clock: MockClock) -> None:
    """The whole process stands still for a second: what was to be sent meanwhile is late, and its latency says so."""

    async def stall() -> None:
        await trio.sleep(3.0)
        autojump_clock.jump(1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stall)
        traffic = await drive(cell(rate=50.0, duration=4.0))
    assert 0.9 < traffic.lateness.longest < 1.0
    late = traffic.lateness.total
    assert late > 20.0
    slow = sum(number % 10 == 0 for number in range(traffic.first_measured, traffic.calls_made))
    served = 0.5 * slow + SERVICE_SECONDS * (traffic.tally.calls - slow)
    # What was under way as it stood still is up to a second longer as well.
    assert late < traffic.tally.latency.total - served < late + 8
    assert traffic.tally.wait.total == pytest.approx(late, rel=0.01)


async def test_backups_ties_and_winners_are_told_apart(autojump_clock: MockClock) -> None:
    policy = Tied(backup=Backup(after=0.05, budget=1.0, max_per_call=1))
    traffic = await drive(cell(), policy=policy)
    tally = traffic.tally
    slow = sum(number % 10 == 0 for number in range(traffic.first_measured, traffic.calls_made))
    assert tally.backups_sent == tally.backups_won == slow > 15
    assert tally.ties == tally.calls
    backup = KINDS.index("backup")
    for number, code in enumerate(traffic.winners):
        assert (code % len(KINDS) == backup) == (number % 10 == 0)
    assert winner_code(2, backup) // len(KINDS) == 2


async def test_errors_and_calls_without_an_outcome(autojump_clock: MockClock) -> None:
    traffic = await drive(cell(calls=200, duration=None), failing=7, leave_after=0.2)
    tally = traffic.tally
    numbers = range(traffic.first_measured, traffic.calls_made)
    assert tally.calls == len(numbers) == 200 and traffic.window[1] < float("inf")
    unfinished = tally.calls - tally.answered - tally.errors
    assert 0 < unfinished == sum(1 for _ in range(traffic.open_calls)) <= 8
    assert tally.errors == pytest.approx(200 / 7, abs=3)
    assert sum(traffic.winners[number] == NOBODY for number in numbers) == tally.errors + unfinished


async def test_a_root_call_waits_for_all_of_its_calls(autojump_clock: MockClock) -> None:
    traffic = await drive(cell(fan_out=5), clients=2)
    tally = traffic.tally
    roots = [range(number, number + 5) for number in range(traffic.first_measured, traffic.calls_made, 5)]
    slow = sum(any(number % 10 == 0 for number in root) for root in roots)
    assert tally.roots == len(roots) == tally.latency.count and tally.sub_latency.count == tally.calls == 5 * len(roots)
    assert tally.latency.total == pytest.approx(0.5 * slow + SERVICE_SECONDS * (len(roots) - slow))


async def test_workers_call_again_and_again(autojump_clock: MockClock) -> None:
    traffic = await drive(
        cell(rate=None, workers=4, calls=150, duration=None), policy=Hedged(Backup(after=0.02, budget=1.0))
    )
    tally = traffic.tally
    assert tally.calls == tally.answered == 150
    assert tally.latency.longest < 0.1


@pytest.mark.parametrize(("spec", "there", "back"), [("20ms", 0.02, 0.02), ("c0>r0=30ms;r0>c0=5ms", 0.03, 0.005)])
async def test_client_links_are_as_long_as_the_cell_says(
    autojump_clock: MockClock, spec: str, there: float, back: float
) -> None:
    arrived: list[float] = []
    service = tiedreq.Service("far")

    @service.method(idempotent=True)
    async def echo(ctx: tiedreq.Context, args: Any) -> Any:
        arrived.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return args

    cluster = LocalCluster(service, replicas=1)
    async with cluster:
        names = {url: name for name, url in cluster.urls.items()}
        network = ShapedNetwork(
            _Seat(cluster.network, "c0", 0.0), parse_latency(spec), client="c0", names=names, rng=stream(1, "links")
        )
        async with connect(list(names), network=network) as client:
            for size in (1, 100_000):
                began = trio.current_time()
                assert await client.call("echo", b"x" * size) == b"x" * size
                assert arrived[-1] - began == pytest.approx(there, abs=1e-6)
                assert trio.current_time() - began == pytest.approx(there + back, abs=1e-6)
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(client.call, "echo", number)
            assert trio.current_time() - began == pytest.approx(there + back, abs=1e-6)


async def test_replicas_count_every_message_once(autojump_clock: MockClock) -> None:
    """A plain call is Submit, Started and Result; a tie adds the second Submit, a notice and Ended."""
    cluster = LocalCluster(slow_service(), replicas=2, slots=100)

    def messages() -> int:
        return sum(handle.status()["messages"] for handle in cluster.handles.values())

    async with cluster as client:
        before = messages()
        for number in range(1, 10):
            await client.call("work", key=str(number), policy=Plain())
        plain = messages() - before
        assert 27 <= plain <= 29  # a Report of latencies may come in between
        await client.tied_call("work", key="1", policy=Tied(stagger=0.0, backup=None))
        await trio.sleep(0.001)
        assert 6 <= messages() - before - plain <= 12
        assert all(handle.status()["cpu_seconds"] > 0 for handle in cluster.handles.values())


@pytest.mark.parametrize("rate", [100.0, 0.2], ids=["while calls are made", "after the last one"])
async def test_what_goes_wrong_when_a_call_is_counted_ends_the_run(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    """And not the link, which brought the news."""

    def count(*_: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(Traffic, "_count", count)
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="a mistake"), flatten_subgroups=True):
        await drive(cell(rate=rate, warmup=0.0, duration=None, calls=1 if rate < 1 else 10_000))
