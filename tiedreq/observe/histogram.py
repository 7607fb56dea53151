"""A histogram of durations with fixed bounds: cheap to fill, mergeable, and what Prometheus wants.

The bounds are the same everywhere, so that histograms of several replicas add up bucket by bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypedDict

BOUNDS: tuple[float, ...] = tuple(float(f"{10 ** (step / 5):.2g}") for step in range(-20, 11))
"""Upper bounds in seconds, five a decade: 0.0001, 0.00016, 0.00025, 0.0004, 0.00063, 0.001 … 100."""


class HistogramView(TypedDict):
    """``counts[i]`` durations were above ``bounds[i - 1]`` and at most ``bounds[i]``; the last ones above all bounds.

    ``sum`` is in seconds. ``p50``, ``p99`` and ``p999`` are interpolated within their bucket; None without samples.
    """

    bounds: list[float]
    counts: list[int]
    count: int
    sum: float
    p50: float | None
    p99: float | None
    p999: float | None


class Histogram:
    """Counts durations, in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many durations there were."""
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def quantile(self, share: float) -> float | None:
        """The duration that a ``share`` of them does not exceed, interpolated within its bucket; None without any."""
        return quantile(self.counts, share)

    def view(self) -> HistogramView:
        """It all as plain values."""
        return HistogramView(
            bounds=list(BOUNDS),
            counts=list(self.counts),
            count=self.count,
            sum=self.sum,
            p50=self.quantile(0.50),
            p99=self.quantile(0.99),
            p999=self.quantile(0.999),
        )


def quantile(counts: list[int], share: float) -> float | None:
    """As ``Histogram.quantile``, of counts over ``BOUNDS``: say the difference of two views, or the sum of several."""
    total = sum(counts)
    if not total:
        return None
    wanted, passed = share * total, 0
    for index, count in enumerate(counts):
        if count and passed + count >= wanted:
            if index == len(BOUNDS):
                break
            low = BOUNDS[index - 1] if index else 0.0
            return low + (BOUNDS[index] - low) * max(0.0, wanted - passed) / count
        passed += count
    return BOUNDS[-1]
