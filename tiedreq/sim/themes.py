"""Themes: options that belong together, so that a rare meeting of several troubles is common in some runs.

Each theme takes drawn options and bends a few of them; what it doesn't name stays as it was drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tiedreq.core.policy import Policy, Tied
from tiedreq.laws import Exponential
from tiedreq.units import LatencyLaw, LatencySpec

if TYPE_CHECKING:
    from tiedreq.sim.options import SimOptions

TIED_AT_ONCE = Tied(stagger=0.0, backup=None)
FAR = LatencySpec(LatencyLaw(0.01, 0.01))
NEAR = LatencySpec(LatencyLaw(0.0002, 0.0001))


def claims_and_crashes(options: SimOptions, rng: Random) -> SimOptions:
    """Replicas die, leave and are cut off while claims are under way."""
    policies: tuple[Policy, ...] = tuple(
        Tied(stagger=0.0, exclusive=True, copies=copies, backup=None) for copies in (2, 3)
    )
    every = options.seconds / 6
    return _bend(
        options,
        mesh=LatencySpec(LatencyLaw(0.03)),
        policies=policies,
        faults={"crash": every, "drain": every, "cut": every, "one_way": every},
    )


def links_come_and_go(options: SimOptions, rng: Random) -> SimOptions:
    """A new connection is up long before the loss of the old one is known."""
    network = replace(options.world.network, notice_max=0.3, reconnect_min=0.001, reconnect_max=0.005)
    options = replace(options, world=replace(options.world, network=network, callers=2))
    return _bend(options, policies=(*options.traffic.policies, TIED_AT_ONCE), faults={"cut": options.seconds / 20})


def starts_overtake_submits(options: SimOptions, rng: Random) -> SimOptions:
    """Notices arrive long before the copies that they are about, and there is little room for markers."""
    limits = replace(options.world.replica_limits, markers_per_peer_max=rng.choice([1, 2]), marker_age_max=1.0)
    network = replace(options.world.network, overtaking=0.5, overtaking_delay=0.05)
    options = replace(options, world=replace(options.world, network=network, replica_limits=limits))
    return _bend(options, mesh=NEAR, policies=(TIED_AT_ONCE,))


def old_rounds_linger(options: SimOptions, rng: Random) -> SimOptions:
    """Calls go on to new rounds while the notices of old ones are under way."""
    limits = replace(options.world.replica_limits, queue_length_max=rng.choice([2, 3]))
    options = replace(
        options,
        world=replace(
            options.world,
            replicas=max(2, options.world.replicas),
            replica_limits=limits,
            client_limits=replace(options.world.client_limits, rounds_max=5),
        ),
        traffic=replace(options.traffic, failing=0.3, law=Exponential(0.01)),
    )
    return _bend(options, mesh=FAR, client=NEAR, policies=(TIED_AT_ONCE, Tied(stagger=0.0, copies=3, backup=None)))


THEMES: tuple[Callable[[SimOptions, Random], SimOptions], ...] = (
    claims_and_crashes,
    links_come_and_go,
    starts_overtake_submits,
    old_rounds_linger,
)


def _bend(
    options: SimOptions,
    *,
    mesh: LatencySpec | None = None,
    client: LatencySpec | None = None,
    policies: tuple[Policy, ...] | None = None,
    faults: dict[str, float] | None = None,
) -> SimOptions:
    network = options.world.network
    network = replace(network, mesh=mesh or network.mesh, client=client or network.client)
    world = replace(options.world, network=network, replicas=max(2, options.world.replicas))
    traffic = replace(options.traffic, policies=policies or options.traffic.policies)
    return replace(options, world=world, traffic=traffic, faults=replace(options.faults, **(faults or {})))
