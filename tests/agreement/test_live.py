"""Live replicas against simulated ones: the same options give the same numbers (``cluster.compare.agreement live``)."""

from __future__ import annotations

import dataclasses

import pytest

from cluster.compare.agreement import worlds
from cluster.compare.agreement.worlds import CELLS, compared
from cluster.compare.simulated import run_cell


@pytest.mark.agreement
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CELLS)
def test_live_agrees_with_simulated(name: str) -> None:
    lines = worlds.lines_of(name)
    for line in lines:
        print(f"{line.experiment}, {line.quantity}: live {line.measured:.4g}, simulated {line.expected:.4g}")
    assert len(lines) == 7 and not [line for line in lines if not line.agrees]


def test_what_differs_does_not_agree() -> None:
    cell = CELLS["rare-stalls"].but(duration=2.0, warmup=0.2)
    tally = run_cell(cell.but(world="sim"), 1)
    assert all(line.agrees for line in compared("same", cell, tally, tally))
    more = dataclasses.replace(tally, duplicates=tally.duplicates + 10, executions=round(tally.executions * 1.2))
    told = {line.quantity for line in compared("more", cell, more, tally) if not line.agrees}
    assert told == {"executions per call", "executed twice, %"}
    other = run_cell(cell.but(world="sim", policy="plain"), 1)
    told = {line.quantity for line in compared("slow", cell, other, tally) if not line.agrees}
    assert "p99 ms" in told and "p50 ms" not in told
