"""All options of a searching run, drawn from one seed: how many replicas, which limits, what load, which faults.

Most runs leave most kinds of trouble out: a fault that is always there hides what only its absence shows (swarm
testing: Groce et al., ISSTA 2012). Limits are tiny in some runs and out of the way in others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import exp, log
from random import Random

from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.picker import PICKERS
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import MethodInfo
from tiedreq.laws import Bimodal, Constant, Exponential, LognormalMean, ServiceLaw
from tiedreq.sim.faults import FaultOptions
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.terse import terse_fields
from tiedreq.sim.themes import THEMES
from tiedreq.sim.traffic import TrafficOptions
from tiedreq.sim.world import WorldOptions
from tiedreq.units import LatencyLaw, LatencySpec, LinkLatency, format_duration

METHODS = (
    HeldMethod(MethodInfo("work", True, True, 3_600.0), None),
    HeldMethod(MethodInfo("lane", True, True, 3_600.0), 1),
    HeldMethod(MethodInfo("thread", True, False, 3_600.0), None),
    HeldMethod(MethodInfo("threads", True, False, 3_600.0), 1),
    HeldMethod(MethodInfo("once", False, True, 3_600.0), None),
    HeldMethod(MethodInfo("brief", True, True, 0.05), None),
)
SECONDS_MAX = 10.0
FOREVER = 3_600.0
THEMED = 0.5
"""The share of runs that have a theme."""
LEARNING = 0.3
"""The share of runs whose callers learn, have the brake, and choose with a picker of any name."""
LEARNED: tuple[Policy, ...] = (
    Auto(),
    Auto(Backup(budget=1.0, min_after=1e-5)),
    Auto(observe_only=True),
    Tied(backup=Backup(budget=0.5, min_after=1e-5)),
    Hedged(Backup(after="p90", since="send", budget=1.0, min_after=1e-5)),
)
FAULT_KINDS = tuple(f.name for f in fields(FaultOptions) if f.name not in ("slow_factor", "length_max"))


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One searching run. ``seed`` draws what happens in it, also where the other options were not drawn from it.

    Calls are made and faults strike for ``seconds`` at most. ``theme`` is the name of one of ``themes.THEMES``.
    """

    seed: int
    seconds: float
    world: WorldOptions
    traffic: TrafficOptions
    faults: FaultOptions
    theme: str = "any"

    @classmethod
    def draw(cls, seed: int) -> SimOptions:
        """The options that belong to a seed."""
        options = _Draw(Random(f"{seed}/options")).options(seed)
        rng = Random(f"{seed}/learning")
        if rng.random() >= LEARNING:
            return options
        world = replace(options.world, learns=True, picker=rng.choice(PICKERS))
        policies = (*options.traffic.policies, *rng.sample(LEARNED, rng.randint(1, 2)))
        return replace(options, world=world, traffic=replace(options.traffic, policies=policies))

    def line(self) -> str:
        """All options in one line; what is not in it is at its default."""
        return f"seed {self.seed}: {terse_fields(self, leave_out=('seed',))}"

    def describe(self) -> str:
        """The options in words, a few lines."""
        world, traffic, network = self.world, self.traffic, self.world.network
        limits, client = world.replica_limits, world.client_limits
        methods = ", ".join(method.info.name for method in world.methods)
        arrivals = f"{traffic.workers} workers" if traffic.workers else f"{traffic.rate:.4g}/s"
        policies = "; ".join(str(policy) for policy in traffic.policies)
        law = f"{traffic.law}{' per call' if traffic.intrinsic else ''}"
        shares = ("cancelled", "failing", "final", "rejected", "stop_enabled")
        told = ", ".join(f"{name} {share:.3g}" for name in shares if (share := getattr(traffic, name)))
        return "\n".join(
            [
                f"seed {self.seed}: {world.replicas} replicas x {world.slots} slots, {world.callers} callers"
                f"; theme: {self.theme}",
                f"  traffic: {traffic.calls} calls, {arrivals}, service {law}; {told or 'no trouble'}"
                f"; to stop takes {_time(traffic.stop_seconds)}",
                f"  methods: {methods}; timeouts {' '.join(_time(timeout) for timeout in traffic.timeouts)}",
                f"  policies: {policies}",
                f"  latency: mesh {network.mesh}, client {network.client}; overtaking {network.overtaking:.3g}"
                f", unsent {world.unsent:.3g}",
                f"  breaks: noticed within {_time(network.notice_max)}, silence {_time(network.silence)}"
                f", dialed again within {_time(network.reconnect_max)}",
                f"  limits: queue {limits.queue_length_max}, per caller {limits.copies_per_caller_max}"
                f", markers {limits.markers_per_peer_max} for {_time(limits.marker_age_max)}"
                f", tombstones {limits.tombstones_max}, rounds {client.rounds_max}",
                f"  faults for {_time(self.seconds)}: {self.faults}",
            ]
        )


