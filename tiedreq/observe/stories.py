"""What one replica's ring says about one call, as plain values.

A record is a tuple ``(time, kind, …)`` with Trio's time:

* ``ARRIVED`` copy, kind of copy, number of the method (None: no such method), link
* ``ENDED`` copy, state, cause, when it had started (None: never)
* ``DONE`` and ``FAILED`` copy, queue wait, service time
* ``HEARD`` the partner's copy, the event's class · ``CANCEL`` copy: its caller does not want it any more
* ``CALLER_GONE`` link: everything of that caller is cancelled · ``STARTED`` copy, only of executions that go on

``tiedreq.observe.replica`` writes them: few, small, and none for a start, which the end tells. Pure: nothing here looks
at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict

from tiedreq.core.events import ClaimDenied, ClaimGranted, PeerClaimed, PeerNext, PeerStarted
from tiedreq.core.types import CallId, Cause, CopyId

ARRIVED, STARTED, ENDED, DONE, FAILED, HEARD, CANCEL, CALLER_GONE = range(8)

CALL = "call:"
EVENTS_MAX = 1000
_CALL_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})")
_NUMBER_MAX = 2**64 - 1
_HEARD = {
    PeerStarted: "started",
    PeerNext: "next",
    PeerClaimed: "claim",
    ClaimGranted: "granted",
    ClaimDenied: "denied",
}


class StoryEvent(TypedDict):
    """``at`` is in seconds since 1970. ``what``: ``arrived``, ``started``, ``ended``, ``done``, ``failed``,
    ``cancel``, ``caller lost``, or what was heard of the partner's ``copy``: ``heard started`` and so on.

    ``detail`` says more, in words. An execution that ended has ``queue_wait`` and ``service_time``; else None.
    """

    at: float
    copy: str
    what: str
    detail: str
    queue_wait: float | None
    service_time: float | None


class ReplicaStory(TypedDict):
    """All that a replica remembers of a call, oldest first. Its memory goes back to ``since`` (None: it is empty).

    ``method`` is None when the arrival is not in the ring any more, or never was.
    """

    name: str
    since: float | None
    method: str | None
    events: list[StoryEvent]


def parse_call_id(text: str) -> CallId | None:
    """A call id as users see it; a copy's id stands for its call. None when it is neither."""
    match = _CALL_ID.fullmatch(text.strip().partition("/")[0])
    if match is None or int(match[2]) > _NUMBER_MAX:
        return None
    return CallId(int(match[1], 16), int(match[2]))


def replica_story(
    name: str, records: Iterable[tuple[Any, ...]], call: CallId, offset: float, methods: Sequence[str]
) -> ReplicaStory:
    """What ``records`` hold about ``call``; ``offset`` is what their clock lacks to the time of day, in seconds.

    ``methods`` are the names that records know by number.
    """
    events: list[StoryEvent] = []
    open_copies: dict[CopyId, int] = {}
    since: float | None = None
    method: str | None = None
    for record in records:
        if since is None:
            since = record[0] + offset
        kind, subject = record[1], record[2]
        if kind == CALLER_GONE:
            lost = [copy for copy, link in open_copies.items() if link == subject]
            events += [_event(record[0] + offset, copy, "caller lost", "its caller's link is gone") for copy in lost]
            continue
        if subject[:2] != call:
            continue
        if kind == ARRIVED:
            method = None if record[4] is None else methods[record[4]]
            open_copies[subject] = record[5]
        elif kind in (ENDED, DONE, FAILED):
            open_copies.pop(subject, None)
        if len(events) < EVENTS_MAX:
            events += _told(record, offset)
    events.sort(key=lambda event: event["at"])
    return ReplicaStory(name=name, since=since, method=method, events=events)


def _told(record: tuple[Any, ...], offset: float) -> Iterator[StoryEvent]:
    at, kind, copy = record[0] + offset, record[1], record[2]
    if kind == ARRIVED:
        yield _event(at, copy, "arrived", record[3].label)
    elif kind == STARTED:
        yield _event(at, copy, "started", "")
    elif kind == ENDED:
        state, cause, started_at = record[3:6]
        if started_at is not None:
            yield _event(started_at + offset, copy, "started", "")
        yield _event(at, copy, "ended", state.label if cause == Cause.NONE else f"{state.label}: {cause.label}")
    elif kind == HEARD:
        yield _event(at, copy, f"heard {_HEARD[record[3]]}", "")
    elif kind == CANCEL:
        yield _event(at, copy, "cancel", "its caller does not want it any more")
    else:
        yield _event(at - record[4], copy, "started", "")
        told = _event(at, copy, "done" if kind == DONE else "failed", "")
        told["queue_wait"], told["service_time"] = record[3], record[4]
        yield told


def _event(at: float, copy: CopyId, what: str, detail: str) -> StoryEvent:
    return StoryEvent(at=at, copy=str(copy), what=what, detail=detail, queue_wait=None, service_time=None)
