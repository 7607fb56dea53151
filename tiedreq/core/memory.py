"""What a replica remembers beyond live copies: markers, cancel markers, tombstones. Each bounded, oldest out first."""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import IntEnum
from typing import NamedTuple

from tiedreq.core.types import UNTIED, CopyId, CopyState, Identity, TieId

Key = tuple[int, ...]
STALE_MIN = 64
"""So many old places may be left in the order of tombstones, however few there are."""


def memory_key(copy: CopyId) -> Key:
    """A replica holds at most one copy of a tie, so a tied copy is remembered by its tie (as a plain tuple)."""
    return copy if copy[3] == UNTIED else copy[:3]


class MarkerKind(IntEnum):
    """What an early notice said."""

    STARTED = 0
    NEXT = 1


class Marker(NamedTuple):
    """A notice that arrived before the copy it is about."""

    kind: MarkerKind
    expires_at: float


class MarkerBook:
    """Early notices by the peer that sent them and the copy it speaks of.

    A marker is found only under the partner that a Submit names, lives at most ``age_max`` seconds, and goes with
    its peer. An evicted marker costs a double start, nothing else. ``known`` is False when ``wake_at`` may have changed
    in any way; else it has not, unless by what was added.
    """

    def __init__(self, per_peer_max: int, age_max: float) -> None:
        self._per_peer_max = per_peer_max
        self._age_max = age_max
        self._books: dict[Identity, OrderedDict[CopyId, Marker]] = {}
        self._first_at: float | None = None  # when the first of all heads expires, unless that is to be found anew
        self.known = True
        self.evicted = 0

    def __len__(self) -> int:
        return sum(map(len, self._books.values()))

    def add(self, peer: Identity, copy: CopyId, kind: MarkerKind, remaining: float, now: float) -> None:
        """Remember that ``peer`` said ``kind`` of ``copy``. A start is never replaced by a lesser notice.

        A marker past its age counts as gone, though it has not been dropped yet.
        """
        book = self._books.get(peer)
        if book is None:
            book = self._books[peer] = OrderedDict()
        known = book.get(copy)
        if known is not None:
            if known.kind == MarkerKind.STARTED and known.expires_at > now:
                return
            del book[copy]
            self.known = False
        elif len(book) >= self._per_peer_max:
            self.known = False
            self._drop_expired(book, now)
            if len(book) >= self._per_peer_max:
                book.popitem(last=False)
                self.evicted += 1
        expires_at = now + (remaining if remaining < self._age_max else self._age_max)
        if not book and (self._first_at is None or expires_at < self._first_at):
            self._first_at = expires_at
        book[copy] = tuple.__new__(Marker, (kind, expires_at))

    def take(self, peer: Identity, copy: CopyId, now: float) -> MarkerKind | None:
        """What ``peer`` had said of ``copy``; the marker is gone afterwards."""
        book = self._books.get(peer)
        if book is None or copy not in book:
            return None
        marker = book.pop(copy)
        if not book:
            del self._books[peer]
        self.known = False
        return marker.kind if marker.expires_at > now else None

    def forget(self, peer: Identity) -> None:
        """Drop all markers of ``peer``."""
        if self._books.pop(peer, None) is not None:
            self.known = False

    def expire(self, now: float) -> None:
        """Drop what is past its age, from the oldest on."""
        first_at = self.wake_at
        if first_at is None or first_at > now:
            return
        self.known = False
        for peer in list(self._books):
            book = self._books[peer]
            self._drop_expired(book, now)
            if not book:
                del self._books[peer]

    @staticmethod
    def _drop_expired(book: OrderedDict[CopyId, Marker], now: float) -> None:
        while book and next(iter(book.values())).expires_at <= now:
            book.popitem(last=False)

    @property
    def wake_at(self) -> float | None:
        """When the oldest marker of any peer expires, or None."""
        if not self.known:
            self.known = True
            heads = [next(iter(book.values())).expires_at for book in self._books.values()]
            self._first_at = min(heads, default=None)
        return self._first_at

    def snapshot(self) -> tuple[object, ...]:
        """The content as plain values, in order."""
        return tuple((peer, tuple(book.items())) for peer, book in sorted(self._books.items()))


class CancelMarkers:
    """Cancels of one caller that arrived before their copy, or after it was forgotten: bounded in number and age."""

    def __init__(self, size_max: int, age_max: float) -> None:
        self._size_max = size_max
        self._age_max = age_max
        self._expiries: OrderedDict[CopyId, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiries)

    def add(self, copy: CopyId, now: float) -> float:
        """Remember that ``copy`` is cancelled; returns until when."""
        if copy not in self._expiries and len(self._expiries) >= self._size_max:
            self._expiries.popitem(last=False)
        self._expiries[copy] = now + self._age_max
        self._expiries.move_to_end(copy)
        return now + self._age_max

    def take(self, copy: CopyId) -> bool:
        """True when ``copy`` was cancelled; the marker is gone afterwards."""
        return bool(self._expiries) and self._expiries.pop(copy, None) is not None

    def expire(self, now: float) -> float | None:
        """Drop what is past its age; returns when the oldest of the rest will be, or None."""
        while self._expiries:
            expires_at = next(iter(self._expiries.values()))
            if expires_at > now:
                return expires_at
            self._expiries.popitem(last=False)
        return None

    def snapshot(self) -> tuple[tuple[CopyId, float], ...]:
        """The markers, oldest first."""
        return tuple(self._expiries.items())


