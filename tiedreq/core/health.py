"""How a replica fares among its like: is it slow, does it fail? And probation for one that does.

Times are taken relative to the mean of their method over all replicas, so that methods don't mix. A copy that was
stopped early counts with the time that it had run, and none counts for more than ``RELATIVE_MAX`` means. With ``time``
the sum of relative times, of copies that ended and of those stopped, and ``ended`` the number of those that ended,

    slowness = (time + K) / (ended + K)            (K = ``PRIOR`` executions as fast as the mean)

is the estimate of the mean for a censored exponential law, drawn towards 1 as long as little is known. Each new sample
takes 1/``KEPT`` from what was before. Failures count apart: they say nothing of speed.

A replica goes on probation when its slowness is above ``SLOW`` times the median of the others, or more than ``FAILING``
of its copies fail and that is ``SLOW`` times what fails at the others. It then gets no first copies and no backups;
now and then it gets copy 1 of a tie, which is harmless. It is back when these are fast again, or after a while, which
doubles each time up to ``PROBATION_MAX``. At most a third of the replicas is on probation at a time.

Modelled on the probation of Prequal (Wydrowski et al., NSDI 2024) and on outlier ejection as in Envoy. Times are
seconds, ``now`` is the client's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 256
PRIOR = 4.0
SAMPLES_MIN = 30.0
RELATIVE_MAX = 10.0
"""A longer time counts as so many means: one straggler is no slow replica."""
SLOW = 3.0
FASTER = 1.5
FAILING = 0.5
TIME_MIN = 0.001
"""Executions shorter than that, in seconds, are told apart by the noise of schedulers only."""
WEIGHED_FROM = 1.5
"""Slowness below this is taken for chance, and does not weigh in the choice of a replica."""
PROBATION_MIN = 10.0
PROBATION_MAX = 320.0
TRIAL_EVERY = 1.0
MEAN_SHARE = 1 / 256
METHODS_MAX = 256


class Health:
    """What one replica's copies came to."""

    __slots__ = ("count", "ended", "failed", "probation_length", "probation_until", "time", "trial_at")

    def __init__(self) -> None:
        self.probation_length = PROBATION_MIN
        self.probation_until = 0.0
        self.trial_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self.time = 0.0
        self.ended = 0.0
        self.failed = 0.0
        self.count = 0.0

    def add(self, relative: float, *, ended: bool) -> None:
        """An execution that ended after ``relative`` mean times of its method, or was stopped after that."""
        keep = 1 - 1 / KEPT
        self.time = self.time * keep + min(relative, RELATIVE_MAX)
        self.ended = self.ended * keep + ended
        self.failed *= keep
        self.count = self.count * keep + 1

    def fail(self) -> None:
        """A handler failed."""
        keep = 1 - 1 / KEPT
        self.failed = self.failed * keep + 1
        self.count = self.count * keep + 1

    @property
    def slowness(self) -> float:
        """The module's formula: 1 for a replica as fast as all."""
        return (self.time + PRIOR) / (self.ended + PRIOR)

    @property
    def failing(self) -> float:
        """The share of copies that failed."""
        return self.failed / (self.count + PRIOR)

    def weight(self) -> float:
        """The factor by which the work that waits at this replica takes longer."""
        slowness = self.slowness
        return slowness if slowness > WEIGHED_FROM else 1.0

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
        enough = self.ended >= SAMPLES_MIN / 3
        return enough and self.slowness < FASTER and self.failing < FAILING / 2


def outlies(health: Health, others: Sequence[Health]) -> bool:
    """True when a replica is much slower, or fails much more, than the others."""
    if health.count < SAMPLES_MIN or not others:
        return False
    middle = sorted(other.slowness for other in others)[len(others) // 2]
    failing = sorted(other.failing for other in others)[len(others) // 2]
    return health.slowness > SLOW * middle or (health.failing > FAILING and health.failing > SLOW * failing)


class MethodMeans:
    """The mean service time of each method over all replicas, for telling how slow one is. At most ``METHODS_MAX``."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def relative(self, method: str, time: float) -> float:
        """``time`` in means of the method; 1 as long as none is known. Times below ``TIME_MIN`` count alike."""
        mean = self._means.get(method)
        return max(time, TIME_MIN) / max(mean, TIME_MIN) if mean else 1.0

    def add(self, method: str, time: float) -> None:
        """An execution ended after ``time``."""
        mean = self._means.get(method)
        if mean is None:
            if len(self._means) >= METHODS_MAX:
                return
            self._means[method] = max(time, 1e-9)
        else:
            self._means[method] = max(mean + MEAN_SHARE * (time - mean), 1e-9)
