"""Defects that the simulator found, each as the small world in which it showed."""

from __future__ import annotations

import pytest

from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.policy import Tied
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import MethodInfo
from tiedreq.laws import Constant
from tiedreq.sim.faults import FaultOptions
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.options import SimOptions
from tiedreq.sim.run import run, run_seed
from tiedreq.sim.traffic import TrafficOptions
from tiedreq.sim.world import WorldOptions
from tiedreq.units import parse_latency

THREAD = (HeldMethod(MethodInfo("thread", True, False, 60.0), None),)
NETWORK = NetworkOptions(mesh=parse_latency("1ms"), client=parse_latency("0.5ms"))

CASES = {
    # Both copies of a tie run in threads. Each has heard of the other when the thread of higher rank says how it can
    # be stopped: it yields then, and does not run on.
    "a thread that can be stopped after all yields": SimOptions(
        seed=1,
        seconds=1.0,
        world=WorldOptions(replicas=2, slots=1, methods=THREAD, network=NETWORK),
        traffic=TrafficOptions(
            calls=50,
            rate=20.0,
            law=Constant(0.02),
            policies=(Tied(backup=None, stagger=0.0),),
            timeouts=(1.0,),
            stop_enabled=1.0,
        ),
        faults=FaultOptions(),
    ),
    # A Cancel arrives when its copy has ended and its tombstone has been evicted. The marker that it leaves goes in
    # time, like a marker of a notice.
    "a cancel marker goes in time": SimOptions(
        seed=1,
        seconds=1.0,
        world=WorldOptions(
            replicas=2,
            slots=1,
            network=NETWORK,
            replica_limits=ReplicaLimits(tombstones_max=1, marker_age_max=0.05),
        ),
        traffic=TrafficOptions(
            calls=100, rate=100.0, law=Constant(0.01), policies=(Tied(backup=None, stagger=0.0),), timeouts=(0.011,)
        ),
        faults=FaultOptions(),
    ),
    # The copies that ask their arbiter come back into the queue when they are granted: it has kept room for them.
    "a granted copy has room in the queue": SimOptions(
        seed=1,
        seconds=1.0,
        world=WorldOptions(
            replicas=2,
            slots=1,
            network=NETWORK,
            replica_limits=ReplicaLimits(queue_length_max=1),
        ),
        traffic=TrafficOptions(
            calls=200,
            rate=200.0,
            law=Constant(0.01),
            policies=(Tied(backup=None, stagger=0.0, exclusive=True), Tied(backup=None, stagger=0.0)),
            timeouts=(1.0,),
        ),
        faults=FaultOptions(),
    ),
}


# Seeds in which a checker was wrong. What they draw may change; then they are seeds like any other.
SEEDS = (49, 105, 434, 104493)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed: int) -> None:
    result = run_seed(seed)
    assert result.ok, str(result.violations[0])


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_case(options: SimOptions) -> None:
    result = run(options, keep=True)
    assert result.ok, "\n".join([str(result.violations[0]), *result.lines[-60:]])


@pytest.mark.parametrize("seed", [5_000_267, 5_000_626, 5_000_692, 5_000_757])
def test_the_limit_of_backups_is_that_of_auto_too(seed: int) -> None:
    """The checker took a call with ``Auto`` for one that may have no backup."""
    assert not run_seed(seed).violations
