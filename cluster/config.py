"""What ``python -m cluster.up`` was asked for: one frozen value that checks itself.

Invariants: an unknown, contradicting or half-set option is refused here, before anything is started; what can't be had
in this version is refused by name. Not for reading the command line (``cluster.up``), and not for what a child is told
(``cluster.engines.base.ReplicaSpec``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.errors import BadOption
from tiedreq.laws import ServiceLaw
from tiedreq.slowness import PauseSpec, SlowSpec
from tiedreq.units import LatencySpec, check_duration, check_number, check_zone

DEMO_APP = "cluster.demo.service:service"
REPLICAS_MAX = 256
SLOTS_MAX = 10_000
RATE_MAX = 100_000.0
BACKUP_AFTER_DEFAULT = 0.030
DRAIN_TIMEOUT_DEFAULT = 10.0

ENGINES = ("local", "ray")
RAY_ADDRESS = "RAY_ADDRESS"
HOST_DEFAULT = "127.0.0.1"
LIMITS_DEFAULT = ReplicaLimits()
REPLICA_CPUS_MAX = 1024.0
POLICIES = (
    "plain",
    "hedged",
    "hedged-fixed",
    "hedged-uncancelled",
    "doubled",
    "backup",
    "tied-classic",
    "tied-nobackup",
    "tied",
    "tied-exclusive",
    "auto",
)


def policy_by_name(name: str, *, backup_after: float | None = None) -> Policy:
    """The policy called ``name``; ``backup_after`` (seconds) fixes the delay of its backups, which else is learned.

    ``hedged-fixed`` and ``hedged-uncancelled`` have a fixed delay and no budget; ``doubled`` sends two copies at once.
    Raises ``BadOption`` for an unknown name.
    """
    after: float | str = "auto" if backup_after is None else backup_after
    fixed = Backup(
        after=BACKUP_AFTER_DEFAULT if backup_after is None else backup_after, budget=None, since="send", max_per_call=1
    )
    at_once = Backup(after=0.0, min_after=0.0, budget=None, since="send", max_per_call=1)
    match name:
        case "plain":
            return Plain()
        case "hedged":
            return Hedged(Backup(after=after, since="send"))
        case "hedged-fixed":
            return Hedged(fixed)
        case "hedged-uncancelled":
            return Hedged(fixed, cancel_losers=False)
        case "doubled":
            return Hedged(at_once, cancel_losers=False)
        case "backup":
            return Hedged(Backup(after=after))
        case "tied-classic":
            return Tied(yield_=False, backup=None)
        case "tied-nobackup":
            return Tied(backup=None)
        case "tied":
            return Tied(backup=Backup(after=after))
        case "tied-exclusive":
            return Tied(exclusive=True, backup=Backup(after=after))
        case "auto":
            return Auto(Backup(after=after))
    raise BadOption(f"policy: {name[:60]!r} is unknown; available are {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """Open-loop traffic: ``rate`` calls per second, for ``duration`` seconds or, if None, until the cluster stops."""

    rate: float
    policy: str = "tied"
    backup_after: float | None = None
    duration: float | None = None

    def __post_init__(self) -> None:
        check_number(self.rate, "rate", low=0.001, high=RATE_MAX)
        if self.backup_after is not None:
            check_duration(self.backup_after, "backup-after")
        if self.duration is not None:
            check_duration(self.duration, "duration", low=0.001)
        policy_by_name(self.policy, backup_after=self.backup_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How the demo's artificial ``work`` behaves; None and empty: as the demo has it by itself."""

    service: ServiceLaw | None = None
    slow: tuple[SlowSpec, ...] = ()
    pause: tuple[PauseSpec, ...] = ()

    @property
    def is_set(self) -> bool:
        """True when any of it was asked for: then traffic goes to ``work``."""
        return self.service is not None or bool(self.slow) or bool(self.pause)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """Everything a launcher needs to know. Durations are seconds. Raises ``BadOption`` when made with a bad value.

    ``address`` of a Ray cluster, None for one of this host alone, and ``replica_cpus`` are for the engine ``ray``.
    """

    replicas: int = 4
    slots: int = 8
    app: str = DEMO_APP
    host: str = HOST_DEFAULT
    port: int = 0
    state_dir: Path = Path(".tiedreq")
    engine: str = "local"
    address: str | None = None
    replica_cpus: float = 1.0
    mesh_latency: LatencySpec | None = None
    zones: tuple[str, ...] = ()
    drain_timeout: float = DRAIN_TIMEOUT_DEFAULT
    limits: ReplicaLimits = LIMITS_DEFAULT
    traffic: TrafficOptions | None = None
    demo: DemoOptions = DemoOptions()
    seed: int = 0
    metrics_port: int = 0
    json_events: bool = False
    dashboard: bool = True
    dashboard_port: int | None = None
    dashboard_remote_control: bool = False

    def __post_init__(self) -> None:
        _check_whole("replicas", self.replicas, 1, REPLICAS_MAX)
        _check_whole("slots", self.slots, 1, SLOTS_MAX)
        _check_whole("port", self.port, 0, 65_535)
        if self.port and self.port + self.replicas - 1 > 65_535:
            raise BadOption(f"port: {self.replicas} replicas from {self.port} on go beyond 65535")
        _check_whole("metrics-port", self.metrics_port, 0, 65_535)
        if self.metrics_port and self.metrics_port + self.replicas - 1 > 65_535:
            raise BadOption(f"metrics-port: {self.replicas} replicas from {self.metrics_port} on go beyond 65535")
        self._check_dashboard()
        check_duration(self.drain_timeout, "drain-timeout")
        check_app(self.app)
        _check_host(self.host)
        self._check_engine()
        self._check_demo()
        for zone in self.zones:
            if re.fullmatch(r"r\d+", check_zone(zone, field="zones")):
                raise BadOption(f"zones: {zone!r} is the name of a replica")
        if self.mesh_latency is not None:
            self.check_latency(self.mesh_latency, "mesh-latency")
        _ = self.state_shown

    @property
    def is_demo(self) -> bool:
        """True when the replicas run the demo."""
        return self.app == DEMO_APP

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas' names, ``r0`` and so on."""
        return tuple(f"r{index}" for index in range(self.replicas))

    def missing(self, present: Collection[str]) -> list[tuple[int, str]]:
        """Index and name of as many as are to be started beside those that are there, lowest first.

        Those are not always the first ones: one that could not be started leaves a gap.
        """
        free = [(index, name) for index, name in enumerate(self.names) if name not in present]
        return free[: max(0, self.replicas - len(present))]

    @property
    def state_shown(self) -> str:
        """The state directory as the ready line names it: absolute, or relative where only that has no space."""
        for path in (self.state_dir.absolute(), self.state_dir):
            if re.search(r"\s", str(path)) is None:
                return str(path)
        raise BadOption(f"state-dir: {str(self.state_dir)!r} holds a space, and the ready line must name it")

    def zone(self, index: int) -> str:
        """The zone of the replica with this index: one after the other, in turn; empty where there are none."""
        return self.zones[index % len(self.zones)] if self.zones else ""

    def listen_port(self, index: int) -> int:
        """The port of the replica with this index; 0: any free one."""
        return self.port + index if self.port else 0

    @property
    def replica_host(self) -> str:
        """Where replicas listen; empty: each at the address that its node has in the Ray cluster."""
        return "" if self.engine == "ray" and self.host == HOST_DEFAULT else self.host

    def _check_dashboard(self) -> None:
        if self.dashboard_port is None:
            return
        _check_whole("dashboard-port", self.dashboard_port, 0, 65_535)
        if self.port and self.port <= self.dashboard_port < self.port + self.replicas:
            taken = f"r{self.dashboard_port - self.port}"
            raise BadOption(f"dashboard-port: {self.dashboard_port} is the port of {taken} (--port {self.port})")

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise BadOption(f"engine: {self.engine[:60]!r} is unknown; available are {', '.join(ENGINES)}")
        check_number(self.replica_cpus, "replica-cpus", low=0.001, high=REPLICA_CPUS_MAX)
        if self.address is not None:
            ray_address(self.address, self.engine)

    def _check_demo(self) -> None:
        for option, specs in (("slow", self.demo.slow), ("pause", self.demo.pause)):
            for spec in specs:
                if spec.replica is not None and spec.replica >= self.replicas:
                    raise BadOption(f"{option}: '{spec}' names a replica beyond r{self.replicas - 1}")
                clashing = [other for other in specs if other.replica in (spec.replica, None) or spec.replica is None]
                if len(clashing) > 1:
                    raise BadOption(f"{option}: {' and '.join(map(str, clashing))} are about the same replica")
        if self.is_demo:
            return
        if self.demo.is_set:
            raise BadOption("service, slow and pause: they shape the demo's work, and --app names another service")
        if self.traffic is not None:
            raise BadOption("rate: traffic is driven against the demo only, and --app names another service")

    def check_latency(self, spec: LatencySpec, field: str) -> None:
        """Raises ``BadOption`` that names ``field`` when ``spec`` names a replica which is none."""
        named = {name for link in spec.links for name in link.directions[0]}
        unknown = sorted(named - set(self.names) - set(self.zones))
        if unknown:
            zones = f", zones {', '.join(dict.fromkeys(self.zones))}" if self.zones else ""
            raise BadOption(
                f"{field}: no replica is named {', '.join(unknown)}; names are r0 to {self.names[-1]}{zones}"
            )


