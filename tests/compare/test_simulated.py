"""The definition of each number, on runs whose every call can be worked out by hand."""

import dataclasses

import pytest

from cluster.compare.cell import BrownOut, Cell, Handlers
from cluster.compare.grid import canonical
from cluster.compare.policies import POLICIES, twin_of
from cluster.compare.rows import Row, make_row
from cluster.compare.simulated import run_cell
from cluster.compare.tally import ERROR, Tally
from cluster.compare.trace import Recording
from tiedreq.laws import Bimodal, Constant, Exponential
from tiedreq.slowness import PauseSpec, SlowSpec
from tiedreq.units import LatencyLaw, LatencySpec

MS = 0.001
ROUGHLY = ERROR * 1.01
# So few calls that no two of them meet.
RARE = Cell(replicas=2, slots=1, service=Constant(10 * MS), rate=0.5, calls=40, warmup=1.0, fixed_after=4 * MS)
BUSY = Cell(replicas=2, slots=2, service=Exponential(10 * MS), rate=200.0, load=0.5, duration=4.0, warmup=0.5)


def latency(milliseconds: float) -> LatencySpec:
    return LatencySpec(LatencyLaw(milliseconds * MS))


def row_of(cell: Cell, seed: int = 1) -> Row:
    return make_row(cell, [run_cell(cell, seed)], [run_cell(cell.but(policy="plain"), seed)])


def check(row: Row, **expected: float | None) -> None:
    for name, value in expected.items():
        if value is None:
            assert row[name] is None, name
        else:
            assert row[name] == pytest.approx(value, rel=ROUGHLY if name.startswith("p") else 1e-6, abs=1e-9), name


def test_one_copy_per_call() -> None:
    row = row_of(RARE.but(policy="plain", client_latency=latency(1)))
    check(
        row, calls=40, errors=0, unfinished=0, p50_ms=12, p999_ms=12, mean_ms=12, mean_wait_ms=0, wait_probability=0,
        executions_per_call=1, duplicate_execution_rate=0, duplicate_completion_rate=0, wasted_work_ratio=0,
        busy_ms_per_call=10, extra_busy_ratio=1, backup_rate=0,
    )  # fmt: skip
    check(row, double_start_rate=None, late_cancel_rate=None, backup_win_rate=None, backup_denied=None, p99_ms_ci=None)


def test_a_backup_that_loses_and_is_cancelled() -> None:
    # The backup leaves after 4 ms, runs for the 6 that the first copy still takes, and is stopped.
    row = row_of(RARE.but(policy="hedged-fixed"))
    check(
        row, p50_ms=10, executions_per_call=2, duplicate_execution_rate=1, duplicate_completion_rate=0,
        busy_ms_per_call=16, extra_busy_ratio=1.6, wasted_work_ratio=6 / 16, backup_rate=1, backup_win_rate=0,
        backup_denied=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"policy": "hedged-uncancelled"}, {"policy": "hedged-fixed", "handlers": "thread"}]
)
def test_a_backup_that_loses_and_runs_to_its_end(changes: dict[str, str]) -> None:
    row = row_of(RARE.but(**changes))
    check(row, busy_ms_per_call=20, wasted_work_ratio=0.5, duplicate_completion_rate=1, duplicate_execution_rate=1)


def test_a_backup_that_wins() -> None:
    # At the slow replica a call takes 40 ms; its backup leaves after 4 and is done at 14.
    row = row_of(RARE.but(policy="hedged-fixed", slow=(SlowSpec(0, 4.0),), calls=60, picker="random"))
    share = row["backup_win_rate"]
    assert isinstance(share, float) and 0.3 < share < 0.7
    check(row, p50_ms=14 if share > 0.5 else 10, p999_ms=14, mean_wait_ms=4 * share, wait_probability=share)


def test_two_copies_at_once() -> None:
    row = row_of(RARE.but(policy="doubled"))
    check(row, p50_ms=10, executions_per_call=2, duplicate_completion_rate=1, wasted_work_ratio=0.5, mean_wait_ms=0)


