"""History: what the checkers remember of a run, folded from the steps of all cores.

It is built from events and commands alone, so it doubts what a core says of itself. All values in it are immutable, so
``clone`` is cheap and ``snapshot`` can take part in a state hash. It judges nothing (``tiedreq.sim.checkers`` does).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiedreq.core.call import CallCore
from tiedreq.core.commands import (
    CallCommand,
    CompleteCall,
    DeliverItems,
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
    CancelReceived,
    CopyUnsent,
    CreditReceived,
    ItemProduced,
    PeerConnected,
    PeerLost,
    PeerNext,
    PeerStarted,
    ReplicaEvent,
    StopEnabled,
    SubmitReceived,
    WorkFinished,
)
from tiedreq.core.messages import Ended, Failed, Granted, Item, Next, Result, Started, Submit
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
Link = tuple[Identity, int]
"""A replica's link."""


class History:
    """What happened so far. See the fields' comments; every key is an identity, so nothing is mixed up on a restart.

    A field is changed only by way of ``_own``, which copies what a clone shares.
    """

    def __init__(self) -> None:
        self.callers: dict[Link, int] = {}  # client links that a replica has, with the client
        self.peers: dict[Link, Identity] = {}  # mesh links that a replica has, with the peer
        self.current: dict[tuple[Identity, Identity], int] = {}  # the newest of them to each peer
        self.submits: dict[CopyId, Submit] = {}  # accepted copies, as they came
        self.held: dict[CopyId, Home] = {}  # those that have not ended
        self.started: dict[CopyId, Identity] = {}  # those whose handler ever started
        self.ended: dict[CopyId, CopyState] = {}  # how they ended
        self.unstoppable: dict[CopyId, None] = {}  # started copies whose handler can't be stopped (yet)
        self.cancelled: dict[CopyId, float] = {}  # copies that their caller cancelled, and when that may be forgotten
        self.announced: dict[CopyId, None] = {}  # copies that were ever announced by Next
        self.granted: dict[CopyId, None] = {}  # copies that an arbiter ever let start
        self.handlers: dict[CopyId, Identity] = {}  # handlers that run, stopped or not, and where
        self.running: dict[TieId, tuple[CopyId, ...]] = {}  # copies of a tie that run and have not ended
        self.heard: dict[Note, Heard] = {}  # starts that a replica was told of over a link it still has
        self.heard_next: dict[Note, Heard] = {}  # the same for Next
        self.pending: dict[Note, tuple[int, ...]] = {}  # Started under way: the sender's link of each
        self.sent: dict[TieId, tuple[CopyId, ...]] = {}  # tied copies that left their caller
        self.sent_copies: dict[CopyId, None] = {}  # every copy that left its caller
        self.once: dict[CallId, None] = {}  # calls that may not run twice
        self.outcomes: dict[CallId, Outcome] = {}
        self.items: dict[CopyId, int] = {}  # how many items of a stream were sent
        self.granted_items: dict[CopyId, int] = {}  # how many its replica knows that it may send
        self.committed: dict[CopyId, None] = {}  # streams of which content was sent
        self.delivered: dict[CallId, CopyId] = {}  # whose items a user was given
        self._shared: set[str] = set()

    def clone(self) -> History:
        """An independent copy."""
        return self.restored({name: getattr(self, name) for name in FIELDS})

    @classmethod
    def restored(cls, fields: Mapping[str, Any]) -> History:
        """A history with these fields, which are copied before anything in them is changed."""
        history = cls()
        vars(history).update(fields)
        history._shared = set(FIELDS)
        return history

    def snapshot(self) -> tuple[Hashable, ...]:
        """What the future depends on as hashable plain values, in an order that doesn't depend on the path."""
        return tuple(self.plain(name) for name in FIELDS)

    def plain(self, name: str) -> Hashable:
        """One field as a hashable plain value; of an outcome only matters that it is there."""
        value = getattr(self, name)
        return frozenset(value) if name == "outcomes" else frozenset(value.items())

    def _own(self, name: str) -> Any:
        """A field, to be changed."""
        if name in self._shared:
            setattr(self, name, dict(getattr(self, name)))
            self._shared.discard(name)
        return getattr(self, name)

    def handlers_at(self, replica: Identity) -> int:
        """How many handlers run at a replica."""
        return sum(1 for at in self.handlers.values() if at == replica)

    def at(self, copy: CopyId) -> Identity | None:
        """The replica that a tied copy was sent to, if it has arrived there."""
        submit = self.submits.get(copy)
        return submit.partners[copy.rank] if submit is not None and submit.partners else None

    # ---- replicas ---------------------------------------------------------------------------------------------

    def fold_replica_event(self, step: ReplicaStep) -> None:
        """Take in what a replica was told."""
        event, replica = step.event, step.identity
        match event:
            case CallerConnected(link, client):
                self._own("callers")[replica, link] = client
            case CallerLost(link):
                self._caller_lost(step, link)
            case PeerConnected(link, peer):
                self._peer_connected(replica, link, peer)
            case PeerLost(link):
                self._peer_lost(replica, link)
            case SubmitReceived(link, submit):
                if (replica, link) in self.callers and submit.copy not in self.submits:
                    self._own("held")[submit.copy] = Home(replica, link)
                    self._own("submits")[submit.copy] = submit
                    if submit.window is not None:
                        self._own("granted_items")[submit.copy] = submit.window.items
            case CreditReceived(link, copy, items, _):
                home = self.held.get(copy)
                if home is not None and home.link == link and copy in self.granted_items:
                    self._own("granted_items")[copy] = max(items, self.granted_items[copy])
            case CancelReceived(link, copy):
                home = self.held.get(copy)
                if (replica, link) in self.callers and (home is None or home.link == link):
                    self._cancelled(copy, step)
            case PeerStarted() | PeerNext():
                self._notice_handled(step, event)
            case StopEnabled(copy):
                self._own("unstoppable").pop(copy, None)
            case WorkFinished(copy):
                self._own("handlers").pop(copy, None)

    def _cancelled(self, copy: CopyId, step: ReplicaStep) -> None:
        """Expect a cancel to be remembered, and no more of one caller than a replica has room for."""
        limits, cancelled = step.core.limits, self._own("cancelled")
        cancelled.pop(copy, None)
        cancelled[copy] = step.now + limits.marker_age_max
        waiting = [other for other in cancelled if other.client == copy.client and other not in self.held]
        for other in waiting[: -limits.cancel_markers_per_caller_max]:
            del cancelled[other]

    def _caller_lost(self, step: ReplicaStep, link: int) -> None:
        if (step.identity, link) not in self.callers:
            return
        del self._own("callers")[step.identity, link]
        for copy in [copy for copy, home in self.held.items() if home == (step.identity, link)]:
            state = step.core.copy_state(copy)
            if state is None or state.terminal:
                self._end(copy, CopyState.CANCELLED if state is None else state)

    def _peer_connected(self, replica: Identity, link: int, peer: Identity) -> None:
        for (at, old), known in list(self.peers.items()):
            if at == replica and known.name == peer.name and known != peer:
                self._peer_lost(replica, old)
        self._own("peers")[replica, link] = peer
        self._own("current")[replica, peer] = link

    def _peer_lost(self, replica: Identity, link: int) -> None:
        peer = self.peers.get((replica, link))
        if peer is None:
            return
        del self._own("peers")[replica, link]
        if self.current.get((replica, peer), link) == link:
            self._own("current").pop((replica, peer), None)
            self._forget(lambda note: note[1] == replica and self.at(note[0]) == peer)
        for note, links in list(self.pending.items()):
            if note[1] == peer and link in links and self.started.get(note[0]) == replica:
                self._settle(note, [link])

    def _forget(self, which: Callable[[Note], bool]) -> None:
        """Forget notices that were handled."""
        for name, book in (("heard", self.heard), ("heard_next", self.heard_next)):
            for note in [note for note in book if which(note)]:
                del self._own(name)[note]

    def _notice_handled(self, step: ReplicaStep, event: PeerStarted | PeerNext) -> None:
        replica, copy = step.identity, event.copy
        note = (copy, replica)
        peer = self.peers.get((replica, event.link))
        if peer is None or peer != self.at(copy):
            return
        if isinstance(event, PeerStarted) and note in self.pending:
            self._settle(note, [max(self.pending[note])])
        until = step.now + min(event.remaining, step.core.limits.marker_age_max)
        self._own("heard" if isinstance(event, PeerStarted) else "heard_next")[note] = Heard(until, False)

    def _settle(self, note: Note, links: Iterable[int]) -> None:
        """One notice over each of ``links`` is under way no more."""
        left = list(self.pending[note])
        for link in links:
            left.remove(link)
        if left:
            self._own("pending")[note] = tuple(left)
        else:
            del self._own("pending")[note]

    def markers_evicted(self, replica: Identity) -> None:
        """A replica had no room for all markers: none of what it has heard needs to be remembered any more."""
        for name, book in (("heard", self.heard), ("heard_next", self.heard_next)):
            for note, heard in list(book.items()):
                if note[1] == replica:
                    self._own(name)[note] = heard._replace(evicted=True)

    def expire(self, replica: Identity, now: float) -> None:
        """A replica's markers have come to ``now``: needed only where the clock does not go on from there."""
        self._forget(lambda note: note[1] == replica and self._until(note) <= now)
        for copy in [copy for copy, until in self.cancelled.items() if until <= now]:
            del self._own("cancelled")[copy]

    def _until(self, note: Note) -> float:
        return max(book[note].until for book in (self.heard, self.heard_next) if note in book)

    def fold_replica_command(self, step: ReplicaStep, command: ReplicaCommand) -> None:
        """Take in what a replica decided."""
        match command:
            case StartWork(submit):
                self._start(step, submit)
            case SendPeer(link, Started(copy)):
                peer = self.peers.get((step.identity, link))
                if peer is not None:
                    self._own("pending")[copy, peer] = tuple(sorted((*self.pending.get((copy, peer), ()), link)))
            case SendPeer(_, Next(copy)):
                self._own("announced")[copy] = None
            case SendPeer(_, Granted(copy)):
                self._own("granted")[copy] = None
            case SendCaller(_, Item(copy)):
                self._item(step, copy)
            case SendCaller(_, Result(copy)):
                self._end(copy, CopyState.DONE)
            case SendCaller(_, Failed(copy)):
                self._end(copy, CopyState.FAILED)
            case SendCaller(_, Ended(copy, state)):
                self._end(copy, state)

    def _start(self, step: ReplicaStep, submit: Submit) -> None:
        copy = submit.copy
        self._own("started")[copy] = step.identity
        self._own("handlers")[copy] = step.identity
        held = step.core.held(copy)
        if held is not None and not held.stoppable:
            self._own("unstoppable")[copy] = None
        if copy.rank != UNTIED:
            self._own("running")[copy.tie] = tuple(sorted((*self.running.get(copy.tie, ()), copy)))

    def _item(self, step: ReplicaStep, copy: CopyId) -> None:
        event, submit = step.event, self.submits[copy]
        self._own("items")[copy] = self.items.get(copy, 0) + 1
        judged = submit.window is not None and submit.window.judged
        if isinstance(event, ItemProduced) and (event.content or judged) and copy not in self.committed:
            self._own("committed")[copy] = None

    def _end(self, copy: CopyId, state: CopyState) -> None:
        self._own("ended")[copy] = state
        self._own("held").pop(copy, None)
        self._not_running(copy)

    def _not_running(self, copy: CopyId) -> None:
        running = self.running.get(copy.tie, ())
        if copy in running and copy.rank != UNTIED:
            left = tuple(other for other in running if other != copy)
            if left:
                self._own("running")[copy.tie] = left
            else:
                del self._own("running")[copy.tie]

    def fold_crash(self, replica: Identity) -> None:
        """A replica is gone, with all that it held; the dead neither start nor end anything."""
        for copy in [copy for copy, home in self.held.items() if home.replica == replica]:
            del self._own("held")[copy]
            self._not_running(copy)
        for copy in [copy for copy, at in self.handlers.items() if at == replica]:
            del self._own("handlers")[copy]
        for name in ("callers", "peers", "current"):
            for pair in [pair for pair in getattr(self, name) if pair[0] == replica]:
                del self._own(name)[pair]
        for note in [note for note in self.pending if replica in (note[1], self.started.get(note[0]))]:
            del self._own("pending")[note]
        self._forget(lambda note: note[1] == replica)

    # ---- calls ------------------------------------------------------------------------------------------------

    def fold_call_event(self, step: CallStep) -> None:
        """Take in what a call was told."""
        if isinstance(step.event, CopyUnsent) and step.event.copy.rank != UNTIED:
            copy = step.event.copy
            left = tuple(other for other in self.sent.get(copy.tie, ()) if other != copy)
            if left:
                self._own("sent")[copy.tie] = left
            else:
                self._own("sent").pop(copy.tie, None)

    def fold_call_command(self, step: CallStep, command: CallCommand) -> None:
        """Take in what a call decided."""
        match command:
            case SendCopy(_, submit):
                copy = submit.copy
                self._own("sent_copies")[copy] = None
                if not step.core.request.idempotent:
                    self._own("once")[step.call] = None
                if copy.rank != UNTIED:
                    self._own("sent")[copy.tie] = (*self.sent.get(copy.tie, ()), copy)
            case DeliverItems(copy):
                if step.call not in self.delivered:
                    self._own("delivered")[step.call] = copy
            case CompleteCall(outcome):
                self._own("outcomes").setdefault(step.call, outcome)


FIELDS = tuple(name for name in vars(History()) if not name.startswith("_"))
LOCAL_FIELDS = ("callers", "peers", "held", "handlers", "heard", "heard_next")
"""What is known of one replica, and matters at no other."""
