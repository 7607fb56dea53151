"""What observers are told: one event when a copy leaves, one when it ends, one when the call is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger("tiedreq.hedging")


class HedgeEvent(NamedTuple):
    """Something that happened to a call.

    ``what`` is one of

    * ``"sent"``: a copy left for ``target``;
    * ``"won"``, ``"lost"``, ``"failed"``, ``"unsent"``: how a copy ended. Lost: another answered first, or the caller
      left. Unsent: nothing of it reached the host;
    * ``"answered"``, ``"failed-call"``, ``"cancelled"``: how the call ended.

    ``endpoint`` is what the delay is learned for, ``target`` the host (empty where none is meant), ``kind`` why the
    copy was sent: ``"first"``, ``"backup"`` or ``"failover"`` (empty for a call). ``seconds`` is the time since the
    call began, ``reason`` says in words why a copy failed.
    """

    what: str
    endpoint: str
    target: str
    kind: str
    seconds: float
    reason: str = ""


Observer = Callable[[HedgeEvent], None]


def tell(observer: Observer | None, event: HedgeEvent) -> None:
    """Tell an observer; what it raises is logged and changes nothing."""
    if observer is None:
        return
    try:
        observer(event)
    except Exception:
        logger.exception("an observer of hedged calls failed on %r", event)
