"""First signs of truth: without latency a tie over all replicas is one queue, and within a latency both may start."""

from __future__ import annotations

from random import Random

import pytest

from tiedreq.core.policy import Plain, Policy, Tied
from tiedreq.laws import Constant, Exponential, ServiceLaw
from tiedreq.sim.caller_node import OpenCall
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions
from tiedreq.units import parse_latency

MEAN = 1.0
AT_ONCE = Tied(backup=None, stagger=0.0)


class Measured:
    """A run of ``calls`` calls at a utilisation, of one copy per call. Times are in mean service times."""

    def __init__(
        self,
        policy: Policy,
        law: ServiceLaw,
        *,
        replicas: int,
        load: float,
        calls: int,
        latency: str = "0",
        seed: int = 1,
    ) -> None:
        spec = parse_latency(latency)
        options = WorldOptions(
            replicas=replicas,
            slots=1,
            network=NetworkOptions(mesh=spec, client=parse_latency("0")),
            measure_interval=100.0,
        )
        self.workload = Workload(law, Random(f"{seed}/law"), completed=self._completed)
        self.world = World(options, self.workload, seed=seed)
        self.latencies: list[float] = []
        self.world.start()
        rate = load * replicas / law.mean()
        loop = OpenLoop(
            self.world,
            lambda caller: self.workload.make(caller, policy),
            self.world.random("arrivals"),
            rate=rate,
            calls=calls,
        )
        began = self.world.clock.now
        loop.start()
        while not loop.idle or self.workload.counts.answered < calls:
            self.world.clock.run(self.world.clock.now + 100.0)
        self.utilisation = self.workload.counts.busy_seconds / ((self.world.clock.now - began) * replicas)
        self.wait = sum(self.latencies) / calls - self.workload.counts.used_seconds / calls

    def _completed(self, call: OpenCall, latency: float) -> None:
        self.latencies.append(latency)


def test_two_tied_servers_are_one_queue_before_two_servers() -> None:
    run = Measured(AT_ONCE, Exponential(MEAN), replicas=2, load=0.5, calls=40_000)
    assert run.wait == pytest.approx(1 / 3, rel=0.05)


def test_a_plain_server_is_a_queue_of_its_own() -> None:
    run = Measured(Plain(), Exponential(MEAN), replicas=1, load=0.5, calls=40_000)
    assert run.wait == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("load", [0.3, 0.8])
@pytest.mark.parametrize("law", [Exponential(MEAN), Constant(MEAN)], ids=str)
def test_no_duplicate_without_latency(load: float, law: ServiceLaw) -> None:
    run = Measured(AT_ONCE, law, replicas=3, load=load, calls=4_000)
    counts = run.workload.counts
    assert counts.executions == counts.calls == 4_000
    assert counts.duplicates == counts.completed_twice == 0
    assert counts.wasted_seconds == pytest.approx(0.0, abs=1e-6)
    assert run.utilisation == pytest.approx(load, rel=0.06)


def test_double_starts_come_with_latency_and_go_with_the_stagger() -> None:
    at_once = Measured(AT_ONCE, Exponential(MEAN), replicas=4, load=0.3, calls=3_000, latency="10ms")
    held_back = Measured(
        Tied(backup=None, stagger=0.011), Exponential(MEAN), replicas=4, load=0.3, calls=3_000, latency="10ms"
    )
    # At once both start wherever both are idle; 0.5 to 1.5 % remain where a slot falls free meanwhile.
    assert at_once.workload.counts.duplicates > 0.25 * 3_000
    assert 0 < held_back.workload.counts.duplicates < 0.02 * 3_000


def test_the_second_copy_of_a_double_start_yields_within_the_latency() -> None:
    run = Measured(AT_ONCE, Constant(MEAN), replicas=2, load=0.2, calls=2_000, latency="10ms")
    counts = run.workload.counts
    doubles = counts.executions - counts.calls
    assert doubles == counts.duplicates > 0
    # Each lost no more than the two latencies that its notice takes.
    assert 0 < counts.wasted_seconds <= doubles * 0.020 + 1e-6
    assert counts.completed_twice == 0
