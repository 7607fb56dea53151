"""From options to a plan: which cells are run with which seeds. A scenario fixes everything, options override it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from cluster.compare.cell import SLOTS_MAX, Cell
from cluster.compare.policies import check_policy_names, policy_of
from cluster.compare.scenarios import Scenario, scenario
from cluster.compare.trace import read_trace, warmup_of
from tiedreq.core.errors import BadOption
from tiedreq.units import LatencyLaw, LatencySpec

__all__ = ["Plan", "make_plan"]

CELLS_MAX = 100_000

SHAPE = ("replicas", "slots", "service", "slow", "pause", "zones", "intrinsic", "trace", "app")
"""Options that describe a service: without any of them, and without a scenario, the default comparison is made."""

SAME = (
    "replicas slots service intrinsic handlers client_latency callers copies stagger backup_after backup_budget"
    " backups picker zones zone_blind warmup processes app method arguments".split()
)
"""Options that are fields of a cell under the same name."""

NO_OVERRIDES = ("policies", "seed", "seeds")
"""Options that change nothing of what a scenario fixes."""

DEFAULT_SCENARIO = "pauses"
DEFAULT_LOADS = (0.60,)
DEFAULT_LATENCIES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.010, 0.020)
DEFAULT_POLICIES = ("hedged", "tied-classic", "tied")
DEFAULT_DURATION = 4.0
DEFAULT_WARMUP = 1.0
CUSTOM_DURATION = 30.0
CUSTOM_POLICIES = ("plain", "hedged", "tied")
TRACE_POLICIES = ("plain", "hedged", "tied", "auto")
TRACE_SEEDS = 5
TRACE_REPLICAS = 10
FROM_TRACE = ("rate", "load", "duration", "calls", "service", "slow", "pause", "app", "fan_out")
"""Options that a recording of calls stands for."""

FROM_APP = ("load", "service", "slow", "pause", "intrinsic", "handlers")
"""Options about a service that somebody's own decides by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells in the order of their rows, seeds, and what was asked for, in words.

    ``options`` is what a document tells: the scenario, what overrides it, and the fields of the first cell.
    """

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    options: dict[str, Any]


def make_plan(given: Mapping[str, Any]) -> Plan:
    """The plan for the options that were given. Raises ``BadOption`` that names the option and its limit."""
    _check_together(given)
    name, fixed, default = _base(given)
    base = {**fixed.cell, **_cell_fields(given), "world": given.get("world", "sim"), "scenario": name}
    policies = check_policy_names(list(given.get("policies", fixed.policies)))
    latencies = given.get("mesh_latency") or tuple(_latency(given) for given in fixed.latencies)
    fan_outs = given.get("fan_out", fixed.fan_outs)
    traffic = _traffic(given, fixed, base)
    if len(traffic) * len(latencies) * len(fan_outs) * len(policies) > CELLS_MAX:
        raise BadOption(f"options: more than {CELLS_MAX} rows")
    cells = tuple(
        Cell(**base, **arrivals, mesh_latency=latency, fan_out=fan_out, policy=policy)
        for arrivals, fan_out, latency, policy in product(traffic, fan_outs, latencies, policies)
    )
    for cell in cells[: len(policies)]:
        policy_of(cell)
    first = given.get("seed", 1)
    seeds = tuple(range(first, first + given.get("seeds", TRACE_SEEDS if "trace" in given else 1)))
    return Plan(cells, seeds, policies, _told(given, name, default, cells[0], policies, seeds))


def _latency(fixed: float | LatencySpec) -> LatencySpec:
    return fixed if isinstance(fixed, LatencySpec) else LatencySpec(LatencyLaw(fixed))


def _check_together(given: Mapping[str, Any]) -> None:
    pairs = [("rate", "load"), ("duration", "calls"), ("scenario", "trace"), ("scenario", "app")]
    pairs += [("trace", other) for other in FROM_TRACE]
    pairs += [("app", other) for other in FROM_APP]
    for one, other in pairs:
        if one in given and other in given:
            raise BadOption(f"{one}: not together with --{other.replace('_', '-')}")


def _base(given: Mapping[str, Any]) -> tuple[str | None, Scenario, bool]:
    """The scenario's name, what is fixed, and whether this is the default comparison."""
    if "scenario" in given:
        return given["scenario"], scenario(given["scenario"]), False
    if "trace" in given:
        return None, _traced(given), False
    if any(option in given for option in SHAPE):
        return None, Scenario("as the options say", {"duration": CUSTOM_DURATION}, loads=DEFAULT_LOADS), False
    known = scenario(DEFAULT_SCENARIO)
    cell = {**known.cell, "duration": DEFAULT_DURATION, "warmup": DEFAULT_WARMUP}
    return (
        DEFAULT_SCENARIO,
        Scenario(known.words, cell, loads=DEFAULT_LOADS, latencies=DEFAULT_LATENCIES, policies=DEFAULT_POLICIES),
        True,
    )


