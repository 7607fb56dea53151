"""From the tallies of a cell's seeds to its row: every number by its definition (docs/compare.md).

A row is a plain dictionary with exactly the keys of ``COLUMNS``, plus those of ``FAN_OUT_COLUMNS`` where calls are
sub-calls of root calls, plus ``NOTE`` where a live run found itself doubtful. What does not apply is None; a number
that is not finite never appears. Durations in rows are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from cluster.compare.cell import Cell
from cluster.compare.policies import uses_mesh
from cluster.compare.statistics import Interval, mean_of, upward_trend
from cluster.compare.tally import Distribution, Tally

__all__ = ["COLUMNS", "FAN_OUT_COLUMNS", "NOTE", "Row", "Value", "make_row"]

Value = str | int | float | bool | list[float] | None
Row = dict[str, Value]

COLUMNS: tuple[str, ...] = tuple(
    "world scenario policy rate load mesh_latency_ms seeds calls errors unfinished stable offered_rate achieved_rate"
    " p50_ms p90_ms p99_ms p999_ms p50_ms_ci p99_ms_ci p999_ms_ci mean_ms mean_wait_ms wait_probability"
    " queue_wait_p99_ms first_item_p99_ms executions_per_call duplicate_execution_rate duplicate_execution_rate_ci"
    " double_start_rate duplicate_completion_rate wasted_work_ratio busy_ms_per_call extra_busy_ratio utilisation"
    " late_cancel_rate backup_rate backup_win_rate backup_denied notice_latency_ms messages_per_call cpu_us_per_call"
    " wall_s calls_per_wall_s".split()
)


FAN_OUT_COLUMNS = ("fan_out", "slow_root_rate", "slow_root_rate_independent")
"""Calls of a root call; root calls slower than 99 % of plain's single calls; 1 - (1 - p)^n of that for single calls."""

NOTE = "note"
"""Why the row is doubtful, in words: the client or a replica did not keep up."""


def make_row(cell: Cell, tallies: Sequence[Tally], plain: Sequence[Tally] | None, *, beside_roots: bool = False) -> Row:
    """The row of a cell. ``tallies`` has one tally per seed; ``plain`` those of the same seeds without a policy.

    ``beside_roots``: other rows are of root calls that need several calls, so this one has their columns too.

    Percentiles and the mean are means over seeds of each seed's own, with intervals of 95 % by Student's t (None with
    one seed). Rates and ratios are of the sums over all seeds. Raises ``ValueError`` without a tally.
    """
    if not tallies:
        raise ValueError("tallies: a row needs at least one seed")
    row = _names(cell, tallies)
    row.update(_traffic(cell, tallies))
    row.update(_latencies(tallies))
    row.update(_work(tallies, plain))
    row.update(_cost(tallies))
    if cell.world == "sim" and not uses_mesh(cell):
        row["notice_latency_ms"] = None
    row = {name: _finite(row[name]) for name in COLUMNS}
    if beside_roots or cell.fan_out > 1 or cell.scenario == "fan-out":
        row.update(_fan_out(cell, tallies, plain))
    if cell.world == "live" and (notes := dict.fromkeys(note for tally in tallies for note in tally.notes)):
        row[NOTE] = "; ".join(notes)
    return row


def _names(cell: Cell, tallies: Sequence[Tally]) -> Row:
    return {
        "world": cell.world,
        "scenario": cell.scenario,
        "policy": cell.policy,
        "rate": cell.rate,
        "load": cell.load,
        "mesh_latency_ms": cell.mesh_latency.default.mean * 1000,
        "seeds": len(tallies),
    }


def _traffic(cell: Cell, tallies: Sequence[Tally]) -> Row:
    span = _sum(tallies, lambda tally: tally.span)
    return {
        "calls": round(_sum(tallies, lambda tally: tally.calls)),
        "errors": round(_sum(tallies, lambda tally: tally.errors)),
        "unfinished": round(_sum(tallies, lambda tally: tally.unfinished)),
        "stable": not any(is_unstable(cell, tally) for tally in tallies),
        "offered_rate": _ratio(_sum(tallies, lambda tally: tally.offered), span),
        "achieved_rate": _ratio(_sum(tallies, lambda tally: tally.achieved), span),
        "utilisation": _ratio(
            _sum(tallies, lambda tally: tally.window_busy_seconds), _sum(tallies, lambda tally: tally.slot_seconds)
        ),
    }


def is_unstable(cell: Cell, tally: Tally) -> bool:
    """Whether the queues of one run grew for good. In a closed loop they can't."""
    return cell.rate is not None and upward_trend(tally.queue, cell.rate)


def _latencies(tallies: Sequence[Tally]) -> Row:
    row: Row = {}
    for name, percent in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9)):
        row[f"{name}_ms"], row[f"{name}_ms_ci"] = _percentile(tallies, lambda tally: tally.latency, percent)
    row["queue_wait_p99_ms"], _ = _percentile(tallies, lambda tally: tally.queue_wait, 99.0)
    row["first_item_p99_ms"], _ = _percentile(tallies, lambda tally: tally.first_item, 99.0)
    row["mean_ms"] = _mean_ms(tallies, lambda tally: tally.latency)
    row["mean_wait_ms"] = _mean_ms(tallies, lambda tally: tally.wait)
    waits = sum(tally.wait.count for tally in tallies)
    row["wait_probability"] = _ratio(waits - sum(tally.wait.zeros for tally in tallies), waits)
    return row


