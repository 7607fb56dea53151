"""``HedgedTransport``: an httpx transport that hedges, for ``httpx.AsyncClient`` and ``httpx.Client`` alike."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import httpx

from tiedreq.core.checks import check_count
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Hedged, Plain
from tiedreq.core.types import CopyKind
from tiedreq.hedging.observing import Observer
from tiedreq.hedging.race import Flight, Race
from tiedreq.hedging.upstream import ThrottleOptions, Upstream, UpstreamOptions, Upstreams
from tiedreq.httpx.asynchronous import AsyncCarrier
from tiedreq.httpx.rules import SAFE_METHODS, Accept, Endpoint, Hosts, Rules
from tiedreq.httpx.synchronous import SyncCarrier
from tiedreq.httpx.workers import Workers, interruptible

THREADS_MAX = 64
Inner = httpx.AsyncBaseTransport | httpx.BaseTransport


class HedgedTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Sends a second copy of a request that takes too long, to another host if there is one; the first answer wins.

    ``inner`` carries the copies: an httpx transport of the kind that the client needs (one of its own is made and
    closed otherwise). ``hosts`` maps a base URL that callers use to the base URLs that serve it:
    ``{"http://search": ["http://a:8000", "http://b:8000"]}``; the ``Host`` header is the chosen host's unless
    ``keep_host``.

    ``policy`` is a ``Hedged`` (learned delays, extra work of at most 5 % by default) or ``Plain``. ``methods`` are
    those that may be sent twice; one request says so with ``extensions={"tiedreq_hedge": True}`` (or ``False``).
    ``endpoint(request)`` names what the delay is learned for (``endpoint_of`` by default, or the request's extension
    ``tiedreq_endpoint``), ``endpoints_max`` of them for each service. ``accept(response)`` says, by status and headers,
    whether an answer may win; by default 408, 425, 429, 500, 502, 503 and 504 win only when nothing else is left.
    ``failovers`` is how often a failed call is tried at another host (None: once for each other host).
    ``observer(event)`` is told what happens, at once and in the task or thread where it does. ``threads_max`` copies
    are under way at once in threads, for a ``Client``; a call that finds none free runs in its own, without a backup.

    Raises ``BadOption`` for what can't be; requests raise what httpx raises.
    """

    def __init__(
        self,
        inner: Inner | None = None,
        *,
        policy: Hedged | Plain | None = None,
        hosts: Mapping[str, Sequence[str]] | None = None,
        methods: Sequence[str] = SAFE_METHODS,
        endpoint: Endpoint | None = None,
        accept: Accept | None = None,
        observer: Observer | None = None,
        failovers: int | None = None,
        endpoints_max: int = 256,
        services_max: int = 64,
        picker: str = "two-choices",
        throttle: ThrottleOptions | None = None,
        keep_host: bool = False,
        threads_max: int = THREADS_MAX,
        rng: random.Random | None = None,
    ) -> None:
        if inner is not None and not isinstance(inner, httpx.AsyncBaseTransport | httpx.BaseTransport):
            raise BadOption(f"inner: {inner!r} is not an httpx transport")
        if observer is not None and not callable(observer):
            raise BadOption(f"observer: {observer!r} can't be called")
        self._options = UpstreamOptions(
            policy=Hedged() if policy is None else policy,
            failovers=failovers,
            endpoints_max=endpoints_max,
            services_max=services_max,
            picker=picker,
            throttle=ThrottleOptions() if throttle is None else throttle,
        )
        self._hosts = Hosts(hosts, keep_host=keep_host)
        self._rules = Rules(methods, endpoint, accept)
        self._observer = observer
        self._inner = inner
        self._async_inner: httpx.AsyncBaseTransport | None = None
        self._sync_inner: httpx.BaseTransport | None = None
        # Two clocks, so two books: what tasks learn is kept apart from what threads learn.
        self._async_services = Upstreams(self._options, rng)
        self._sync_services = Upstreams(self._options, rng)
        self._lock = threading.RLock()
        self._workers = Workers(check_count("threads_max", threads_max, 1, 10_000))

    # ---- tasks ------------------------------------------------------------------------------------------------

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and a backup if need be. Cancelled, it closes every copy before it returns."""
        inner = self._for_tasks()
        now = anyio.current_time()
        origin, targets = self._hosts.of(request)
        upstream = self._async_services.get(origin, targets, now)
        carrier = AsyncCarrier(inner, partial(self._copy, request, origin), self._rules.accept)
        race, hedged = self._race(request, upstream, carrier, now)
        return await carrier.run(race, hedged=hedged)

    async def aclose(self) -> None:
        """Close what carries the copies."""
        if self._async_inner is not None:
            await self._async_inner.aclose()

    def _for_tasks(self) -> httpx.AsyncBaseTransport:
        if self._async_inner is None:
            inner = httpx.AsyncHTTPTransport() if self._inner is None else self._inner
            if not isinstance(inner, httpx.AsyncBaseTransport):
                raise BadOption(f"inner: {inner!r} is for httpx.Client, and this client is an httpx.AsyncClient")
            self._async_inner = inner
        return self._async_inner

    # ---- threads ----------------------------------------------------------------------------------------------

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and a backup if need be. Any number of threads may call it at once."""
        with self._lock:
            inner = self._for_threads()
            now = time.monotonic()
            origin, targets = self._hosts.of(request)
            upstream = self._sync_services.get(origin, targets, now)
            make_request = partial(self._copy, request, origin)
            carrier = SyncCarrier(inner, make_request, self._rules.accept, self._workers, self._lock)
            race, hedged = self._race(request, upstream, carrier, now)
        return carrier.run(race, hedged=hedged)

    def close(self) -> None:
        """Close what carries the copies, and let the threads end."""
        self._workers.close()
        if self._sync_inner is not None:
            self._sync_inner.close()

    def _for_threads(self) -> httpx.BaseTransport:
        if self._sync_inner is None:
            inner = httpx.HTTPTransport() if self._inner is None else self._inner
            if not isinstance(inner, httpx.BaseTransport):
                raise BadOption(f"inner: {inner!r} is for httpx.AsyncClient, and this client is an httpx.Client")
            self._sync_inner = interruptible(inner)
        return self._sync_inner

    # ---- both -------------------------------------------------------------------------------------------------

    def _race(
        self, request: httpx.Request, upstream: Upstream, carrier: AsyncCarrier | SyncCarrier, now: float
    ) -> tuple[Race, bool]:
        duplicable = self._rules.may_repeat(request)
        endpoint = self._rules.endpoint(request)
        race = Race(upstream, endpoint, carrier, duplicable=duplicable, now=now, observer=self._observer)
        return race, duplicable and isinstance(self._options.policy, Hedged)

    def _copy(self, request: httpx.Request, origin: str, flight: Flight) -> httpx.Request:
        return self._hosts.copy(request, origin, flight.lane.target, first=flight.kind == CopyKind.FIRST)

    def stats(self) -> dict[str, Any]:
        """Counters, hosts, learned delays and budgets of each service, by its base URL, as plain values.

        Durations in seconds, None where nothing is known. A client in threads and one in tasks that share a transport
        learn apart: the services of threads carry the prefix ``threads:``.
        """
        with self._lock:
            shown = {f"threads:{name}": one for name, one in self._sync_services.describe(time.monotonic()).items()}
        if len(self._async_services):
            shown |= self._async_services.describe(self._async_services.latest)
        return shown
