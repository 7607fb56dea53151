"""Means over seeds with their confidence intervals, and whether a queue has an upward trend.

Not for percentiles of one run (``tally.Distribution``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "Mean", "mean_of", "student_t", "upward_trend"]

CONFIDENCE = 0.95
BLOCKS = 8
"""The queue's trend is judged on the means of so many stretches of the window."""

TREND_MIN = 0.005
"""A queue that grows by less than this share of the calls that come in is not called growing."""

_T_975 = (
    "12.7062 4.3027 3.1824 2.7764 2.5706 2.4469 2.3646 2.3060 2.2622 2.2281 2.2010 2.1788 2.1604 2.1448 2.1314 2.1199"
    " 2.1098 2.1009 2.0930 2.0860 2.0796 2.0739 2.0687 2.0639 2.0595 2.0555 2.0518 2.0484 2.0452 2.0423"
)
_T_TABLE = tuple(float(value) for value in _T_975.split())

Interval = tuple[float, float]


class Mean(NamedTuple):
    """A mean, and the interval that holds the true one with 95 % confidence; None for a single value."""

    value: float
    interval: Interval | None


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with ``freedom`` degrees of freedom: half of a 95 % interval.

    Up to 30 from a table, beyond by Cornish and Fisher's expansion (exact to five digits there).
    """
    if freedom < 1:
        raise ValueError(f"freedom: {freedom!r} is not at least 1")
    if freedom <= len(_T_TABLE):
        return _T_TABLE[freedom - 1]
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean of one value per seed, with its interval by Student's t; None when there is none."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Mean(mean, None)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Mean(mean, (mean - half, mean + half))


def upward_trend(queue: Sequence[tuple[float, float]], rate: float) -> bool:
    """True when a queue of (seconds, length) samples grows for good while ``rate`` calls per second come in.

    Least squares over the means of ``BLOCKS`` stretches: the slope must be more than ``TREND_MIN`` of the rate, and
    more than what chance makes of it (Student's t of the slope, at 97.5 %).
    """
    if len(queue) < 2 * BLOCKS:
        return False
    blocks = [_block(queue, index) for index in range(BLOCKS)]
    times, lengths = [time for time, _ in blocks], [length for _, length in blocks]
    if len(set(times)) < BLOCKS:
        return False
    slope, intercept = statistics.linear_regression(times, lengths)
    if slope <= TREND_MIN * rate:
        return False
    mean_time = statistics.fmean(times)
    spread = math.fsum((time - mean_time) ** 2 for time in times)
    residual = math.fsum((length - intercept - slope * time) ** 2 for time, length in blocks)
    error = math.sqrt(residual / (BLOCKS - 2) / spread)
    return slope > student_t(BLOCKS - 2) * error


def _block(queue: Sequence[tuple[float, float]], index: int) -> tuple[float, float]:
    part = queue[index * len(queue) // BLOCKS : (index + 1) * len(queue) // BLOCKS]
    return statistics.fmean(time for time, _ in part), statistics.fmean(length for _, length in part)
