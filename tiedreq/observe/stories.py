"""What one replica's ring says about one call, as plain values.

A record is a ``RECORD``: Trio's time, its kind, two small numbers, two durations or times, and a copy's id:

* ``ARRIVED``: number of the method (or ``NO_METHOD``), kind of copy; the number of the link
* ``ENDED``: state, cause; when it had started (``NEVER``: not at all)
* ``DONE`` and ``FAILED``: queue wait, service time
* ``HEARD``, of the partner's copy: which of ``HEARD_KINDS`` · ``CANCEL``: its caller does not want it any more
* ``CALLER_GONE``: everything of a caller is cancelled; the link's number is in place of the call's

``tiedreq.observe.replica`` writes them: few, and none for a start, which the end tells. Pure: nothing here looks at a
clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, TypedDict

from tiedreq.core.events import ClaimDenied, ClaimGranted, PeerClaimed, PeerNext, PeerStarted
from tiedreq.core.types import CallId, Cause, CopyId, CopyKind, CopyState

RECORD = Struct("<dBHHddQQQb")
ARRIVED, ENDED, DONE, FAILED, HEARD, CANCEL, CALLER_GONE = range(7)
NO_METHOD = 0xFFFF
NEVER = float("-inf")
HEARD_KINDS = (PeerStarted, PeerNext, PeerClaimed, ClaimGranted, ClaimDenied)

CALL = "call:"
EVENTS_MAX = 1000
_HEARD = ("started", "next", "claim", "granted", "denied")
_CALL_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})")
_NUMBER_MAX = 2**64 - 1


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
    name: str,
    records: Iterable[tuple[Any, ...]],
    call: CallId,
    offset: float,
    methods: Sequence[str],
    running: Iterable[tuple[CopyId, float]] = (),
) -> ReplicaStory:
    """What ``records`` hold about ``call``; ``offset`` is what their clock lacks to the time of day, in seconds.

    ``methods`` are the names that records know by number; ``running`` the executions that go on, with their starts.
    """
    events: list[StoryEvent] = []
    open_copies: dict[CopyId, float] = {}
    since: float | None = None
    method: str | None = None
    for now, kind, first, second, x, y, client, number, round_, rank in records:
        at = now + offset
        since = at if since is None else since
        if kind == CALLER_GONE:
            lost = [copy for copy, link in open_copies.items() if link == number]
            events += [_event(at, copy, "caller lost", "its caller's link is gone") for copy in lost]
            continue
        if number != call.number or client != call.client:
            continue
        copy = CopyId(client, number, round_, rank)
        if kind == ARRIVED:
            method = None if first == NO_METHOD else methods[first]
            open_copies[copy] = x
        elif kind in (ENDED, DONE, FAILED):
            open_copies.pop(copy, None)
        if len(events) < EVENTS_MAX:
            events += _told(at, kind, copy, first, second, x, y, offset)
    events += [_event(started_at + offset, copy, "started", "") for copy, started_at in running]
    events.sort(key=lambda event: event["at"])
    return ReplicaStory(name=name, since=since, method=method, events=events)


def _told(
    at: float, kind: int, copy: CopyId, first: int, second: int, x: float, y: float, offset: float
) -> Iterator[StoryEvent]:
    if kind == ARRIVED:
        yield _event(at, copy, "arrived", CopyKind(second).label)
    elif kind == ENDED:
        if x != NEVER:
            yield _event(x + offset, copy, "started", "")
        state, cause = CopyState(first), Cause(second)
        yield _event(at, copy, "ended", state.label if cause == Cause.NONE else f"{state.label}: {cause.label}")
    elif kind == HEARD:
        yield _event(at, copy, f"heard {_HEARD[first]}", "")
    elif kind == CANCEL:
        yield _event(at, copy, "cancel", "its caller does not want it any more")
    else:
        yield _event(at - y, copy, "started", "")
        told = _event(at, copy, "done" if kind == DONE else "failed", "")
        told["queue_wait"], told["service_time"] = x, y
        yield told


def _event(at: float, copy: CopyId, what: str, detail: str) -> StoryEvent:
    return StoryEvent(at=at, copy=str(copy), what=what, detail=detail, queue_wait=None, service_time=None)
