"""The simulated worlds in which broken cores are run: small, crowded, each with one kind of trouble."""

from __future__ import annotations

from dataclasses import replace

from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.policy import Backup, Policy, Tied
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import MethodInfo
from tiedreq.laws import Bimodal, Constant, Exponential
from tiedreq.sim.faults import FaultOptions
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.options import SimOptions
from tiedreq.sim.traffic import TrafficOptions
from tiedreq.sim.world import WorldOptions
from tiedreq.units import LatencyLaw, LatencySpec

SEEDS = 6
"""Seeds of each world: the same for broken cores and for right ones."""
LONG = 3_600.0
WORK = (HeldMethod(MethodInfo("work", True, True, LONG), None),)
ONCE = (HeldMethod(MethodInfo("once", False, True, LONG), None),)
STREAM = (HeldMethod(MethodInfo("stream", True, True, LONG, True), None),)
THREAD = (HeldMethod(MethodInfo("thread", True, False, LONG), None),)
AT_ONCE = Tied(backup=None, stagger=0.0)
BACKUP = Backup(after=0.02, min_after=1e-5)
TIGHT = Backup(after=0.02, min_after=1e-5, budget=0.01)
EXCLUSIVE: tuple[Policy, ...] = tuple(
    Tied(backup=None, stagger=0.0, exclusive=True, copies=copies) for copies in (2, 3, 3)
)
QUICK = NetworkOptions(
    mesh=LatencySpec(LatencyLaw(0.003, 0.002)),
    client=LatencySpec(LatencyLaw(0.001, 0.001)),
    notice_max=0.02,
    silence=0.1,
    reconnect_min=0.002,
    reconnect_max=0.01,
)
CALM = SimOptions(
    seed=0,
    seconds=3.0,
    world=WorldOptions(replicas=2, slots=1, methods=WORK, network=QUICK, client_limits=ClientLimits(rounds_max=3)),
    traffic=TrafficOptions(calls=120, rate=80.0, law=Exponential(0.01), policies=(AT_ONCE,), timeouts=(LONG,)),
    faults=FaultOptions(length_max=0.1),
)


def world(
    *,
    replicas: int = 2,
    slots: int = 1,
    callers: int = 1,
    methods: tuple[HeldMethod, ...] = WORK,
    network: NetworkOptions = QUICK,
    limits: ReplicaLimits | None = None,
    traffic: dict[str, object] | None = None,
    faults: dict[str, float] | None = None,
    learns: bool = False,
) -> SimOptions:
    """The calm world with a few things changed."""
    parts = replace(
        CALM.world,
        replicas=replicas,
        slots=slots,
        callers=callers,
        methods=methods,
        learns=learns,
        network=network,
        replica_limits=limits if limits is not None else ReplicaLimits(marker_age_max=1.0),
    )
    return replace(
        CALM,
        world=parts,
        traffic=replace(CALM.traffic, **(traffic or {})),  # type: ignore[arg-type]  # options by name
        faults=replace(CALM.faults, **(faults or {})),
    )


OVERTAKING = replace(QUICK, overtaking=0.5, overtaking_delay=0.03)
FORGOTTEN_LATE = replace(QUICK, notice_max=0.3, reconnect_min=0.001, reconnect_max=0.003)

