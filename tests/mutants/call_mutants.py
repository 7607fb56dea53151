"""Broken callers: each breaks one rule of a call at its client (design section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiedreq.core.call import CallCore
from tiedreq.core.call_copies import NEVER
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CancelCopy, Outcome, OutcomeKind, SendCopy
from tiedreq.core.events import CallerCancelled, CopyEnded, FailureReceived, LinkLost, ResultReceived
from tiedreq.core.picker import ReplicaView
from tiedreq.core.policy import BACKUPS_MAX, Backup, Tied
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


class AnyLossIsADrain(CallCore):
    """5.10: a link that is lost in any way is taken for the last word of a replica that has drained."""

    def _link_lost(self, event: LinkLost, now: float) -> None:
        super()._link_lost(event._replace(drained=True), now)


class LastWordIsNotHeeded(CallCore):
    """5.10: the last word of a replica that has drained counts for no more than a link that is lost."""

    def _link_lost(self, event: LinkLost, now: float) -> None:
        super()._link_lost(event._replace(drained=False), now)


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


class TwoCopiesAtOneReplica(CallCore):
    """6.1: both copies of a tie go to one replica."""

    def _choose_round(self, now: float) -> list[ReplicaView]:
        chosen = super()._choose_round(now)
        return [chosen[0]] * len(chosen) if chosen else []


class RefusalHoldsTheNextBack(CallCore):
    """6.2: copy 0 is refused before copy 1 was sent, and copy 1 does not go at once in the same round."""

    def _move_up(self, refused: SentCopy, now: float) -> None:
        pass


class UnsentCountsAsAlive(CallCore):
    """6.2: an unsent copy is taken for a living one: when copy 0 is gone, the tie is not over."""

    def _check_round(self, now: float) -> None:
        if not self._unsent:
            super()._check_round(now)


class BackupFromTheSending(CallCore):
    """6.3: the backup's clock runs from the sending of a copy, not from its start."""

    def _arm_from_send(self, now: float) -> None:
        super()._arm_from_send(now)
        backup = self._backup
        delay = self._account.delay(backup, now) if backup is not None else None
        if delay is not None and backup is not None and self._backups < backup.max_per_call:
            self._arm(now + delay)


class NoCeiling(CallCore):
    """6.3: no timer runs from the sending: a frozen queue that never starts anything gets no backup."""

    def _arm_from_send(self, now: float) -> None:
        super()._arm_from_send(now)
        self._ceiling_at = NEVER


class BackupToATriedReplica(CallCore):
    """6.3: a backup goes to a replica that has a copy of the call, though there is a third one."""

    def _choose_backup(self, now: float) -> ReplicaView | None:
        view = super()._choose_backup(now)
        tried = {sent.replica for sent in self.copies.values()}
        known = self._replicas.candidates(self.request.method, now)
        return next((other for other in known if other.name in tried and other.pushback_until <= now), view)


class BackupsWithoutNumber(CallCore):
    """6.3: a call may have more backups than its policy says."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self._backup is not None:
            self._backup = replace(self._backup, max_per_call=BACKUPS_MAX)


class PushbackIgnored(CallCore):
    """5.8: a backup goes to a replica that asked for none."""

    def _choose_backup(self, now: float) -> ReplicaView | None:
        asked = [(view, view.pushback_until) for view in self._replicas.views()]
        for view, _ in asked:
            view.pushback_until = 0.0
        try:
            return super()._choose_backup(now)
        finally:
            for view, until in asked:
                view.pushback_until = until


class AnyDropStartsTheClock(CallCore):
    """5.7: a copy that was dropped for a Next or a grant starts the backup's clock, though nothing has started."""

    def _copy_ended(self, event: CopyEnded, now: float) -> None:
        sent = self._find(event.link, event.copy)
        super()._copy_ended(event, now)
        if sent is not None and event.cause in (Cause.NEXT, Cause.GRANTED) and self.state == CallState.RACING:
            self._start_known(sent, now)


