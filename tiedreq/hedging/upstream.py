"""One service that calls go to: its hosts, what was learned of its endpoints, its budget, throttle and counters.

A host is a replica to the picker, with nothing but this client's own copies as its load. A service of which one
address is known (a load balancer, as a rule) gets as many *lanes* as a call may have copies, all to that address: a
backup goes down another lane, and whatever is behind the address gives it to another server.

Not for how copies travel, nor for when they are sent (``core.call``).
"""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiedreq.core.call_stats import CallStats
from tiedreq.core.checks import check_count, check_number
from tiedreq.core.errors import BadOption
from tiedreq.core.messages import Welcome
from tiedreq.core.picker import PICKERS, SUSPICION_SECONDS, ReplicaTable, ReplicaView
from tiedreq.core.policy import Hedged, Plain, check_policy
from tiedreq.core.throttle import TOKENS_MAX, FailureThrottle
from tiedreq.core.types import Identity, MethodInfo
from tiedreq.hedging.starting import StartingBook

HOSTS_MAX = 64
FAILOVERS_MAX = 16
PUSHBACK_MAX = 3_600.0
"""A host that asks for a longer pause, in seconds, gets this one."""
FAILURES_IN_A_ROW = 3
PAYLOAD_MAX = 2**62


class Throttle(FailureThrottle):
    """The failure throttle with numbers of one's own, as in the ``retryThrottling`` of a gRPC service config."""

    __slots__ = ("_options",)

    def __init__(self, options: ThrottleOptions) -> None:
        super().__init__()
        self._options = options
        self.tokens = options.max_tokens

    @property
    def open(self) -> bool:
        """True while further copies may be sent."""
        return self.tokens > self._options.max_tokens / 2

    def answered(self) -> None:
        """An answer was used."""
        self.tokens = min(self._options.max_tokens, self.tokens + self._options.token_ratio)


