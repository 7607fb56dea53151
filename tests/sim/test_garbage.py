"""A world makes no cycles, so it may run without the garbage collector."""

from __future__ import annotations

import gc
from functools import partial

import pytest

from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.laws import Bimodal
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.units import LatencyLaw, LatencySpec

POLICIES: tuple[Policy, ...] = (
    Plain(),
    Hedged(),
    Tied(stagger=0.0, backup=Backup(after=0.02)),
    Tied(exclusive=True, backup=None),
    Auto(),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_calls_leave_no_cycles(policy: Policy) -> None:
    load = Workload(Bimodal(0.01, 0.1, 0.05), stream(1, "law"))
    latency = LatencySpec(LatencyLaw(0.001))
    options = WorldOptions(replicas=4, slots=2, network=NetworkOptions(mesh=latency, client=latency), learns=True)
    world = World(options, load, seed=1)
    world.start()
    make = partial(load.make, policy=policy, timeout=10.0)
    OpenLoop(world, make, world.random("arrivals"), rate=350.0, calls=300).start()
    gc.collect()
    with uncollected():
        assert not gc.isenabled()
        world.clock.run(world.clock.now + 2.0)
        found = gc.collect()
    assert gc.isenabled()
    assert load.counts.answered == 300
    assert found == 0


def test_the_collector_comes_back_only_where_it_was() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ZeroDivisionError), uncollected():
        1 / 0  # noqa: B018
    assert gc.isenabled()
