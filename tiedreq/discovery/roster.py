"""The roster: who is a member, and what a new set of members changes. Pure: no clock, no links.

The rules (docs/membership.md):

1. A set without members changes nothing: a cluster without replicas is a mistake of the source.
2. Who is named and unknown joins. Who is named under another name or at another address than before has moved: the old
   entry leaves and a new one joins, at once.
3. Who is not named in a *complete* set leaves at once.
4. Who is not named in a set that is not complete leaves only when it was missing from ``MISSES_MAX`` sets in a row and
   does not work: a source that flaps can't take down what answers.
5. There are at most ``size_max`` members. Those that are members stay, then they join in the order of the set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.discovery.members import Members

MISSES_MAX = 3
"""So many answers in a row have to leave a member out."""

Key = tuple[str, str | None]


class Change(NamedTuple):
    """What a set changed. Who moved has both left and joined. ``refused``: named, but one too many."""

    joined: tuple[ReplicaAddress, ...] = ()
    left: tuple[ReplicaAddress, ...] = ()
    refused: tuple[ReplicaAddress, ...] = ()


class Roster:
    """The members by address and name."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._members: dict[Key, ReplicaAddress] = {}
        self._misses: dict[Key, int] = {}

    @property
    def members(self) -> tuple[ReplicaAddress, ...]:
        """Who is a member, in the order of joining."""
        return tuple(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def update(self, members: Members, works: Callable[[ReplicaAddress], bool]) -> Change:
        """Take a set in. ``works`` says whether a member that the set leaves out can be reached now."""
        if not members.replicas:
            return Change()
        named = {_key(replica): replica for replica in members.replicas}
        left = [self._members[key] for key in list(self._members) if self._leaves(key, named, members, works)]
        for replica in left:
            del self._members[_key(replica)]
            self._misses.pop(_key(replica), None)
        joined, refused = [], []
        for key, replica in named.items():
            self._misses.pop(key, None)
            if key in self._members:
                self._members[key] = replica
            elif len(self._members) < self._size_max:
                self._members[key] = replica
                joined.append(replica)
            else:
                refused.append(replica)
        return Change(tuple(joined), tuple(left), tuple(refused))

    def _leaves(
        self, key: Key, named: dict[Key, ReplicaAddress], members: Members, works: Callable[[ReplicaAddress], bool]
    ) -> bool:
        if key in named:
            return False
        url, name = key
        moved = any(other_url == url or (name is not None and other == name) for other_url, other in named)
        if members.complete or moved:
            return True
        self._misses[key] = min(self._misses.get(key, 0) + 1, MISSES_MAX)
        return self._misses[key] >= MISSES_MAX and not works(self._members[key])


def _key(replica: ReplicaAddress) -> Key:
    return replica.url, replica.name
