"""What the partners of a tie say at a replica: who has started, or is about to, and what that means to a copy here.

Invariants
* Of two running copies of a tie only the one of higher rank decides, so that both can't stop.
* Only a partner that the copy's Submit names can drop it; what comes before its Submit waits as a marker.
* A link that comes up again is told of all that runs, so that a lost notice can't leave two copies running.

Not for: exclusive ties (``core.exclusive``).
"""

from __future__ import annotations

from tiedreq.core.copy_table import CopyTrigger
from tiedreq.core.copybook import NEVER, HeldCopy
from tiedreq.core.events import PeerConnected, PeerLost, PeerNext, PeerStarted
from tiedreq.core.memory import MarkerKind
from tiedreq.core.messages import Next, Started
from tiedreq.core.names import PARTNER_STARTED, RUNNING, STARTED, STARTED_MARK, new
from tiedreq.core.streams import StreamRules
from tiedreq.core.types import Cause, CopyId, CopyState, Identity


class NoticeRules(StreamRules):
    """The rules of a tie's notices, and of the links that bring them."""

    def _peer_connected(self, event: PeerConnected, now: float) -> None:
        peer = event.peer
        for link in [link for link, known in self._peers.items() if known.name == peer.name and known != peer]:
            self._forget_peer(link, now)
        self._peers[event.link] = peer
        self._links[peer] = event.link
        for held in self._copies.values():
            if held.tied and peer in held.submit.partners:
                if held.state == RUNNING:
                    self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
                elif held.announced:
                    self._send_peer(event.link, Next(held.id, self._remaining(held, now)))
                elif held.state == CopyState.CLAIMING and held.submit.partners[0] == peer:
                    self._send_claim(event.link, held)

    def _peer_lost(self, event: PeerLost, now: float) -> None:
        self._forget_peer(event.link, now)

    def _forget_peer(self, link: int, now: float) -> None:
        peer = self._peers.pop(link, None)
        if peer is not None and self._links.get(peer, link) == link:
            self._links.pop(peer, None)
            self._markers.forget(peer)
            self.alarm = NEVER
            self._notice_latencies.pop(peer.name, None)
            self._parked.forget(peer)
            self._arbiter_lost(peer, now)
            for held in self._ties.values():
                if peer in held.rivals:
                    held.rivals = tuple(rival for rival in held.rivals if rival != peer)

    def _partner(self, link: int, copy: CopyId) -> tuple[Identity | None, HeldCopy | None]:
        """Who speaks of ``copy``, and this replica's live copy of the same tie if the tie names that partner."""
        peer, rank = self._peers.get(link), copy[3]
        if peer is None or rank < 0:
            self.stats.stale_notices += 1
            return None, None
        held = self._ties.get(copy[:3])
        if held is None:
            return peer, None
        partners = held.submit.partners
        if rank >= len(partners) or rank == held.id[3] or partners[rank] != peer:
            self.stats.stale_notices += 1
            return None, None
        return peer, held

    def _peer_started(self, event: PeerStarted, now: float) -> None:
        link, copy, remaining = event
        peer, held = self._partner(link, copy)
        if peer is None:
            return
        self.stats.notices += 1
        if held is None:
            self._early_notice(peer, copy, STARTED_MARK, remaining, now)
        elif held.granted:
            self.stats.stale_notices += 1
        elif held.state == RUNNING:
            self._both_started(held, event, now)
        else:
            self._end(held, PARTNER_STARTED, STARTED, now)

    def _both_started(self, held: HeldCopy, event: PeerStarted, now: float) -> None:
        """Two copies of one tie run. The higher rank is the only decider; the lower goes on and says so again."""
        self.stats.late_notices += 1
        if event.copy.rank > held.id.rank:
            self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
            return
        if not held.doubled:
            held.doubled = True
            self.stats.double_starts += 1
        rival = held.submit.partners[event.copy.rank]
        if rival not in held.rivals:
            held.rivals += (rival,)
        self._yield_to_rivals(held, now)

    def _yield_to_rivals(self, held: HeldCopy, now: float) -> None:
        """Stop for a copy of lower rank that is known to run, unless this one can't be stopped or never yields."""
        if not held.rivals or not held.stoppable or not held.submit.yield_ or held.submit.exclusive:
            return
        if not self._committed(held):
            self._end(held, PARTNER_STARTED, STARTED, now)

    def _peer_next(self, event: PeerNext, now: float) -> None:
        peer, held = self._partner(event.link, event.copy)
        if peer is None:
            return
        self.stats.notices += 1
        if held is None:
            self._early_notice(peer, event.copy, MarkerKind.NEXT, event.remaining, now)
        elif held.state == RUNNING:
            self._send_peer(event.link, Started(held.id, self._remaining(held, now), None))
        elif event.copy.rank < held.id.rank and not held.submit.exclusive:
            self._end(held, CopyTrigger.PARTNER_NEXT, Cause.NEXT, now)

    def _early_notice(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float, now: float) -> None:
        """A notice with no live copy here: too late for one that has ended, else a marker for one to come."""
        tombstone = self._tombstones.get(copy)
        if tombstone is None:
            if remaining > 0:
                self._markers.add(peer, copy, kind, remaining, now)
                self._marked(now + min(remaining, self.limits.marker_age_max))
            return
        if tombstone.started and kind == STARTED_MARK:
            self.stats.late_notices += 1

    def _take_markers(self, held: HeldCopy, now: float) -> tuple[CopyTrigger, Cause] | None:
        """What partners had said before this copy arrived: a start drops it, Next of a lower rank too."""
        client, number, round_, own = held.id
        found: tuple[CopyTrigger, Cause] | None = None
        rank = -1
        for partner in held.submit.partners:
            rank += 1
            if rank == own:
                continue
            kind = self._markers.take(partner, new(CopyId, (client, number, round_, rank)), now)
            if not self._markers.known:
                self.alarm = NEVER
            if kind is None:
                continue
            if kind == STARTED_MARK:
                found = PARTNER_STARTED, STARTED
            elif rank < own and found is None and not held.submit.exclusive:
                found = CopyTrigger.PARTNER_NEXT, Cause.NEXT
        return found