class ParkedClaim(NamedTuple):
    """A Claim that overtook the arbiter's own Submit."""

    copy: CopyId
    claimant: Identity
    expires_at: float


class ParkedClaims:
    """Claims that wait for the Submit of the arbiter's copy. What falls out, by age or number, is to be denied."""

    def __init__(self, size_max: int, age_max: float) -> None:
        self._size_max = size_max
        self._age_max = age_max
        self._claims: OrderedDict[CopyId, ParkedClaim] = OrderedDict()

    def __len__(self) -> int:
        return len(self._claims)

    def park(self, copy: CopyId, claimant: Identity, now: float) -> ParkedClaim | None:
        """Keep a claim; returns the one that had to go for it, if any."""
        evicted = None
        if copy not in self._claims and len(self._claims) >= self._size_max:
            evicted = self._claims.popitem(last=False)[1]
        self._claims[copy] = ParkedClaim(copy, claimant, now + self._age_max)
        self._claims.move_to_end(copy)
        return evicted

    def take(self, tie: TieId, ranks: int) -> list[ParkedClaim]:
        """The claims of one tie of ``ranks`` copies, lowest rank first; they are gone afterwards."""
        copies = [CopyId(*tie, rank) for rank in range(1, ranks)]
        return [self._claims.pop(copy) for copy in copies if copy in self._claims]

    def discard(self, copy: CopyId) -> None:
        """Forget one claim, if it is there."""
        self._claims.pop(copy, None)

    def forget(self, claimant: Identity) -> None:
        """Drop the claims of a replica that is lost; nobody is there to be answered."""
        for copy in [copy for copy, claim in self._claims.items() if claim.claimant == claimant]:
            del self._claims[copy]

    def expire(self, now: float) -> list[ParkedClaim]:
        """Take out what is past its age."""
        gone = []
        while self._claims and next(iter(self._claims.values())).expires_at <= now:
            gone.append(self._claims.popitem(last=False)[1])
        return gone

    def clear(self) -> list[ParkedClaim]:
        """Take out everything."""
        gone = list(self._claims.values())
        self._claims.clear()
        return gone

    @property
    def wake_at(self) -> float | None:
        """When the oldest claim expires, or None."""
        return next(iter(self._claims.values())).expires_at if self._claims else None

    def snapshot(self) -> tuple[ParkedClaim, ...]:
        """The claims, oldest first."""
        return tuple(self._claims.values())


class Tombstone(NamedTuple):
    """How a copy ended, and whether its handler ever started.

    For a copy of an exclusive tie also the tie's partners, and who was granted the start in its place.
    """

    copy: CopyId
    state: CopyState
    started: bool
    partners: tuple[Identity, ...] = ()
    grantee: Identity | None = None


class Tombstones:
    """Ended copies, so that late news of them changes nothing.

    They are many, and hardly ever looked at: how an ordinary copy ended is one small number, of which ``get`` makes a
    ``Tombstone``.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._entries: dict[Key, int | Tombstone] = {}
        self._order: deque[Key] = deque()  # keys, oldest first, and of what was remembered anew also its old place
        self._moved: dict[Key, int] = {}  # how many old places each key has there

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tombstone: Tombstone) -> None:
        """Remember how a copy ended."""
        self._put(memory_key(tombstone.copy), tombstone)

    def bury(self, key: Key, rank: int, state: CopyState, started: bool) -> None:
        """``add`` for a copy of a tie that is not exclusive, or of none. ``key`` is its memory key."""
        self._put(key, (rank + 1) * 32 + state * 2 + started)

    def _put(self, key: Key, value: int | Tombstone) -> None:
        entries = self._entries
        if key in entries:
            del entries[key]
            self._moved[key] = self._moved.get(key, 0) + 1
        elif len(entries) >= self._size_max:
            self._drop_oldest()
        entries[key] = value
        self._order.append(key)
        if len(self._order) > 2 * len(entries) + STALE_MIN:
            self._order = deque(entries)
            self._moved.clear()

    def _drop_oldest(self) -> None:
        order, moved = self._order, self._moved
        key = order.popleft()
        while moved and key in moved:
            moved[key] -= 1
            if not moved[key]:
                del moved[key]
            key = order.popleft()
        del self._entries[key]

    def grant(self, copy: CopyId, grantee: Identity) -> None:
        """Remember that ``grantee`` may start in place of this ended copy. Raises ``KeyError`` when it is not known."""
        key = memory_key(copy)
        self._entries[key] = _tombstone(key, self._entries[key])._replace(grantee=grantee)

    def get(self, copy: CopyId) -> Tombstone | None:
        """The tombstone of this untied copy, or of this replica's copy of the same tie."""
        key = copy if copy[3] == UNTIED else copy[:3]
        value = self._entries.get(key)
        return None if value is None else _tombstone(key, value)

    def snapshot(self) -> tuple[Tombstone, ...]:
        """The entries, oldest first."""
        return tuple(_tombstone(key, value) for key, value in self._entries.items())


def _tombstone(key: Key, value: int | Tombstone) -> Tombstone:
    if not isinstance(value, int):
        return value
    client, number, round_ = key[:3]
    return Tombstone(CopyId(client, number, round_, value // 32 - 1), CopyState(value // 2 % 16), value % 2 == 1)