def test_a_tie_whose_copies_both_start() -> None:
    # Both start at once; the notice takes 2 ms, then the copy of higher rank yields.
    row = row_of(RARE.but(policy="tied-nobackup", stagger=0.0, mesh_latency=latency(2)))
    check(
        row, double_start_rate=1, duplicate_execution_rate=1, executions_per_call=2, busy_ms_per_call=12,
        wasted_work_ratio=2 / 12, late_cancel_rate=1, notice_latency_ms=2, backup_rate=0,
    )  # fmt: skip
    classic = row_of(RARE.but(policy="tied-classic", stagger=0.0, mesh_latency=latency(2)))
    check(classic, double_start_rate=1, duplicate_completion_rate=1, busy_ms_per_call=20, wasted_work_ratio=0.5)


def test_a_tie_without_distance_never_starts_twice() -> None:
    row = row_of(BUSY.but(policy="tied-nobackup", stagger=0.0, load=0.9, rate=360.0, duration=1.5))
    check(row, double_start_rate=0, executions_per_call=1, wasted_work_ratio=0, extra_busy_ratio=1)


def test_the_wait_of_a_call_is_what_its_answer_waited_without_the_network() -> None:
    # One slot, two calls at once: the second waits for the first.
    pair = Recording([0.0, 1.0, 1.0, 2.0, 2.0])
    cell = RARE.but(policy="plain", replicas=1, rate=2.0, recording=pair, calls=None, duration=3.0, warmup=0.5)
    row = row_of(cell.but(client_latency=latency(1)))
    check(row, calls=4, mean_wait_ms=5, wait_probability=0.5, p50_ms=12, p99_ms=22, queue_wait_p99_ms=10)


def test_slowness_of_the_call_goes_with_every_copy() -> None:
    law = Bimodal(10 * MS, 100 * MS, 0.5)
    own = run_cell(RARE.but(policy="doubled", service=law, intrinsic=True), 1)
    assert own.wasted_seconds == pytest.approx(own.busy_seconds / 2)
    drawn = run_cell(RARE.but(policy="doubled", service=law), 1)
    assert drawn.latency.mean is not None and own.latency.mean is not None
    assert drawn.latency.mean < own.latency.mean * 0.8


def test_pauses_stop_running_work_and_count_as_busy() -> None:
    cell = RARE.but(policy="plain", replicas=1, service=Constant(0.5), rate=0.1, calls=100)
    tally = run_cell(cell.but(pauses=(PauseSpec(0.2, 1.0),)), 1)
    # A call that starts outside a pause is stopped by 0.5 of them on average.
    assert tally.busy_seconds / tally.calls == pytest.approx(0.6, abs=0.03)
    assert run_cell(cell, 1).busy_seconds == pytest.approx(50)


def test_a_brown_out_makes_every_execution_longer_while_it_lasts() -> None:
    cell = RARE.but(policy="plain", rate=1.0, calls=None, duration=40.0, brown_out=BrownOut(1.0, 21.0, 8 * MS))
    tally = run_cell(cell, 1)
    assert tally.latency.percentile(100) == pytest.approx(18 * MS, rel=ROUGHLY)
    slow = tally.latency.share_above(15 * MS)
    assert slow is not None and 0.3 < slow < 0.7


def test_a_root_call_has_its_answer_when_all_of_its_calls_have() -> None:
    cell = BUSY.but(
        policy="plain", rate=100.0, load=0.25, replicas=4, slots=50, fan_out=10, service=Exponential(10 * MS)
    )
    tally = run_cell(cell, 1)
    assert tally.calls == 10 * tally.roots == tally.sub_latency.count
    single, root = tally.sub_latency.mean, tally.latency.mean
    assert single is not None and root is not None
    assert root / single == pytest.approx(sum(1 / k for k in range(1, 11)), rel=0.2)  # the longest of ten
    row = row_of(cell)
    assert row["fan_out"] == 10
    assert row["slow_root_rate_independent"] == pytest.approx(1 - 0.99**10, rel=0.3)
    assert row["slow_root_rate"] == pytest.approx(1 - 0.99**10, rel=0.5)  # of 80 root calls


