"""What a run of traffic comes to: the ``summary`` event, from what the client saw and what the replicas counted.

Definitions: latency from the intended sending to the outcome, errors included; ``offered_rate`` intended sendings per
second, ``achieved_rate`` answers per second; ``executions_per_call`` handlers started per call, counted by the
replicas; ``duplicate_execution_rate`` the share of calls with two or more handlers started: what the replicas counted
beyond one for each call, which is exact while no call has more than two, and never less than what the client saw.
A replica that is killed takes its count of the last second with it. What does not apply is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = (
    "calls",
    "errors",
    "offered_rate",
    "achieved_rate",
    "p50_ms",
    "p99_ms",
    "p999_ms",
    "executions_per_call",
    "duplicate_execution_rate",
)
"""The numbers of a summary event, in the order of its table."""

_OF_THE_CLIENT = (*FIELDS[:7], "policy", "method", "rate", "seconds", "unfinished", "error_kinds")


def summary_event(traffic: Mapping[str, Any], executions: int) -> dict[str, Any]:
    """The event; ``traffic`` is the traffic program's report, ``executions`` what the replicas started meanwhile."""
    calls, executed, seen = traffic["calls"], traffic["executed"], traffic["duplicates_seen"]
    known = max(executions, executed + seen)
    return {
        "event": "summary",
        **{name: traffic[name] for name in _OF_THE_CLIENT},
        "executions_per_call": round(known / calls, 6) if calls else None,
        "duplicate_execution_rate": round(min(1.0, max(seen, known - executed) / calls), 6) if calls else None,
    }
