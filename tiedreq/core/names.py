"""Short ways to what every step of a core needs: members of enumerations by names of their own, and ``new``.

In Python 3.11 ``CopyState.RUNNING`` takes twenty times as long as the name of a module, since the class of enumerations
looks attributes up in a way of its own. And a ``NamedTuple`` is made by a Python function that makes the tuple; ``new``
makes it at once, in half the time. It does not look at how many fields there are: ``tests/core/test_names.py`` does,
wherever it is used.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar, cast

from tiedreq.core.call_table import CallState, CallTrigger
from tiedreq.core.commands import OutcomeKind
from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.memory import MarkerKind
from tiedreq.core.types import Cause, CopyKind, CopyState

KindT = TypeVar("KindT")


class _New(Protocol):
    def __call__(self, kind: type[KindT], fields: tuple[Any, ...], /) -> KindT:
        """A tuple of this kind, of all its fields in order."""


new: Final = cast(_New, tuple.__new__)

QUEUED: Final = CopyState.QUEUED
RUNNING: Final = CopyState.RUNNING
DONE: Final = CopyState.DONE
FAILED: Final = CopyState.FAILED
DROPPED: Final = CopyState.DROPPED
YIELDED: Final = CopyState.YIELDED
REFUSED: Final = CopyState.REFUSED

NO_CAUSE: Final = Cause.NONE
DUPLICATE: Final = Cause.DUPLICATE
CALLER_LOST: Final = Cause.CALLER_LOST
STARTED: Final = Cause.STARTED

FIRST: Final = CopyKind.FIRST
TIE: Final = CopyKind.TIE
BACKUP: Final = CopyKind.BACKUP
FAILOVER: Final = CopyKind.FAILOVER

SLOT_FREE: Final = CopyTrigger.SLOT_FREE
HANDLER_RETURNED: Final = CopyTrigger.HANDLER_RETURNED
HANDLER_RAISED: Final = CopyTrigger.HANDLER_RAISED
PARTNER_STARTED: Final = CopyTrigger.PARTNER_STARTED

STARTED_MARK: Final = MarkerKind.STARTED

NEW: Final = CallState.NEW
RACING: Final = CallState.RACING
WAITING: Final = CallState.WAITING
OVER: Final = CallState.DONE

ROUND_SENT: Final = CallTrigger.ROUND_SENT

ANSWERED: Final = OutcomeKind.ANSWERED
CANCELLED: Final = OutcomeKind.CANCELLED
