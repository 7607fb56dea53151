"""What a client knows of its replicas, and the choice of one: two random candidates, the less loaded wins.

The load of a replica, in copies, is

    (queued + running) x max(0, 1 - age)  +  own outstanding not yet reported

where ``queued`` and ``running`` are the replica's last report, ``age`` the report's age in seconds (a report is worth
nothing after one), and the last term counts the Submits sent on this connection that the report can't include yet.
An idle replica and one that nothing is known of count alike, so that neither is passed over for ever.
Mitzenmacher, "The power of two choices in randomized load balancing" (2001).

What is known belongs to a connection, not to a name: a new link starts with nothing known.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiedreq.core.messages import Welcome
from tiedreq.core.types import Identity, Load, MethodInfo, RandomSource

SUSPICION_SECONDS = 2.0
"""How long a replica whose peers can't reach it is passed over, unless it is heard of before."""
REPORT_LIFE = 1.0
"""Seconds after which a report of load counts for nothing."""


class ReplicaView:
    """One replica over one link, as this client sees it. Durations are seconds, None where not measured yet."""

    __slots__ = (
        "draining",
        "free",
        "identity",
        "link",
        "methods",
        "notice_latencies",
        "payload_bytes_max",
        "pushback_until",
        "queued",
        "received",
        "reported_at",
        "round_trip",
        "round_trip_deviation",
        "sent",
        "slots",
        "suspected_until",
    )

    def __init__(self, link: int, identity: Identity, welcome: Welcome) -> None:
        self.link = link
        self.identity = identity
        self.slots = welcome.slots
        self.draining = welcome.draining
        self.payload_bytes_max = welcome.payload_bytes_max
        self.methods: dict[str, MethodInfo] = {info.name: info for info in welcome.methods}
        self.queued = 0
        self.free = welcome.slots
        self.received = 0
        self.sent = 0
        self.reported_at: float | None = None
        self.pushback_until = 0.0
        self.suspected_until = 0.0
        self.round_trip: float | None = None
        self.round_trip_deviation: float | None = None
        self.notice_latencies: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.identity.name

    def take_load(self, load: Load, now: float) -> None:
        """Take in a report of load that came with a message."""
        self.queued = load.queued
        self.free = load.free
        self.received = max(self.received, load.received)
        self.reported_at = now
        self.suspected_until = 0.0
        if load.pushback > 0:
            self.pushback_until = max(self.pushback_until, now + load.pushback)

    def unreported(self) -> int:
        """Submits sent that the last report does not include."""
        return max(0, self.sent - self.received)

    def load(self, now: float) -> float:
        """The module's formula, in copies."""
        outstanding = float(self.unreported())
        if self.reported_at is None:
            return outstanding
        weight = max(0.0, 1.0 - (now - self.reported_at) / REPORT_LIFE)
        return (self.queued + self.slots - self.free) * weight + outstanding

    def busy(self, now: float) -> bool:
        """True when a fresh report said: a queue, and no free slot."""
        fresh = self.reported_at is not None and now - self.reported_at < REPORT_LIFE
        return fresh and self.queued > 0 and self.free <= 0


class ReplicaTable:
    """The replicas that a client is connected to, and the picker over them.

    At most one view per name is offered (the newest link), so that two addresses of one replica never count as two.
    """

    def __init__(self, rng: RandomSource) -> None:
        self._rng = rng
        self._views: dict[int, ReplicaView] = {}
        self._links: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._links)

    def add(self, view: ReplicaView) -> None:
        """A link is up."""
        self._views[view.link] = view
        self._links[view.name] = view.link

    def remove(self, link: int) -> None:
        """A link is gone. Another link to the same replica, if there is one, takes its place."""
        view = self._views.pop(link, None)
        if view is None or self._links.get(view.name) != link:
            return
        del self._links[view.name]
        for other in self._views.values():
            if other.name == view.name:
                self._links[view.name] = other.link

    def get(self, link: int) -> ReplicaView | None:
        """The view of one link."""
        return self._views.get(link)

    def views(self) -> list[ReplicaView]:
        """One view per replica."""
        return [self._views[link] for link in self._links.values()]

    def suspect(self, name: str, now: float) -> None:
        """A peer says that it lost this replica: pass it over for a while, or until it is heard of."""
        link = self._links.get(name)
        if link is not None:
            self._views[link].suspected_until = now + SUSPICION_SECONDS

    def method(self, name: str) -> MethodInfo | None:
        """The method as all replicas that serve it agree on: idempotent only if each says so, the least time."""
        known = [view.methods[name] for view in self.views() if name in view.methods]
        if not known:
            return None
        return MethodInfo(
            name,
            all(info.idempotent for info in known),
            all(info.stoppable for info in known),
            min(info.timeout_max for info in known),
        )

    def candidates(self, method: str, now: float, exclude: Iterable[str] = ()) -> list[ReplicaView]:
        """Replicas that serve ``method``, take work, and are not excluded by name; suspected ones only if no other."""
        hidden = set(exclude)
        views = [
            view for view in self.views() if not view.draining and view.name not in hidden and method in view.methods
        ]
        return [view for view in views if view.suspected_until <= now] or views

    def choose(self, candidates: list[ReplicaView], now: float) -> ReplicaView | None:
        """The less loaded of two random candidates; None when there is none. A draw goes to the first drawn."""
        if not candidates:
            return None
        if len(candidates) == 1:
            return candidates[0]
        first, second = self._rng.sample(candidates, 2)
        return second if second.load(now) < first.load(now) else first
