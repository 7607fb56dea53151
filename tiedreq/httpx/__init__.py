"""Hedged requests to HTTP services that are not ours: ``HedgedTransport`` for httpx, on Trio, asyncio and in threads.

The service needs to know nothing. Decided by the same core as everything else in tiedreq: see ``docs/http.md``.
"""

try:
    import httpx  # noqa: F401
except ImportError as error:
    raise ImportError("tiedreq.httpx needs httpx: install tiedreq[httpx]") from error

from tiedreq.hedging.observing import HedgeEvent, Observer
from tiedreq.hedging.upstream import ThrottleOptions
from tiedreq.httpx.rules import SAFE_METHODS, endpoint_of
from tiedreq.httpx.transport import HedgedTransport

__all__ = ["SAFE_METHODS", "HedgeEvent", "HedgedTransport", "Observer", "ThrottleOptions", "endpoint_of"]
