"""Live runs from end to end: real processes, real websockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.compare.cell import Cell
from cluster.compare.live import CALLS_MAX, StartFailed, run_cell
from cluster.compare.simulated import run_cell as simulate
from tests.compare_live.children import check_that_a_loss_ends_the_run, children
from tiedreq.core.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.loading import AppError
from tiedreq.slowness import parse_pause
from tiedreq.units import parse_latency

OWN = "tests.compare_live.own:service"
REPLICA = "cluster.replica"


def small(**changes: Any) -> Cell:
    return Cell(world="live", replicas=3, slots=4, rate=50.0, warmup=0.5, duration=2.0, policy="plain").but(**changes)


def replicas(parent: int | None = None) -> list[psutil.Process]:
    """The replicas that this process, or another, has started."""
    return children(REPLICA, parent)


@pytest.mark.system
@pytest.mark.parametrize("policy", ["plain", "hedged", "tied", "tied-exclusive"])
def test_a_run_counts_everything_once(policy: str) -> None:
    tally = run_cell(small(policy=policy, mesh_latency=parse_latency("1ms"), client_latency=parse_latency("2ms")), 1)
    assert tally.calls == tally.answered == tally.latency.count > 50 and not tally.errors and not tally.unfinished
    assert tally.executions >= tally.calls and tally.executions - tally.calls <= 2 * tally.duplicates
    assert tally.ties == (tally.calls if policy.startswith("tied") else 0)
    assert tally.double_starts <= tally.duplicates and tally.backups_won <= tally.backups_sent
    if policy == "tied-exclusive":
        assert tally.double_starts == 0
    if policy == "plain":
        assert (tally.executions, tally.duplicates, tally.wasted_seconds) == (tally.calls, 0, pytest.approx(0))
    assert tally.busy_seconds >= tally.wasted_seconds and tally.span == pytest.approx(2.0)
    assert tally.slot_seconds == pytest.approx(24.0) and 0 < tally.window_busy_seconds < tally.slot_seconds
    assert tally.latency.percentile(0.1) > 0.004, "two client links of 2 ms each"
    assert tally.messages >= 3 * (tally.calls - 10) and tally.cpu_seconds > 0 and tally.wall_seconds > 2.5
    assert tally.notice_samples > 0 and tally.notice_seconds / tally.notice_samples > 0.001


@pytest.mark.system
def test_handlers_that_cannot_be_stopped_run_to_their_end() -> None:
    law = parse_law("bimodal(10ms,300ms,0.2)")
    cell = small(policy="hedged-fixed", service=law, fixed_after=0.020, backup_budget=None, slots=16)
    stopped, whole = run_cell(cell, 1), run_cell(cell.but(handlers="thread"), 1)
    assert stopped.completed_twice < stopped.duplicates / 2
    assert whole.completed_twice == whole.duplicates > 5
    assert whole.wasted_seconds > 1.5 * stopped.wasted_seconds


@pytest.mark.system
def test_a_pause_stops_a_replica_entirely() -> None:
    """One replica of one stands still for half of the time: nothing is answered then, and work ends later."""
    pause = parse_pause("400ms@400ms")
    cell = small(replicas=1, slots=50, pauses=(pause,), service=parse_law("const(50ms)"), duration=4.0)
    tally = run_cell(cell, 1)
    assert tally.answered == tally.calls
    assert tally.latency.percentile(10) < 0.08 and tally.latency.percentile(80) > 0.2
    simulated = simulate(cell.but(world="sim"), 1)
    assert tally.calls == simulated.calls, "the same arrivals"
    assert tally.busy_seconds == pytest.approx(simulated.busy_seconds, rel=0.1), "the same pauses"
    assert tally.busy_seconds > 1.2 * 0.05 * tally.calls


@pytest.mark.system
def test_a_service_of_ones_own_is_compared() -> None:
    tally = run_cell(small(app=OWN, policy="tied"), 1)
    assert tally.calls == tally.answered > 50 and tally.latency.percentile(50) > 0.002
    tally = run_cell(small(app=OWN, policy="hedged", method="compute", arguments="12"), 1)
    assert tally.calls == tally.answered
    tally = run_cell(small(app=OWN, policy="plain", method="fail"), 1)
    assert tally.calls == tally.errors and tally.latency.count == 0 and tally.executions == tally.calls
    assert tally.wasted_seconds == tally.busy_seconds


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"app": OWN, "policy": "tied", "method": "charge"}, BadOption, "^method: 'charge' is not declared idempotent"),
        ({"app": OWN, "method": "none"}, BadOption, "^method: .* has no 'none'; its methods: charge, greet, compute"),
        ({"app": "tests.compare_live.nowhere:service"}, AppError, "nowhere"),
        ({"duration": 20_000.0}, BadOption, f"^duration: 1,000,025 calls are more than the {CALLS_MAX:,}"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run_cell(small(**changes), 1)
    assert replicas() == []


@pytest.mark.system
def test_a_lost_replica_ends_the_run() -> None:
    check_that_a_loss_ends_the_run(small(duration=30.0), REPLICA, 3)


@pytest.mark.system
def test_a_replica_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own settings are broken: the story names them."""
    from cluster.compare.live_settings import LabSettings

    monkeypatch.setattr(LabSettings, "environment", lambda self: {"TIEDREQ_LAB": "{"})
    with pytest.raises(StartFailed, match=r"(?s)r.: .*JSONDecodeError"):
        run_cell(small(), 1)


@pytest.mark.system
@pytest.mark.parametrize("after", [0.3, 4.0])
def test_ctrl_c_ends_a_run_at_once_and_leaves_nothing(tmp_path: Path, after: float) -> None:
    """While replicas start, and in the middle of the traffic."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from cluster.compare.cell import Cell
        from cluster.compare.live import run_cell

        print("begun", flush=True)
        try:
            run_cell(Cell(world="live", replicas=3, rate=50.0, duration=60.0, policy="tied"), 1)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """)
    )
    before = set(os.listdir(tempfile.gettempdir()))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(after)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=10)
    assert (out, errors, process.returncode) == ("interrupted\n", "", 0)
    assert after < 1 or len(children) == 3
    assert not psutil.wait_procs(children, timeout=2)[1]
    left = {name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("tiedreq-")}
    assert left == set()


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_shows_the_rows_that_were_finished(tmp_path: Path, number: signal.Signals) -> None:
    options = "--world live --replicas 2 --slots 4 --service exp(10ms) --rate 50 --mesh-latency 1ms --duration 2s"
    command = [sys.executable, "-m", "cluster.compare", *options.split(), "--warmup", "0ms", "--policies"]
    process = subprocess.Popen(
        [*command, "plain,tied,hedged,backup,auto,tied-classic", "--json", str(tmp_path / "rows.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: set[int] = set()
    patience = time.monotonic() + 30
    while len(seen) < 6 and time.monotonic() < patience:  # the replicas of the third run are there
        seen |= {replica.pid for replica in replicas(process.pid)}
        time.sleep(0.02)
    time.sleep(1.0)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and "interrupted: these are the rows that were finished" in errors
    assert "Traceback" not in errors and "plain" in out and "hedged" not in out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["plain", "tied"]
    assert len(children) == 2 and not psutil.wait_procs(children, timeout=2)[1]
