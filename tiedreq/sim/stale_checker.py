"""S9: an old link, round or incarnation changes nothing."""

from __future__ import annotations

from collections.abc import Hashable

from tiedreq.core.call import CallCore
from tiedreq.core.commands import CallCommand, ReplicaCommand, SendCopy, StopWork
from tiedreq.core.events import (
    CallerLost,
    CallEvent,
    CancelReceived,
    ClaimDenied,
    ClaimGranted,
    CopyEnded,
    CopyStarted,
    FailureReceived,
    PeerClaimed,
    PeerLost,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    ResultReceived,
    SubmitReceived,
)
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import UNTIED, CopyId, Identity
from tiedreq.sim.checker import Checker, PeerNews, Violation, ending_of
from tiedreq.sim.history import CallStep, History, ReplicaStep


class StaleChangesNothing(Checker):
    """S9: an old link, round or incarnation changes nothing.

    The replica's and the call's state are compared before and after an event that is known to be stale.
    """

    name = "S9"

    def __init__(self, history: History, violations: list[Violation]) -> None:
        super().__init__(history, violations)
        self._before: Hashable = None
        self._stale = ""

    def before_replica(self, event: ReplicaEvent, core: ReplicaCore) -> None:
        """Look at a replica before it is given ``event``."""
        self._stale = self._stale_at_replica(event, core.identity)
        self._before = core.snapshot() if self._stale else None

    def _stale_at_replica(self, event: ReplicaEvent, replica: Identity) -> str:
        history = self.history
        match event:
            case SubmitReceived(link) | CancelReceived(link) | CallerLost(link):
                if (replica, link) not in history.callers:
                    return f"client link {link} is not up"
                home = history.held.get(event.copy) if isinstance(event, CancelReceived) else None
                return f"the copy came over link {home.link}" if home is not None and home.link != link else ""
            case PeerLost(link):
                return "" if (replica, link) in history.peers else f"mesh link {link} is not up"
            case PeerStarted(link, copy) | PeerNext(link, copy):
                peer = history.peers.get((replica, link))
                if peer is None:
                    return f"mesh link {link} is not up"
                mine = [held for held in self._live_of_tie(copy) if history.held[held].replica == replica]
                if copy.rank == UNTIED:
                    return "the copy is not tied"
                if any(history.submits[held].partners[copy.rank :][:1] != (peer,) for held in mine):
                    return f"{peer} is not the tie's partner of rank {copy.rank}"
            case PeerClaimed(link, copy, _, claimant):
                peer = history.peers.get((replica, link))
                if peer is None or peer.incarnation != claimant:
                    return f"mesh link {link} is not up, or another incarnation's"
            case ClaimGranted(link, copy) | ClaimDenied(link, copy):
                peer = history.peers.get((replica, link))
                if peer is None:
                    return f"mesh link {link} is not up"
                if copy not in history.held or history.submits[copy].partners[:1] != (peer,):
                    return f"{peer} is not the arbiter of a copy here"
        return ""

    def _live_of_tie(self, copy: CopyId) -> list[CopyId]:
        ranks = (copy._replace(rank=rank) for rank in range(16))
        return [other for other in ranks if other in self.history.held]

    def replica_step(self, step: ReplicaStep) -> None:
        stale, self._stale = self._stale, ""
        if stale and (step.commands or step.core.snapshot() != self._before):
            self.broken(self._subject(step.event), f"{type(step.event).__name__} was heeded, but {stale}", step.now)
        self._before = None
        if isinstance(step.event, CallerLost):
            for copy, home in self.history.held.items():
                state = step.core.copy_state(copy)
                if home.replica == step.identity and (state is None or state.terminal):
                    self.broken(copy, f"came over link {home.link}, ended with link {step.event.link}", step.now)

    def replica_command(self, step: ReplicaStep, index: int, command: ReplicaCommand) -> None:
        if isinstance(step.event, PeerNews):
            ending = ending_of(command)
            copy = command.copy if isinstance(command, StopWork) else ending[0] if ending else None
            if copy is not None and copy.rank != UNTIED and copy.tie != step.event.copy.tie:
                self.broken(copy, f"ended by news of {step.event.copy}, of another round or call", step.now)

    @staticmethod
    def _subject(event: object) -> object:
        submit = getattr(event, "submit", None)
        return submit.copy if submit is not None else getattr(event, "copy", f"link {getattr(event, 'link', '?')}")

    def before_call(self, event: CallEvent, core: CallCore) -> None:
        """Look at a call before it is given ``event``."""
        self._stale = ""
        if isinstance(event, CopyStarted | ResultReceived | FailureReceived | CopyEnded):
            sent = core.copies.get(event.copy)
            if sent is None or sent.link != event.link:
                self._stale = f"the copy did not go over link {event.link}"
            elif not sent.alive:
                self._stale = "the copy had ended"
        self._before = core.snapshot() if self._stale else None

    def call_step(self, step: CallStep) -> None:
        stale, self._stale = self._stale, ""
        if stale and (step.commands or step.core.snapshot() != self._before):
            self.broken(self._subject(step.event), f"{type(step.event).__name__} was heeded, but {stale}", step.now)
        self._before = None

    def call_command(self, step: CallStep, index: int, command: CallCommand) -> None:
        if isinstance(command, SendCopy):
            copy = command.submit.copy
            if copy in self.history.sent_copies:
                self.broken(copy, "the identity was used before", step.now)
            for other in self.history.sent.get(copy.tie, ()) if copy.rank != UNTIED else ():
                known = self.history.submits.get(other)
                if known is not None and known.partners != command.submit.partners:
                    self.broken(copy, "the round's number was used for other replicas", step.now)
