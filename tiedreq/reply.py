"""``Reply`` and ``Attempt``: the story of a call, as the client saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """One copy of a call.

    ``sent``, ``started`` and ``ended`` are seconds since the call began, None for what did not happen or is not
    known. ``end`` says how it ended: ``"done"``, ``"dropped: started"``, ``"yielded: started"``, ``"refused: full"``
    …, or None while nothing is known.
    """

    replica: str
    rank: int | None
    kind: str
    sent: float
    started: float | None
    ended: float | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and its story. Durations are seconds; ``replica`` and ``kind`` are those of the winning copy."""

    value: Any
    call_id: str
    replica: str
    kind: str
    latency: float
    queue_wait: float
    service_time: float
    attempts: tuple[Attempt, ...]
