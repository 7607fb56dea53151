"""Zones and groups in virtual time: production cores on a network that is as far apart as its zones."""

from __future__ import annotations

from collections import Counter

import pytest

from tiedreq.core.commands import OutcomeKind, SendCopy
from tiedreq.core.events import CallEvent
from tiedreq.core.groups import group_of
from tiedreq.core.policy import Backup, Plain, Policy, Tied
from tiedreq.laws import Constant, Exponential
from tiedreq.sim.caller_node import CallerNode, OpenCall
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.watch import Watch
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.units import parse_latency

NETWORK = NetworkOptions(
    mesh=parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms"), client=parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms")
)


class Sent(Watch):
    """Remembers which replicas the copies of each call went to, in order."""

    def __init__(self) -> None:
        super().__init__(keep=False)
        self.copies: dict[tuple[str, int], list[str]] = {}
        self.partners: Counter[tuple[str, ...]] = Counter()

    def call(self, node: CallerNode, call: OpenCall, event: CallEvent, commands: list) -> None:  # type: ignore[type-arg]
        super().call(node, call, event, commands)
        for command in commands:
            if isinstance(command, SendCopy):
                view = node.table.get(command.link)
                assert view is not None
                self.copies.setdefault((node.name, call.number), []).append(view.name)
                if command.submit.partners and command.submit.copy.rank == 0:
                    self.partners[tuple(partner.name for partner in command.submit.partners)] += 1


class City:
    """A world in zones, and calls in it at a load."""

    def __init__(
        self, policy: Policy, options: WorldOptions, *, load: float, calls: int, service: float = 0.010
    ) -> None:
        self.seen = Sent()
        self.latencies: dict[str, list[float]] = {}
        self.work = Workload(Exponential(service), stream(1, "law"), completed=self._completed)
        self.world = World(options, self.work, seed=1, observer=self.seen)
        self.seen.clock = self.world.clock
        self.world.start()
        rate = load * options.replicas * options.slots / service
        loop = OpenLoop(
            self.world, lambda caller: self._make(caller, policy), self.world.random("arrivals"), rate=rate, calls=calls
        )
        loop.start()
        while not loop.idle or any(caller.calls for caller in self.world.callers.values()):
            self.world.clock.run(self.world.clock.now + 0.1)
        assert not self.seen.checkers.violations

    def _make(self, caller: CallerNode, policy: Policy) -> None:
        self.work.make(caller, policy, timeout=10.0)

    def _completed(self, call: OpenCall, latency: float) -> None:
        assert call.outcome is not None and call.outcome.kind == OutcomeKind.ANSWERED
        assert call.outcome.copy is not None

    def zones(self) -> Counter[str]:
        """How many calls of a caller in a zone had copies in which zones: ``a:ab``."""
        at = {**self.world.options.replica_zones, **self.world.options.caller_zones}
        return Counter(
            f"{at[caller]}:{''.join(at[name] for name in names)}" for (caller, _), names in self.seen.copies.items()
        )


def options(**changes: object) -> WorldOptions:
    settings = {"replicas": 9, "slots": 2, "callers": 3, "zones": ("a", "b", "c"), "network": NETWORK} | changes
    return WorldOptions(picker="adaptive", learns=True, **settings)  # type: ignore[arg-type]


def test_latencies_of_a_world_are_those_of_its_zones() -> None:
    world = World(options(), Workload(Constant(0.010), stream(1, "law")), seed=1)
    law = world.network.options.law
    assert [law("r0", name).mean for name in ("r1", "r2", "r3")] == [0.005, 0.060, 0.001]
    assert [law("c1", name).mean for name in ("r0", "r1", "r2")] == [0.005, 0.001, 0.060]
    world.start()
    view = next(view for view in world.callers["c0"].table.views() if view.name == "r2")
    assert view.zone == "c" and view.round_trip == pytest.approx(0.120)


def test_calls_stay_in_their_zone_and_partners_are_in_the_nearest_that_the_work_can_bear() -> None:
    city = City(Tied(stagger=0.0, backup=None), options(slots=4), load=0.3, calls=250)
    zones = city.zones()
    assert zones["a:ab"] + zones["b:ba"] + zones["c:cc"] > 225, zones


def test_callers_in_one_zone_use_the_others_when_theirs_is_full() -> None:
    """All calls come from one zone, 1.8 times what it can do: what is too much goes to the next zone, not the third."""
    city = City(Plain(), options(callers=1, replicas=9, slots=4), load=0.5, calls=900)
    zones = city.zones()
    assert zones["a:a"] > 400 and zones["a:b"] > 220, zones
    assert zones["a:c"] < 10, zones


def test_blind_to_zones_copies_go_anywhere() -> None:
    city = City(Plain(), options(zone_blind=True), load=0.3, calls=300)
    zones = city.zones()
    assert min(zones[f"{caller}:{replica}"] for caller in "abc" for replica in "abc") > 15, zones


def test_a_large_world_is_linked_in_groups_and_no_notice_lacks_a_link() -> None:
    count = 40
    city = City(Tied(backup=Backup(after=0.05)), options(replicas=count, zones=(), callers=2), load=0.7, calls=250)
    world = city.world
    for name, replica in world.replicas.items():
        group = {other for other in world.replicas if group_of(other, count) == group_of(name, count)}
        assert set(replica.peers.values()) == group - {name}
        assert len(group) < count
        assert replica.core.stats.notices_unsent == 0
    assert all(group_of(first, count) == group_of(second, count) for first, second in city.seen.partners)
    assert sum(city.seen.partners.values()) > 150
    assert world.unconnected() is None


def test_a_restarted_replica_of_a_large_world_is_linked_to_its_group_again() -> None:
    world = World(options(replicas=40, zones=()), Workload(Constant(0.010), stream(1, "law")), seed=1)
    world.start()
    links = set(world.replicas["r7"].peers.values())
    world.crash("r7")
    world.clock.run(world.clock.now + 1.0)
    assert world.unconnected() is None, "one that is down is not waited for"
    world.restart("r7")
    assert world.unconnected() is not None
    world.clock.run(world.clock.now + 1.0)
    assert world.unconnected() is None and set(world.replicas["r7"].peers.values()) == links