WORLDS: dict[str, SimOptions] = {
    "calm": CALM,
    "threads": world(methods=THREAD),
    "streams": world(methods=STREAM, slots=2),
    "cancels and deadlines": world(traffic={"cancelled": 0.3, "timeouts": (0.03, LONG)}),
    "callers stall": world(
        traffic={"timeouts": (0.03,), "law": Constant(0.02), "rate": 150.0},
        faults={"caller_freeze": 0.1, "length_max": 0.2},
    ),
    "slow to stop": world(traffic={"stop_seconds": 0.01, "cancelled": 0.2}),
    "overtaking": world(network=OVERTAKING),
    "little memory": world(
        network=OVERTAKING, replicas=3, limits=ReplicaLimits(queue_length_max=2, markers_per_peer_max=1)
    ),
    "markers evicted": world(
        network=replace(QUICK, mesh=LatencySpec(LatencyLaw(0.0005)), client=LatencySpec(LatencyLaw(0.01, 0.01))),
        slots=4,
        limits=ReplicaLimits(markers_per_peer_max=1),
        traffic={"law": Exponential(0.05), "rate": 200.0},
    ),
    "stalls": world(faults={"freeze": 0.2}),
    "lost links": world(network=FORGOTTEN_LATE, callers=2, faults={"cut": 0.05}),
    "drains": world(replicas=3, traffic={"rate": 200.0}, faults={"drain": 0.15}),
    "drains, once": world(methods=ONCE, replicas=3, traffic={"rate": 200.0}, faults={"drain": 0.05, "cut": 0.1}),
    "rounds": world(replicas=3, limits=ReplicaLimits(queue_length_max=2), traffic={"failing": 0.4, "rejected": 0.2}),
    "two at a time": world(slots=2, traffic={"failing": 0.4, "rate": 100.0}),
    "backups": world(
        replicas=3,
        traffic={
            "law": Bimodal(0.005, 0.15, 0.1),
            "policies": (Tied(stagger=0.0, backup=BACKUP), Tied(stagger=0.004, backup=BACKUP)),
            "rejected": 0.1,
        },
    ),
    "backups and crashes": world(
        replicas=3,
        traffic={"law": Bimodal(0.005, 0.15, 0.1), "policies": (Tied(stagger=0.0, backup=BACKUP),)},
        faults={"freeze": 0.3, "crash": 0.3, "cut": 0.3},
    ),
    "backups, lost links": world(
        replicas=3,
        network=replace(FORGOTTEN_LATE, mesh=LatencySpec(LatencyLaw(0.02))),
        callers=2,
        traffic={
            "law": Bimodal(0.005, 0.15, 0.1),
            "policies": (Tied(stagger=0.0, backup=BACKUP),),
            "rate": 150.0,
        },
        faults={"cut": 0.02},
    ),
    "backups, many": world(
        replicas=5,
        traffic={
            "law": Bimodal(0.005, 0.3, 0.7),
            "policies": (Tied(stagger=0.0, backup=replace(BACKUP, max_per_call=1)),),
            "rate": 5.0,
            "calls": 20,
        },
    ),
    "pushed back": world(
        replicas=3,
        traffic={"law": Bimodal(0.005, 0.15, 0.1), "policies": (Tied(stagger=0.0, backup=BACKUP),)},
        faults={"pushback": 0.1, "length_max": 0.3},
    ),
    "braked": world(
        replicas=3,
        learns=True,
        traffic={"law": Bimodal(0.005, 0.15, 0.1), "policies": (Tied(stagger=0.0, backup=TIGHT),), "calls": 240},
    ),
    "braked, lost links": world(
        replicas=3,
        learns=True,
        network=FORGOTTEN_LATE,
        traffic={"law": Bimodal(0.005, 0.15, 0.1), "policies": (Tied(stagger=0.0, backup=TIGHT),)},
        faults={"cut": 0.1},
    ),
    "braked, little room": world(
        replicas=4,
        learns=True,
        limits=ReplicaLimits(queue_length_max=1),
        traffic={"law": Bimodal(0.005, 0.15, 0.1), "policies": (Tied(stagger=0.0, backup=TIGHT),), "rate": 150.0},
    ),
    "braked, double starts": world(
        network=replace(QUICK, mesh=LatencySpec(LatencyLaw(0.02))),
        learns=True,
        slots=4,
        traffic={"law": Constant(0.015), "policies": (Tied(stagger=0.0, backup=TIGHT),), "calls": 240},
    ),
    "threads that can be stopped": world(methods=THREAD, traffic={"stop_enabled": 0.7}),
    "threads, overtaking": world(methods=THREAD, network=OVERTAKING),
    "calm, no yield": world(traffic={"policies": (Tied(backup=None, stagger=0.0, yield_=False),)}),
    "errors": world(replicas=3, traffic={"failing": 0.3, "final": 1.0}),
    "once": world(methods=ONCE, replicas=3, traffic={"failing": 0.2}, faults={"crash": 0.3, "cut": 0.1}),
    "staggered, little room": world(
        replicas=3,
        limits=ReplicaLimits(queue_length_max=1),
        traffic={"policies": (Tied(backup=None, stagger=0.02),), "rate": 200.0},
    ),
    "staggered, lost links": world(
        replicas=3,
        network=FORGOTTEN_LATE,
        traffic={"policies": (Tied(backup=None, stagger=0.02),)},
        faults={"cut": 0.05, "crash": 0.2},
    ),
    "exclusive with backup": world(
        replicas=3,
        network=OVERTAKING,
        traffic={"policies": (Tied(stagger=0.0, exclusive=True, backup=BACKUP),), "rate": 120.0},
    ),
    "staggered": world(traffic={"policies": (Tied(backup=None, stagger=0.004),), "rate": 40.0}),
    "exclusive": world(replicas=3, network=OVERTAKING, traffic={"policies": EXCLUSIVE}),
    "exclusive, drains": world(
        replicas=3, traffic={"policies": EXCLUSIVE, "rate": 250.0, "calls": 200}, faults={"drain": 0.1}
    ),
    "exclusive, little memory": world(
        replicas=3,
        network=OVERTAKING,
        limits=ReplicaLimits(tombstones_max=1, parked_claims_max=1, parked_claim_age_max=0.02),
        traffic={"policies": EXCLUSIVE},
    ),
    "exclusive, far": world(
        replicas=3,
        network=replace(QUICK, mesh=LatencySpec(LatencyLaw(0.03))),
        traffic={"policies": EXCLUSIVE, "rate": 150.0},
        faults={"crash": 0.2, "cut": 0.1},
    ),
    "exclusive, lost links": world(
        replicas=3,
        network=replace(FORGOTTEN_LATE, mesh=LatencySpec(LatencyLaw(0.01))),
        traffic={"policies": EXCLUSIVE, "rate": 150.0},
        faults={"cut": 0.02},
    ),
    "exclusive, losses": world(
        replicas=3,
        network=OVERTAKING,
        traffic={"policies": EXCLUSIVE},
        faults={"crash": 0.3, "cut": 0.1, "drain": 0.5},
    ),
}
