"""Streams in the simulator, under faults, past all checkers: whole runs with options drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiedreq.core.replica import HeldMethod
from tiedreq.core.types import MethodInfo
from tiedreq.sim.options import SimOptions
from tiedreq.sim.run import RunResult, run

METHODS = (
    HeldMethod(MethodInfo("stream", True, True, 3_600.0, True), None),
    HeldMethod(MethodInfo("streams", True, True, 3_600.0, True), 1),
    HeldMethod(MethodInfo("once", False, True, 3_600.0, True), None),
    HeldMethod(MethodInfo("work", True, True, 3_600.0), None),
)
QUICK = 2


def drawn(seed: int) -> SimOptions:
    """What the seed draws, with streams, over links that keep the order of messages."""
    options = SimOptions.draw(seed)
    network = replace(options.world.network, overtaking=0.0)
    traffic = replace(options.traffic, calls=min(options.traffic.calls, 150))
    return replace(options, world=replace(options.world, methods=METHODS, network=network), traffic=traffic)


def told(result: RunResult) -> str:
    return "\n".join(map(str, (result.options.line(), *result.violations)))


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.soak) for n in range(QUICK, 120 * QUICK))]
)
def test_no_seed_breaks_a_stream(seed: int) -> None:
    result = run(drawn(seed))
    assert result.ok, told(result)


def test_what_the_runs_are_made_of() -> None:
    """Streams were sent and taken, copies of a tie met after their first item, and faults struck in between."""
    found = run(drawn(6)).counters
    assert found["items"] > 100 and found["double_starts"] > 5
