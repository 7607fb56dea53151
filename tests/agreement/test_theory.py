"""Exact theory: known values of formulas, the simulation against a central queue call by call, and by chance."""

from __future__ import annotations

import math

import pytest

from cluster.compare.agreement import theory
from cluster.compare.agreement.theory import CASES, Case, central_queue
from cluster.compare.simulated import run_cell

SCALE = 0.1
NAMES = (
    "M/M/2, load 0.7",
    "M/M/4, load 0.8",
    "M/M/10, load 0.9: tied over all of 2",
    "load 0.7, exp",
    "load 0.7, const",
    "load 0.7, bimodal",
    "cancelled on complete",
)


def named(text: str) -> Case:
    (case,) = [case for case in CASES if text in case.name and "3 of" not in case.name]
    return case


@pytest.mark.parametrize(
    ("servers", "waits"),
    [
        (2, (0.3333, 0.9608, 1.7778, 4.2632, 9.2564)),
        (4, (0.0870, 0.3572, 0.7455, 1.9694, 4.4571)),
        (10, (0.0072, 0.0739, 0.2046, 0.6687, 1.6512)),
    ],
)
def test_waits_of_a_central_queue_are_those_of_the_tables(servers: int, waits: tuple[float, ...]) -> None:
    for load, wait in zip((0.5, 0.7, 0.8, 0.9, 0.95), waits, strict=True):
        assert theory.mmc_wait(servers, load) == pytest.approx(wait, abs=5e-5)


def test_other_formulas_have_their_known_values() -> None:
    times = [theory.least_work_time(load) for load in (0.5, 0.7, 0.8, 0.9, 0.95)]
    assert times == pytest.approx([1.1507, 1.3742, 1.5963, 2.0503, 2.5794], abs=5e-5)
    assert theory.double_start_rate(0.5, 0.01, told=False) == pytest.approx(0.006, abs=2e-4)
    assert theory.busy_share(0.5, 0.01) == pytest.approx(0.586, abs=2e-3)
    assert theory.cancelled_on_complete(0.5) == pytest.approx(-2 + 4 * math.log(2))


@pytest.mark.parametrize(("replicas", "slots", "load"), [(2, 1, 0.95), (4, 1, 0.9), (8, 1, 0.8), (5, 2, 0.9)])
def test_a_tie_over_all_replicas_is_the_central_queue_call_by_call(replicas: int, slots: int, load: float) -> None:
    """Not just in distribution: with the same arrivals and service times every sum is the same."""
    calls = 600
    cell = theory.base(replicas, slots, load).but(copies=replicas, warmup=0.0, calls=calls)
    tally = run_cell(cell, 3)
    waits = central_queue(cell, 3, calls)
    assert max(waits) > 0
    assert tally.wait.total == pytest.approx(math.fsum(waits), rel=1e-6)
    assert tally.wait.count - tally.wait.zeros == sum(wait > 1e-7 for wait in waits)
    assert tally.executions == calls


@pytest.mark.agreement
@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8), (10, 0.9)])
def test_the_central_queue_waits_as_theory_says(servers: int, load: float) -> None:
    calls = 100_000
    cell = theory.base(servers, 1, load)
    waits = [wait for seed in range(1, 9) for wait in central_queue(cell, seed, calls)]
    assert math.fsum(waits) / len(waits) / theory.MEAN == pytest.approx(theory.mmc_wait(servers, load), rel=0.02)
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(theory.erlang_c(servers, load), rel=0.02)


@pytest.mark.agreement
@pytest.mark.parametrize("name", NAMES)
def test_the_simulation_is_where_theory_says(name: str) -> None:
    assert_agreement(named(name), SCALE)


@pytest.mark.agreement
@pytest.mark.parametrize("name", ["load 0.7, latency 0.02, stagger just over it, client latency 0.02", "yielding"])
def test_double_starts_are_as_many_as_theory_says(name: str) -> None:
    assert_agreement(named(name), 0.3 if "just over" in name else SCALE)


def assert_agreement(case: Case, scale: float) -> None:
    results = {task: run_cell(task.cell, task.seed) for task in theory.tasks_of([case], scale)}
    lines = theory.lines_of([case], results, scale)
    assert lines
    assert not [line for line in lines if not line.agrees]
