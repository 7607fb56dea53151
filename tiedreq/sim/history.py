"""History: what the checkers remember of a run, folded from the steps of all cores.

It is built from events and commands alone, so it doubts what a core says of itself. All values in it are immutable, so
``clone`` is cheap and ``snapshot`` can take part in a state hash. It judges nothing (``tiedreq.sim.checkers`` does).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiedreq.core.call import CallCore
from tiedreq.core.commands import (
    CallCommand,
    CompleteCall,
    Outcome,
    ReplicaCommand,
    SendCaller,
    SendCopy,
    SendPeer,
    StartWork,
)
from tiedreq.core.events import (
    CallerConnected,
    CallerLost,
    CallEvent,
    CopyUnsent,
    PeerConnected,
    PeerLost,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    StopEnabled,
    SubmitReceived,
    WorkFinished,
)
from tiedreq.core.messages import Ended, Failed, Next, Result, Started, Submit
from tiedreq.core.replica import ReplicaCore
from tiedreq.core.types import UNTIED, CallId, CopyId, CopyState, Identity, TieId


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """One step of a replica's core, after it was taken. ``core`` is the core as the step left it."""

    replica: str
    event: ReplicaEvent
    commands: Sequence[ReplicaCommand]
    core: ReplicaCore
    now: float

    @property
    def identity(self) -> Identity:
        """The replica with its incarnation."""
        return self.core.identity


@dataclass(frozen=True, slots=True)
class CallStep:
    """One step of a call's core, after it was taken."""

    call: CallId
    event: CallEvent
    commands: Sequence[CallCommand]
    core: CallCore
    now: float


class Home(NamedTuple):
    """Where a live copy is: its replica and the client link that it came over."""

    replica: Identity
    link: int


class Heard(NamedTuple):
    """A notice that a replica has handled. Until ``until`` a marker of it is to be kept, unless one was evicted."""

    until: float
    evicted: bool


Note = tuple[CopyId, Identity]
"""A notice about a copy, and the replica it is for."""