def test_workers_call_again_as_soon_as_they_have_an_answer() -> None:
    cell = RARE.but(policy="plain", slots=8, rate=None, workers=2, calls=200, warmup=0.1)
    row = row_of(cell)
    check(row, rate=None, load=None, p50_ms=10)
    assert row["stable"] is True
    assert row["achieved_rate"] == pytest.approx(200, rel=0.1)


def test_the_warm_up_is_not_measured() -> None:
    tally = run_cell(BUSY.but(policy="plain"), 1)
    assert tally.span == pytest.approx(4.0)
    assert tally.offered == tally.calls == tally.latency.count
    assert tally.calls == pytest.approx(800, rel=0.15)


def test_utilisation_is_the_share_of_slots_that_was_occupied() -> None:
    row = row_of(BUSY.but(policy="plain", service=Constant(10 * MS), duration=2.0))
    assert row["utilisation"] == pytest.approx(float(str(row["offered_rate"])) * 0.010 / 4, rel=0.02)


def test_queues_that_grow_make_a_run_unstable() -> None:
    row = row_of(BUSY.but(policy="plain", rate=480.0, load=1.2, duration=2.0))
    assert row["stable"] is False and row["unfinished"] == 0
    assert row["utilisation"] == pytest.approx(1.0, abs=0.02)
    assert row_of(BUSY.but(policy="plain"))["stable"] is True


def same(tally: Tally) -> dict[str, object]:
    values = {item.name: getattr(tally, item.name) for item in dataclasses.fields(tally)}
    for name in ("wall_seconds", "cpu_seconds"):
        values.pop(name)
    return {name: getattr(value, "buckets", value) for name, value in values.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_result(policy: str) -> None:
    cell = BUSY.but(policy=policy, duration=0.6, mesh_latency=latency(1), pauses=(PauseSpec(0.05, 0.5),))
    first, again = run_cell(cell, 7), run_cell(cell, 7)
    assert same(first) == same(again)
    assert first.answered == first.calls > 50
    assert same(run_cell(cell, 8)) != same(first)


@pytest.mark.parametrize(("handlers", "twin"), [("cancellable", "tied"), ("thread", "backup")])
def test_auto_is_run_as_the_policy_that_sends_the_same(handlers: Handlers, twin: str) -> None:
    cell = BUSY.but(policy="auto", handlers=handlers, duration=0.6, mesh_latency=latency(1), replicas=4)
    assert twin_of(cell) == twin and canonical(cell).policy == twin
    assert same(run_cell(cell, 7)) == same(run_cell(cell.but(policy=twin), 7))
    assert twin_of(cell.but(stagger=0.003)) == ("auto" if twin == "tied" else twin)
    assert canonical(cell.but(world="live", mesh_latency=latency(0))).policy == "auto"


def test_policies_meet_the_same_calls_with_the_same_seed() -> None:
    cell = BUSY.but(slots=50, intrinsic=True)
    plain, hedged = run_cell(cell.but(policy="plain"), 3), run_cell(cell.but(policy="hedged-fixed"), 3)
    assert plain.latency.buckets == hedged.latency.buckets  # nothing waits, and every copy takes the call's own time
    assert hedged.backups_sent > 10 and hedged.backups_won == 0


@pytest.mark.agreement
def test_a_tie_over_all_replicas_waits_like_one_queue() -> None:
    """M/M/2 at 70 %: a mean wait of 0.9608 service times."""
    cell = BUSY.but(policy="tied-nobackup", slots=1, stagger=0.0, rate=140.0, load=0.7, duration=600.0)
    tally = run_cell(cell, 5)
    assert tally.wait.mean == pytest.approx(0.9608 * 10 * MS, rel=0.05)
    assert tally.duplicates == 0