def _time(seconds: float) -> str:
    return format_duration(float(f"{seconds:.4g}"))


class _Draw:
    """Draws each group of options in turn."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def between(self, low: float, high: float) -> float:
        """Between the two on a logarithmic scale, with four digits."""
        return float(f"{exp(self.rng.uniform(log(low), log(high))):.4g}")

    def sometimes(self, share: float, low: float, high: float) -> float:
        """0, or with the probability ``share`` a number between the two."""
        return self.between(low, high) if self.chance(share) else 0.0

    def options(self, seed: int) -> SimOptions:
        rng = self.rng
        replicas, slots = rng.choice([1, 2, 2, 3, 3, 3, 4, 5]), rng.choice([1, 1, 1, 2, 2, 4])
        world = WorldOptions(
            replicas=replicas,
            slots=slots,
            callers=rng.choice([1, 1, 2, 3]),
            methods=tuple(rng.sample(METHODS, rng.randint(1, 4))),
            network=self.network(replicas),
            replica_limits=self.replica_limits(),
            client_limits=ClientLimits(rounds_max=rng.choice([1, 2, 3, 5])),
            unsent=self.sometimes(0.15, 0.001, 0.2),
            measure_interval=self.between(0.05, 1.0),
            warm_up=rng.choice([1, 4, 16]),
        )
        traffic = self.traffic(replicas * slots)
        wait = traffic.law.mean() + 2 * world.network.client.default.mean
        seconds = traffic.calls * (wait / traffic.workers if traffic.workers else 1 / traffic.rate)
        seconds = float(f"{min(max(seconds, 0.1), SECONDS_MAX):.4g}")
        options = SimOptions(seed, seconds, world, traffic, self.faults(seconds), "any")
        if not self.chance(THEMED):
            return options
        theme = rng.choice(THEMES)
        return replace(theme(options, rng), theme=theme.__name__.replace("_", " "))

    def latency(self) -> LatencyLaw:
        mean = self.rng.choice([0.0, self.between(1e-5, 1e-3), self.between(1e-4, 0.02)])
        return LatencyLaw(mean, float(f"{mean * self.rng.choice([0.0, 0.0, 0.3, 1.0]):.4g}"))

    def network(self, replicas: int) -> NetworkOptions:
        rng = self.rng
        links: list[LinkLatency] = []
        if replicas > 1 and self.chance(0.3):
            first, second = rng.sample(range(replicas), 2)
            links.append(LinkLatency(f"r{first}", f"r{second}", self.latency(), both_ways=self.chance(0.5)))
        far = [LinkLatency("c0", f"r{rng.randrange(replicas)}", self.latency())] if self.chance(0.3) else []
        reconnect = self.between(1e-3, 0.5)
        return NetworkOptions(
            mesh=LatencySpec(self.latency(), tuple(links)),
            client=LatencySpec(self.latency(), tuple(far)),
            notice_max=self.sometimes(0.8, 1e-4, 0.5),
            silence=self.between(0.02, 1.0),
            reconnect_min=reconnect / 10,
            reconnect_max=reconnect,
            overtaking=self.sometimes(0.4, 0.02, 0.9),
            overtaking_delay=self.between(1e-4, 0.1),
        )

    def replica_limits(self) -> ReplicaLimits:
        rng = self.rng
        return ReplicaLimits(
            queue_length_max=rng.choice([1, 2, 5, 20, 10_000]),
            copies_per_caller_max=rng.choice([1, 3, 10, 10_000, 10_000]),
            markers_per_peer_max=rng.choice([1, 1, 2, 10, 50_000, 50_000]),
            marker_age_max=self.between(0.01, 5.0),
            cancel_markers_per_caller_max=rng.choice([1, 3, 10_000]),
            parked_claims_max=rng.choice([1, 3, 10_000]),
            tombstones_max=rng.choice([1, 5, 50, 50_000, 50_000]),
            report_interval=self.between(0.01, 1.0),
        )

    def law(self) -> ServiceLaw:
        mean = self.between(1e-4, 0.05)
        laws: list[ServiceLaw] = [
            Constant(mean),
            Exponential(mean),
            LognormalMean(mean, 2 * mean),
            Bimodal(mean, 30 * mean, 0.05),
            Constant(0.0),
        ]
        return self.rng.choice(laws)

    def backup(self) -> Backup:
        since = "start" if self.chance(0.6) else "send"
        after = self.sometimes(0.95, 1e-4, 0.1)
        return Backup(after=after, min_after=1e-5, since=since, max_per_call=self.rng.choice([1, 2, 2, 4]))  # type: ignore[arg-type]  # one of two words

    def policy(self) -> Policy:
        kind = self.rng.random()
        if kind < 0.15:
            return Plain()
        if kind < 0.35:
            return Hedged(self.backup())
        return Tied(
            copies=self.rng.choice([2, 2, 2, 3, 4]),
            stagger="auto" if self.chance(0.4) else self.sometimes(0.5, 1e-5, 0.02),
            backup=self.backup() if self.chance(0.5) else None,
            yield_=self.chance(0.8),
            exclusive=self.chance(0.3),
        )

    def timeout(self) -> float:
        """Short, comfortable, or so long that the call must end by something else when everything is mended."""
        return self.rng.choice([self.between(0.005, 0.3), self.between(0.3, 5.0), self.between(0.3, 5.0), FOREVER])

    def traffic(self, slots: int) -> TrafficOptions:
        rng = self.rng
        law = self.law()
        load = self.between(0.1, 1.5)
        return TrafficOptions(
            calls=rng.choice([20, 60, 150]),
            rate=load * slots / max(law.mean(), 1e-3),
            workers=rng.choice([0, 0, 0, 2, 10]),
            law=law,
            intrinsic=self.chance(0.2),
            policies=tuple(self.policy() for _ in range(rng.randint(1, 3))),
            timeouts=tuple(self.timeout() for _ in range(rng.randint(1, 3))),
            cancelled=self.sometimes(0.3, 0.01, 0.5),
            cancel_within=self.between(1e-4, 0.1),
            failing=self.sometimes(0.2, 0.01, 0.3),
            final=self.sometimes(0.2, 0.01, 0.3),
            rejected=self.sometimes(0.2, 0.01, 0.3),
            stop_seconds=self.sometimes(0.3, 1e-4, 0.05),
            stop_enabled=self.sometimes(0.3, 0.1, 1.0),
        )

    def faults(self, seconds: float) -> FaultOptions:
        """Each kind is left out of most runs; one that is not comes once to ten times in the run, on average."""
        calm = self.chance(0.15)
        often = {kind: 0.0 if calm else self.sometimes(0.3, seconds / 10, seconds) for kind in FAULT_KINDS}
        length = self.between(seconds / 100, seconds)
        return FaultOptions(**often, slow_factor=self.between(2.0, 50.0), length_max=length)