class History:
    """What happened so far. See the fields' comments; every key is an identity, so nothing is mixed up on a restart."""

    def __init__(self) -> None:
        self.callers: dict[Identity, dict[int, int]] = {}  # client links that a replica has, with the client
        self.peers: dict[Identity, dict[int, Identity]] = {}  # mesh links that a replica has, with the peer
        self.current: dict[tuple[Identity, Identity], int] = {}  # the newest of them to each peer
        self.held: dict[CopyId, Home] = {}  # copies that were accepted and have not ended
        self.submits: dict[CopyId, Submit] = {}  # accepted copies, as they came
        self.started: dict[CopyId, Identity] = {}  # copies whose handler ever started
        self.unstoppable: set[CopyId] = set()  # started copies whose handler can't be stopped (yet)
        self.announced: set[CopyId] = set()  # copies that were ever announced by Next
        self.ended: dict[CopyId, CopyState] = {}  # how accepted copies ended
        self.handlers: dict[Identity, dict[CopyId, None]] = {}  # handlers that run at a replica, stopped or not
        self.running: dict[TieId, tuple[CopyId, ...]] = {}  # copies of a tie that run and have not ended
        self.heard: dict[Note, Heard] = {}  # starts that a replica was told of over a link it still has
        self.heard_next: dict[Note, Heard] = {}  # the same for Next
        self.pending: dict[Note, dict[int, int]] = {}  # Started under way, counted by the sender's link
        self.sent: dict[TieId, tuple[CopyId, ...]] = {}  # tied copies that left their caller
        self.sent_copies: dict[CopyId, int] = {}  # every copy that left its caller, with the link
        self.outcomes: dict[CallId, Outcome] = {}

    def clone(self) -> History:
        """An independent copy."""
        twin = History.__new__(History)
        for name, value in vars(self).items():
            if isinstance(value, set):
                setattr(twin, name, set(value))
            elif name in ("callers", "peers", "handlers", "pending"):
                setattr(twin, name, {key: dict(inner) for key, inner in value.items()})
            else:
                setattr(twin, name, dict(value))
        return twin

    def snapshot(self) -> tuple[Hashable, ...]:
        """The content as hashable plain values, in an order that doesn't depend on the path."""
        return tuple(_plain(value) for name, value in vars(self).items() if name != "submits")

    # ---- replicas ---------------------------------------------------------------------------------------------

    def fold_replica_event(self, step: ReplicaStep) -> None:
        """Take in what a replica was told."""
        event, replica = step.event, step.identity
        match event:
            case CallerConnected(link, client):
                self.callers.setdefault(replica, {})[link] = client
            case CallerLost(link):
                self._caller_lost(step, link)
            case PeerConnected(link, peer):
                self._peer_connected(replica, link, peer)
            case PeerLost(link):
                self._peer_lost(replica, link)
            case SubmitReceived(link, submit):
                if link in self.callers.get(replica, {}) and submit.copy not in self.submits:
                    self.held[submit.copy] = Home(replica, link)
                    self.submits[submit.copy] = submit
            case PeerStarted() | PeerNext():
                self._notice_handled(step, event)
            case StopEnabled(copy):
                self.unstoppable.discard(copy)
            case WorkFinished(copy):
                self.handlers.get(replica, {}).pop(copy, None)

    def _caller_lost(self, step: ReplicaStep, link: int) -> None:
        if self.callers.get(step.identity, {}).pop(link, None) is None:
            return
        for copy in [copy for copy, home in self.held.items() if home == (step.identity, link)]:
            state = step.core.copy_state(copy)
            if state is None or state.terminal:
                self._end(copy, CopyState.CANCELLED if state is None else state)

    def _peer_connected(self, replica: Identity, link: int, peer: Identity) -> None:
        links = self.peers.setdefault(replica, {})
        for old, known in list(links.items()):
            if known.name == peer.name and known != peer:
                self._peer_lost(replica, old)
        links[link] = peer
        self.current[replica, peer] = link

    def _peer_lost(self, replica: Identity, link: int) -> None:
        peer = self.peers.get(replica, {}).pop(link, None)
        if peer is None:
            return
        if self.current.get((replica, peer)) == link:
            del self.current[replica, peer]
            self._forget_heard(replica, peer)
        for note in [note for note, counts in self.pending.items() if note[1] == peer and link in counts]:
            if self.started.get(note[0]) == replica:
                self._settle_pending(note, link)

    def _forget_heard(self, replica: Identity, peer: Identity) -> None:
        for book in (self.heard, self.heard_next):
            for note in [note for note in book if note[1] == replica and self.at(note[0]) == peer]:
                del book[note]

    def at(self, copy: CopyId) -> Identity | None:
        """The replica that a tied copy was sent to, if it has arrived there."""
        submit = self.submits.get(copy)
        return submit.partners[copy.rank] if submit is not None and submit.partners else None

    def _notice_handled(self, step: ReplicaStep, event: PeerStarted | PeerNext) -> None:
        replica, copy = step.identity, event.copy
        note = (copy, replica)
        if isinstance(event, PeerStarted) and note in self.pending:
            self._settle_pending(note, max(self.pending[note]))
        peer = self.peers.get(replica, {}).get(event.link)
        if peer is None or self.at(copy) != peer:
            return
        book = self.heard if isinstance(event, PeerStarted) else self.heard_next
        book[note] = Heard(step.now + min(event.remaining, step.core.limits.marker_age_max), False)

    def _settle_pending(self, note: Note, link: int) -> None:
        counts = self.pending[note]
        counts[link] -= 1
        if counts[link] <= 0:
            del counts[link]
        if not counts:
            del self.pending[note]

    def markers_evicted(self, replica: Identity) -> None:
        """A replica had no room for all markers: none of what it has heard needs to be remembered any more."""
        for book in (self.heard, self.heard_next):
            for note, heard in book.items():
                if note[1] == replica:
                    book[note] = heard._replace(evicted=True)

    def fold_replica_command(self, step: ReplicaStep, command: ReplicaCommand) -> None:
        """Take in what a replica decided."""
        replica = step.identity
        match command:
            case StartWork(submit):
                self._start(step, submit)
            case SendPeer(link, Started(copy)):
                peer = self.peers.get(replica, {}).get(link)
                if peer is not None:
                    counts = self.pending.setdefault((copy, peer), {})
                    counts[link] = counts.get(link, 0) + 1
            case SendPeer(_, Next(copy)):
                self.announced.add(copy)
            case SendCaller(_, Result(copy)):
                self._end(copy, CopyState.DONE)
            case SendCaller(_, Failed(copy)):
                self._end(copy, CopyState.FAILED)
            case SendCaller(_, Ended(copy, state)):
                self._end(copy, state)

    def _start(self, step: ReplicaStep, submit: Submit) -> None:
        copy = submit.copy
        self.started[copy] = step.identity
        self.handlers.setdefault(step.identity, {})[copy] = None
        held = step.core.held(copy)
        if held is not None and not held.stoppable:
            self.unstoppable.add(copy)
        if copy.rank != UNTIED:
            self.running[copy.tie] = (*self.running.get(copy.tie, ()), copy)

    def _end(self, copy: CopyId, state: CopyState) -> None:
        self.ended[copy] = state
        self.held.pop(copy, None)
        self._not_running(copy)

    def _not_running(self, copy: CopyId) -> None:
        running = self.running.get(copy.tie, ())
        if copy in running and copy.rank != UNTIED:
            left = tuple(other for other in running if other != copy)
            if left:
                self.running[copy.tie] = left
            else:
                del self.running[copy.tie]

    def fold_crash(self, replica: Identity) -> None:
        """A replica is gone, with all that it held; the dead neither start nor end anything."""
        self.callers.pop(replica, None)
        self.handlers.pop(replica, None)
        for copy in [copy for copy, home in self.held.items() if home.replica == replica]:
            del self.held[copy]
            self._not_running(copy)
        for link in list(self.peers.pop(replica, {})):
            for note in [note for note, counts in self.pending.items() if link in counts]:
                if self.started.get(note[0]) == replica:
                    del self.pending[note]
        for note in [note for note in self.pending if note[1] == replica]:
            del self.pending[note]
        for pair in [pair for pair in self.current if pair[0] == replica]:
            del self.current[pair]
        for book in (self.heard, self.heard_next):
            for note in [note for note in book if note[1] == replica]:
                del book[note]

    # ---- calls ------------------------------------------------------------------------------------------------

    def fold_call_event(self, step: CallStep) -> None:
        """Take in what a call was told."""
        if isinstance(step.event, CopyUnsent):
            copy = step.event.copy
            left = tuple(other for other in self.sent.get(copy.tie, ()) if other != copy)
            if copy.rank != UNTIED and left:
                self.sent[copy.tie] = left
            else:
                self.sent.pop(copy.tie, None)

    def fold_call_command(self, step: CallStep, command: CallCommand) -> None:
        """Take in what a call decided."""
        match command:
            case SendCopy(link, submit):
                copy = submit.copy
                self.sent_copies[copy] = link
                if copy.rank != UNTIED:
                    self.sent[copy.tie] = (*self.sent.get(copy.tie, ()), copy)
            case CompleteCall(outcome):
                self.outcomes.setdefault(step.call, outcome)


def _plain(value: Mapping[object, object] | set[CopyId]) -> Hashable:
    if isinstance(value, set):
        return frozenset(value)
    return frozenset(
        (key, frozenset(inner.items()) if isinstance(inner, dict) else inner) for key, inner in value.items()
    )