def ray_address(given: str | None, engine: str) -> str | None:
    """The address of the Ray cluster to join: ``given``, or that of ``$RAY_ADDRESS``; None: there is none.

    ``auto`` or ``HOST:PORT``; ``local`` in the variable names none, as for Ray itself. Raises ``BadOption``.
    """
    if engine != "ray":
        if given is not None:
            raise BadOption(f"address: it is that of a Ray cluster, and --engine is {engine}")
        return None
    address = os.environ.get(RAY_ADDRESS, "") if given is None else given
    if address in ("", "local") and given is None:
        return None
    if address.startswith("ray://"):
        raise BadOption(
            f"address: {address[:60]!r} is of Ray's client; start this on a node of the cluster, with HOST:PORT or auto"
        )
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):(\d{1,5})", address)
    if address != "auto" and (match is None or not 0 < int(match[2]) < 65536):
        raise BadOption(f"address: {address[:60]!r} is neither auto nor HOST:PORT of a Ray cluster")
    return address


def check_app(text: str) -> str:
    """``text`` when it has the form ``package.module:service``; ``BadOption`` otherwise."""
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", text) is None:
        raise BadOption(f"app: {text[:80]!r} is not MODULE:SERVICE, such as app:service")
    return text


def _check_host(host: str) -> None:
    if not host or re.search(r"[\s/\[\]]", host):
        raise BadOption(f"host: {host[:80]!r} is not a host name or an address (IPv6 without brackets)")


def _check_whole(field: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise BadOption(f"{field}: {value!r} is not a whole number from {low} to {high}")
