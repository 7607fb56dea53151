"""Broken exclusive ties: each breaks one rule of the exclusive tie (the end of design section 5)."""

from __future__ import annotations

from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.copybook import HeldCopy
from tiedreq.core.events import ClaimDenied, ClaimGranted, DrainRequested, PeerClaimed
from tiedreq.core.memory import ParkedClaim
from tiedreq.core.messages import Denied, Granted
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import Cause, CopyId, CopyState, Identity


class StartsWithoutClaim(ReplicaCore):
    """5, exclusive: copy 1 starts when its turn comes, and asks nobody."""

    @staticmethod
    def _must_claim(held: HeldCopy) -> bool:
        return False


class GrantsTheUnknown(ReplicaCore):
    """5, exclusive: a Claim that overtakes its Submit is granted, and so is one for a copy that was forgotten."""

    def _park_claim(self, copy: CopyId, claimant: Identity, now: float) -> None:
        self._send_peer(self._links[claimant], Granted(copy))


class GrantsTheForgotten(ReplicaCore):
    """5, exclusive: a parked Claim that reached its age, or had to go for another, is granted instead of denied."""

    def _deny_parked(self, claims: list[ParkedClaim]) -> None:
        for claim in claims:
            link = self._links.get(claim.claimant)
            if link is not None:
                self._send_peer(link, Granted(claim.copy))


class GrantsTheStarted(ReplicaCore):
    """5, exclusive: the arbiter grants a start although its own copy runs or has run."""

    def _deny(self, copy: CopyId, claimant: Identity, *, started: bool) -> None:
        link = self._links.get(claimant)
        if link is not None:
            self._send_peer(link, Granted(copy) if started else Denied(copy, started))


class GrantsTwice(ReplicaCore):
    """5, exclusive: a start that was granted is granted to the next that asks, too."""

    def _answer_claim(self, copy: CopyId, claimant: Identity, now: float) -> None:
        tombstone = self._tombstones.get(copy)
        if tombstone is not None and not tombstone.started and tombstone.grantee is not None:
            self._grant(copy, claimant)
        else:
            super()._answer_claim(copy, claimant, now)


class GrantsAndKeeps(ReplicaCore):
    """5, exclusive: copy 0 stays in the arbiter's queue after its start was granted away."""

    def _answer_by_copy(self, held: HeldCopy, copy: CopyId, claimant: Identity, now: float) -> None:
        if held.state == CopyState.QUEUED:
            self._send_peer(self._links[claimant], Granted(copy))
        else:
            super()._answer_by_copy(held, copy, claimant, now)


class ArbiterLostUnnoticed(ReplicaCore):
    """5, exclusive: a copy whose arbiter is lost goes on claiming, and nobody answers."""

    def _arbiter_lost(self, arbiter: Identity, now: float) -> None:
        pass


class RunsWithoutArbiter(ReplicaCore):
    """5, exclusive: a copy whose arbiter is lost starts, as if it had been granted."""

    def _arbiter_lost(self, arbiter: Identity, now: float) -> None:
        for held in [held for held in self._claiming.values() if held.submit.partners[0] == arbiter]:
            held.state = CopyState.QUEUED
            held.granted = held.waiting = True
            del self._claiming[held.id]
            self._queue.push_front(held.submit.method, held.id, held)


class ParkedClaimUnanswered(ReplicaCore):
    """5, exclusive: a Claim that overtook its Submit is not answered, neither by that nor by age."""

    def _answer_parked(self, held: HeldCopy, now: float) -> None:
        pass

    def _deny_parked(self, claims: list[ParkedClaim]) -> None:
        pass


class DrainForgetsClaims(ReplicaCore):
    """5.10: a replica that drains forgets its own copies that claim: they are not refused."""

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        claiming = dict(self._claiming)
        self._claiming.clear()
        super()._drain_requested(event, now)
        self._claiming.update(claiming)


class GrantIgnored(ReplicaCore):
    """5, exclusive: a granted copy is dropped: the one that gave way and the one that was let are both gone."""

    def _claim_granted(self, event: ClaimGranted, now: float) -> None:
        held = self._claimed_from(event.link, event.copy)
        if held is not None:
            self._end(held, CopyTrigger.CLAIM_DENIED, Cause.STARTED, now)


class SecondAskIsDenied(ReplicaCore):
    """5, exclusive: who was granted the start and asks again is denied it: then neither copy runs."""

    def _answer_claim(self, copy: CopyId, claimant: Identity, now: float) -> None:
        tombstone = self._tombstones.get(copy)
        if tombstone is not None and tombstone.grantee == claimant:
            self._deny(copy, claimant, started=True)
        else:
            super()._answer_claim(copy, claimant, now)


class GrantedGoesToTheTail(ReplicaCore):
    """5, exclusive: a granted copy waits behind all that came after it."""

    def _claim_granted(self, event: ClaimGranted, now: float) -> None:
        held = self._claimed_from(event.link, event.copy)
        super()._claim_granted(event, now)
        if held is not None:
            method = held.submit.method
            self._queue.remove(method, held.id)
            self._queue._lane(method).order.remove(held.id)  # else it would have its old place again
            self._queue.push(method, held.id, held)


class DeniedIsRefused(ReplicaCore):
    """5, exclusive: a copy that is denied because another started ends REFUSED, so that the caller tries again."""

    def _claim_denied(self, event: ClaimDenied, now: float) -> None:
        super()._claim_denied(event._replace(started=False), now)


class DeniedUnknownRuns(ReplicaCore):
    """5, exclusive: a copy of whose tie the arbiter knows nothing starts, as if it had been granted."""

    def _claim_denied(self, event: ClaimDenied, now: float) -> None:
        if event.started:
            super()._claim_denied(event, now)
        else:
            self._claim_granted(ClaimGranted(event.link, event.copy), now)


class UnknownIsDropped(ReplicaCore):
    """5, exclusive: a copy of whose tie the arbiter knows nothing ends DROPPED, so that nobody moves it."""

    def _claim_denied(self, event: ClaimDenied, now: float) -> None:
        super()._claim_denied(event._replace(started=True), now)


class DrainEndsTheGranted(ReplicaCore):
    """5.10: a replica that drains refuses a copy that was granted the start, and nobody runs it."""

    def _drain_requested(self, event: DrainRequested, now: float) -> None:
        for held in self._queue:
            held.granted = False
        super()._drain_requested(event, now)


class DrainIsDeafToClaims(ReplicaCore):
    """5.10: a replica that drains answers no Claim."""

    def _peer_claimed(self, event: PeerClaimed, now: float) -> None:
        if not self.draining:
            super()._peer_claimed(event, now)
