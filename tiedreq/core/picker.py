"""What a client knows of its replicas, and the choice of one.

The load of a replica, in copies, is

    (queued + running) x max(0, 1 - age)  +  own outstanding not yet reported

where ``queued`` and ``running`` are the replica's last report, ``age`` the report's age in seconds (a report is worth
nothing after one), and the last term counts the Submits sent on this connection that the report can't include yet.
An idle replica and one that nothing is known of count alike, so that neither is passed over for ever.

Pickers, by name: ``random``; ``two-choices``, two random candidates of which the one with less load is taken
(Mitzenmacher, "The power of two choices in randomized load balancing", 2001); ``least-outstanding``, the one with the
fewest copies of this client's own that have not ended, of two random ones where many are in zones or groups;
``adaptive``, two random candidates by

    (load + 1) x slowness

with the slowness of ``core.health`` as far as it is certain, and slow or failing replicas on probation.

Where replicas stand in zones, ``core.zones`` says in which of them a copy goes, and the picker chooses there. Copies of
one tie stay in one of the groups of ``core.groups``, as far as it has replicas that may have them. A choice costs the
same however many replicas there are: among many, two are drawn anew until both may have the copy. (Where next to none
of them may, all are looked through; and so are those on probation, as often as one is released or tried.)

What is known belongs to a connection, not to a name: a new link starts with nothing known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tiedreq.core.errors import BadOption
from tiedreq.core.health import FAILING, TRIAL_EVERY, Health, MethodMeans, outlies
from tiedreq.core.messages import Welcome
from tiedreq.core.names import DONE, FAILED
from tiedreq.core.probation import Probation
from tiedreq.core.serving import Serving
from tiedreq.core.types import Identity, Load, MethodInfo, RandomSource

if TYPE_CHECKING:
    from tiedreq.core.sent_copy import SentCopy

PICKERS = ("random", "two-choices", "least-outstanding", "adaptive")

METHODS_MAX = 4096
"""For how many methods it is remembered who serves them."""
MANY = 8
"""Of more replicas than these two are drawn, without looking through all, where there are zones or groups."""
DRAWS_MAX = 32
"""So often two of many are drawn before all are looked through after all."""
OTHERS_MAX = 64
"""With so many others is a replica compared that seems to be slow."""
_SAMPLE_POOL_MAX = 21
"""``Random.sample`` draws two of more than these in another way."""
SUSPICION_SECONDS = 2.0
"""How long a replica whose peers can't reach it is passed over, unless it is heard of before."""
REPORT_LIFE = 1.0
"""Seconds after which a report of load counts for nothing."""


class ReplicaView:
    """One replica over one link, as this client sees it. Durations are seconds, None where not measured yet."""

    __slots__ = (
        "draining",
        "free",
        "health",
        "identity",
        "link",
        "methods",
        "name",
        "notice_latencies",
        "on_probation",
        "outstanding",
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
        "zone",
    )

    def __init__(self, link: int, identity: Identity, welcome: Welcome) -> None:
        self.link = link
        self.identity = identity
        self.name = identity.name
        self.zone = welcome.zone
        self.slots = welcome.slots
        self.draining = welcome.draining
        self.payload_bytes_max = welcome.payload_bytes_max
        self.methods: dict[str, MethodInfo] = {info.name: info for info in welcome.methods}
        self.queued = 0
        self.free = welcome.slots
        self.received = 0
        self.sent = 0
        self.outstanding = 0
        self.health = Health()
        self.on_probation = False
        self.reported_at: float | None = None
        self.pushback_until = 0.0
        self.suspected_until = 0.0
        self.round_trip: float | None = None
        self.round_trip_deviation: float | None = None
        self.notice_latencies: dict[str, float] = {}

    def take_load(self, load: Load, now: float) -> None:
        """Take in a report of load that came with a message."""
        self.queued, self.free, received, pushback = load
        if received > self.received:
            self.received = received
        self.reported_at = now
        self.suspected_until = 0.0
        if pushback > 0:
            self.pushback_until = max(self.pushback_until, now + pushback)

    def unreported(self) -> int:
        """Submits sent that the last report does not include."""
        return max(0, self.sent - self.received)

    def load(self, now: float) -> float:
        """The module's formula, in copies."""
        outstanding = float(self.sent - self.received) if self.sent > self.received else 0.0
        reported_at = self.reported_at
        if reported_at is None:
            return outstanding
        weight = 1.0 - (now - reported_at) / REPORT_LIFE
        return (self.queued + self.slots - self.free) * weight + outstanding if weight > 0.0 else outstanding

    def busy(self, now: float) -> bool:
        """True when a fresh report said: a queue, and no free slot."""
        fresh = self.reported_at is not None and now - self.reported_at < REPORT_LIFE
        return fresh and self.queued > 0 and self.free <= 0


