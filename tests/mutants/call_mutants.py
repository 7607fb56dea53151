"""Broken callers: each breaks one rule of a call at its client (design section 6)."""

from __future__ import annotations

from tiedreq.core.call import CallCore
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CancelCopy, Outcome
from tiedreq.core.events import CallerCancelled, CopyEnded, ResultReceived
from tiedreq.core.picker import ReplicaView
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState


class BackupCarriesTheTie(CallCore):
    """4, 6.3: a backup is one more copy of the tie, so that notices touch it."""

    def _send(self, copy: CopyId, kind: CopyKind, view: ReplicaView, now: float) -> None:
        if kind == CopyKind.BACKUP and self._partners:
            copy = copy._replace(round=self._rounds - 1, rank=len(self._partners))
            self._partners += (view.identity,)
        super()._send(copy, kind, view, now)


class FailoverReusesTheRound(CallCore):
    """4, 6.6: the tie of a failover has the number of the one before, so that old notices touch it."""

    def _send(self, copy: CopyId, kind: CopyKind, view: ReplicaView, now: float) -> None:
        super()._send(copy if copy.rank == UNTIED else copy._replace(round=0), kind, view, now)


class DrainingByName(CallCore):
    """4, 5.10: a replica that once drained is taken to drain for ever, in its next incarnations too."""

    def _refused(self, sent: SentCopy, event: CopyEnded, now: float) -> None:
        if event.cause == Cause.DRAINING:
            names = vars(self._replicas).setdefault("_drained", set())
            names.add(sent.replica)
        super()._refused(sent, event, now)

    def _choose_round(self, now: float) -> list[ReplicaView]:
        drained = getattr(self._replicas, "_drained", ())
        return [view for view in super()._choose_round(now) if view.name not in drained]


class BackupByTheStarterOnly(CallCore):
    """6.3: only the starter's own message starts the backup's clock, not what its partner tells of it."""

    def _start_known(self, sent: SentCopy, now: float) -> None:
        if sent.alive:
            super()._start_known(sent, now)


class SentAfterAStart(CallCore):
    """6.2: copy 1 is sent although copy 0 is known to have started."""

    def _start_known(self, sent: SentCopy, now: float) -> None:
        unsent = list(self._unsent)
        super()._start_known(sent, now)
        self._unsent = unsent


class TwoOutcomes(CallCore):
    """6.6, S1: the call goes on after its outcome, and may have another."""

    def _complete(self, outcome: Outcome, now: float) -> None:
        before = self.state
        super()._complete(outcome, now)
        self.state = before


class LosersNotCancelled(CallCore):
    """6.6: the copies that lost are not cancelled."""

    def _complete(self, outcome: Outcome, now: float) -> None:
        super()._complete(outcome, now)
        self._out = [command for command in self._out if not isinstance(command, CancelCopy)]


class CancelKeepsCopies(CallCore):
    """6.6: when the user cancels, the copies go on."""

    def _caller_cancelled(self, event: CallerCancelled, now: float) -> None:
        super()._caller_cancelled(event, now)
        self._out = [command for command in self._out if not isinstance(command, CancelCopy)]


class EpochIgnored(CallCore):
    """4, S9: an answer counts over whichever link it comes, also of a copy that was lost with its link."""

    def _find(self, link: int, copy: CopyId) -> SentCopy | None:
        return self.copies.get(copy)


class DroppedIsAFailure(CallCore):
    """5.7, 6.6: a copy that was dropped for its partner is followed by another round."""

    def _copy_ended(self, event: CopyEnded, now: float) -> None:
        super()._copy_ended(event, now)
        if event.state == CopyState.DROPPED and self.state == CallState.RACING and self._rounds < self._rounds_max:
            self._new_round(now)


class BackupKeepsTheRound(CallCore):
    """6.3: a backup counts as a living copy: while it lives there is no failover, and its end starts none."""

    def _check_round(self, now: float) -> None:
        if not any(sent.alive for sent in self.copies.values()) or self.state != CallState.RACING:
            super()._check_round(now)


class FirstAnswerEndsAll(CallCore):
    """6.6: an answer that ``accept`` turned down wins all the same."""

    def _result_received(self, event: ResultReceived, now: float) -> None:
        super()._result_received(event._replace(acceptable=True), now)


class NeverFailsOver(CallCore):
    """6.6: when all copies of a round are gone the call waits for its deadline."""

    def _check_round(self, now: float) -> None:
        pass
