"""A dozen cells in which Auto must not be worse than plain, some of what it must reach, and a brown-out.

Virtual time and fixed seeds: the outcome is the same everywhere. The full grid: ``python -m cluster.compare.promises``.
"""

from __future__ import annotations

import pytest

from cluster.compare.cell import BrownOut
from cluster.compare.promises import harm, reach
from cluster.compare.promises.cells import cell_of, plain_tallies_of, tallies_of, tasks_for
from cluster.compare.runner import cores, run_tasks
from cluster.compare.simulated import Bench, Run, _world_options
from tiedreq.core.governor import GovernorState
from tiedreq.sim.world import World

pytestmark = pytest.mark.agreement

DOZEN = (
    ("pauses", 0.3, 0.0002),
    ("pauses", 0.85, 0.020),
    ("pauses", 0.6, 0.001),
    ("rare-stalls", 0.9, 0.005),
    ("intrinsic", 0.5, 0.001),
    ("intrinsic", 0.9, 0.005),
    ("intrinsic", 0.9, 0.020),
    ("uncancellable", 0.9, 0.0002),
    ("slow-replica", 0.3, 0.001),
    ("slow-replica-10x", 0.3, 0.001),
    ("long-tail", 0.9, 0.001),
    ("search-incident", 0.7, 0.005),
)
SEEDS = (1, 2)
SCALE = 0.1
MEAN_MAX = 1.10
"""Of two short runs a mean may be that far up by chance; what counts is that no harm is proven."""


def test_auto_does_no_harm_in_a_dozen_cells() -> None:
    cells = [cell_of(name, "auto", load=load, latency=latency, scale=SCALE) for name, load, latency in DOZEN]
    results = dict(run_tasks(harm.tasks_of(cells, SEEDS, ()), cores()))
    found = harm.report(cells, SEEDS, results, ())
    assert not found.unstable and len(found.gains) == len(DOZEN)
    assert found.proven == []
    assert [one for one in found.harms if one.ratio > MEAN_MAX] == []
    assert all(one.ratio <= 1 + harm.BUDGET for one in found.harms if one.quantity == "busy time")


REACHED = ("pauses", 0.3, 0.020), ("rare-stalls", 0.49, 0.005), ("long-tail", 0.996, 0.001)


def test_auto_reaches_what_it_must_where_it_is_tested_in_short() -> None:
    """Long enough for a few dozen pauses. The whole list: ``python -m cluster.compare.promises reach``."""
    cells = [cell_of(name, "auto", load=load, latency=latency, scale=0.3) for name, load, latency in REACHED]
    results = dict(run_tasks(tasks_for(cells, SEEDS), cores()))
    for cell in cells:
        limits = next(goal.limits for goal in reach.GOALS if goal.scenario == cell.scenario)
        pairs = list(zip(tallies_of(cell, SEEDS, results), plain_tallies_of(cell, SEEDS, results), strict=True))
        for quantity, limit in limits.items():
            measured = sum(reach.QUANTITIES[quantity](pair) for pair in pairs) / len(pairs)
            assert measured <= limit, (cell.scenario, quantity, measured)


def test_after_a_brown_out_everything_is_as_before_within_two_windows() -> None:
    """For a minute every execution takes 8 ms longer: the extra work stays within the budget, then all is as before."""
    fixed = cell_of("brown-out", "auto", load=0.5, latency=0.001)
    cell = fixed.but(replicas=2, rate=800.0, warmup=5.0, duration=145.0, brown_out=BrownOut(30.0, 90.0, 0.008))
    bench = Bench(cell, 1)
    world = World(_world_options(cell), bench, seed=1)
    world.start()
    caller = world.callers["c0"]
    seen: dict[int, tuple[float, GovernorState]] = {}

    def look(second: int, _: None) -> None:
        assert caller.learning is not None
        (view,) = caller.learning.view(world.clock.now)
        seen[second] = (view["delay"] or 0.0, GovernorState(view["state"]))

    for second in (29, 149):
        world.clock.at(world.clock.now + second, look, second)
    Run(cell, 1, world, bench).run()
    before, after = seen[29], seen[149]
    assert after[0] == pytest.approx(before[0], rel=0.15)
    assert after[1] == before[1] == GovernorState.OK
    tally = bench.tally
    plain = cell.but(policy="plain")
    untied = Bench(plain, 1)
    calm = World(_world_options(plain), untied, seed=1)
    calm.start()
    Run(plain, 1, calm, untied).run()
    assert tally.busy_seconds / tally.calls <= 1.05 * untied.tally.busy_seconds / untied.tally.calls
