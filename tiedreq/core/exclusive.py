"""The exclusive tie: no double start at all while the arbiter lives.

The copy of rank 0 is at the *arbiter* and starts freely. A copy of higher rank whose turn comes asks the arbiter
(``Claim``) and lets other work pass meanwhile. The arbiter says ``Granted`` only for a copy of rank 0 that it knows has
not started, and to one claimant only; that copy of rank 0 then ends. Unknown is never granted.

Invariants
* A claim gets the same answer however often it is asked.
* A granted copy starts next, whatever it hears; a copy whose arbiter is lost never starts.
"""

from __future__ import annotations

from tiedreq.core.copy_table import COPY_TABLE, CopyTrigger
from tiedreq.core.copybook import NEVER, CopyBook, HeldCopy
from tiedreq.core.events import ClaimDenied, ClaimGranted, PeerClaimed
from tiedreq.core.memory import ParkedClaim
from tiedreq.core.messages import Claim, Denied, Granted, Submit
from tiedreq.core.types import Cause, CopyId, CopyState, Identity


class ExclusiveRules(CopyBook):
    """The rules of both sides: the claimant's and the arbiter's."""

    # ---- the claimant -----------------------------------------------------------------------------------------

    @staticmethod
    def _must_claim(held: HeldCopy) -> bool:
        """True for a copy that may not start without being granted."""
        return held.submit.exclusive and held.id.rank > 0 and not held.granted

    def _claim(self, held: HeldCopy, now: float) -> None:
        """The turn of a copy that has to ask; it is out of the queue already."""
        held.state = COPY_TABLE.next(held.state, CopyTrigger.TURN_CAME)
        self._claiming[held.id] = held
        link = self._links.get(held.submit.partners[0])
        if link is None:
            self._end(held, CopyTrigger.REFUSAL, Cause.ARBITER_LOST, now)
        else:
            self._send_claim(link, held)

    def _send_claim(self, link: int, held: HeldCopy) -> None:
        arbiter = held.submit.partners[0]
        self._send_peer(link, Claim(held.id, arbiter.incarnation, self.identity.incarnation))

    def _claimed_from(self, link: int, copy: CopyId) -> HeldCopy | None:
        """The claiming copy that an answer over this link may speak of."""
        held = self._claiming.get(copy)
        peer = self._peers.get(link)
        if held is None or peer is None or held.submit.partners[0] != peer:
            self.stats.stale_notices += 1
            return None
        return held

    def _claim_granted(self, event: ClaimGranted, now: float) -> None:
        held = self._claimed_from(event.link, event.copy)
        if held is not None:
            held.state = COPY_TABLE.next(held.state, CopyTrigger.CLAIM_GRANTED)
            held.granted = True
            del self._claiming[held.id]
            held.waiting = True
            self._queue.push_front(held.submit.method, held.id, held)

    def _claim_denied(self, event: ClaimDenied, now: float) -> None:
        held = self._claimed_from(event.link, event.copy)
        if held is None:
            return
        if event.started:
            self._end(held, CopyTrigger.CLAIM_DENIED, Cause.STARTED, now)
        else:
            self._end(held, CopyTrigger.REFUSAL, Cause.ARBITER_LOST, now)

    def _arbiter_lost(self, arbiter: Identity, now: float) -> None:
        """Refuse what still asks a replica that is gone."""
        for held in [held for held in self._claiming.values() if held.submit.partners[0] == arbiter]:
            self._end(held, CopyTrigger.REFUSAL, Cause.ARBITER_LOST, now)

    # ---- the arbiter ------------------------------------------------------------------------------------------

    def _peer_claimed(self, event: PeerClaimed, now: float) -> None:
        peer = self._peers.get(event.link)
        if peer is None or peer.incarnation != event.claimant or event.copy.rank < 1:
            self.stats.stale_notices += 1
        elif event.arbiter != self.identity.incarnation:
            self._deny(event.copy, peer, started=False)
        else:
            self._answer_claim(event.copy, peer, now)

    def _answer_claim(self, copy: CopyId, claimant: Identity, now: float) -> None:
        held = self._ties.get(copy.tie)
        if held is not None:
            self._answer_by_copy(held, copy, claimant, now)
            return
        tombstone = self._tombstones.get(copy)
        if tombstone is None:
            self._park_claim(copy, claimant, now)
        elif tombstone.copy.rank != 0 or not _names(tombstone.partners, copy, claimant):
            self._deny(copy, claimant, started=False)
        elif tombstone.started or tombstone.grantee not in (None, claimant):
            self._deny(copy, claimant, started=True)
        else:
            self._grant(copy, claimant)

    def _answer_by_copy(self, held: HeldCopy, copy: CopyId, claimant: Identity, now: float) -> None:
        submit: Submit = held.submit
        if held.id.rank != 0 or not submit.exclusive or not _names(submit.partners, copy, claimant):
            self._deny(copy, claimant, started=False)
        elif held.state == CopyState.RUNNING:
            self._deny(copy, claimant, started=True)
        else:
            self._end(held, CopyTrigger.GRANTED_AWAY, Cause.GRANTED, now)
            self._grant(copy, claimant)

    def _park_claim(self, copy: CopyId, claimant: Identity, now: float) -> None:
        """A claim that overtook the Submit of rank 0 waits for it; a replica that drains can't promise anything."""
        if self.draining:
            self._deny(copy, claimant, started=False)
            return
        evicted = self._parked.park(copy, claimant, now)
        self.alarm = NEVER
        if evicted is not None:
            self._deny_parked([evicted])

    def _answer_parked(self, held: HeldCopy, now: float) -> None:
        """The Submit of rank 0 has arrived, whatever became of it."""
        for claim in self._parked.take(held.id.tie, len(held.submit.partners)):
            self._answer_claim(claim.copy, claim.claimant, now)

    def _deny_parked(self, claims: list[ParkedClaim]) -> None:
        for claim in claims:
            self._deny(claim.copy, claim.claimant, started=False)

    def _grant(self, copy: CopyId, claimant: Identity) -> None:
        self._tombstones.grant(copy, claimant)
        link = self._links.get(claimant)
        if link is not None:
            self._send_peer(link, Granted(copy))

    def _deny(self, copy: CopyId, claimant: Identity, *, started: bool) -> None:
        link = self._links.get(claimant)
        if link is not None:
            self._send_peer(link, Denied(copy, started))


def _names(partners: tuple[Identity, ...], copy: CopyId, claimant: Identity) -> bool:
    """True when the tie has ``claimant`` at the rank that claims."""
    return copy.rank < len(partners) and partners[copy.rank] == claimant
