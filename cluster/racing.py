"""Timelines of calls that the traffic has just made: what a dashboard draws as a race between two copies.

Each is put together from what the client and the replicas remember of it (``tiedreq.observe.explain``), as plain
values: ``{"call_id", "method", "policy", "latency_ms", "outcome", "winner", "end_ms", "bars": [{"copy", "replica",
"kind", "sent_ms", "arrived_ms", "started_ms", "ended_ms", "end", "winner"}], "notices": [{"kind", "copy", "from", "to",
"sent_ms", "heard_ms"}]}``. Times are milliseconds since the call began, None where nobody knows. A notice is about
``copy``; the replica ``from`` sent it, the replica ``to`` heard of it.

Looking a call up costs each replica a millisecond or two, so it is done for few, and only while somebody looks.
"""

from __future__ import annotations

from typing import Any

from tiedreq.net.client import Client
from tiedreq.observe.explain import Notice, Timeline, timeline
from tiedreq.observe.snapshot import CallView

RACES = 3
RECENT_CALLS_MAX = 300
INQUIRY_SECONDS = 1.0
NOTICES_MAX = 16
"""Of one call."""


async def find_races(client: Client) -> list[dict[str, Any]]:
    """The timelines of up to ``RACES`` calls with two copies or more, the latest that have ended, oldest first."""
    observer = client.observer
    if observer is None:
        return []
    races = []
    for call in choose(observer.snapshot(recent=RECENT_CALLS_MAX)["recent"]):
        call_id = call["call_id"]
        stories = await client.inquire(f"call:{call_id}", timeout=INQUIRY_SECONDS)
        known: list[Any] = [story for story in stories.values() if "events" in story]
        found = timeline(call_id, call, known)
        if found is not None:
            races.append(race_view(found))
    return races


def choose(calls: list[CallView]) -> list[CallView]:
    """The latest call with two copies or more, the latest in which one was dropped, and the latest that started twice.

    Where these are one and the same call, others make up the number. ``calls`` are the oldest first, and so is this.
    """
    raced = [call for call in reversed(calls) if len(call["copies"]) > 1]
    dropped = [call for call in raced if any((copy["end"] or "").startswith("dropped") for copy in call["copies"])]
    doubled = [call for call in raced if sum(copy["started"] is not None for copy in call["copies"]) > 1]
    wanted = [*dropped[:1], *doubled[:1], *raced]
    chosen = list({call["call_id"]: call for call in wanted}.values())[:RACES]
    return sorted(chosen, key=lambda call: call["began"])


def race_view(found: Timeline) -> dict[str, Any]:
    """A timeline as plain values, as above."""
    return {
        "call_id": found.call_id,
        "method": found.method,
        "policy": found.policy,
        "latency_ms": _ms(found.latency),
        "outcome": found.outcome,
        "winner": found.winner,
        "end_ms": _ms(found.end),
        "bars": [
            {
                "copy": bar.copy.partition("/")[2],
                "replica": bar.replica,
                "kind": bar.kind,
                "sent_ms": _ms(bar.sent),
                "arrived_ms": _ms(bar.arrived),
                "started_ms": _ms(bar.started),
                "ended_ms": _ms(bar.ended),
                "end": bar.end,
                "winner": bar.winner,
            }
            for bar in found.bars
        ],
        "notices": _notices(found.notices),
    }


def _notices(notices: list[Notice]) -> list[dict[str, Any]]:
    """What replicas told each other, in the order in which it was heard; what was never heard comes last."""
    ordered = sorted(notices, key=lambda notice: (notice.heard is None, notice.heard or 0.0))
    return [
        {
            "kind": notice.kind,
            "copy": notice.copy.partition("/")[2],
            "from": notice.sender,
            "to": notice.receiver,
            "sent_ms": _ms(notice.sent),
            "heard_ms": _ms(notice.heard),
        }
        for notice in ordered[:NOTICES_MAX]
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
