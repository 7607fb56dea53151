"""The links of one replica to the others: whom it dials, whom it waits for, when links open and close.

Of two replicas the one with the lower name dials. A member whose name is known is dialed or waited for; one that is
known by its address alone is dialed to learn its name, which is all that is wanted of one with a lower name, of a
second address of the same replica, and of this replica's own address.

Up to ``mesh_full_max`` members every link is there all the time. In a larger mesh a link opens when the first copy
arrives that names the partner, and closes when none has for ``mesh_idle`` seconds. What a replica has to say to a
partner meanwhile is said when the link is up, of all copies that run then (``ReplicaCore``); a notice of one that ended
before is lost, which costs a double start at most, and is counted (``notices_unsent``).

Invariants
* ``links`` holds the newest link to each peer that is up; an older one to the same name ends as soon as a newer is up,
  and an incarnation that was displaced in this way is not let in again while the one in its place is linked.
* Who has left is kept for ``LEAVE_SECONDS`` if it stays that long, and is not dialed again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.link import Admit
from tiedreq.core.messages import Hello
from tiedreq.core.types import Identity
from tiedreq.discovery.members import Members
from tiedreq.discovery.roster import Roster
from tiedreq.errors import ConnectError
from tiedreq.net.link import Link
from tiedreq.net.link_owner import LinkDown

logger = logging.getLogger("tiedreq.replica")

LEAVE_SECONDS = 10.0
"""How long a link to a replica that is no longer a member stays, for the copies that both may still have."""
TEND_SECONDS = 0.5
LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS_ON_USE = 5.0, 60.0
"""Who was learned to dial us, and is not linked, may have been replaced by another one at the same address."""
LINKS_MAX = 256
"""So many links are dialed at once at most: a Report names no more peers. Where there is no room for all, an address at
which nobody answers makes room for the others for a while."""
DISPLACED_MAX = 8
"""So many former incarnations of a peer are remembered while its link is up."""
ON_USE = "opens on first use"

Make = Callable[[ReplicaAddress, Admit], Link]
"""Makes a link to an address; the second argument is asked whom it met."""
Run = Callable[[Link, str, str | None], Awaitable[object]]
"""Runs a link to a URL, and to this name if that is known, until it is closed."""


class _Slot:
    """One address of a member that is not this replica by name."""

    __slots__ = ("learned", "link", "look_at", "name", "replica")

    def __init__(self, replica: ReplicaAddress) -> None:
        self.replica = replica
        self.name = replica.name
        self.link: Link | None = None
        self.learned = False
        """Its name came from its Hello, and it need not be dialed now."""
        self.look_at = 0.0


class Mesh:
    """See the module. All methods are synchronous but ``tend``."""

    def __init__(self, identity: Identity, limits: ReplicaLimits, nursery: trio.Nursery, make: Make, run: Run) -> None:
        self.links: dict[str, Link] = {}
        self.troubles: dict[str, str] = {}
        self.on_use = False
        """Links open on first use: there are too many members for all of them."""
        self.opened = 0
        self.idled = 0
        self._own = identity
        self._limits = limits
        self._nursery = nursery
        self._make = make
        self._run = run
        self._roster = Roster(limits.peers_max)
        self._slots: dict[str, _Slot] = {}  # by URL
        self._addresses: dict[str, _Slot] = {}  # by name, as far as names are known
        self._leaving: dict[Link, float] = {}
        self._wanted_until: dict[str, float] = {}
        self._displaced: dict[str, tuple[int, ...]] = {}  # incarnations, newest first
        self._refused = 0
        self._dialing = 0
        self._crowded = False  # somebody was to be dialed, and there was no room
        self._ended = False

    # ---- who is a member ----------------------------------------------------------------------------------------

    def update(self, members: Members) -> None:
        """Take a set of members in: dial who has joined, and let go who has left."""
        change = self._roster.update(members, self._works)
        for replica in change.left:
            self._leave(replica)
        for replica in change.joined:
            if replica.name != self._own.name:
                slot = self._slots[replica.url] = _Slot(replica)
                if replica.name is not None:
                    self._addresses[replica.name] = slot
        if change.refused and len(change.refused) != self._refused:
            logger.warning(
                "%d members are passed over: the limit peers_max is %d", len(change.refused), self._limits.peers_max
            )
        self._refused = len(change.refused)
        self._count()
        self.look_around()

    def forget_all(self) -> None:
        """There are no other members."""
        for replica in self._roster.members:
            self._leave(replica)
        self._roster = Roster(self._limits.peers_max)
        self._count()

    def _count(self) -> None:
        """There are as many members as there are: whether that is too many for all links."""
        members = self._roster.members
        beside = all(replica.name not in (None, self._own.name) for replica in members)  # addresses alone are of all
        was, self.on_use = self.on_use, len(members) + beside > self._limits.mesh_full_max
        if self.on_use and not was:
            until = trio.current_time() + self._limits.mesh_idle
            self._wanted_until.update({name: until for name in self.links if name in self._addresses})
        known = self.known
        self.troubles = {name: text for name, text in self.troubles.items() if name in known}

    @property
    def known(self) -> set[str]:
        """What stands for each other member: its name, or its address while that is all that is known."""
        return {slot.name or url for url, slot in self._slots.items() if slot.name != self._own.name}

    def _works(self, replica: ReplicaAddress) -> bool:
        slot = self._slots.get(replica.url)
        return slot is not None and slot.name is not None and (slot.name in self.links or slot.name == self._own.name)

    def _leave(self, replica: ReplicaAddress) -> None:
        slot = self._slots.pop(replica.url, None)
        if slot is None:
            return
        self._rename(slot, None)
        if slot.link is not None and slot.link.up:
            self._leaving[slot.link] = trio.current_time() + LEAVE_SECONDS
        elif slot.link is not None:
            slot.link.close("closed", "the peer was removed or has moved")

    def _rename(self, slot: _Slot, name: str | None) -> None:
        """Somebody else lives at this address now, or nobody that we know of."""
        if slot.name is not None and self._addresses.get(slot.name) is slot:
            del self._addresses[slot.name]
            others = (other for other in self._slots.values() if other.name == slot.name and other is not slot)
            if (other := next(others, None)) is not None:
                self._addresses[slot.name] = other
        slot.name = name
        if name is not None:
            self._addresses[name] = slot

    # ---- dialing ------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Dial nobody any more: this replica goes."""
        self._ended = True

    def look_around(self) -> None:
        """Dial whoever is to be dialed now and is not."""
        on_use, self._crowded = self.on_use, False
        for slot in self._slots.values():
            if slot.link is None and self._to_be_dialed(slot, on_use):
                self._dial(slot)

    def _to_be_dialed(self, slot: _Slot, on_use: bool) -> bool:
        name, now = slot.name, trio.current_time()
        if slot.learned:
            if name in self.links or name == self._own.name or now < slot.look_at:
                return False
            return name is None or not on_use or name < self._own.name or self._wanted_until.get(name, 0.0) > now
        if name is None:
            return now >= slot.look_at
        return name > self._own.name and (not on_use or self._wanted_until.get(name, 0.0) > now)

    def _dial(self, slot: _Slot) -> None:
        if self._ended:
            return
        if self._dialing >= LINKS_MAX:
            self._crowded = True
            return
        self.opened += 1
        self._dialing += 1
        slot.look_at = trio.current_time() + (LOOK_AGAIN_SECONDS_ON_USE if self.on_use else LOOK_AGAIN_SECONDS)
        link = slot.link = self._make(slot.replica, lambda hello: self._met(slot, hello))
        self._nursery.start_soon(self._keep, slot, link, name=f"link to {slot.replica.url}")

    async def _keep(self, slot: _Slot, link: Link) -> None:
        try:
            await self._run(link, slot.replica.url, slot.replica.name)
        finally:
            self._dialing -= 1
            if slot.link is link:
                slot.link = None

    def _met(self, slot: _Slot, hello: Hello) -> tuple[str, str] | None:
        """Who answered at an address: None to go on with it, else the code and the reason of the Goodbye."""
        if slot.replica.name is not None:
            return None
        slot.learned = True
        if slot.name != hello.name:
            self._rename(slot, hello.name)
        other = self.links.get(hello.name)
        if hello.name == self._own.name:
            if hello.incarnation != self._own.incarnation:
                self.troubles[slot.replica.url] = f"another replica is named {hello.name!r} too"
                logger.warning("another replica, at %s, is named %r too", slot.replica.url, hello.name)
            return "spare", "this is the dialer's own name"
        if hello.name < self._own.name:
            return "spare", "of two replicas the one with the lower name dials"
        if self.displaced(hello):
            return "spare", "a newer incarnation of this replica is linked"
        if other is not None and other.peer is not None and other.peer.incarnation == hello.incarnation:
            return "spare", "there is a link to this replica already"
        if self.on_use and self._wanted_until.get(hello.name, 0.0) <= trio.current_time():
            return "spare", "the link is opened when it is used"
        slot.learned = False
        return None

    def displaced(self, hello: Hello) -> bool:
        """Whether this incarnation had to make way for one that is linked now: it does not come back meanwhile."""
        return hello.incarnation in self._displaced.get(hello.name, ())

    # ---- what links tell ----------------------------------------------------------------------------------------

    def came_up(self, link: Link, name: str) -> None:
        """A link to a peer is up; it takes the place of any other to the same name."""
        former = self.links.get(name)
        self.links[name] = link
        self.troubles.pop(name, None)
        if former is None or former is link:
            return
        if former.peer is not None and link.peer is not None and former.peer.incarnation != link.peer.incarnation:
            displaced = former.peer.incarnation, *self._displaced.get(name, ())
            self._displaced[name] = displaced[:DISPLACED_MAX]
        slot = self._slot_of(former)
        if slot is None and former not in self._leaving:
            former.drop("replaced", "a newer link between the same replicas took its place")
            return
        if slot is not None:
            slot.learned = True
        former.close("replaced", "a newer link between the same replicas took its place")

    def went_down(self, link: Link, name: str, down: LinkDown) -> None:
        """A link to a peer is no more."""
        if self.links.get(name) is link:
            del self.links[name]
            self._displaced.pop(name, None)
            if name in self._addresses:  # others are not shown, and may be any number
                self.troubles[name] = f"{down.code}: {down.reason}"
        if self._leaving.pop(link, None) is not None:
            link.close("closed", "the peer was removed or has moved")
        elif self.on_use and self._wanted_until.get(name, 0.0) <= trio.current_time():
            slot = self._slot_of(link)
            if slot is not None:
                link.close("closed", "the link is not used")

    def failed(self, link: Link, error: ConnectError) -> None:
        """An attempt did not come up."""
        slot = self._slot_of(link)
        if slot is None:
            return
        if slot.learned:
            link.close("closed", "it need not be dialed")
            return
        self.troubles[slot.name or slot.replica.url] = str(error)
        if slot.name is None and self._crowded:
            slot.look_at = trio.current_time() + LOOK_AGAIN_SECONDS_ON_USE
            link.close("closed", "others are to be dialed first")

    def _slot_of(self, link: Link) -> _Slot | None:
        return next((slot for slot in self._slots.values() if slot.link is link), None)

    # ---- use ----------------------------------------------------------------------------------------------------

    def use(self, partners: Iterable[Identity], remaining: float) -> None:
        """A copy has arrived that names these partners and may last ``remaining`` seconds: there are to be links."""
        now = trio.current_time()
        for partner in partners:
            name = partner.name
            if name == self._own.name:
                continue
            until = now + remaining + self._limits.mesh_idle
            if until > self._wanted_until.get(name, 0.0) and name in self._addresses:
                self._wanted_until[name] = until
            if name not in self.links:
                slot = self._addresses.get(name)
                if slot is not None and slot.link is None and name > self._own.name:
                    slot.learned = False
                    self._dial(slot)

    async def tend(self) -> None:
        """Look around now and then: open what is missing, close what is idle or has left."""
        while True:
            await trio.sleep(TEND_SECONDS)
            now = trio.current_time()
            for link in [link for link, until in self._leaving.items() if until <= now]:
                del self._leaving[link]
                link.close("closed", "the peer was removed or has moved")
            self._wanted_until = {name: until for name, until in self._wanted_until.items() if until > now}
            if self.on_use:
                self._close_idle()
                self.troubles = {name: text for name, text in self.troubles.items() if name in self._wanted_until}
            self.look_around()

    def _close_idle(self) -> None:
        """End what this replica dialed and nobody has used; what others dialed is theirs to end."""
        for slot in self._slots.values():
            link = slot.link
            if link is not None and slot.name is not None and slot.name not in self._wanted_until:
                self.idled += link.up
                link.close("idle", "the link is not used")

    # ---- what can be seen ---------------------------------------------------------------------------------------

    @property
    def dialed(self) -> list[Link]:
        """The links that this replica has dialed."""
        return [*(slot.link for slot in self._slots.values() if slot.link is not None), *self._leaving]

    def link_views(self) -> dict[str, dict[str, Any]]:
        """Each peer that is known or linked: whether its link is up, the latency of a notice, why it is down.

        Where links open on use, those that are up or should be.
        """
        views = {}
        for name in sorted({*(self.troubles if self.on_use else self.known), *self.links}):
            link = self.links.get(name)
            round_trip = None if link is None else link.round_trip
            views[name] = {
                "up": link is not None,
                "notice_latency_ms": None if round_trip is None else round_trip * 500,
                "reason": "" if link is not None else self.troubles.get(name, ""),
            }
        return views

    def view(self) -> dict[str, Any]:
        """How many members there are, others at most one too many, how links open, and how often they did."""
        return {
            "members": len(self.known) + 1,
            "passed_over": self._refused,
            "links": ON_USE if self.on_use else "all",
            "up": len(self.links),
            "opened": self.opened,
            "closed_idle": self.idled,
        }
