"""What a replica counts. Counters only grow; gauges are computed from the queue by ``ReplicaCore`` itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiedreq.core.types import Cause, CopyState

_SMOOTHING = 0.1


@dataclass(slots=True)
class ReplicaStats:
    """Counters since the replica started.

    ``endings`` counts copies that ended without an answer by (state, cause). ``notices`` are Started and Next from
    peers; ``late_notices`` of them met a copy that had started; ``notices_unsent`` had no link; ``stale_notices``
    came over an old link or from a replica that is not the partner. ``double_starts`` are counted where they are
    decided: at the copy of higher rank. Seconds are summed over executions; ``wasted_seconds`` is the part whose
    result was not used. ``items`` of streams were sent; ``items_wasted`` are those of copies that ended without an
    answer, sent or (once the copy had ended) thrown away. As with seconds, a caller that leaves early counts too.
    """

    submitted: int = 0
    duplicate_submits: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    notices: int = 0
    late_notices: int = 0
    notices_unsent: int = 0
    stale_notices: int = 0
    double_starts: int = 0
    items: int = 0
    items_wasted: int = 0
    busy_seconds: float = 0.0
    wasted_seconds: float = 0.0
    queue_wait_seconds: float = 0.0
    mean_service_seconds: float = 0.0
    endings: dict[tuple[CopyState, Cause], int] = field(default_factory=dict)

    def count_ending(self, state: CopyState, cause: Cause) -> None:
        """A copy ended without an answer."""
        self.endings[state, cause] = self.endings.get((state, cause), 0) + 1

    def ended(self, state: CopyState) -> int:
        """How many copies ended in ``state`` without an answer."""
        return sum(count for (ended, _), count in self.endings.items() if ended == state)

    def measure_service(self, seconds: float) -> None:
        """Take one service time into the smoothed mean that refusal hints are made of."""
        if self.mean_service_seconds == 0.0:
            self.mean_service_seconds = seconds
        else:
            self.mean_service_seconds += _SMOOTHING * (seconds - self.mean_service_seconds)