def _able(view: ReplicaView, hidden: Collection[str], now: float, pushed_back: bool) -> bool:
    """Whether a replica surely may have a copy, also one that asked for no backups if ``pushed_back``."""
    return not (
        view.name in hidden
        or view.draining
        or view.on_probation
        or view.suspected_until > now
        or (not pushed_back and view.pushback_until > now)
    )


class ReplicaTable:
    """The replicas that a client is connected to, and the picker over them. The client itself is in ``zone``.

    At most one view per name is offered (the newest link), so that two addresses of one replica never count as two.
    """

    def __init__(self, rng: RandomSource, picker: str = "two-choices", zone: str = "") -> None:
        if picker not in PICKERS:
            raise BadOption(f"picker: {picker!r} is not one of {', '.join(PICKERS)}")
        self.picker = picker
        self.zone = zone
        self._adaptive = picker == "adaptive"
        self._drawing = picker in ("adaptive", "two-choices")
        self._means = MethodMeans()
        self._probation = Probation()
        self._sample: list[int] = []  # links of replicas to compare another one with; empty: to be taken
        self._rng = rng
        self._views: dict[int, ReplicaView] = {}
        self._links: dict[str, int] = {}
        self._serving: dict[str, Serving] = {}  # by method, as far as it was asked for
        self._suspicion_ends = 0.0

    def __len__(self) -> int:
        return len(self._links)

    def add(self, view: ReplicaView) -> None:
        """A link is up."""
        self._views[view.link] = view
        self._links[view.name] = view.link
        self._suspicion_ends = max(self._suspicion_ends, view.suspected_until)
        self._serving.clear()
        self._sample.clear()

    def remove(self, link: int) -> None:
        """A link is gone. Another link to the same replica, if there is one, takes its place."""
        view = self._views.pop(link, None)
        self._serving.clear()
        self._sample.clear()
        self._probation.views.pop(link, None)
        if view is None or self._links.get(view.name) != link:
            return
        del self._links[view.name]
        for other in self._views.values():
            if other.name == view.name:
                self._links[view.name] = other.link

    def get(self, link: int) -> ReplicaView | None:
        """The view of one link."""
        return self._views.get(link)

    def knows(self, name: str) -> bool:
        """Whether a replica of that name is connected."""
        return name in self._links

    def views(self) -> list[ReplicaView]:
        """One view per replica."""
        return [self._views[link] for link in self._links.values()]

    def suspect(self, name: str, now: float) -> None:
        """A peer says that it lost this replica: pass it over for a while, or until it is heard of."""
        link = self._links.get(name)
        if link is not None:
            self._views[link].suspected_until = self._suspicion_ends = now + SUSPICION_SECONDS

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
            all(info.stream for info in known),
        )

    def candidates(self, method: str, now: float, exclude: Iterable[str] = ()) -> list[ReplicaView]:
        """Replicas that serve ``method``, take work, and are not excluded by name; suspected ones only if no other."""
        serving = (self._serving.get(method) or self._serving_of(method)).views
        hidden = set(exclude) if exclude else ()
        if hidden:
            views = [view for view in serving if not view.draining and view.name not in hidden]
        else:
            views = [view for view in serving if not view.draining]
        if self._probation.views:
            self._probation.release(now)
            views = [view for view in views if not view.on_probation] or views
        if self._suspicion_ends > now:
            return [view for view in views if view.suspected_until <= now] or views
        return views

    def _serving_of(self, method: str) -> Serving:
        serving = self._serving.get(method)
        if serving is None:
            serving = Serving([view for view in self.views() if method in view.methods])
            if len(self._serving) < METHODS_MAX:
                self._serving[method] = serving
        return serving

    def choose_more(
        self,
        chosen: list[ReplicaView],
        width: int,
        method: str,
        now: float,
        mean: float | None = None,
        exclude: Collection[str] = (),
    ) -> None:
        """Add replicas to ``chosen``, in order of rank, until there are ``width``, as far as there are any.

        ``mean`` is the method's mean service time in seconds, None where it is not known; ``exclude`` are names.
        """
        serving = self._serving.get(method) or self._serving_of(method)
        if serving.simple:
            pool = self.candidates(method, now, exclude)
            if chosen:
                pool = [view for view in pool if view not in chosen]
            while len(chosen) < width and (view := self.choose(pool, now)) is not None:
                chosen.append(view)
                if len(chosen) < width:
                    pool.remove(view)
            return
        hidden = {*exclude, *(view.name for view in chosen)}
        while len(chosen) < width:
            choice = self._choose_in_zones(serving, chosen, hidden, now, mean)
            if choice is None:
                choice = self.choose(self.candidates(method, now, hidden), now)
            if choice is None:
                return
            chosen.append(choice)
            hidden.add(choice.name)

    def _choose_in_zones(
        self, serving: Serving, chosen: Sequence[ReplicaView], hidden: Collection[str], now: float, mean: float | None
    ) -> ReplicaView | None:
        """One more replica, none on probation or suspected; None when only such are left, or none."""

        def draw(views: list[ReplicaView]) -> ReplicaView | None:
            return self._draw_able(views, hidden, now)

        if self._probation.views:
            self._probation.release(now)
        return serving.choose_more(chosen, self.zone, draw, now, mean)

    def choose_backup(
        self,
        method: str,
        now: float,
        mean: float | None,
        exclude: Collection[str],
        held: Sequence[ReplicaView],
    ) -> ReplicaView | None:
        """A replica for a backup: not excluded by name, without push-back. Copies at ``held`` are still out."""
        serving = self._serving_of(method)
        if not serving.simple:

            def draw(views: list[ReplicaView]) -> ReplicaView | None:
                return self._draw_able(views, exclude, now, pushed_back=False)

            if self._probation.views:
                self._probation.release(now)
            view = serving.choose_backup(held, self.zone, draw, now, mean)
            if view is not None:
                return view
        pool = [view for view in self.candidates(method, now, exclude) if view.pushback_until <= now]
        return self.choose(pool, now)

    def _draw_able(
        self, views: list[ReplicaView], hidden: Collection[str], now: float, *, pushed_back: bool = True
    ) -> ReplicaView | None:
        """The picker's choice among those of ``views`` that surely may have a copy; None when there is none."""
        count = len(views)
        if count > MANY:
            first = None
            for _ in range(DRAWS_MAX):
                view = views[int(self._rng.random() * count)]
                if view is not first and _able(view, hidden, now, pushed_back):
                    if first is not None:
                        return self._better(first, view, now)
                    first = view
        return self.choose([view for view in views if _able(view, hidden, now, pushed_back)], now)

    def choose(self, candidates: list[ReplicaView], now: float) -> ReplicaView | None:
        """One of the candidates, by the picker; None when there is none. A draw goes to the first drawn."""
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        if self._drawing:
            first, second = self._draw_two(candidates)
            return self._better(first, second, now)
        if self.picker == "least-outstanding":
            return min(self._rng.sample(candidates, len(candidates)), key=lambda view: view.outstanding)
        return self._rng.sample(candidates, 1)[0]

    def _better(self, first: ReplicaView, second: ReplicaView, now: float) -> ReplicaView:
        """The one of two that were drawn that the picker takes."""
        if self._adaptive:
            ours = (first.load(now) + 1) * first.health.weight(now)
            theirs = (second.load(now) + 1) * second.health.weight(now)
            return second if theirs < ours else first
        if self._drawing:
            return second if second.load(now) < first.load(now) else first
        if self.picker == "random":
            return first
        return second if second.outstanding < first.outstanding else first

    def _draw_two(self, candidates: list[ReplicaView]) -> list[ReplicaView]:
        """As ``sample(candidates, 2)``, with the very same random bits and a fifth of the work."""
        count, rng = len(candidates), self._rng
        if type(rng) is not Random or count > _SAMPLE_POOL_MAX:
            return rng.sample(candidates, 2)
        bits = rng.getrandbits
        width = count.bit_length()
        first = bits(width)
        while first >= count:
            first = bits(width)
        left = count - 1
        width = left.bit_length()
        second = bits(width)
        while second >= left:
            second = bits(width)
        return [candidates[first], candidates[left if second == first else second]]

    # ---- slow and failing replicas ----------------------------------------------------------------------------

    def copy_ended(
        self, view: ReplicaView, copy: SentCopy, method: str, busy: float, now: float, *, final: bool
    ) -> None:
        """A copy ended at a replica, after ``busy`` seconds of execution where that is known."""
        if not self._adaptive:
            return
        state = copy.state
        if state == DONE:
            self._took(view, method, busy, now, ended=True)
        elif state == FAILED:
            if not final:
                view.health.fail()
        elif copy.started_at is not None:
            self._took(view, method, now - copy.started_at, now, ended=False)
        self._judge(view, now)

    def copy_stopped(self, view: ReplicaView, copy: SentCopy, method: str, now: float) -> None:
        """A copy is no longer wanted while its replica still has it."""
        if self._adaptive and copy.started_at is not None:
            self._took(view, method, now - copy.started_at, now, ended=False)
            self._judge(view, now)

    def _took(self, view: ReplicaView, method: str, seconds: float, now: float, *, ended: bool) -> None:
        """An execution took that long, to its end or until it was stopped."""
        self._means.add(method, seconds, ended=ended)
        view.health.add(self._means.relative(method, seconds), now, ended=ended)

    def _judge(self, view: ReplicaView, now: float) -> None:
        health = view.health
        if view.on_probation:
            if health.recovered():
                self._probation.end(view)
        elif health.weight(now) > 1 or health.failing > FAILING:
            if len(self._probation.views) >= len(self._links) // 3:
                return
            others = [other.health for other in self._others() if other is not view and not other.on_probation]
            if outlies(health, others):
                self._probation.put(view, now)

    def put_on_probation(self, view: ReplicaView, now: float) -> None:
        """From now on a replica gets trial copies only, for a while."""
        self._probation.put(view, now)

    def _others(self) -> list[ReplicaView]:
        """Whom a replica is compared with: all, or of many some, evenly."""
        if not self._sample:
            links = list(self._links.values())
            self._sample = links[:: 1 + len(links) // OTHERS_MAX]
        return [self._views[link] for link in self._sample]

    @property
    def trial_at(self) -> float:
        """Before that ``try_out`` changes nothing."""
        return self._probation.trial_at

    def try_out(self, chosen: list[ReplicaView], method: str, now: float) -> None:
        """Now and then the last of a tie's replicas is one on probation instead, of the same group."""
        if now < self._probation.trial_at:
            return
        serving = self._serving_of(method)
        group = serving.group(chosen[0])
        for view in self._probation.due(now):
            newest = self._links.get(view.name) == view.link
            fit = newest and method in view.methods and not view.draining
            if fit and (view in chosen or serving.group(view) is group):
                view.health.trial_at = now + TRIAL_EVERY
                if view not in chosen:
                    chosen[-1] = view
                break
        self._probation.tried()
