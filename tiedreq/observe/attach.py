"""Ties the observers to what they watch: a replica's server, a client.

``serve()`` and ``connect()`` call these once each; nothing here runs while messages flow.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import trio

from tiedreq.core.errors import BadOption
from tiedreq.observe.announce import announced
from tiedreq.observe.client import ClientObserver
from tiedreq.observe.options import Observe
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.service import Service

if TYPE_CHECKING:
    from tiedreq.net.client import Client
    from tiedreq.net.server import ReplicaServer


def watch_replica(
    server: ReplicaServer, service: Service, cluster: str, observe: Observe | None, nursery: trio.Nursery
) -> None:
    """Let ``server`` be observed from now on, unless ``observe`` is None."""
    if observe is not None:
        server.observer = ReplicaObserver(server, service, cluster=cluster, records=observe.records)
        nursery.start_soon(server.observer.lag.run, name="lag")
        nursery.start_soon(server.observer.pauses.run, name="pauses")
        if observe.tracing is not False:
            tracing = _tracing()
            server.executions.tracer = tracing.OtelReplicaTracer(server.identity.name, _provider(observe))


async def show_replica(
    server: ReplicaServer, observe: Observe | None, token: str | None, nursery: trio.Nursery
) -> str | None:
    """Show ``server`` over HTTP if that was asked for; the URL. Raises ``BadOption``, ``OSError``."""
    if observe is None or observe.listen is None or server.observer is None:
        return None
    from tiedreq.observe.surface import show

    core = server.core
    run = partial(show, server.observer, observe.listen, token=token, ready=lambda: "draining" * core.draining)
    url: str = await nursery.start(run, name="observe")
    return url


async def watch_client(
    client: Client,
    observe: Observe,
    token: str | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Let ``client`` be observed until its observer is stopped. Raises ``BadOption``, ``OSError``."""
    observer = client.observer = ClientObserver(client, calls=observe.calls)
    if observe.tracing is not False:
        client.tracer = _tracing().OtelClientTracer(_provider(observe))
    with observer.scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(observer.lag.run, name="lag")
            if observe.listen is not None:
                from tiedreq.observe.surface import show

                def ready() -> str:
                    return "" if client.stats()["replicas"] else "no replica is connected"

                observer.url = await nursery.start(partial(show, observer, observe.listen, token=token, ready=ready))
            with announced(observe.announce, f"{client.nonce:016x}", observer.url or ""):
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    observer.digest()  # who keeps the client is not to keep its last calls, with their arguments


def _tracing() -> ModuleType:
    """The module ``tracing``. Raises ``BadOption`` where the extra is not installed."""
    try:
        return import_module("tiedreq.observe.tracing")
    except ModuleNotFoundError as error:
        raise BadOption(f"observe.tracing: {error.name} is not installed: pip install 'tiedreq[otel]'") from None


def _provider(observe: Observe) -> Any:
    return None if isinstance(observe.tracing, bool) else observe.tracing
