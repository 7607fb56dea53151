"""Tied requests between the replicas of a service, on Trio.

A request waits in the queues of two replicas; the one that starts it tells the other, which drops its copy.
"""

from typing import TYPE_CHECKING

from tiedreq.core import replica as _replica
from tiedreq.core.limits import ClientLimits, ReplicaLimits
from tiedreq.core.policy import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.errors import (
    AuthRefused,
    BadOption,
    CallError,
    ConnectError,
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    RemoteFailure,
    StreamInterrupted,
    TiedreqError,
    TooLarge,
    Unavailable,
    UnknownMethod,
    UnsafeToDuplicate,
    UsageError,
    VersionMismatch,
)
from tiedreq.net.client import Client
from tiedreq.net.connecting import connect
from tiedreq.net.serving import ReplicaHandle, serve
from tiedreq.net.stream import Stream
from tiedreq.observe.options import Observe
from tiedreq.reply import Attempt, Reply
from tiedreq.service import Context, Failure, Service

__version__ = "0.1.0"

compiled = not str(_replica.__file__).endswith(".py")
"""True where the cores are C extensions (a wheel built with ``TIEDREQ_COMPILE=1``); they behave the same."""

__all__ = [
    "Attempt",
    "AuthRefused",
    "Auto",
    "Backup",
    "BadOption",
    "CallError",
    "Client",
    "ClientLimits",
    "ConnectError",
    "Context",
    "DeadlineExceeded",
    "Failure",
    "Hedged",
    "Observe",
    "OutcomeUnknown",
    "Overloaded",
    "Plain",
    "Policy",
    "RemoteFailure",
    "ReplicaHandle",
    "ReplicaLimits",
    "Reply",
    "Service",
    "Stream",
    "StreamInterrupted",
    "Tied",
    "TiedreqError",
    "TooLarge",
    "Unavailable",
    "UnknownMethod",
    "UnsafeToDuplicate",
    "UsageError",
    "VersionMismatch",
    "compiled",
    "connect",
    "serve",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The clients that are not for Trio, and ``testing``, are imported when they are first used."""
        if name in ("aio", "blocking", "testing"):
            from importlib import import_module

            return import_module(f"tiedreq.{name}")
        raise AttributeError(f"module 'tiedreq' has no attribute {name!r}")
