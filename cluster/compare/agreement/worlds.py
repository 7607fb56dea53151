"""Live replicas next to simulated ones: the same options are to give the same numbers.

Both runs have the same arrivals, first service times and pauses (they are drawn from the same streams), so what differs
is the machine: a call costs one to three milliseconds of processing and of the operating system's attention, which
virtual time does not know. The rate is one that makes ``LOAD``; where a live run finds that the machine could not keep
up, it is lowered, for both.

The simulated number stands where theory and publications stand elsewhere. A latency agrees within ``LATENCY_SHARE`` or
``LATENCY_MS``, executions per call within ``WORK_SHARE``, the share of calls executed twice within ``POINTS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cluster.compare import live, simulated
from cluster.compare.agreement.judge import Line
from cluster.compare.cell import Cell
from cluster.compare.rows import Row, make_row
from cluster.compare.tally import Tally
from tiedreq.laws import parse_law
from tiedreq.slowness import parse_pause
from tiedreq.units import parse_latency

__all__ = ["CELLS", "LOAD", "RATES", "TooSlow", "both", "lines_of", "rates_of"]

SEED = 1
LOAD = 0.30
"""Of all slots, by one copy per call: what two cores that do nothing else carry with a process for each replica."""

RATES = (200.0, 130.0, 80.0)
"""Calls per second that a busy machine keeps up with: the first one that it does."""

LATENCY_SHARE = 0.15
LATENCY_MS = 4.0
WORK_SHARE = 0.15
POINTS = 0.5
DURATION_MIN = 2.0

COMMON = Cell(
    world="live",
    policy="tied",
    replicas=5,
    slots=8,
    mesh_latency=parse_latency("1ms"),
    rate=RATES[0],
    warmup=2.0,
    duration=25.0,
)

# The stagger is fixed where replicas pause: a learned one takes a pause for distance, for seconds, and by how much
# depends on which heartbeat met it.
CELLS = {
    "pauses": COMMON.but(
        service=parse_law("exp(10ms)"), pauses=(parse_pause("200ms@5s"),), backup_after=0.040, stagger=0.008
    ),
    "rare-stalls": COMMON.but(service=parse_law("bimodal(10ms,300ms,0.02)"), backup_after=0.030),
}


class TooSlow(Exception):
    """The machine can't keep up with a live run at any of the rates; the message says what it found."""


def rates_of(name: str) -> tuple[float, ...]:
    """Calls per second to try for one of ``CELLS``, falling: the one that makes ``LOAD``, then ``RATES``."""
    cell = CELLS[name]
    return LOAD * cell.capacity / cell.service.mean(), *RATES


def both(cell: Cell, rates: Sequence[float] = RATES) -> tuple[Cell, Tally, Tally]:
    """The cell at the first rate at which it kept up, its live run, and the same simulated. Raises ``TooSlow``."""
    warned = []
    for rate in rates:
        chosen = cell.but(rate=rate)
        found = live.run_cell(chosen, SEED)
        if not found.notes:
            return chosen, found, simulated.run_cell(chosen.but(world="sim"), SEED)
        warned.append(f"at {rate:.0f}/s: {'; '.join(found.notes)}")
    raise TooSlow("; ".join(warned))


def lines_of(name: str, scale: float = 1.0, rates: Sequence[float] = RATES) -> list[Line]:
    """Every number of one of ``CELLS``, live and simulated, at the first rate that will do. Raises ``TooSlow``."""
    cell = CELLS[name]
    assert cell.duration is not None
    cell, found, expected = both(cell.but(duration=max(DURATION_MIN, cell.duration * scale)), rates)
    return compared(f"{name}, {cell.rate:.0f}/s", cell, found, expected)


def compared(title: str, cell: Cell, found: Tally, expected: Tally) -> list[Line]:
    """What was found live next to what was expected."""
    ours, theirs = make_row(cell, [found], None), make_row(cell.but(world="sim"), [expected], None)

    def line(quantity: str, columns: str, share: float, absolute: float, factor: float = 1.0) -> Line:
        measured, value = _sum(ours, columns) * factor, _sum(theirs, columns) * factor
        allowed = max(share * value, absolute)
        agrees = abs(measured - value) <= allowed
        return Line(title, quantity, value, measured, value - allowed, value + allowed, share, agrees, found.calls)

    return [
        line("calls", "calls", 0.0, 0.0),
        line("without an answer", "errors unfinished", 0.0, 0.0),
        line("p50 ms", "p50_ms", LATENCY_SHARE, LATENCY_MS),
        line("p99 ms", "p99_ms", LATENCY_SHARE, LATENCY_MS),
        line("executions per call", "executions_per_call", WORK_SHARE, 0.0),
        line("executed twice, %", "duplicate_execution_rate", 0.0, POINTS, 100.0),
        line("busy ms per call", "busy_ms_per_call", WORK_SHARE, 0.0),
    ]


def _sum(row: Row, columns: str) -> float:
    values = [row[column] for column in columns.split()]
    return math.fsum(value for value in values if isinstance(value, int | float))


def names(only: str) -> Sequence[str]:
    """The cells that have ``only`` in their name."""
    return [name for name in CELLS if only in name]
