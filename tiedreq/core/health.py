"""How a replica fares among its like: is it slow, does it fail? And probation for one that does.

Times are taken relative to the mean of their method over all replicas, so that methods don't mix. A copy that was
stopped early counts with the time that it had run, and none counts for more than ``RELATIVE_MAX`` means. With ``time``
the sum of relative times, of copies that ended and of those stopped, and ``ended`` the number of those that ended,

    slowness = (time + K) / (ended + K)            (K = ``PRIOR`` executions as fast as the mean)

is the estimate of the mean for a censored exponential law, drawn towards 1 as long as little is known. Its standard
error is that of a ratio, with the deviations r = time of a copy - slowness, if it ended (- 0, if it was stopped):

    error = sqrt(sum of r^2 + K) / (ended + K)

In the choice of a replica weighs what is certain: ``slowness - SURE x error``, where that is above ``WEIGHED_FROM``.
Noise hardly ever gets there, whatever the law; a replica that takes three times as long is there after a dozen copies.

What is known fades with each new copy, by 1/``KEPT``, *and with time*, over ``MEMORY_SECONDS``. A replica that loses
every choice gets no new copies to mend its name with; but the less is known, the greater is the error, and before long
it is tried again. If it is slow still, a few copies tell, and it is passed over for some seconds more. Failures count
apart, and don't fade with time: they say nothing of speed.

A replica goes on probation when its slowness is above ``SLOW`` times the median of the others, or more than ``FAILING``
of its copies fail and that is ``SLOW`` times what fails at the others. It then gets no first copies and no backups;
now and then it gets copy 1 of a tie, which is harmless. It is back when these are fast again, or after a while, which
doubles each time up to ``PROBATION_MAX``. At most a third of the replicas is on probation at a time.

Modelled on the probation of Prequal (Wydrowski et al., NSDI 2024) and on outlier ejection as in Envoy. Times are
seconds, ``now`` is the client's monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

KEPT = 128
MEMORY_SECONDS = 10.0
PRIOR = 4.0
SURE = 2.0
"""So many standard errors of a slowness may be chance."""
SAMPLES_MIN = 16.0
MENDED_MIN = 10.0
RELATIVE_MAX = 10.0
"""A longer time counts as so many means: one straggler is no slow replica."""
SLOW = 3.0
FASTER = 1.5
FAILING = 0.5
TIME_MIN = 0.001
"""Executions shorter than that, in seconds, are told apart by the noise of schedulers only."""
WEIGHED_FROM = 1.1
"""Less does not weigh in the choice of a replica."""
PROBATION_MIN = 10.0
PROBATION_MAX = 320.0
TRIAL_EVERY = 1.0
MEAN_SHARE = 1 / 256
MEAN_EARLY = 16
"""After so many copies a single one counts in the mean as ``RELATIVE_MAX`` means at most."""
METHODS_MAX = 256


class Health:
    """What one replica's copies came to."""

    __slots__ = (
        "_at",
        "_certain",
        "_ended_time",
        "_squares",
        "count",
        "ended",
        "failed",
        "probation_length",
        "probation_until",
        "time",
        "trial_at",
    )

    def __init__(self) -> None:
        self.probation_length = PROBATION_MIN
        self.probation_until = 0.0
        self.trial_at = 0.0
        self._at = 0.0
        self._clear()

    def _clear(self) -> None:
        self.time = 0.0
        self.ended = 0.0
        self.failed = 0.0
        self.count = 0.0
        self._ended_time = 0.0
        self._squares = 0.0
        self._certain = 1.0

    def add(self, relative: float, now: float, *, ended: bool) -> None:
        """An execution that ended after ``relative`` mean times of its method, or was stopped after that."""
        keep = (1 - 1 / KEPT) * self._fading(now)
        if now > self._at:
            self._at = now
        time = relative if relative < RELATIVE_MAX else RELATIVE_MAX
        self.time = self.time * keep + time
        self._squares = self._squares * keep + time * time
        self.ended = self.ended * keep + ended
        self._ended_time = self._ended_time * keep + (time if ended else 0.0)
        self._count(failed=False)
        self._certain = self._bound(1.0)

    def fail(self) -> None:
        """A handler failed."""
        self._count(failed=True)

    def _count(self, *, failed: bool) -> None:
        keep = 1 - 1 / KEPT
        self.failed = self.failed * keep + failed
        self.count = self.count * keep + 1

    def _fading(self, now: float) -> float:
        """What is left of what was known at the last copy. Nothing fades on probation, where copies are few."""
        passed = now - self._at
        return math.exp(-passed / MEMORY_SECONDS) if passed > 0 and self.probation_until <= 0 else 1.0

    def _bound(self, left: float) -> float:
        """The slowness that is certain when a share ``left`` of the sums is."""
        time, ended = left * self.time, left * self.ended
        slowness = (time + PRIOR) / (ended + PRIOR)
        deviations = left * self._squares - 2 * slowness * left * self._ended_time + slowness * slowness * ended
        if deviations < 0.0:
            deviations = 0.0
        return slowness - SURE * math.sqrt(deviations + PRIOR) / (ended + PRIOR)

    @property
    def slowness(self) -> float:
        """The module's formula: 1 for a replica as fast as all."""
        return (self.time + PRIOR) / (self.ended + PRIOR)

    @property
    def failing(self) -> float:
        """The share of copies that failed."""
        return self.failed / (self.count + PRIOR)

    def weight(self, now: float) -> float:
        """The factor by which the work that waits at this replica takes longer, as far as that is certain."""
        if self._certain <= WEIGHED_FROM:
            return 1.0
        certain = self._bound(self._fading(now))
        return certain if certain > WEIGHED_FROM else 1.0

    def begin_probation(self, now: float) -> None:
        """No first copies for a while."""
        self.probation_until = now + self.probation_length
        self.probation_length = min(2 * self.probation_length, PROBATION_MAX)
        self.trial_at = now
        self._clear()

    def end_probation(self) -> None:
        """It is like the others again."""
        self.probation_until = 0.0
        self._clear()

    def recovered(self) -> bool:
        """Its trial copies were fast."""
        enough = self.ended >= MENDED_MIN
        return enough and self.slowness < FASTER and self.failing < FAILING / 2


