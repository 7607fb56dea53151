"""Live replicas against simulated ones: the same options give the same numbers (``cluster.compare.agreement live``)."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from cluster.compare import live
from cluster.compare.agreement import worlds
from cluster.compare.agreement.__main__ import main
from cluster.compare.agreement.worlds import CELLS, compared
from cluster.compare.cell import Cell
from cluster.compare.simulated import run_cell
from cluster.compare.tally import Tally


@pytest.mark.agreement
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CELLS)
def test_live_agrees_with_simulated(name: str) -> None:
    """At a rate that a busy machine keeps up with; the command begins at 30 % load."""
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
    for lost in (dataclasses.replace(tally, errors=1), dataclasses.replace(tally, unfinished=1)):
        told = {line.quantity for line in compared("lost", cell, lost, tally) if not line.agrees}
        assert told == {"without an answer"}
    other = run_cell(cell.but(world="sim", policy="plain"), 1)
    told = {line.quantity for line in compared("slow", cell, other, tally) if not line.agrees}
    assert "p99 ms" in told and "p50 ms" not in told


def stand_in(monkeypatch: pytest.MonkeyPatch, most: float) -> list[float]:
    """In place of live runs simulated ones, on a machine that keeps up with ``most`` calls/s; the rates it is given."""
    rates: list[float] = []

    def run(cell: Cell, seed: int) -> Tally:
        assert cell.rate is not None
        rates.append(cell.rate)
        tally = run_cell(cell.but(world="sim"), seed)
        tally.notes += ["the client did not keep up"] if cell.rate > most else []
        return tally

    monkeypatch.setattr(live, "run_cell", run)
    return rates


@pytest.mark.parametrize(
    ("name", "most", "tried"),
    [
        ("pauses", 5_000.0, [1_200.0]),
        ("rare-stalls", 5_000.0, [759.49]),
        ("rare-stalls", 150.0, [759.49, 200.0, 130.0]),
    ],
)
def test_the_command_takes_the_first_rate_that_the_machine_keeps_up_with(
    monkeypatch: pytest.MonkeyPatch, name: str, most: float, tried: list[float]
) -> None:
    rates = stand_in(monkeypatch, most)
    done = CliRunner().invoke(main, ["live", "--only", name, "--scale", "0.08", "--markdown"])
    assert rates == pytest.approx(tried, abs=0.1)
    assert done.exit_code == 0 and f"| {name}, {tried[-1]:.0f}/s | calls |" in done.stdout


def test_a_machine_that_keeps_up_with_none_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = stand_in(monkeypatch, 0.0)
    done = CliRunner().invoke(main, ["live", "--only", "rare-stalls", "--scale", "0.08"])
    assert len(rates) == 4 and done.exit_code == 1
    assert done.output.startswith("Error: this machine does not keep up with live calls: at 759/s: the client")
    assert done.output.count("\n") == 1
