"""The calls that a client remembers: packed numbers in a ring, a record for each copy.

Whoever keeps calls (``observe.client``) packs them; here they become plain values again, when somebody asks. A call of
which newer ones have pushed out a copy is forgotten as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any

from tiedreq.core.commands import OutcomeKind
from tiedreq.core.types import UNTIED, CallId, Cause, CopyId, CopyKind, CopyState
from tiedreq.observe.ring import Ring
from tiedreq.observe.snapshot import CallView, CopyView

NEVER = float("-inf")
"""Stands for a time or a duration that is not known."""
NO_STATE, NO_REPLICA = 0xFF, 0xFFFF
COUNT_MAX = 0xFFFF
COPY = Struct("<QHBHddQbHBIdddBBBdd")
"""Of the call: its number, row, the kind of its outcome, how many copies it has (``COUNT_MAX`` if more); when it began
and ended, in Trio's time. Of the copy: round and rank of its id; replica, kind, round of the call; when it was sent,
started, ended; its state and cause; whether it won; queue wait and service time as its replica measured them. A call
without copies has one record, of no replica."""
_NUMBER = Struct("<Q")
COPIES_PER_CALL = 2
LOST = "lost the race"
Rows = Sequence[tuple[str, str]]
"""Methods and kinds of policies, by number."""


class CallRing:
    """The last ``calls`` calls, if these have two copies or fewer; more of them if these have one.

    ``codes`` are those of failures, by call: as many as there can be calls.
    """

    def __init__(self, calls: int) -> None:
        self.copies = Ring(COPY.size, COPIES_PER_CALL * calls)
        self.codes: deque[tuple[int, str]] = deque(maxlen=COPIES_PER_CALL * calls)

    def find(self, client: int, number: int, rows: Rows, replicas: Sequence[str], offset: float) -> CallView | None:
        """A call by its number; None when it is not remembered. ``offset`` as of ``clock.offset``."""
        records = list(self.copies.matching(COPY, 0, _NUMBER.pack(number)))
        return self._view(client, records, rows, replicas, offset, dict(self.codes))

    def latest(self, client: int, count: int, rows: Rows, replicas: Sequence[str], offset: float) -> list[CallView]:
        """The last ``count`` calls, oldest first."""
        views: list[CallView] = []
        codes = dict(self.codes)
        records: list[tuple[Any, ...]] = []
        for record in self.copies.newest(COPY):
            if records and record[0] != records[0][0]:
                records = []
            if len(views) >= count:
                break
            records.append(record)
            if len(records) == max(1, record[3]):
                view = self._view(client, records[::-1], rows, replicas, offset, codes)
                if view is not None:
                    views.append(view)
        return views[::-1]

    def _view(
        self,
        client: int,
        records: list[tuple[Any, ...]],
        rows: Rows,
        replicas: Sequence[str],
        offset: float,
        codes: dict[int, str],
    ) -> CallView | None:
        if not records or len(records) < records[0][3]:
            return None
        number, row, kind, count, began, ended = records[0][:6]
        copies = [_copy_view(client, record, replicas) for record in records[:count]]
        method, policy = rows[row]
        return CallView(
            call_id=str(CallId(client, number)),
            method=method,
            policy=policy,
            began=began + offset,
            latency=ended - began,
            outcome=OutcomeKind(kind).name.lower(),
            code=codes.get(number, ""),
            replica=next((copy["replica"] for copy in copies if copy["winner"]), None),
            copies=copies,
        )


def _copy_view(client: int, record: tuple[Any, ...], replicas: Sequence[str]) -> CopyView:
    number, _, _, _, began, _, serial, rank, replica, kind, round_, sent, started, ended = record[:14]
    state, cause, won, waited, worked = record[14:]
    return CopyView(
        copy=str(CopyId(client, number, serial, rank)),
        replica=replicas[replica],
        kind=CopyKind(kind).label,
        rank=None if rank == UNTIED else rank,
        round=round_,
        sent=sent - began,
        started=None if started == NEVER else started - began,
        ended=None if ended == NEVER else ended - began,
        end=_end(ended, state, Cause(cause)),
        winner=bool(won),
        queue_wait=None if waited == NEVER else waited,
        service_time=None if worked == NEVER else worked,
    )


def _end(ended: float, state: int, cause: Cause) -> str:
    """As ``Attempt.end``; a copy of a call that has ended and of which nothing is heard has lost."""
    if ended == NEVER:
        return LOST
    words = "lost" if state == NO_STATE else CopyState(state).label
    return words if cause == Cause.NONE else f"{words}: {cause.label}"
