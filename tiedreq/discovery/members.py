"""A set of members, what a source of such sets is, and the source that never changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import trio

from tiedreq.clusterfile import ReplicaAddress, check_url
from tiedreq.core.errors import BadOption
from tiedreq.net.addresses import parse_url


@dataclass(frozen=True, slots=True)
class Members:
    """Who belongs to a cluster now, as far as a source knows.

    ``replicas`` are addresses, with names where those are known. ``complete``: who is not named has left. Not complete
    (DNS, say, which forgets and truncates): who is not named may still be there. ``cluster`` is the cluster's name
    where the source knows it.
    """

    replicas: tuple[ReplicaAddress, ...]
    complete: bool = True
    cluster: str | None = None

    def __post_init__(self) -> None:
        """Raises ``BadOption`` for what is no address, or for two members at one address or of one name."""
        for replica in self.replicas:
            parse_url(replica.url)
        if len({replica.url for replica in self.replicas}) != len(self.replicas):
            raise BadOption("members: an address is named twice")
        names = [replica.name for replica in self.replicas if replica.name is not None]
        if len(set(names)) != len(names):
            raise BadOption("members: two addresses have one name")

    @classmethod
    def named(cls, urls: Iterable[tuple[str | None, str]], *, complete: bool = True) -> Members:
        """From pairs of a name (or None) and a URL. Raises ``BadOption``."""
        return cls(tuple(ReplicaAddress(check_url("members", url), name) for name, url in urls), complete)


@runtime_checkable
class Discovery(Protocol):
    """A source of members: ``async for members in discovery``.

    The first set comes as soon as one is known, a further one whenever that may have changed; the same set again is
    harmless. Each iteration is on its own, in Trio, and is cancelled when nobody wants to know any more. A source that
    can't say who is there says nothing: an error that leaves it is logged, and it is asked anew after a while.
    """

    def __aiter__(self) -> AsyncIterator[Members]:
        """The sets, from now on."""
        ...


class StaticMembers:
    """Members that never change."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def __repr__(self) -> str:
        return f"StaticMembers({', '.join(replica.url for replica in self._members.replicas)})"

    def __aiter__(self) -> AsyncIterator[Members]:
        """The one set."""
        return _Once(self._members)


class _Once:
    def __init__(self, members: Members) -> None:
        self._left = [members]

    def __aiter__(self) -> _Once:
        return self

    async def __anext__(self) -> Members:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()
