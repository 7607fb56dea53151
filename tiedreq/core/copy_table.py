"""The transitions of a copy at its replica."""

from __future__ import annotations

from enum import IntEnum

from tiedreq.core.transitions import Table
from tiedreq.core.types import CopyState


class CopyTrigger(IntEnum):
    """What moves a copy."""

    SLOT_FREE = 0
    HANDLER_RETURNED = 1
    HANDLER_RAISED = 2
    PARTNER_STARTED = 3
    PARTNER_NEXT = 4
    CALLER_CANCELLED = 5
    CALLER_LOST = 6
    DEADLINE_PASSED = 7
    REFUSAL = 8
    TURN_CAME = 9
    CLAIM_GRANTED = 10
    CLAIM_DENIED = 11
    GRANTED_AWAY = 12


_S = CopyState
_T = CopyTrigger

COPY_TABLE: Table[CopyState, CopyTrigger] = Table(
    "copy",
    CopyState.QUEUED,
    {
        (_S.QUEUED, _T.SLOT_FREE): _S.RUNNING,
        (_S.QUEUED, _T.PARTNER_STARTED): _S.DROPPED,
        (_S.QUEUED, _T.PARTNER_NEXT): _S.DROPPED,
        (_S.QUEUED, _T.CALLER_CANCELLED): _S.CANCELLED,
        (_S.QUEUED, _T.CALLER_LOST): _S.CANCELLED,
        (_S.QUEUED, _T.DEADLINE_PASSED): _S.EXPIRED,
        (_S.QUEUED, _T.REFUSAL): _S.REFUSED,
        (_S.QUEUED, _T.TURN_CAME): _S.CLAIMING,
        (_S.QUEUED, _T.GRANTED_AWAY): _S.DROPPED,
        (_S.CLAIMING, _T.CLAIM_GRANTED): _S.QUEUED,
        (_S.CLAIMING, _T.CLAIM_DENIED): _S.DROPPED,
        (_S.CLAIMING, _T.PARTNER_STARTED): _S.DROPPED,
        (_S.CLAIMING, _T.CALLER_CANCELLED): _S.CANCELLED,
        (_S.CLAIMING, _T.CALLER_LOST): _S.CANCELLED,
        (_S.CLAIMING, _T.DEADLINE_PASSED): _S.EXPIRED,
        (_S.CLAIMING, _T.REFUSAL): _S.REFUSED,
        (_S.RUNNING, _T.HANDLER_RETURNED): _S.DONE,
        (_S.RUNNING, _T.HANDLER_RAISED): _S.FAILED,
        (_S.RUNNING, _T.PARTNER_STARTED): _S.YIELDED,
        (_S.RUNNING, _T.CALLER_CANCELLED): _S.CANCELLED,
        (_S.RUNNING, _T.CALLER_LOST): _S.CANCELLED,
        (_S.RUNNING, _T.DEADLINE_PASSED): _S.EXPIRED,
    },
    {
        _T.SLOT_FREE: "input has settled, a slot is free, and the copy is the oldest that may take it",
        _T.HANDLER_RETURNED: "the handler returned a result",
        _T.HANDLER_RAISED: "the handler raised",
        _T.PARTNER_STARTED: "a partner started (a running copy yields only to a lower rank, and only if it can stop)",
        _T.PARTNER_NEXT: "a partner of lower rank is at the head of its queue and can't be stopped once it runs",
        _T.CALLER_CANCELLED: "the caller cancelled, now or before the copy arrived",
        _T.CALLER_LOST: "the link over which the copy came is gone",
        _T.DEADLINE_PASSED: "the call's time is up",
        _T.REFUSAL: "the queue is full, the replica drains, the copy may not run here, or its arbiter is lost",
        _T.TURN_CAME: "(exclusive ties, rank above 0) its turn to start: the arbiter is asked, other work passes",
        _T.CLAIM_GRANTED: "(exclusive ties) the arbiter lets it start: it goes to the head of the queue",
        _T.CLAIM_DENIED: "(exclusive ties) the arbiter's copy, or another, has started or may",
        _T.GRANTED_AWAY: "(exclusive ties, rank 0) another copy was granted the start",
    },
)
