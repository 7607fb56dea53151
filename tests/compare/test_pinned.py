"""What the names of policies and scenarios stand for, and the limits that are promised, each written down twice.

The numbers are those of docs/compare.md and docs/results.md. Whoever changes one of them here changes what was said.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.compare.cell import BrownOut, Cell
from cluster.compare.plan import make_plan
from cluster.compare.policies import POLICIES, policy_of
from cluster.compare.promises import harm, lasting, reach
from cluster.compare.scenarios import SCENARIOS
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.slowness import PauseSpec, SlowSpec

SINCE_START = Backup(budget=0.05, after="auto", since="start", max_per_call=2)
SINCE_SEND = Backup(budget=0.05, after="auto", since="send", max_per_call=2)


def fixed(seconds: float) -> Backup:
    return Backup(budget=None, after=seconds, min_after=0.0, since="send", max_per_call=1)


NAMED: dict[str, Policy] = {
    "plain": Plain(),
    "hedged": Hedged(SINCE_SEND),
    "hedged-fixed": Hedged(fixed(0.030)),
    "hedged-uncancelled": Hedged(fixed(0.030), cancel_losers=False),
    "doubled": Hedged(fixed(0.0), cancel_losers=False),
    "backup": Hedged(SINCE_START),
    "tied-classic": Tied(yield_=False, backup=None),
    "tied-nobackup": Tied(backup=None),
    "tied": Tied(backup=SINCE_START),
    "tied-exclusive": Tied(exclusive=True, backup=SINCE_START),
    "auto": Auto(SINCE_START),
}


def test_every_policy_is_what_its_name_says() -> None:
    found = {name: policy_of(Cell(policy=name, rate=1.0, duration=1.0)) for name in POLICIES}
    assert found == NAMED


STALLS = {"replicas": 10, "slots": 8, "service": "bimodal(10ms,300ms,0.02)", "picker": "two-choices"}
LOGNORMAL = {"replicas": 5, "slots": 4, "service": "lognormal(median=40ms,sigma=0.25)"}
PAUSES = {"replicas": 10, "slots": 8, "service": "exp(10ms)", "pauses": (PauseSpec(0.200, 5.0),)}
FACTS: dict[str, dict[str, Any]] = {
    "pauses": {**PAUSES, "picker": "two-choices"},
    "rare-stalls": {**STALLS, "handlers": "cancellable", "intrinsic": False},
    "slow-replica": {**LOGNORMAL, "slow": (SlowSpec(0, 3.0),), "picker": "random"},
    "slow-replica-10x": {**LOGNORMAL, "slow": (SlowSpec(0, 10.0),), "picker": "adaptive"},
    "long-tail": {**LOGNORMAL, "service": "lognormal(median=40ms,sigma=0.25)*10@0.03", "slow": ()},
    "stragglers": {"service": "lognormal(mean=5ms,sd=2ms)*10@0.05", "workers": 20, "calls": 50_000},
    "intrinsic": {**STALLS, "intrinsic": True},
    "brown-out": {"replicas": 10, "slots": 8, "service": "exp(10ms)", "brown_out": BrownOut(30.0, 90.0, 0.008)},
    "uncancellable": {**STALLS, "handlers": "thread"},
    "fan-out": PAUSES,
}


@pytest.mark.parametrize("name", FACTS)
def test_every_scenario_is_what_is_told_of_it(name: str) -> None:
    cell = make_plan({"scenario": name}).cells[0]
    found = {field: getattr(cell, field) for field in FACTS[name]}
    assert {**found, "service": str(found["service"])} == FACTS[name]


def test_scenarios_have_the_traffic_that_is_told_of_them() -> None:
    told = {name: (SCENARIOS[name].rates, SCENARIOS[name].loads) for name in FACTS}
    assert told == {
        "pauses": ((), (0.30, 0.60, 0.85)),
        "rare-stalls": ((2_500.0, 4_500.0), ()),
        "slow-replica": ((100.0,), ()),
        "slow-replica-10x": ((100.0,), ()),
        "long-tail": ((100.0, 250.0, 380.0, 400.0), ()),
        "stragglers": ((), ()),
        "intrinsic": ((2_500.0, 4_500.0), ()),
        "brown-out": ((), (0.50,)),
        "uncancellable": ((4_500.0,), ()),
        "fan-out": ((), (0.40,)),
    }


def test_the_limits_that_are_to_be_reached() -> None:
    calm = {"p99.9 ms": 75.0, "executions per call": 1.06, reach.BUSY: 1.0}
    told = [(goal.scenario, goal.loads or goal.rates, goal.latencies, goal.limits, goal.budget) for goal in reach.GOALS]
    stalls = {"p50 ms": 11.0, "p99 ms": 25.0, "p99.9 ms": 30.0, "executions per call": 1.05, reach.BUSY: 1.0}
    stragglers = {"p99 ms": 17.0, "p99.9 ms": 30.0, "executions per call": 1.10}
    assert told == [
        ("pauses", (0.30, 0.60), (0.0005, 0.005, 0.020), calm, None),
        ("pauses", (0.85,), (0.0005, 0.005, 0.020), {**calm, "executions per call": 1.15}, None),
        ("rare-stalls", (2_500.0, 4_500.0), (0.0002, 0.001, 0.005, 0.020), stalls, None),
        ("long-tail", (380.0,), (0.001,), {"p99 ms": 180.0, "executions per call": 1.06}, None),
        ("stragglers", (), (0.001,), stragglers, 0.10),
    ]
    assert all(goal.policies == ("tied", "auto") for goal in reach.GOALS)
    assert (lasting.STEADY_CALLS, lasting.DRIFT_MAX, lasting.MISSED_MAX) == (1_000_000, 0.05, 0.10)
    assert lasting.PHASES[2] - lasting.PHASES[1] == 60.0, "two windows of 30 s"


def test_the_grid_in_which_nothing_may_be_harmed() -> None:
    assert harm.LOADS == (0.3, 0.5, 0.7, 0.8, 0.9) and harm.LATENCIES == (0.0, 0.0002, 0.001, 0.005, 0.020)
    queueing = {"pauses", "rare-stalls", "slow-replica", "long-tail", "search-incident"}
    assert set(harm.SCENARIOS) == queueing | {"intrinsic", "brown-out", "uncancellable", "slow-replica-10x"}
    assert (harm.WORSE_MAX, harm.BUDGET, harm.GAIN_SHARE, harm.FALSE_DISCOVERIES) == (0.05, 0.05, 0.90, 0.05)


@pytest.mark.parametrize(("reached", "holds"), [(4, True), (3, False)])
def test_the_gain_is_to_be_had_in_four_cells_of_five(reached: int, holds: bool) -> None:
    cell = Cell(policy="auto", rate=1.0, duration=1.0)
    gains = [(cell, "tied", 0.3, 0.3 if index < reached else 1.0) for index in range(5)]
    assert harm.Report([], [], gains, [], []).holds == holds
