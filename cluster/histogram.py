"""Percentiles of many durations in little memory: a histogram with buckets whose width grows with the value.

Every bucket is 2 % wide and stands for its middle, so a percentile is at most 1 % away from the true one, between 1 µs
and a day; what is shorter or longer is counted at these ends. (As in HdrHistogram and DDSketch.)

Not for means of a few values, and not for a law of service times with censored samples.
"""

from __future__ import annotations

import math
from array import array

ERROR = 0.01
SHORTEST = 1e-6
LONGEST = 86_400.0
_RATIO = (1 + ERROR) / (1 - ERROR)
_LOG_RATIO = math.log(_RATIO)
_BUCKETS = math.ceil(math.log(LONGEST / SHORTEST) / _LOG_RATIO) + 1


class Histogram:
    """Durations in seconds."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts = array("Q", bytes(8 * _BUCKETS))

    def add(self, seconds: float) -> None:
        """Take one duration."""
        self._counts[_bucket(seconds)] += 1
        self.count += 1

    def percentile(self, percent: float) -> float | None:
        """The smallest duration that ``percent`` % of all do not exceed, within 1 %; None while there are none."""
        if not 0 <= percent <= 100:
            raise ValueError(f"percent: {percent!r} is outside 0 to 100")
        if self.count == 0:
            return None
        # As a fraction of whole percents, 99.9 % of 1,000 would be 999.0000000000001 and ask for the 1,000th.
        rank = max(1, math.ceil(round(self.count * percent / 100, 6)))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return _middle(bucket)
        raise AssertionError("the buckets hold less than was counted")


def _bucket(seconds: float) -> int:
    """Bucket k holds what is above ``SHORTEST`` x ratio^(k-1) and at most ``SHORTEST`` x ratio^k."""
    if not seconds > SHORTEST:
        return 0
    return min(_BUCKETS - 1, math.ceil(math.log(min(seconds, LONGEST) / SHORTEST) / _LOG_RATIO))


def _middle(bucket: int) -> float:
    """The value with the same relative distance to both ends of the bucket."""
    return SHORTEST * math.exp(bucket * _LOG_RATIO) * (1 - ERROR)
