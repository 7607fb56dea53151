"""Markers, cancel markers, parked claims and tombstones against plain lists."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tiedreq.core.memory import (
    STALE_MIN,
    CancelMarkers,
    MarkerBook,
    MarkerKind,
    ParkedClaims,
    Tombstone,
    Tombstones,
    memory_key,
)
from tiedreq.core.types import CopyId, CopyState, Identity, TieId

AGE = 4.0
SIZE = 3
PEERS = tuple(Identity(name, number) for name, number in (("a", 1), ("b", 2), ("b", 3)))

peers = st.sampled_from(PEERS)
kinds = st.sampled_from(MarkerKind)
copies = st.builds(CopyId, st.just(1), st.integers(1, 4), st.integers(0, 1), st.integers(-1, 1))
tied = copies.filter(lambda copy: copy.rank >= 0)
waits = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])


class Clocked(RuleBasedStateMachine):
    """A machine with a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 10.0

    @rule(wait=waits)
    def wait(self, wait: float) -> None:
        self.now += wait


# ---- markers --------------------------------------------------------------------------------------------------


@dataclass
class Note:
    peer: Identity
    copy: CopyId
    kind: MarkerKind
    added_at: float
    expires_at: float


class MarkerMachine(Clocked):
    """The model keeps one list, in order of the last change."""

    def __init__(self) -> None:
        super().__init__()
        self.book = MarkerBook(SIZE, AGE)
        self.notes: list[Note] = []
        self.evicted = 0

    def of(self, peer: Identity) -> list[Note]:
        return [note for note in self.notes if note.peer == peer]

    def drop_expired(self, peer: Identity) -> None:
        while (found := self.of(peer)) and found[0].expires_at <= self.now:
            self.notes.remove(found[0])

    @rule(peer=peers, copy=tied, kind=kinds, remaining=st.sampled_from([0.25, 1.0, 3.0, 60.0]))
    def add(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float) -> None:
        self.book.add(peer, copy, kind, remaining, self.now)
        known = [note for note in self.of(peer) if note.copy == copy]
        if known and known[0].kind == MarkerKind.STARTED and known[0].expires_at > self.now:
            return
        self.notes = [note for note in self.notes if note not in known]
        if len(self.of(peer)) >= SIZE:
            self.drop_expired(peer)
        if len(self.of(peer)) >= SIZE:
            self.notes.remove(self.of(peer)[0])
            self.evicted += 1
        self.notes.append(Note(peer, copy, kind, self.now, self.now + min(remaining, AGE)))

    @rule(peer=peers, copy=tied)
    def take(self, peer: Identity, copy: CopyId) -> None:
        known = [note for note in self.of(peer) if note.copy == copy]
        self.notes = [note for note in self.notes if note not in known]
        expected = known[0].kind if known and known[0].expires_at > self.now else None
        assert self.book.take(peer, copy, self.now) == expected

    @rule(peer=peers)
    def forget(self, peer: Identity) -> None:
        self.book.forget(peer)
        self.notes = [note for note in self.notes if note.peer != peer]

    @rule()
    def expire(self) -> None:
        self.book.expire(self.now)
        for peer in PEERS:
            self.drop_expired(peer)
        assert all(self.now - note.added_at < AGE for note in self.notes), "older than its age, and still there"

    @rule()
    def wake(self) -> None:
        """Whoever wakes when asked to makes progress."""
        at = self.book.wake_at
        if at is not None:
            before = len(self.book)
            self.now = max(self.now, at)
            self.expire()
            assert len(self.book) < before
            later = self.book.wake_at
            assert later is None or later > self.now

    @invariant()
    def same(self) -> None:
        assert len(self.book) == len(self.notes)
        assert self.book.evicted == self.evicted
        firsts = [self.of(peer)[0].expires_at for peer in PEERS if self.of(peer)]
        assert self.book.wake_at == min(firsts, default=None)


TestMarkers = MarkerMachine.TestCase


# ---- cancels --------------------------------------------------------------------------------------------------


class CancelMachine(Clocked):
    def __init__(self) -> None:
        super().__init__()
        self.markers = CancelMarkers(SIZE, AGE)
        self.known: list[tuple[CopyId, float]] = []

    @rule(copy=copies)
    def add(self, copy: CopyId) -> None:
        assert self.markers.add(copy, self.now) == self.now + AGE
        others = [entry for entry in self.known if entry[0] != copy]
        if len(others) == len(self.known) >= SIZE:
            del others[0]
        self.known = [*others, (copy, self.now + AGE)]

    @rule(copy=copies)
    def take(self, copy: CopyId) -> None:
        assert self.markers.take(copy) == any(entry[0] == copy for entry in self.known)
        self.known = [entry for entry in self.known if entry[0] != copy]

    @rule()
    def expire(self) -> None:
        self.known = [entry for entry in self.known if entry[1] > self.now]
        assert self.markers.expire(self.now) == min((at for _, at in self.known), default=None)

    @invariant()
    def same(self) -> None:
        assert self.markers.snapshot() == tuple(self.known)


