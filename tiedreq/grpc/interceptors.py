"""``Hedging``: what makes the RPCs of a ``grpc.aio`` channel hedged, and what a status means to a race.

As in gRPC proposal A6 ("gRPC Retry Design"): non-fatal statuses don't end a race while another copy lives, a server's
``grpc-retry-pushback-ms`` holds further copies back or, below 0, ends them, and the throttle ends them while many RPCs
fail. Beyond it: delays are learned, and the extra work has a budget.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import Any

import grpc
import grpc.aio

from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Hedged, Plain
from tiedreq.grpc.carrier import STREAM, UNARY, Carrier, Continue, Style
from tiedreq.hedging.observing import Observer
from tiedreq.hedging.race import Flight, Race
from tiedreq.hedging.upstream import ThrottleOptions, Upstream, UpstreamOptions

NON_FATAL = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Statuses that another try may better."""
ANSWERS = frozenset({grpc.StatusCode.NOT_FOUND})
"""Statuses that tell what was asked, and take as long as any other answer."""
PUSHBACK = "grpc-retry-pushback-ms"
GRACE = 1.0
"""Seconds after its deadline in which a copy tells so itself."""


class Hedging:
    """Hedges the RPCs of one channel: ``grpc.aio.insecure_channel(target, interceptors=hedging.interceptors)``.

    ``methods`` are those that may run twice, as ``"/package.Service/Method"`` or ``"/package.Service/*"``; gRPC does
    not say it of any. ``policy`` is a ``Hedged`` (learned delays, extra work of at most 5 % by default) or ``Plain``.
    ``non_fatal`` are the statuses that don't win while another copy lives; ``failovers`` is how often an RPC that ended
    in one is tried again. ``throttle`` are the numbers of A6's throttle. ``observer(event)`` is told what happens.

    The copies of an RPC go where the channel sends them: with ``round_robin`` and several addresses to another server.
    Raises ``BadOption`` for what can't be; RPCs raise what gRPC raises.
    """

    def __init__(
        self,
        methods: Collection[str],
        *,
        policy: Hedged | Plain | None = None,
        non_fatal: Collection[grpc.StatusCode] = NON_FATAL,
        failovers: int = 1,
        throttle: ThrottleOptions | None = None,
        observer: Observer | None = None,
        endpoints_max: int = 256,
        name: str = "channel",
        rng: random.Random | None = None,
    ) -> None:
        self._methods = _check_methods(methods)
        if not all(isinstance(code, grpc.StatusCode) for code in non_fatal):
            raise BadOption(f"non_fatal: {non_fatal!r} are not all of grpc.StatusCode")
        if observer is not None and not callable(observer):
            raise BadOption(f"observer: {observer!r} can't be called")
        self._non_fatal = frozenset(non_fatal)
        self._observer = observer
        options = UpstreamOptions(
            policy=Hedged() if policy is None else policy,
            failovers=failovers,
            throttle=ThrottleOptions() if throttle is None else throttle,
            endpoints_max=endpoints_max,
        )
        self._upstream = Upstream(name, [name], options, random.Random() if rng is None else rng)
        self._latest = 0.0
        self.interceptors: Sequence[grpc.aio.ClientInterceptor] = (_Unary(self), _Stream(self))

    def hedges(self, method: str) -> bool:
        """True for a method that may run twice."""
        return method in self._methods or method.rpartition("/")[0] + "/*" in self._methods

    async def race(self, proceed: Continue, details: Any, request: Any, style: Style) -> Any:
        """The call that won. For the interceptors."""
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        if not self.hedges(method):
            return await proceed(details, request)
        self._latest = now = asyncio.get_running_loop().time()
        deadline = float("inf") if details.timeout is None else now + details.timeout + GRACE
        carrier = Carrier(proceed, details, request, style, self._judge)
        race = Race(
            self._upstream,
            method,
            carrier,
            duplicable=True,
            now=now,
            deadline=deadline,
            observer=self._observer,
            holds=True,
        )
        return await carrier.run(race)

    def _judge(self, race: Race, flight: Flight, call: Any, error: grpc.aio.AioRpcError) -> bool:
        """Tell the race of a copy that did not end well. False: it came too late."""
        code, now = error.code(), asyncio.get_running_loop().time()
        if code in ANSWERS and call is not None:
            return race.answered(flight, call, now)
        reason, retryable = f"{code.name}: {error.details()}", code in self._non_fatal
        pushback = pushback_of(error)
        return race.failed(flight, reason, now, answer=call, error=error, retryable=retryable, pushback=pushback)

    def stats(self) -> dict[str, Any]:
        """Counters, learned delays and budgets by method, as plain values. Durations in seconds, None if unknown."""
        return self._upstream.describe(self._latest)


def _check_methods(methods: object) -> frozenset[str]:
    if isinstance(methods, str) or not isinstance(methods, Collection):
        raise BadOption(f"methods: {methods!r} is not a list of names such as '/package.Service/Method'")
    for name in methods:
        parts = name.split("/") if isinstance(name, str) else []
        if len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
            raise BadOption(f"methods: {name!r} is not '/package.Service/Method' or '/package.Service/*'")
    return frozenset(methods)


def pushback_of(error: grpc.aio.AioRpcError) -> float | None:
    """Seconds for which the server wants no further copy; below 0: no more of this RPC; None: it says nothing.

    Text that is not a number of milliseconds means no more, as the proposal has it.
    """
    for key, value in error.trailing_metadata() or ():
        if key == PUSHBACK:
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
            return int(text) / 1000 if text.isascii() and text.isdigit() else -1.0
    return None


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    """One request, one reply."""

    def __init__(self, hedging: Hedging) -> None:
        self._hedging = hedging

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._hedging.race(continuation, client_call_details, request, UNARY)


class _Stream(grpc.aio.UnaryStreamClientInterceptor):
    """One request, a stream of messages: decided by the first."""

    def __init__(self, hedging: Hedging) -> None:
        self._hedging = hedging

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._hedging.race(continuation, client_call_details, request, STREAM)
