"""Keeps a front supplied with a client: connects, and connects anew until it may end."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from tiedreq.core.limits import ClientLimits
from tiedreq.errors import AuthRefused, ConnectError, VersionMismatch
from tiedreq.net.connecting import connect
from tiedreq.net.quiet import QuietLog
from tiedreq.observe.options import Observe
from tiedreq.proxy.front import Front

logger = logging.getLogger("tiedreq.proxy")

CONNECT_SECONDS = 5.0
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecars:
    """Where the sidecars are, and what it takes to get in: as ``tiedreq.connect`` takes it."""

    replicas: str | os.PathLike[str] | Sequence[str] | None
    token: str | None = None
    cluster: str | None = None
    tls: ssl.SSLContext | None = None
    observe: Observe | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)


async def keep_client(front: Front, where: Sidecars, *, patient: bool = False) -> None:
    """Give ``front`` a client, until cancelled. Until a replica is reached it tries again.

    Raises ``BadOption``; and ``AuthRefused`` and ``VersionMismatch``, which last until somebody changes something,
    unless it is ``patient``.
    """
    quiet = QuietLog(logger)
    while True:
        try:
            async with connect(
                where.replicas,
                token=where.token,
                cluster=where.cluster,
                ssl_context=where.tls,
                timeout=CONNECT_SECONDS,
                limits=where.limits,
                observe=where.observe,
            ) as client:
                front.client = client
                front.connected.set()
                try:
                    await trio.sleep_forever()
                finally:
                    front.client = None
        except ConnectError as error:
            if isinstance(error, AuthRefused | VersionMismatch) and not patient:
                raise
            quiet.log("connect", logging.WARNING, "%s", error)
            await trio.sleep(PAUSE_SECONDS)
