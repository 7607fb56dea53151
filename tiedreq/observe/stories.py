"""What one replica remembers of one call, as plain values.

A ``RECORD`` is a copy that ended: when that was, when it had arrived and started (``NEVER``: not at all), in Trio's
time; the number of its method (or ``NO_METHOD``), its kind, its state and cause; its id. A ``NOTICE`` is one that was
sent to a peer or heard of one: when that was, the number of the peer's name, what it said (``NOTICE_WORDS``, plus
``HEARD`` for one that was heard), and the id of the copy that it is about. ``tiedreq.observe.replica`` writes them.
Copies that wait or run come from the core itself. Pure: nothing here looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NotRequired, TypedDict

from tiedreq.core.copybook import NEVER, HeldCopy
from tiedreq.core.types import CallId, Cause, CopyId, CopyKind, CopyState
from tiedreq.observe.ring import Ring

RECORD = Struct("<dddHBBBQQQb")
NOTICE = Struct("<dHBQQQb")
NO_METHOD = 0xFFFF
SENT, HEARD = 0, 128
NOTICE_WORDS = ("started", "next", "claim", "granted", "denied")
SENT_WHAT, HEARD_WHAT = "notice sent", "notice heard"
_ORDER = {"arrived": 0, HEARD_WHAT: 1, "started": 2, SENT_WHAT: 3}
"""Of what happened at the same time: what was heard is why a copy ends, and a start is why peers are told."""
_CALL_BYTES = Struct("<QQ")
_ID_BYTES = 25
"""Of the id of a copy, which ends a record: the call's two numbers, the round and the rank."""
CALL = "call:"
_CALL_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,20})")
_NUMBER_MAX = 2**64 - 1


class StoryEvent(TypedDict):
    """``at`` is in seconds since 1970. ``what``: ``arrived``, ``started``, ``ended``, ``done`` or ``failed``.

    ``detail`` says more, in words: the kind of the copy; how it ended. An execution that answered or failed has
    ``queue_wait`` and ``service_time``; else None. ``notice sent`` and ``notice heard`` have the ``peer``, and what was
    said of the copy as ``detail``; one that was heard is about a copy of the peer's, but for grants and denials.
    """

    at: float
    copy: str
    what: str
    detail: str
    queue_wait: float | None
    service_time: float | None
    peer: NotRequired[str]


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
    records: Ring,
    notices: Ring,
    call: CallId,
    offset: float,
    methods: Sequence[str],
    peers: Sequence[str],
    held: Iterable[HeldCopy] = (),
) -> ReplicaStory:
    """What ``records`` and ``notices`` hold about ``call``; ``offset``: what their clock lacks to the time of day.

    ``methods`` and ``peers`` are the names that records know by number; ``held`` the copies of the call that wait or
    run. Seconds.
    """
    events: list[StoryEvent] = []
    method: str | None = None
    pattern = _CALL_BYTES.pack(*call)
    for record in records.matching(RECORD, RECORD.size - _ID_BYTES, pattern):
        ended, arrived, started, row, kind, state, cause, *identity = record
        copy = CopyId(*identity)
        method = None if row == NO_METHOD else methods[row]
        events += _begun(copy, CopyKind(kind), arrived, started, offset)
        events.append(_ended(copy, CopyState(state), Cause(cause), arrived, started, ended, offset))
    for at, peer, word, *identity in notices.matching(NOTICE, NOTICE.size - _ID_BYTES, pattern):
        what = HEARD_WHAT if word & HEARD else SENT_WHAT
        told = _event(at + offset, CopyId(*identity), what, NOTICE_WORDS[word & ~HEARD])
        told["peer"] = peers[peer]
        events.append(told)
    for one in held:
        method = one.submit.method
        events += _begun(one.id, one.submit.kind, one.arrived_at, one.started_at, offset)
    events.sort(key=lambda event: (event["at"], _ORDER.get(event["what"], len(_ORDER))))
    oldest = records.oldest(RECORD)
    return ReplicaStory(name=name, since=None if oldest is None else oldest[1] + offset, method=method, events=events)


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
