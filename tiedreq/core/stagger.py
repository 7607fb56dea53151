"""How long copy k of a tie is held back, so that two idle replicas don't both start.

Copy k must not reach its replica before the start notice of a copy j < k could:

    stagger(k) = max over j of  send(j) + RTT(j)/2 + notice(j -> k) - RTT(k)/2 + margin

and j counts for nothing when its replica reports a queue and no free slot, so that it can't start at once, and that
queue is to last at least as long as the notice takes: (queued + 1) x mean service time / slots. A shorter queue would
let both start, one notice apart: at 85 % load of eight slots, 10 ms of service and 20 ms of latency nearly every fifth
call would. Where no mean is known yet, any queue counts. The margin is three times the deviations of the two round
trips, at least ``MARGIN_MIN``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiedreq.core.picker import ReplicaView

DEVIATIONS = 3.0
MARGIN_MIN = 0.0005
STAGGER_MAX = 0.25
"""No copy is held back longer than this, whatever was measured, in seconds."""
UNKNOWN_ROUND_TRIP = 0.001


def _half_round_trip(view: ReplicaView) -> float:
    return (UNKNOWN_ROUND_TRIP if view.round_trip is None else view.round_trip) / 2


def notice_latency(source: ReplicaView, target: ReplicaView) -> float:
    """Seconds a notice takes from ``source`` to ``target``: as either measured it, else by way of this client."""
    for view, other in ((source, target), (target, source)):
        measured = view.notice_latencies.get(other.name)
        if measured is not None:
            return measured
    return _half_round_trip(source) + _half_round_trip(target)


def _waits(source: ReplicaView, target: ReplicaView, now: float, mean: float | None) -> bool:
    """True when a copy at ``source`` is to wait at least as long as news of its start takes to ``target``."""
    if not source.busy(now):
        return False
    return mean is None or (source.queued + 1) * mean / source.slots >= notice_latency(source, target)


def _second(source: ReplicaView, target: ReplicaView, now: float, mean: float | None) -> float:
    """The usual case, two copies: what ``stagger_times`` would say of the second."""
    if source.queued > 0 and _waits(source, target, now, mean):
        return 0.0
    notice = source.notice_latencies.get(target.name)
    if notice is None:
        notice = notice_latency(source, target)
    deviation = (source.round_trip_deviation or 0.0) + (target.round_trip_deviation or 0.0)
    there, here = source.round_trip, target.round_trip
    arrives = (UNKNOWN_ROUND_TRIP if there is None else there) / 2 + notice
    margin = DEVIATIONS * deviation
    if margin < MARGIN_MIN:
        margin = MARGIN_MIN
    at = arrives - (UNKNOWN_ROUND_TRIP if here is None else here) / 2 + margin
    return 0.0 if at < 0.0 else STAGGER_MAX if at > STAGGER_MAX else at


def stagger_times(views: Sequence[ReplicaView], now: float, mean: float | None = None) -> list[float]:
    """Seconds after the first copy at which each copy is to be sent, for replicas in order of rank.

    ``mean`` is the mean service time in seconds, None where it is not known.
    """
    if len(views) == 2:
        return [0.0, _second(views[0], views[1], now, mean)]
    times = [0.0]
    for rank in range(1, len(views)):
        target = views[rank]
        earliest = times[rank - 1]
        for source, sent in zip(views[:rank], times, strict=True):
            if _waits(source, target, now, mean):
                continue
            deviation = (source.round_trip_deviation or 0.0) + (target.round_trip_deviation or 0.0)
            arrives = sent + _half_round_trip(source) + notice_latency(source, target)
            earliest = max(earliest, arrives - _half_round_trip(target) + max(DEVIATIONS * deviation, MARGIN_MIN))
        times.append(min(earliest, STAGGER_MAX))
    return times
