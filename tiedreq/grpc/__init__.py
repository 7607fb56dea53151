"""Hedged RPCs to gRPC services that are not ours: ``Hedging`` and its client interceptors for ``grpc.aio``.

The service needs to know nothing. Decided by the same core as everything else in tiedreq: see ``docs/grpc.md``.
"""

try:
    import grpc  # noqa: F401
except ImportError as error:
    raise ImportError("tiedreq.grpc needs grpcio: install tiedreq[grpc]") from error

from tiedreq.grpc.interceptors import NON_FATAL, Hedging
from tiedreq.hedging.observing import HedgeEvent, Observer
from tiedreq.hedging.upstream import ThrottleOptions

__all__ = ["NON_FATAL", "HedgeEvent", "Hedging", "Observer", "ThrottleOptions"]
