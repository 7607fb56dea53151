"""A cell of a comparison: everything that one row depends on, apart from the seed.

A cell is an immutable value: it can be compared, sent to another process, and it validates itself. All durations are
seconds, rates are calls per second. A simulated and a live run read the same cell.

Not for what was measured (``tally``), nor for lists of cells (``grid``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from cluster.compare.trace import Recording
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Backup
from tiedreq.laws import Exponential, ServiceLaw
from tiedreq.slowness import PauseSpec, SlowSpec
from tiedreq.units import LatencySpec, check_duration, check_number, check_zone, format_duration, format_number

__all__ = ["HANDLERS", "PICKERS", "WORLDS", "BrownOut", "Cell", "Handlers", "Picker", "WorldName"]

WorldName = Literal["sim", "live"]
Picker = Literal["random", "two-choices", "least-outstanding", "adaptive"]
Handlers = Literal["cancellable", "thread"]

WORLDS: tuple[WorldName, ...] = ("sim", "live")
PICKERS: tuple[Picker, ...] = ("random", "two-choices", "least-outstanding", "adaptive")
HANDLERS: tuple[Handlers, ...] = ("cancellable", "thread")

RATE_MAX = 1e6
CALLS_MAX = 100_000_000
REPLICAS_MAX = 1_000
SLOTS_MAX = 1_000
CALLERS_MAX = 100
WORKERS_MAX = 100_000
FAN_OUT_MAX = 10_000
SERVICE_DEFAULT = Exponential(0.010)
NO_LATENCY = LatencySpec()
COPIES_MAX = 8
BACKUPS_MAX = 8
LOAD_MAX = 10.0
DELAY_MAX = 3_600.0


@dataclass(frozen=True, slots=True)
class BrownOut:
    """From ``begin`` to ``end`` of the run every execution at every replica takes ``extra`` seconds longer.

    Both times count from the first moment at which calls are made, warm-up included.
    """

    begin: float
    end: float
    extra: float

    def __post_init__(self) -> None:
        check_duration(self.begin, "brown-out begin")
        check_duration(self.end, "brown-out end", low=self.begin)
        check_duration(self.extra, "brown-out extra")

    def __str__(self) -> str:
        return f"{format_duration(self.extra)}@{format_duration(self.begin)}-{format_duration(self.end)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row's experiment. Durations are seconds. Raises ``BadOption`` that names the field and its limit.

    * ``world``, ``scenario`` (None without one), ``policy`` (a name of ``policies``): what the row is called.
    * ``replicas``, ``slots`` of each, ``service`` (law of one execution), ``slow``, ``pauses``, ``intrinsic``
      (slowness belongs to the call: every copy takes the same time), ``brown_out``, ``handlers`` (``"thread"``: running
      work can't be stopped).
    * ``rate`` of the calls (Poisson, open loop); None: ``workers`` call again and again in a closed loop. ``load`` is
      the utilisation that one copy per call makes, None where it doesn't apply. ``callers`` clients share the calls.
    * ``mesh_latency`` between replicas, ``client_latency`` between clients and replicas, one way each.
    * Replicas and clients stand in ``zones``, in turn, which latencies may name; with ``zone_blind`` they don't say so.
      ``zone_pauses``: every zone stops entirely, all its replicas at once.
    * ``picker``; ``copies`` of a tie, their ``stagger``; ``backup_after`` is the delay of a backup in seconds or
      ``"auto"`` (learned; ``"p95"``: a quantile of service times), ``fixed_after`` that of the policies with a fixed
      one (from the sending, in seconds);
      ``backup_budget`` is the extra work allowed as a share of useful work (None: what the policy has by itself),
      ``backups`` the most per call.
    * ``warmup`` seconds are run first and not measured; then ``duration`` seconds, or ``calls`` calls, are. ``timeout``
      is the time each call has.
    * ``recording``: calls come at recorded times, once, instead of as a Poisson process (``rate`` is their mean).
    * ``fan_out`` calls make one root call, which has its answer when all of them have.
    * ``processes`` that the replicas of a live run share, by turns; None: each has one of its own.
    * ``app`` is ``MODULE:SERVICE`` of a live run of somebody's own service; None: the laboratory's ``work``. Calls go
      to its ``method`` (None: the first that is idempotent) with ``arguments``, which is JSON.
    """

    world: WorldName = "sim"
    scenario: str | None = None
    policy: str = "tied"
    replicas: int = 10
    slots: int = 8
    service: ServiceLaw = SERVICE_DEFAULT
    slow: tuple[SlowSpec, ...] = ()
    pauses: tuple[PauseSpec, ...] = ()
    intrinsic: bool = False
    brown_out: BrownOut | None = None
    handlers: Handlers = "cancellable"
    picker: Picker = "two-choices"
    rate: float | None = None
    load: float | None = None
    workers: int = 0
    callers: int = 1
    mesh_latency: LatencySpec = NO_LATENCY
    client_latency: LatencySpec = NO_LATENCY
    zones: tuple[str, ...] = ()
    zone_blind: bool = False
    zone_pauses: tuple[PauseSpec, ...] = ()
    copies: int = 2
    stagger: float | Literal["auto"] = "auto"
    backup_after: float | str = "auto"
    fixed_after: float = 0.030
    backup_budget: float | None = None
    backups: int = 2
    warmup: float = 5.0
    duration: float | None = None
    calls: int | None = None
    timeout: float = 3_600.0
    fan_out: int = 1
    processes: int | None = None
    app: str | None = None
    recording: Recording | None = None
    method: str | None = None
    arguments: str = "null"

    def __post_init__(self) -> None:
        self._check_names()
        self._check_service()
        self._check_zones()
        self._check_traffic()
        self._check_policy()

    def _check_names(self) -> None:
        _check_one_of(self.world, "world", WORLDS)
        _check_one_of(self.picker, "picker", PICKERS)
        _check_one_of(self.handlers, "handlers", HANDLERS)
        if self.app is not None and self.world != "live":
            raise BadOption("app: somebody's own service can be compared live only; add --world live")
        if self.app is None and (self.method is not None or self.arguments != "null"):
            raise BadOption("method, arguments: they are for somebody's own service; add --app MODULE:SERVICE")
        try:
            json.loads(self.arguments)
        except ValueError as error:
            raise BadOption(f"arguments: {self.arguments[:60]!r} is not JSON: {error}") from None

    def _check_service(self) -> None:
        _check_whole(self.replicas, "replicas", 1, REPLICAS_MAX)
        _check_whole(self.slots, "slots", 1, SLOTS_MAX)
        for slow in self.slow:
            if slow.replica >= self.replicas:
                raise BadOption(f"slow: there is no replica {slow.replica}, only 0 to {self.replicas - 1}")
        for pause in self.pauses:
            if pause.replica is not None and pause.replica >= self.replicas:
                raise BadOption(f"pause: there is no replica {pause.replica}, only 0 to {self.replicas - 1}")

        if self.processes is not None:
            self._check_processes(self.processes)

    def _check_processes(self, processes: int) -> None:
        if self.world != "live":
            raise BadOption("processes: they are for live runs; add --world live")
        _check_whole(processes, "processes", 1, self.replicas)
        if self.pauses and processes < self.replicas:
            raise BadOption("processes: a replica that shares a process can't be stopped alone; leave out --pause")

    def _check_zones(self) -> None:
        for zone in self.zones:
            check_zone(zone, field="zones")
        if not self.zones and (self.zone_blind or self.zone_pauses):
            raise BadOption("zone-blind, zone-pause: there are no zones; add --zones a,b,c")
        if self.world == "live" and (self.zone_blind or self.zone_pauses):
            raise BadOption("zone-blind, zone-pause: in simulated runs only")
        if any(pause.replica is not None for pause in self.zone_pauses):
            raise BadOption("zone-pause: each zone has pauses of its own; write for example 200ms@10s")
        replicas = {f"r{index}" for index in range(self.replicas)}
        for field, spec, extra in (("mesh-latency", self.mesh_latency, 0), ("client-latency", self.client_latency, 1)):
            named = {name for link in spec.links for name in link.directions[0]}
            known = replicas | set(self.zones) | {f"c{index}" for index in range(extra * self.callers)}
            if named - known:
                there = ", ".join([f"r0 to r{self.replicas - 1}", *dict.fromkeys(self.zones)])
                there += f", c0 to c{self.callers - 1}" if extra else ""
                raise BadOption(f"{field}: nothing is named {', '.join(sorted(named - known))}; there is {there}")

    def _check_traffic(self) -> None:
        _check_whole(self.workers, "workers", 0, WORKERS_MAX)
        _check_whole(self.callers, "callers", 1, CALLERS_MAX)
        _check_whole(self.fan_out, "fan-out", 1, FAN_OUT_MAX)
        if (self.rate is None) == (self.workers == 0):
            raise BadOption("rate: either a rate of calls, or workers that call in a closed loop")
        if self.rate is not None:
            check_number(self.rate, "rate", low=1e-6, high=RATE_MAX)
        if self.load is not None:
            check_number(self.load, "load", low=0, high=LOAD_MAX)
        if (self.duration is None) == (self.calls is None):
            raise BadOption("duration: either a duration or a number of calls")
        if self.duration is not None:
            check_duration(self.duration, "duration", low=0.001)
        if self.calls is not None:
            _check_whole(self.calls, "calls", 1, CALLS_MAX)
        if self.workers and self.calls is None:
            raise BadOption("calls: workers in a closed loop need a number of calls")
        if self.recording is not None and (self.workers or self.fan_out > 1 or self.world == "live"):
            raise BadOption("trace: recorded calls are simulated, one by one, in an open loop")
        if self.workers and self.fan_out > 1:
            raise BadOption("fan-out: workers in a closed loop make calls one by one")
        check_duration(self.warmup, "warmup")
        check_duration(self.timeout, "timeout", low=0.001)

    def _check_policy(self) -> None:
        _check_whole(self.copies, "copies", 2, COPIES_MAX)
        _check_whole(self.backups, "backups", 1, BACKUPS_MAX)
        for name in ("stagger", "backup_after", "fixed_after"):
            value = getattr(self, name)
            if name == "backup_after" and isinstance(value, str):
                Backup(after=value)
            elif value != "auto" or name == "fixed_after":
                check_number(value, name.replace("_", "-"), low=0, high=DELAY_MAX)
        if self.backup_budget is not None:
            check_number(self.backup_budget, "backup-budget", low=0, high=1)

    # ---- what follows from it ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """How many executions run at once, at most."""
        return self.replicas * self.slots

    @property
    def measured_calls(self) -> float:
        """About how many calls are measured (roots count as their sub-calls)."""
        if self.calls is not None:
            return float(self.calls)
        assert self.rate is not None and self.duration is not None
        return self.rate * self.duration

    def but(self, **changes: object) -> Cell:
        """This cell with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # checked when it is made

    def describe(self) -> dict[str, object]:
        """All fields as plain JSON values, for the options of a document. Laws as people write them."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value)


def _check_one_of(value: str, field: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadOption(f"{field}: {value!r} is not one of {', '.join(known)}")


def _check_whole(value: int, field: str, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise BadOption(f"{field}: {value!r} is not a whole number from {format_number(low)} to {format_number(high)}")