def _work(tallies: Sequence[Tally], plain: Sequence[Tally] | None) -> Row:
    def per(count: Callable[[Tally], float], base: Callable[[Tally], float]) -> float | None:
        return _ratio(_sum(tallies, count), _sum(tallies, base))

    busy = per(lambda tally: tally.busy_seconds, lambda tally: tally.calls)
    plain_busy = None
    if plain is not None:
        plain_busy = _ratio(_sum(plain, lambda tally: tally.busy_seconds), _sum(plain, lambda tally: tally.calls))
    rates = [tally.duplicates / tally.calls for tally in tallies if tally.calls]
    duplicates = mean_of(rates)
    has_backups = any(tally.backups_sent or tally.backups_denied for tally in tallies)
    return {
        "executions_per_call": per(lambda tally: tally.executions, lambda tally: tally.calls),
        "duplicate_execution_rate": per(lambda tally: tally.duplicates, lambda tally: tally.calls),
        "duplicate_execution_rate_ci": None if duplicates is None else _shown(duplicates.interval, 1.0),
        "double_start_rate": per(lambda tally: tally.double_starts, lambda tally: tally.ties),
        "duplicate_completion_rate": per(lambda tally: tally.completed_twice, lambda tally: tally.calls),
        "wasted_work_ratio": per(lambda tally: max(0.0, tally.wasted_seconds), lambda tally: tally.busy_seconds),
        "busy_ms_per_call": None if busy is None else busy * 1000,
        "extra_busy_ratio": None if busy is None or not plain_busy else busy / plain_busy,
        "late_cancel_rate": per(lambda tally: tally.late_notices, lambda tally: tally.notices),
        "backup_rate": per(lambda tally: tally.backups_sent, lambda tally: tally.calls),
        "backup_win_rate": per(lambda tally: tally.backups_won, lambda tally: tally.backups_sent),
        "backup_denied": round(_sum(tallies, lambda tally: tally.backups_denied)) if has_backups else None,
    }


def _fan_out(cell: Cell, tallies: Sequence[Tally], plain: Sequence[Tally] | None) -> Row:
    """What many calls at once make of a rare slow one; slow is what plain's 99th percentile of single calls exceeds."""
    rates: list[float | None] = [None, None]
    if plain is not None:
        single = _merged(_single(cell, tally) for tally in plain)
        slow = single.percentile(99.0)
        if slow is not None:
            rates[0] = _merged(tally.latency for tally in tallies).share_above(slow)
            share = _merged(_single(cell, tally) for tally in tallies).share_above(slow)
            rates[1] = None if share is None else 1 - (1 - share) ** cell.fan_out
    return dict(zip(FAN_OUT_COLUMNS, (cell.fan_out, *rates), strict=True))


def _single(cell: Cell, tally: Tally) -> Distribution:
    return tally.sub_latency if cell.fan_out > 1 else tally.latency


def _merged(distributions: Iterable[Distribution]) -> Distribution:
    merged = Distribution()
    for distribution in distributions:
        merged.merge(distribution)
    return merged


def _cost(tallies: Sequence[Tally]) -> Row:
    calls = _sum(tallies, lambda tally: tally.calls)
    wall = _sum(tallies, lambda tally: tally.wall_seconds)
    notice = _ratio(
        _sum(tallies, lambda tally: tally.notice_seconds), _sum(tallies, lambda tally: tally.notice_samples)
    )
    cpu = _ratio(_sum(tallies, lambda tally: tally.cpu_seconds), calls)
    return {
        "notice_latency_ms": None if notice is None else notice * 1000,
        "messages_per_call": _ratio(
            _sum(tallies, lambda tally: tally.messages), _sum(tallies, lambda tally: tally.offered)
        ),
        "cpu_us_per_call": None if cpu is None else cpu * 1e6,
        "wall_s": wall,
        "calls_per_wall_s": _ratio(calls, wall),
    }


# ---- arithmetic -----------------------------------------------------------------------------------------------


def _sum(tallies: Sequence[Tally], value: Callable[[Tally], float]) -> float:
    return math.fsum(value(tally) for tally in tallies)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _percentile(
    tallies: Sequence[Tally], of: Callable[[Tally], Distribution], percent: float
) -> tuple[float | None, list[float] | None]:
    values = [value for tally in tallies if (value := of(tally).percentile(percent)) is not None]
    mean = mean_of(values)
    return (None, None) if mean is None else (mean.value * 1000, _shown(mean.interval, 1000.0))


def _mean_ms(tallies: Sequence[Tally], of: Callable[[Tally], Distribution]) -> float | None:
    mean = mean_of([value for tally in tallies if (value := of(tally).mean) is not None])
    return None if mean is None else mean.value * 1000


def _shown(interval: Interval | None, factor: float) -> list[float] | None:
    """An interval of something that is never negative."""
    return None if interval is None else [max(0.0, interval[0] * factor), interval[1] * factor]


def _finite(value: Value) -> Value:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