def outlies(health: Health, others: Sequence[Health]) -> bool:
    """True when a replica is much slower, or fails much more, than the others."""
    if health.count < SAMPLES_MIN or not others:
        return False
    middle = sorted(other.slowness for other in others)[len(others) // 2]
    failing = sorted(other.failing for other in others)[len(others) // 2]
    return health.slowness > SLOW * middle or (health.failing > FAILING and health.failing > SLOW * failing)


class MethodMeans:
    """The mean service time of each method over all replicas, for telling how slow one is. At most ``METHODS_MAX``.

    It is a censored mean too, all time over the number of copies that ended, of the last 1/``MEAN_SHARE`` copies or so.
    Were it the mean of those that ended, replicas would all look slow where slow copies are stopped.
    """

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, int]] = {}

    def relative(self, method: str, time: float) -> float:
        """``time`` in means of the method; 1 as long as none is known. Times below ``TIME_MIN`` count alike."""
        known = self._means.get(method)
        if known is None:
            return 1.0
        mean = known[0]
        return (time if time > TIME_MIN else TIME_MIN) / (mean if mean > TIME_MIN else TIME_MIN)

    def add(self, method: str, time: float, *, ended: bool) -> None:
        """An execution ended after ``time``, or was stopped after that."""
        known = self._means.get(method)
        if known is None:
            if ended and len(self._means) < METHODS_MAX:
                self._means[method] = (max(time, 1e-9), 1)
            return
        mean, count = known
        if count >= MEAN_EARLY and time > RELATIVE_MAX * mean:
            time = RELATIVE_MAX * mean
        share = 1 / (count + 1)
        if share < MEAN_SHARE:
            share = MEAN_SHARE
        mean += share * (time - mean * ended)
        self._means[method] = (mean if mean > 1e-9 else 1e-9, count + 1)
