"""The named scenarios: published experiments and our own, each fixing everything that a comparison needs.

Further options of the command line override single fields; what they changed is listed in the document. Service
times, rates and delays are those of the sources named in docs/compare.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cluster.compare.cell import BrownOut
from tiedreq.core.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.slowness import PauseSpec, SlowSpec
from tiedreq.units import LatencySpec, parse_latency

__all__ = ["SCENARIOS", "Scenario", "scenario"]

POLICIES_DEFAULT = ("plain", "hedged", "tied")
LATENCIES_DEFAULT = (0.001,)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a name fixes. ``cell`` are fields of ``Cell``; of ``rates`` (calls/s) and ``loads`` one is empty.

    Both are empty for a closed loop. ``latencies`` between replicas in seconds, or of more than one kind.
    """

    words: str
    cell: dict[str, Any]
    rates: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()
    latencies: tuple[float | LatencySpec, ...] = LATENCIES_DEFAULT
    policies: tuple[str, ...] = POLICIES_DEFAULT
    fan_outs: tuple[int, ...] = field(default=(1,))


_STALLS = {"replicas": 10, "slots": 8, "service": parse_law("bimodal(10ms,300ms,0.02)"), "duration": 30.0}
_LOGNORMAL = parse_law("lognormal(median=40ms,sigma=0.25)")
_PAUSED = {
    "replicas": 10,
    "slots": 8,
    "service": parse_law("exp(10ms)"),
    "pauses": (PauseSpec(0.200, 5.0),),
    "duration": 30.0,
}
_SLOW = {"replicas": 5, "slots": 4, "service": _LOGNORMAL, "duration": 120.0, "fixed_after": 0.100}
_POOL = {"replicas": 10, "slots": 40, "workers": 20, "calls": 50_000, "picker": "random"}
"""Far more slots than workers, so that nothing ever waits."""
_THREE = parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms")

SCENARIOS: dict[str, Scenario] = {
    "pauses": Scenario(
        "every replica stops entirely for 200 ms every 5 s on average",
        _PAUSED,
        loads=(0.30, 0.60, 0.85),
        latencies=(0.0005, 0.005, 0.020),
    ),
    "rare-stalls": Scenario("2 % of executions take 300 ms, the others 10 ms", _STALLS, rates=(2_500.0, 4_500.0)),
    "slow-replica": Scenario(
        "one replica of five is three times slower",
        {**_SLOW, "slow": (SlowSpec(0, 3.0),), "picker": "random"},
        rates=(100.0,),
    ),
    "slow-replica-10x": Scenario(
        "one replica of five is ten times slower, and overloaded by its share",
        {**_SLOW, "slow": (SlowSpec(0, 10.0),), "picker": "adaptive"},
        rates=(100.0,),
    ),
    "long-tail": Scenario(
        "3 % of executions take ten times as long",
        {**_SLOW, "service": parse_law("lognormal(median=40ms,sigma=0.25)*10@0.03")},
        rates=(100.0, 250.0, 380.0, 400.0),
    ),
    "stragglers": Scenario(
        "no queues; 5 % of executions take ten times as long; 20 workers in a closed loop",
        {**_POOL, "service": parse_law("lognormal(mean=5ms,sd=2ms)*10@0.05"), "fixed_after": 0.010},
    ),
    "cold-cache": Scenario(
        "no queues; 20 % of executions find a cold cache; 20 workers in a closed loop",
        {
            **_POOL,
            "service": parse_law("mix(0.8:lognormal(mean=15ms,sd=3ms),0.2:lognormal(mean=200ms,sd=25ms))"),
            "fixed_after": 0.001,
        },
    ),
    "search-incident": Scenario(
        "a search service whose slowest 4 % take 200 to 600 ms",
        {
            "replicas": 5,
            "slots": 8,
            "service": parse_law("mix(0.96:lognormal(median=25ms,sigma=0.5),0.04:uniform(200ms,600ms))"),
            "duration": 60.0,
            "fixed_after": 0.090,
        },
        loads=(0.60,),
    ),
    "intrinsic": Scenario(
        "as rare-stalls, but slowness belongs to the call: every copy of a slow call is slow",
        {**_STALLS, "intrinsic": True},
        rates=(2_500.0, 4_500.0),
    ),
    "brown-out": Scenario(
        "from 30 s to 90 s of the run every execution takes 8 ms longer",
        {
            "replicas": 10,
            "slots": 8,
            "service": parse_law("exp(10ms)"),
            "brown_out": BrownOut(30.0, 90.0, 0.008),
            "duration": 145.0,
        },
        loads=(0.50,),
    ),
    "uncancellable": Scenario(
        "as rare-stalls, but running work can't be stopped", {**_STALLS, "handlers": "thread"}, rates=(4_500.0,)
    ),
    "fan-out": Scenario(
        "as pauses; a root call needs the answers of all of its calls",
        {**_PAUSED, "duration": 60.0},
        loads=(0.40,),
        fan_outs=(1, 10, 100),
    ),
    "three-zones": Scenario(
        "three zones at 1, 5 and 60 ms, a client in each; every zone stops entirely for 200 ms every 5 s on average",
        {
            "replicas": 9,
            "slots": 4,
            "service": parse_law("exp(10ms)"),
            "zones": ("a", "b", "c"),
            "zone_pauses": (PauseSpec(0.200, 5.0),),
            "callers": 3,
            "client_latency": _THREE,
            "picker": "adaptive",
            "duration": 30.0,
        },
        loads=(0.60,),
        latencies=(_THREE,),
        policies=("plain", "hedged", "tied", "auto"),
    ),
    "bigtable": Scenario(
        "a law fitted to published latencies of reads from disks, idle (40 %) and beside a sort job (60 %)",
        {
            "replicas": 30,
            "slots": 1,
            "service": parse_law("uniform(0,28.15ms)"),
            "picker": "random",
            "stagger": 0.001,
            "duration": 120.0,
            "fixed_after": 0.010,
        },
        loads=(0.40, 0.60),
        latencies=(0.0005,),
        policies=("plain", "tied-classic", "tied-nobackup", "tied"),
    ),
}
"""The law of ``bigtable`` is our fit, not published: with one request at a time per disk, seek times uniform from 0 to
28.15 ms, and random choice, plain latencies at 40 % load are 19/38/67/97 ms (p50/p90/p99/p99.9; published 19/38/67/98),
and at 60 % 24/57/104/150 (published 24/56/108/159). What is to be compared is what tying takes off."""


def scenario(name: str) -> Scenario:
    """The scenario of that name. Raises ``BadOption`` that lists the names."""
    if name not in SCENARIOS:
        raise BadOption(f"scenario: {name!r} is not one of {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
