"""From tallies to a row: each formula with numbers that can be worked out by hand."""

import json

import pytest

from cluster.compare.cell import Cell
from cluster.compare.rows import COLUMNS, make_row
from cluster.compare.tally import Tally

CELL = Cell(policy="tied", scenario="pauses", rate=100.0, load=0.5, duration=10.0)
CONTRACT = (
    "world scenario policy rate load mesh_latency_ms seeds calls errors unfinished stable offered_rate "
    "achieved_rate p50_ms p90_ms p99_ms p999_ms p50_ms_ci p99_ms_ci p999_ms_ci mean_ms mean_wait_ms "
    "wait_probability queue_wait_p99_ms first_item_p99_ms executions_per_call duplicate_execution_rate "
    "duplicate_execution_rate_ci double_start_rate duplicate_completion_rate wasted_work_ratio "
    "busy_ms_per_call extra_busy_ratio utilisation late_cancel_rate backup_rate backup_win_rate backup_denied "
    "notice_latency_ms messages_per_call cpu_us_per_call wall_s calls_per_wall_s"
)


def tally(scale: int = 1) -> Tally:
    made = Tally(
        calls=100 * scale, answered=98 * scale, errors=1 * scale, unfinished=1 * scale, executions=110 * scale,
        duplicates=8 * scale, completed_twice=2 * scale, ties=80 * scale, double_starts=4 * scale,
        busy_seconds=1.5 * scale, wasted_seconds=0.3 * scale, notices=50 * scale, late_notices=5 * scale,
        notice_seconds=0.01, notice_samples=10, backups_sent=10 * scale, backups_won=4 * scale,
        backups_denied=3 * scale, messages=400 * scale, span=10.0, offered=100 * scale, achieved=99 * scale,
        window_busy_seconds=1.4 * scale, slot_seconds=80.0, wall_seconds=2.0, cpu_seconds=1.0,
    )  # fmt: skip
    for index in range(98 * scale):
        made.latency.add(0.010 * scale)
        made.wait.add(0.002 if index < 49 * scale else 0.0)
        made.queue_wait.add(0.002)
    return made


def test_a_row_has_the_columns_that_other_programs_read_in_their_order() -> None:
    assert " ".join(COLUMNS) == CONTRACT
    assert tuple(make_row(CELL, [tally()], [tally()])) == COLUMNS


def test_ratios_of_one_seed() -> None:
    plain = tally()
    plain.busy_seconds = 1.0
    row = make_row(CELL, [tally()], [plain])
    expected = {
        "policy": "tied", "scenario": "pauses", "rate": 100.0, "load": 0.5, "seeds": 1, "calls": 100, "errors": 1,
        "unfinished": 1, "offered_rate": 10.0, "achieved_rate": 9.9, "executions_per_call": 1.1,
        "duplicate_execution_rate": 0.08, "double_start_rate": 0.05, "duplicate_completion_rate": 0.02,
        "wasted_work_ratio": 0.2, "busy_ms_per_call": 15.0, "extra_busy_ratio": 1.5, "utilisation": 1.4 / 80,
        "late_cancel_rate": 0.1, "backup_rate": 0.1, "backup_win_rate": 0.4, "backup_denied": 3,
        "notice_latency_ms": 1.0, "messages_per_call": 4.0, "cpu_us_per_call": 10_000.0, "wall_s": 2.0,
        "calls_per_wall_s": 50.0, "mean_ms": 10.0, "mean_wait_ms": 1.0, "wait_probability": 0.5,
    }  # fmt: skip
    for name, value in expected.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_one_seed_has_no_interval_and_two_have() -> None:
    one = make_row(CELL, [tally()], None)
    assert one["p50_ms_ci"] is None and one["duplicate_execution_rate_ci"] is None and one["extra_busy_ratio"] is None
    two = make_row(CELL, [tally(), tally(3)], None)
    assert two["p50_ms"] == pytest.approx(20.0, rel=0.006)
    low, high = two["p50_ms_ci"]  # type: ignore[misc]
    assert low == 0.0  # nothing is below 0
    assert high == pytest.approx(20 + 12.7062 * 10, rel=0.006)
    assert two["calls"] == 400


def test_what_does_not_apply_is_null_and_never_nan() -> None:
    row = make_row(
        CELL.but(policy="plain", rate=None, load=None, workers=3, duration=None, calls=5), [Tally()], [Tally()]
    )
    for (
        name
    ) in "rate load p50_ms p999_ms mean_ms wait_probability double_start_rate backup_win_rate backup_denied".split():
        assert row[name] is None, name
    json.dumps(row, allow_nan=False)


def test_one_unstable_seed_makes_the_row_unstable() -> None:
    growing = tally()
    growing.queue = [(i / 10, i * 5.0) for i in range(100)]
    assert make_row(CELL, [tally(), tally()], None)["stable"] is True
    assert make_row(CELL, [tally(), growing], None)["stable"] is False


def test_a_row_needs_a_seed() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        make_row(CELL, [], None)