TestCancels = CancelMachine.TestCase


# ---- parked claims --------------------------------------------------------------------------------------------


class ParkedMachine(Clocked):
    """Every claim that was parked is taken, denied or forgotten once."""

    def __init__(self) -> None:
        super().__init__()
        self.parked = ParkedClaims(SIZE, AGE)
        self.claims: list[tuple[CopyId, Identity, float]] = []

    @rule(copy=tied.filter(lambda copy: copy.rank > 0), peer=peers)
    def park(self, copy: CopyId, peer: Identity) -> None:
        evicted = self.parked.park(copy, peer, self.now)
        others = [claim for claim in self.claims if claim[0] != copy]
        if len(others) == len(self.claims) >= SIZE:
            assert tuple(evicted or ()) == others.pop(0)
        else:
            assert evicted is None
        self.claims = [*others, (copy, peer, self.now + AGE)]

    @rule(copy=tied)
    def take(self, copy: CopyId) -> None:
        found = [claim for claim in self.claims if claim[0].tie == copy.tie]
        assert [tuple(claim) for claim in self.parked.take(copy.tie, 2)] == found
        self.claims = [claim for claim in self.claims if claim not in found]

    @rule(copy=tied)
    def discard(self, copy: CopyId) -> None:
        self.parked.discard(copy)
        self.claims = [claim for claim in self.claims if claim[0] != copy]

    @rule(peer=peers)
    def forget(self, peer: Identity) -> None:
        self.parked.forget(peer)
        self.claims = [claim for claim in self.claims if claim[1] != peer]

    @rule()
    def expire(self) -> None:
        gone = [claim for claim in self.claims if claim[2] <= self.now]
        assert [tuple(claim) for claim in self.parked.expire(self.now)] == gone
        self.claims = [claim for claim in self.claims if claim not in gone]

    @rule()
    def clear(self) -> None:
        assert [tuple(claim) for claim in self.parked.clear()] == self.claims
        self.claims = []

    @invariant()
    def same(self) -> None:
        assert [tuple(claim) for claim in self.parked.snapshot()] == self.claims
        assert self.parked.wake_at == min((claim[2] for claim in self.claims), default=None)
        assert len(self.parked) == len(self.claims) <= SIZE


TestParked = ParkedMachine.TestCase


# ---- tombstones -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(copies, st.sampled_from([CopyState.DONE, CopyState.DROPPED]), st.booleans())))
def test_tombstones_keep_the_latest_of_each_tie_or_untied_copy(added: list[tuple[CopyId, CopyState, bool]]) -> None:
    real, model = Tombstones(SIZE), list[Tombstone]()
    for entry in added:
        stone = Tombstone(*entry)
        real.add(stone)
        model = [*(other for other in model if memory_key(other.copy) != memory_key(stone.copy)), stone][-SIZE:]
        assert real.snapshot() == tuple(model)
        for copy, _, _ in added:
            found = [other for other in model if memory_key(other.copy) == memory_key(copy)]
            assert real.get(copy) == (found[0] if found else None)


terminal = st.sampled_from([state for state in CopyState if state.terminal])


@given(st.integers(1, 6), st.lists(st.tuples(copies, terminal, st.booleans(), st.booleans()), min_size=1))
def test_a_tombstone_that_is_packed_is_the_same(size: int, ended: list[tuple[CopyId, CopyState, bool, bool]]) -> None:
    """Also when so many are remembered anew that the order of the old ones is cleared up."""
    real, model = Tombstones(size), list[Tombstone]()
    for copy, state, started, packed in ended * (1 + 3 * STALE_MIN // len(ended)):
        stone = Tombstone(copy, state, started)
        if packed:
            real.bury(memory_key(copy), copy.rank, state, started)
        else:
            real.add(stone)
        model = [*(other for other in model if memory_key(other.copy) != memory_key(copy)), stone][-size:]
        assert real.snapshot() == tuple(model)
        assert all(real.get(other.copy) == other for other in model)


@given(tied, tied)
def test_a_tie_has_one_memory_and_an_untied_copy_its_own(one: CopyId, other: CopyId) -> None:
    assert (memory_key(one) == memory_key(other)) == (TieId(*one[:3]) == TieId(*other[:3]))
    assert memory_key(one._replace(rank=-1)) not in (memory_key(one), memory_key(other))
