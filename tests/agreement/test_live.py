"""Live replicas against simulated ones: the same options give the same numbers.

Both runs have the same arrivals, first service times and pauses (they are drawn from the same streams), so what differs
is the machine: a call costs two to three milliseconds of processing and of the operating system's attention, which
virtual time does not know. Where a live run finds that the machine could not keep up, the rate is lowered, for both.
"""

from __future__ import annotations

import pytest

from cluster.compare import live, simulated
from cluster.compare.cell import Cell
from cluster.compare.rows import make_row
from cluster.compare.tally import Tally
from tiedreq.laws import parse_law
from tiedreq.slowness import parse_pause
from tiedreq.units import parse_latency

SEED = 1
RATES = (200.0, 130.0, 80.0)
"""Calls per second: the first that the machine can keep up with."""

COMMON = Cell(
    world="live", policy="tied", replicas=5, slots=8, mesh_latency=parse_latency("1ms"), rate=RATES[0], warmup=2.0,
    duration=25.0,
)  # fmt: skip

# The stagger is fixed where replicas pause: a learned one takes a pause for distance, for seconds, and by how much
# depends on which heartbeat met it.
CELLS = {
    "pauses": COMMON.but(
        service=parse_law("exp(10ms)"), pauses=(parse_pause("200ms@5s"),), backup_after=0.040, stagger=0.008
    ),
    "rare-stalls": COMMON.but(service=parse_law("bimodal(10ms,300ms,0.02)"), backup_after=0.030),
}


def both(cell: Cell) -> tuple[Tally, Tally]:
    """The cell live, at the highest rate at which it kept up, and the same simulated."""
    for rate in RATES:
        found = live.run_cell(cell.but(rate=rate), SEED)
        if not found.notes:
            return found, simulated.run_cell(cell.but(rate=rate, world="sim"), SEED)
        warned = f"at {rate:g}/s: {'; '.join(found.notes)}"
        print(warned)
    pytest.fail(f"the machine can't keep up with a live run at all: {warned}")


@pytest.mark.agreement
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CELLS)
def test_live_agrees_with_simulated(name: str) -> None:
    cell = CELLS[name]
    found, expected = both(cell)
    row, other = make_row(cell, [found], None), make_row(cell.but(world="sim"), [expected], None)
    for key in ("calls", "p50_ms", "p99_ms", "executions_per_call", "duplicate_execution_rate", "busy_ms_per_call"):
        print(f"{name} {key}: live {row[key]:.4g}, simulated {other[key]:.4g}")
    assert row["calls"] == other["calls"] and not row["errors"] and not row["unfinished"]
    for key in ("p50_ms", "p99_ms"):
        assert row[key] == pytest.approx(other[key], rel=0.15, abs=4.0), key
    assert row["executions_per_call"] == pytest.approx(other["executions_per_call"], rel=0.15)
    assert row["duplicate_execution_rate"] == pytest.approx(other["duplicate_execution_rate"], abs=0.005)
    assert row["busy_ms_per_call"] == pytest.approx(other["busy_ms_per_call"], rel=0.15)