def _traced(given: Mapping[str, Any]) -> Scenario:
    """What a recording of somebody's calls fixes.

    Each replica has a slot for every call that was open at once, so that none waits: what waited then is in the
    recorded durations, and must not wait twice. Without a policy the latencies are those of the recording.
    """
    trace = read_trace(given["trace"])
    replicas = given.get("replicas", trace.replicas or TRACE_REPLICAS)
    slots = min(trace.together_max, SLOTS_MAX)
    warmup = given.get("warmup", warmup_of(trace.recording))
    if warmup >= trace.recording.span:
        raise BadOption(f"warmup: the recording lasts {trace.recording.span:g} s only")
    cell = {
        "service": trace.service,
        "slow": trace.slow,
        "replicas": replicas,
        "slots": slots,
        "recording": trace.recording,
        "warmup": warmup,
        "duration": trace.recording.span - warmup + 1e-6,
    }
    return Scenario("recorded calls", cell, rates=(trace.rate,), policies=TRACE_POLICIES)


def _cell_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: given[name] for name in SAME if name in given}
    if "slow" in given:
        fields["slow"] = tuple(given["slow"])
    if "pause" in given:
        fields["pauses"] = tuple(given["pause"])
    if "zone_pause" in given:
        fields["zone_pauses"] = tuple(given["zone_pause"])
    if "backup_after" in given and given["backup_after"] != "auto":
        fields["fixed_after"] = given["backup_after"]
    if "duration" in given:
        fields.update(duration=given["duration"], calls=None)
    if "calls" in given:
        fields.update(calls=given["calls"], duration=None)
    return fields


def _traffic(given: Mapping[str, Any], fixed: Scenario, base: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a cell that say how calls come, one set for each rate or load."""
    if "app" in given:
        Cell(**{**base, "rate": 1.0, "workers": 0})  # what is wrong with the rest is told first
        if "rate" not in given:
            raise BadOption("rate: how many calls per second your service takes is not known; give a --rate")
        return [{"rate": rate, "load": None} for rate in given["rate"]]
    trial = Cell(**{**base, "rate": 1.0, "workers": 0})
    mean = trial.service.mean()
    if mean <= 0:
        raise BadOption("service: a service that takes no time has no load")
    capacity = trial.capacity / mean
    rates = given.get("rate") or (() if "load" in given else fixed.rates)
    loads = given.get("load") or (() if "rate" in given else fixed.loads)
    if not rates and not loads:
        return [{}]
    base.pop("workers", None)
    return [{"rate": rate, "load": rate / capacity} for rate in rates] + [
        {"rate": load * capacity, "load": load} for load in loads
    ]


def _told(
    given: Mapping[str, Any],
    name: str | None,
    default: bool,
    cell: Cell,
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
) -> dict[str, Any]:
    chosen = {option: _plain(value) for option, value in given.items() if option not in ("scenario", "world")}
    overrides = {option: value for option, value in chosen.items() if option not in NO_OVERRIDES}
    return {
        "world": cell.world,
        "scenario": name,
        "default_comparison": default,
        "given": chosen,
        "overrides": {} if name is None else overrides,
        "policies": list(policies),
        "seeds": list(seeds),
        "cell": cell.describe(),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
