"""What one replica remembers of one call, as plain values.

A ``RECORD`` is a copy that ended: when that was, when it had arrived and started (``NEVER``: not at all), in Trio's
time; the number of its method (or ``NO_METHOD``), its kind, its state and cause; its id. ``tiedreq.observe.replica``
writes them. Copies that wait or run come from the core itself. Pure: nothing here looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, TypedDict

from tiedreq.core.copybook import NEVER, HeldCopy
from tiedreq.core.types import CallId, Cause, CopyId, CopyKind, CopyState

RECORD = Struct("<dddHBBBQQQb")
NO_METHOD = 0xFFFF
CALL = "call:"
_CALL_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})")
_NUMBER_MAX = 2**64 - 1


class StoryEvent(TypedDict):
    """``at`` is in seconds since 1970. ``what``: ``arrived``, ``started``, ``ended``, ``done`` or ``failed``.

    ``detail`` says more, in words: the kind of the copy; how it ended. An execution that answered or failed has
    ``queue_wait`` and ``service_time``; else None.
    """

    at: float
    copy: str
    what: str
    detail: str
    queue_wait: float | None
    service_time: float | None


class ReplicaStory(TypedDict):
    """All that a replica remembers of a call, oldest first. Its memory goes back to ``since`` (None: it is empty).

    ``method`` is None for one that it does not serve.
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
    held: Iterable[HeldCopy] = (),
) -> ReplicaStory:
    """What ``records`` hold about ``call``; ``offset`` is what their clock lacks to the time of day, in seconds.

    ``methods`` are the names that records know by number; ``held`` the copies of the call that wait or run.
    """
    events: list[StoryEvent] = []
    since: float | None = None
    method: str | None = None
    for ended, arrived, started, row, kind, state, cause, *identity in records:
        since = arrived + offset if since is None else since
        if identity[1] != call.number or identity[0] != call.client:
            continue
        copy = CopyId(*identity)
        method = None if row == NO_METHOD else methods[row]
        events += _begun(copy, CopyKind(kind), arrived, started, offset)
        events.append(_ended(copy, CopyState(state), Cause(cause), arrived, started, ended, offset))
    for one in held:
        method = one.submit.method
        events += _begun(one.id, one.submit.kind, one.arrived_at, one.started_at, offset)
    events.sort(key=lambda event: event["at"])
    return ReplicaStory(name=name, since=since, method=method, events=events)


def _begun(copy: CopyId, kind: CopyKind, arrived: float, started: float, offset: float) -> Iterator[StoryEvent]:
    yield _event(arrived + offset, copy, "arrived", kind.label)
    if started != NEVER:
        yield _event(started + offset, copy, "started", "")


def _ended(
    copy: CopyId, state: CopyState, cause: Cause, arrived: float, started: float, ended: float, offset: float
) -> StoryEvent:
    if state not in (CopyState.DONE, CopyState.FAILED):
        return _event(ended + offset, copy, "ended", state.label if not cause else f"{state.label}: {cause.label}")
    told = _event(ended + offset, copy, state.label, "")
    told["queue_wait"], told["service_time"] = started - arrived, ended - started
    return told


def _event(at: float, copy: CopyId, what: str, detail: str) -> StoryEvent:
    return StoryEvent(at=at, copy=str(copy), what=what, detail=detail, queue_wait=None, service_time=None)
