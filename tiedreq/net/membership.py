"""The members of a cluster as a client links to them: one link for each, made and let go while calls go on.

Invariants
* A member that left gets no new copies from the moment that another one can be reached; what it has runs to its end,
  then its link closes. A set of members none of which can be reached takes nothing away.
* A new link is never kept waiting by an old one: who moved is dialed at once, and the newest link to a name is used
  (``core.picker``); what still comes over the old one is news of the copies that were sent over it, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.link_table import LinkState
from tiedreq.discovery.members import Members
from tiedreq.discovery.roster import Roster
from tiedreq.net.client import Client
from tiedreq.net.link import Link

logger = logging.getLogger("tiedreq.client")

LEAVE_POLL_SECONDS = 0.05
REFUSED_RETRY_SECONDS = 30.0
"""A member that refused for good (another token, say) is dialed anew with a set that comes so much later."""


class ClientMembers:
    """Who belongs to the cluster, and the links to them."""

    def __init__(
        self,
        client: Client,
        nursery: trio.Nursery,
        make: Callable[[ReplicaAddress], Link],
        run: Callable[[Link, ReplicaAddress], Awaitable[object]],
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._make = make
        self._run = run
        self._roster = Roster(client.limits.replicas_max)
        self._links: dict[str, Link] = {}
        self._dialed_at: dict[str, float] = {}
        self._leaving: dict[Link, ReplicaAddress] = {}
        self._refused = 0

    @property
    def links(self) -> list[Link]:
        """The links to members."""
        return list(self._links.values())

    @property
    def all_links(self) -> list[Link]:
        """Also those to replicas that have left and still have something to finish."""
        return [*self._links.values(), *self._leaving]

    def update(self, members: Members) -> None:
        """Take a set of members in: dial who has joined, let go who has left. Synchronous."""
        change = self._roster.update(members, lambda replica: self._links[replica.url].up)
        for replica in change.left:
            link = self._links.pop(replica.url)
            del self._dialed_at[replica.url]
            self._leaving[link] = replica
            self._nursery.start_soon(self._let_go, link, name=f"leave {replica.url}")
        for replica in change.joined:
            self._dial(replica)
        for replica in self._roster.members:
            if self._links[replica.url].state is LinkState.CLOSED and self._may_dial_anew(replica):
                self._dial(replica)
        if change.refused and len(change.refused) != self._refused:
            logger.warning(
                "%d members are passed over: the limit replicas_max is %d",
                len(change.refused),
                self._client.limits.replicas_max,
            )
        self._refused = len(change.refused)
        if any(change) and self._client.connected:
            logger.info("members: %d joined, %d left", len(change.joined), len(change.left))
        self._client.arrivals.ring()

    def view(self) -> list[dict[str, Any]]:
        """Address, name and state of every member and of those that are leaving, as plain values."""
        rows = [(replica, self._links[replica.url], "") for replica in self._roster.members]
        rows += [(replica, link, "leaving") for link, replica in self._leaving.items()]
        return [
            {
                "url": replica.url,
                "name": link.peer.name if link.peer is not None else replica.name,
                "state": leaving or ("up" if link.up else "refused" if link.state is LinkState.CLOSED else "down"),
                "reason": "" if link.up or link.last_error is None else str(link.last_error),
            }
            for replica, link, leaving in rows
        ]

    def _dial(self, replica: ReplicaAddress) -> None:
        link = self._links[replica.url] = self._make(replica)
        self._dialed_at[replica.url] = trio.current_time()
        self._nursery.start_soon(self._run, link, replica, name=f"link to {replica.url}")

    def _may_dial_anew(self, replica: ReplicaAddress) -> bool:
        return trio.current_time() - self._dialed_at[replica.url] >= REFUSED_RETRY_SECONDS

    async def _let_go(self, link: Link) -> None:
        """Wait until somebody else can be reached, then until nothing is out on this connection; then close it.

        Meanwhile it is in use, and one that was up before and is down now is dialed on.
        """
        try:
            while link.statistics.times_up and link.state is not LinkState.CLOSED:
                if any(other.up for other in self._links.values()):
                    break
                await trio.sleep(LEAVE_POLL_SECONDS)
            connection = link.id
            while connection and link.id == connection:
                if not self._client.let_go(connection):
                    break
                await trio.sleep(LEAVE_POLL_SECONDS)
        finally:
            link.close("closed", "the replica is no longer a member")
            del self._leaving[link]
