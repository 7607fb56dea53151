"""Comparisons over zones: the scenario, its options, and that knowing zones is better than not."""

from __future__ import annotations

import pytest

from cluster.compare import live
from cluster.compare.cell import Cell
from cluster.compare.live import zones_of
from cluster.compare.options import read_options
from cluster.compare.simulated import run_cell
from tiedreq.core.errors import BadOption
from tiedreq.laws import Constant
from tiedreq.sim.workload import Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.sim.zone_pauses import ZonePauses
from tiedreq.slowness import PauseSpec
from tiedreq.units import parse_latency

THREE = parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms")


def cell(**changes: object) -> Cell:
    fields = {"replicas": 6, "slots": 2, "zones": ("a", "b", "c"), "rate": 500.0, "duration": 2.0} | changes
    return Cell(**fields)  # type: ignore[arg-type]


def test_the_scenario_has_three_zones_and_can_be_made_blind() -> None:
    plan = read_options(["--scenario", "three-zones"]).plan
    assert {one.zones for one in plan.cells} == {("a", "b", "c")}
    assert {one.mesh_latency for one in plan.cells} == {THREE}
    assert not any(one.zone_blind for one in plan.cells)
    blind = read_options(["--scenario", "three-zones", "--zone-blind"]).plan
    assert all(one.zone_blind for one in blind.cells)
    assert blind.options["overrides"] == {"zone_blind": True}


def test_zones_by_options() -> None:
    options = "--zones a,b --mesh-latency 1ms;a-b=5ms --zone-pause 200ms@10s --callers 2 --policies tied".split()
    (only,) = read_options(options).plan.cells
    assert only.zones == ("a", "b") and only.zone_pauses == (PauseSpec(0.2, 10.0),)
    assert only.mesh_latency.law("r0", "r1", "a", "b").mean == 0.005


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"zones": (), "zone_blind": True}, "there are no zones"),
        ({"zones": (), "zone_pauses": (PauseSpec(0.2, 5.0),)}, "there are no zones"),
        ({"zone_pauses": (PauseSpec(0.2, 5.0, 1),)}, "each zone has pauses of its own"),
        ({"world": "live", "zone_blind": True}, "in simulated runs only"),
        ({"zones": ("a b",)}, "zones: 'a b' is not a word"),
        ({"mesh_latency": parse_latency("1ms;a-d=5ms")}, "mesh-latency: nothing is named d; there is r0 to r"),
        ({"mesh_latency": parse_latency("r0>r99=5ms")}, "mesh-latency: nothing is named r99"),
        ({"mesh_latency": parse_latency("c0>r0=5ms")}, "mesh-latency: nothing is named c0"),
        ({"client_latency": parse_latency("c0>r0=1ms;c9>r0=5ms")}, "client-latency: nothing is named c9"),
    ],
)
def test_what_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        cell(**changes)


def test_live_and_simulated_clients_are_in_the_same_zones() -> None:
    zones = zones_of(cell(callers=4))
    assert [zones[name] for name in ("r0", "r4", "c0", "c1", "c3")] == ["a", "b", "a", "b", "a"]
    assert zones_of(cell(zones=())) == {}


def test_a_paused_zone_stands_still_as_a_whole_and_no_other_does() -> None:
    load = Workload(Constant(0.010), stream(1, "law"))
    world = World(WorldOptions(replicas=6, zones=("a", "b", "c")), load, seed=1)
    world.start()
    ZonePauses(world, PauseSpec(0.2, 5.0), stream(1, "zone pauses")).start()
    seen = set()
    for _ in range(200):
        world.clock.run(world.clock.now + 0.1)
        frozen = [name for name, replica in world.replicas.items() if replica.frozen]
        seen.add(tuple(frozen))
    zones = {("r0", "r3"), ("r1", "r4"), ("r2", "r5")}
    assert zones <= seen, "each now and then"
    assert all(set(frozen) <= {"r0", "r1", "r2", "r3", "r4", "r5"} and len(frozen) % 2 == 0 for frozen in seen)


def test_knowing_zones_is_better_than_not() -> None:
    """Far replicas cost a blind client 120 ms; one that knows stays near, and most of its calls are quick."""
    shape = {"mesh_latency": THREE, "client_latency": THREE, "callers": 3, "picker": "adaptive"}
    shape |= {"warmup": 0.5, "rate": 300.0, "duration": 1.0}
    knowing, blind = (run_cell(cell(**shape, zone_blind=blind), 1).latency for blind in (False, True))
    near, far = knowing.percentile(90.0), blind.percentile(90.0)
    assert near is not None and far is not None and near < 0.060 and far > 0.120


@pytest.mark.system
def test_live_replicas_are_as_far_apart_as_their_zones_and_calls_stay_near() -> None:
    far = parse_latency("a-b=100ms")
    shape = {"replicas": 2, "zones": ("a", "b"), "callers": 2, "mesh_latency": far, "client_latency": far}
    run = {"world": "live", "policy": "plain", "picker": "adaptive", "rate": 20.0, "duration": 2.0, "warmup": 1.0}
    tally = live.run_cell(cell(**shape, **run), 1)
    assert tally.calls > 0 and tally.answered == tally.calls
    assert tally.notice_seconds / tally.notice_samples > 0.095
    median = tally.latency.percentile(50.0)
    assert median is not None and median < 0.150, "over the way it would be 200 ms and the work"
