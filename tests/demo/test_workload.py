import math
from random import Random

import pytest
import trio
import trio.testing

from cluster.demo.workload import WorkDone, Workload
from tiedreq.laws import ServiceLaw, parse_law
from tiedreq.slowness import parse_pause


def workload(law: str = "const(50ms)", *, slow: float = 1.0, pause: str | None = None, seed: int = 1) -> Workload:
    spec = parse_pause(pause) if pause else None
    return Workload(parse_law(law), slow_factor=slow, pause=spec, seed=seed, stream="r0")


async def run(load: Workload, units: int = 1, at_most: float = 1_000.0) -> WorkDone:
    return await load.run(load.law, units, at_most=at_most)


async def test_work_takes_as_long_as_its_law_says(autojump_clock: trio.testing.MockClock) -> None:
    load = workload("exp(10ms)", seed=3)
    expected = Random("3/r0/service")
    for _ in range(5):
        begin = trio.current_time()
        done = await run(load)
        assert done.service == pytest.approx(parse_law("exp(10ms)").sample(expected))
        assert trio.current_time() - begin == pytest.approx(done.service)
        assert done.paused == pytest.approx(0, abs=1e-9)


async def test_units_follow_each_other_and_a_slow_replica_takes_longer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert (await run(workload(), units=4)).service == pytest.approx(0.2)
    assert (await run(workload(slow=3.0), units=4)).service == pytest.approx(0.6)


async def test_a_pause_extends_all_work_in_progress(autojump_clock: trio.testing.MockClock) -> None:
    # The interval before the first pause is the first number drawn from the stream of pauses.
    first_pause = trio.current_time() + Random("1/r0/pause").expovariate(1 / 5.0)
    load = workload("const(100ms)", pause="200ms@5s")
    ended: dict[str, float] = {}

    async def start(name: str, at: float) -> None:
        await trio.sleep_until(at)
        await run(load)
        ended[name] = trio.current_time() - first_pause

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start, "before", first_pause - 0.15)
        nursery.start_soon(start, "early", first_pause - 0.08)
        nursery.start_soon(start, "late", first_pause - 0.01)
        nursery.start_soon(start, "within", first_pause + 0.1)
    assert ended == pytest.approx({"before": -0.05, "early": 0.22, "late": 0.29, "within": 0.3})


async def test_pauses_take_their_share(autojump_clock: trio.testing.MockClock) -> None:
    load = workload("const(100ms)", pause="200ms@1s")
    done = [await run(load) for _ in range(5_000)]
    service = math.fsum(work.service for work in done)
    assert service - math.fsum(work.paused for work in done) == pytest.approx(500)
    assert service == pytest.approx(500 * 1.2, rel=0.05)


async def test_pauses_do_not_depend_on_the_load(autojump_clock: trio.testing.MockClock) -> None:
    idle, busy = workload(pause="50ms@50ms"), workload(pause="50ms@50ms")
    ended: list[float] = []

    async def take_one(load: Workload) -> None:
        await run(load)
        ended.append(trio.current_time())

    for _ in range(100):
        await run(busy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_one, idle)
        nursery.start_soon(take_one, busy)
    assert ended[0] == pytest.approx(ended[1])


@pytest.mark.parametrize("pause", [None, "500s@10ms"])
async def test_work_ends_at_once_when_cancelled_in_a_pause_too(
    autojump_clock: trio.testing.MockClock, pause: str | None
) -> None:
    load = workload("const(100s)", pause=pause)
    begin = trio.current_time()
    with trio.move_on_after(0.5) as scope:
        await run(load)
    assert scope.cancelled_caught
    assert trio.current_time() - begin == pytest.approx(0.5)


async def test_work_of_no_length_is_a_checkpoint(autojump_clock: trio.testing.MockClock) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await run(workload("const(0)"))
    assert scope.cancelled_caught


@pytest.mark.parametrize(("at_most", "service"), [(2.0, 2.0), (0.0, 0.0), (-5.0, 0.0), (math.inf, 100.0)])
async def test_work_is_not_planned_beyond_its_deadline(
    autojump_clock: trio.testing.MockClock, at_most: float, service: float
) -> None:
    assert (await run(workload("const(100s)"), at_most=at_most)).service == pytest.approx(service)


async def test_another_law_may_be_given(autojump_clock: trio.testing.MockClock) -> None:
    law: ServiceLaw = parse_law("const(7ms)")
    assert (await workload().run(law, 1, at_most=1.0)).service == pytest.approx(0.007)