class EmptyBucketEndsTheCall(CallCore):
    """6.4: a backup that the budget can't pay ends its call with an error."""

    def _again(self, backup: Backup, times: int, now: float) -> None:
        super()._again(backup, times, now)
        if not self._untargeted:
            self._complete(Outcome(OutcomeKind.OVERLOADED, None, Cause.FULL), now)


class DeniedFailoverWaits(CallCore):
    """6.4: a failover that the bucket denies leaves its call waiting for the deadline."""

    def _fail_over(self, gone: list[SentCopy], backup_alive: bool, now: float) -> None:
        if self._account.try_failover(gone, now, self._stats.under_way):
            self._new_round(now)


class ErrorIsTriedAgain(CallCore):
    """6.6: an application error does not end the race."""

    def _failure_received(self, event: FailureReceived, now: float) -> None:
        super()._failure_received(event._replace(retryable=True), now)


class FirstFailureEndsAll(CallCore):
    """6.6: a retryable failure ends the race while another copy lives."""

    def _failure_received(self, event: FailureReceived, now: float) -> None:
        super()._failure_received(event._replace(retryable=False), now)


class RoundsWithoutNumber(CallCore):
    """6.6: a call has as many rounds as it takes."""

    def _new_round(self, now: float) -> None:
        self._rounds_max += 1
        super()._new_round(now)


class WaitingSpendsARound(CallCore):
    """6.6: no replica can be reached, and a round is spent all the same."""

    def _new_round(self, now: float) -> None:
        super()._new_round(now)
        if self.state == CallState.WAITING:
            self._rounds += 1


class TriedReplicasFirst(CallCore):
    """6.6: another round goes to a replica that was tried, though there is one that was not."""

    def _choose_round(self, now: float) -> list[ReplicaView]:
        chosen = super()._choose_round(now)
        tried = {sent.replica for sent in self.copies.values()}
        known = self._replicas.candidates(self.request.method, now)
        again = next((view for view in known if view.name in tried and view not in chosen), None)
        return [again, *chosen[1:]] if chosen and again is not None else chosen


class DrainingIsAsked(CallCore):
    """6.6: a round goes to a replica that is known to drain."""

    def _choose_round(self, now: float) -> list[ReplicaView]:
        chosen = super()._choose_round(now)
        leaving = next((view for view in self._replicas.views() if view.draining and view not in chosen), None)
        return [leaving, *chosen[1:]] if chosen and leaving is not None else chosen


class WholeTimeTravels(CallCore):
    """6.7: a copy that is sent later is given the whole time of its call, not what is left of it."""

    def _send(self, copy: CopyId, kind: CopyKind, view: ReplicaView, now: float) -> None:
        super()._send(copy, kind, view, now)
        first = min(sent.sent_at for sent in self.copies.values())
        command = self._out[-1]
        assert isinstance(command, SendCopy)
        remaining = command.submit.remaining + now - first
        self._out[-1] = command._replace(submit=command.submit._replace(remaining=remaining))


class LostArbiterIsTrusted(CallCore):
    """5, exclusive: a replica that a copy could not reach as its arbiter is not suspected."""

    def _refused(self, sent: SentCopy, event: CopyEnded, now: float) -> None:
        if event.cause == Cause.ARBITER_LOST:
            self._move_up(sent, now)
        else:
            super()._refused(sent, event, now)


class UnsafeIsTied(CallCore):
    """6, unsafe: a call that may not run twice is tied as its policy says."""

    def _choose_round(self, now: float) -> list[ReplicaView]:
        if not self.request.idempotent:
            self._tie = Tied(stagger=0.0, backup=None)
        return super()._choose_round(now)


class UnsafeIsTriedAgain(CallCore):
    """6, unsafe: a call that may not run twice is sent again after a copy that may have run."""

    def _may_run_again(self, round_copies: list[SentCopy], now: float) -> bool:
        return True