@dataclass(frozen=True, slots=True)
class ThrottleOptions:
    """``max_tokens`` and ``token_ratio`` of gRPC proposal A6.

    A failure that invites another try takes one token, an answer gives ``token_ratio`` back; with no more than half of
    ``max_tokens`` left, neither backups nor further tries are sent.
    """

    max_tokens: float = TOKENS_MAX
    token_ratio: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", check_number("max_tokens", self.max_tokens, 0.001, 1000.0))
        object.__setattr__(self, "token_ratio", check_number("token_ratio", self.token_ratio, 0.001, 1000.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """How services are called.

    ``policy`` is a ``Hedged`` (the default) or ``Plain``. ``failovers`` is how often a call that failed is tried again
    at another host (None: once for each other host, and never where there is but one address). ``endpoints_max``
    endpoints of a service are learned of, the least recently used makes room. ``services_max`` services are known.
    """

    policy: Hedged | Plain = field(default_factory=Hedged)
    failovers: int | None = None
    endpoints_max: int = 256
    services_max: int = 64
    picker: str = "two-choices"
    throttle: ThrottleOptions = field(default_factory=ThrottleOptions)

    def __post_init__(self) -> None:
        policy = check_policy(self.policy)
        if not isinstance(policy, Hedged | Plain):
            raise BadOption(f"policy: {policy!r} needs replicas that know of ties; give Hedged(…) or Plain()")
        if isinstance(policy, Hedged) and not policy.cancel_losers:
            raise BadOption("policy: cancel_losers=False is for experiments; here every loser is closed")
        if isinstance(policy, Hedged) and policy.backup.since != "send":
            # When an execution starts is not known here: both count from the sending.
            object.__setattr__(self, "policy", replace(policy, backup=replace(policy.backup, since="send")))
        if self.failovers is not None:
            check_count("failovers", self.failovers, 0, FAILOVERS_MAX)
        check_count("endpoints_max", self.endpoints_max, 1, 100_000)
        check_count("services_max", self.services_max, 1, 100_000)
        if self.picker not in PICKERS:
            raise BadOption(f"picker: {self.picker!r} is not one of {', '.join(PICKERS)}")
        if not isinstance(self.throttle, ThrottleOptions):
            raise BadOption(f"throttle: {self.throttle!r} is not ThrottleOptions(…)")


class _Everything(dict[str, MethodInfo]):
    """The method table of a host that says nothing of its methods: whatever is asked for may be there."""

    def __contains__(self, method: object) -> bool:
        return True


class Lane:
    """A way to a host, and a replica to the picker. ``target`` is the host's number in its service."""

    __slots__ = ("failures", "name", "target", "view")

    def __init__(self, link: int, target: int, name: str, lane_name: str) -> None:
        self.target = target
        self.name = name
        self.failures = 0
        self.view = ReplicaView(link, Identity(lane_name, 0), Welcome(1, False, PAYLOAD_MAX, ()))
        self.view.methods = _Everything()


class Upstream:
    """One service: ``targets`` are the names of its hosts, by number."""

    def __init__(self, name: str, targets: Sequence[str], options: UpstreamOptions, rng: random.Random) -> None:
        self.name = name
        self.options = options
        self.table = ReplicaTable(rng, options.picker)
        self.learning = StartingBook(options.endpoints_max)
        self.learning.throttle = Throttle(options.throttle)
        self.stats = CallStats()
        self.nonce = rng.getrandbits(64)
        self.several = len(targets) > 1
        self.failovers = options.failovers
        if self.failovers is None:
            self.failovers = min(len(targets) - 1, FAILOVERS_MAX)
        self.lanes = self._lanes(targets)
        for lane in self.lanes:
            self.table.add(lane.view)
        self._numbers = itertools.count(1)
        self.in_flight = 0

    def _lanes(self, targets: Sequence[str]) -> list[Lane]:
        if self.several:
            return [Lane(number, number, name, name) for number, name in enumerate(targets)]
        policy = self.options.policy
        count = 1 + (policy.backup.max_per_call if isinstance(policy, Hedged) else 0)
        return [Lane(number, 0, targets[0], f"{targets[0]} lane {number}") for number in range(count)]

    def next_number(self) -> int:
        """The number of the next call."""
        return next(self._numbers)

    def push_back(self, lane: Lane, seconds: float, now: float) -> None:
        """The host of ``lane`` asks for a pause: no backups there until then, and no first copies if others serve."""
        until = now + min(seconds, PUSHBACK_MAX)
        for other in self.lanes:
            if other.target == lane.target:
                other.view.pushback_until = max(other.view.pushback_until, until)
                self._pass_over(other, until)

    def unreachable(self, lane: Lane, now: float) -> None:
        """The host of ``lane`` could not be reached: others are tried first for a while."""
        self._pass_over(lane, now + SUSPICION_SECONDS)

    def _pass_over(self, lane: Lane, until: float) -> None:
        """Others are tried first until then. Told last of the longest time, so that none is taken for over before."""
        if not self.several or lane.view.suspected_until >= until:
            return
        self.table.suspect(lane.view.name, until - SUSPICION_SECONDS)
        longest = max((other.view for other in self.lanes), key=lambda view: view.suspected_until)
        self.table.suspect(longest.name, longest.suspected_until - SUSPICION_SECONDS)

    def failed(self, lane: Lane, now: float) -> None:
        """A copy failed at the host of ``lane``: after a few in a row others are tried first for a while."""
        lane.failures += 1
        if lane.failures >= FAILURES_IN_A_ROW:
            self.unreachable(lane, now)

    def answered(self, lane: Lane) -> None:
        """The host of ``lane`` answered."""
        lane.failures = 0

    def describe(self, now: float) -> dict[str, Any]:
        """Counters, and what is known of hosts and endpoints, as plain values. Times in seconds."""
        hosts: dict[str, dict[str, Any]] = {}
        for lane in self.lanes:
            host = hosts.setdefault(lane.name, {"sent": 0, "outstanding": 0, "pushback": 0.0, "on_probation": False})
            view = lane.view
            host["sent"] += view.sent
            host["outstanding"] += view.outstanding
            host["pushback"] = max(host["pushback"], view.pushback_until - now, 0.0)
            host["on_probation"] = host["on_probation"] or view.on_probation
        counters = {name: getattr(self.stats, name) for name in self.stats.__slots__}
        endpoints = {entry.pop("method"): entry for entry in self.learning.view(now)}
        throttle = {"tokens": self.learning.throttle.tokens, "open": self.learning.throttle.open}
        return {
            **counters,
            "in_flight": self.in_flight,
            "hosts": hosts,
            "endpoints": endpoints,
            "throttle": throttle,
        }


class Upstreams:
    """The services that a client knows, at most ``services_max``: the least recently used makes room.

    A clock that runs backwards is another clock (another event loop): what was learned by the old one is forgotten.
    """

    def __init__(self, options: UpstreamOptions, rng: random.Random | None = None) -> None:
        self.options = options
        self._rng = random.Random() if rng is None else rng
        self._known: OrderedDict[str, Upstream] = OrderedDict()
        self.latest = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str, targets: Sequence[str], now: float) -> Upstream:
        """The service of that name; ``targets`` are its hosts if it is new."""
        if now < self.latest:
            self._known.clear()
        self.latest = now
        upstream = self._known.get(name)
        if upstream is None:
            while len(self._known) >= self.options.services_max:
                self._known.popitem(last=False)
            upstream = self._known[name] = Upstream(name, targets, self.options, self._rng)
        else:
            self._known.move_to_end(name)
        return upstream

    def describe(self, now: float) -> dict[str, dict[str, Any]]:
        """What is known of each service, by its name."""
        return {name: upstream.describe(now) for name, upstream in self._known.items()}
