"""What a policy bought, in a sentence for each group of rows: for people who compare on their own calls.

A gain is said only where it is beyond chance and beyond ``GAIN_MIN``: with several seeds the intervals of the policy
and of ``plain`` must not touch.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.compare.rows import Row, Value

__all__ = ["GAIN_MIN", "gain", "verdict"]

GAIN_MIN = 0.05
"""A tail that is shorter by less than this share is no gain."""

TAILS = (("p99", "p99_ms"), ("p99.9", "p999_ms"))


def gain(row: Row, plain: Row, column: str) -> float | None:
    """By what share ``column`` is less than under plain; None where that is not beyond chance and ``GAIN_MIN``."""
    ours, theirs = _number(row[column]), _number(plain[column])
    if ours is None or not theirs:
        return None
    share = 1 - ours / theirs
    if share < GAIN_MIN:
        return None
    interval, other = row.get(f"{column}_ci"), plain.get(f"{column}_ci")
    if isinstance(interval, list) and isinstance(other, list) and interval[1] >= other[0]:
        return None
    return share


def verdict(group: Mapping[str, Row]) -> str:
    """One sentence on rows that share all but the policy; they must include ``plain``."""
    plain = group["plain"]
    best: tuple[float, str, str] | None = None
    for policy, row in group.items():
        if policy == "plain" or not row["stable"]:
            continue
        gains = [(title, column, share) for title, column in TAILS if (share := gain(row, plain, column)) is not None]
        total = sum(share for _, _, share in gains)
        if gains and (best is None or total > best[0]):
            told = ", ".join(
                f"{title} {_shown(plain[column])} to {_shown(row[column])} (-{share:.0%})"
                for title, column, share in gains
            )
            best = (total, policy, f"{told}, {_cost(row)}")
    if best is None:
        return "no gain: no policy shortens p99 or p99.9 beyond chance; use plain"
    return f"most gain with {best[1]}: {best[2]}"


def _cost(row: Row) -> str:
    busy, executions = _number(row["extra_busy_ratio"]), _number(row["executions_per_call"])
    parts = [] if executions is None else [f"{executions:.3f} executions per call"]
    if busy is not None:
        parts.append(f"busy time x {busy:.3f}")
    return ", ".join(parts)


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _shown(value: Value) -> str:
    return f"{value:.1f} ms" if isinstance(value, int | float) else "unknown"
