"""A copy of a call, as its caller knows it."""

from __future__ import annotations

from tiedreq.core.learning import BackupTicket
from tiedreq.core.names import NO_CAUSE
from tiedreq.core.picker import ReplicaView
from tiedreq.core.types import CopyId, CopyKind, CopyState


class SentCopy:
    """A copy as its caller knows it. ``ended_at`` is None while it may still answer.

    ``queue_wait``, ``service_time`` and ``busy`` are what its replica measured, in seconds; None unless it answered.
    ``busy`` is how long its handler ran, ``service_time`` of a stream the part up to the first content. They are for
    those who look: nothing is decided by them.
    """

    __slots__ = (
        "busy",
        "cause",
        "ended_at",
        "id",
        "kind",
        "link",
        "queue_wait",
        "replica",
        "round",
        "sent_at",
        "service_time",
        "started_at",
        "state",
        "ticket",
    )

    def __init__(self, copy: CopyId, kind: CopyKind, view: ReplicaView, round_: int, now: float) -> None:
        self.id = copy
        self.kind = kind
        self.link = view.link
        self.replica = view.name
        self.round = round_
        self.sent_at = now
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.state: CopyState | None = None
        self.cause = NO_CAUSE
        self.ticket: BackupTicket | None = None
        self.queue_wait: float | None = None
        self.service_time: float | None = None
        self.busy: float | None = None

    @property
    def alive(self) -> bool:
        """True while the copy may still answer."""
        return self.ended_at is None

    def snapshot(self) -> tuple[object, ...]:
        """What the call's future depends on, as plain values."""
        return (self.id, self.kind, self.link, self.round, self.started_at is not None, self.state, self.cause)
