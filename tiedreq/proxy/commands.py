"""What ``tiedreq proxy`` and ``tiedreq front`` do. Each returns the exit code; ``UsageError`` goes up.

Not for the command line itself.
"""

from __future__ import annotations

import logging
import os

import trio

from tiedreq.commands import Where, one_line, say
from tiedreq.errors import ConnectError, UsageError
from tiedreq.net.addresses import Address, is_loopback, parse_address
from tiedreq.net.collecting import spare_the_loop
from tiedreq.net.edge import single_cause
from tiedreq.observe.logs import set_up_logs
from tiedreq.observe.options import Observe
from tiedreq.proxy.crossing import Crossing
from tiedreq.proxy.front import Front, FrontOptions
from tiedreq.proxy.keeper import Sidecars, keep_client
from tiedreq.proxy.listener import HttpListener
from tiedreq.proxy.sidecar import Sidecar, SidecarOptions, http_url
from tiedreq.runner import drain_on_signals

logger = logging.getLogger("tiedreq.proxy")

WAITING_SECONDS = 1.0
"""After that it says what it waits for."""


def run_proxy(options: SidecarOptions, *, log_format: str, log_level: str) -> int:
    """Run one sidecar until it is drained."""
    set_up_logs(log_format, log_level)
    return _run(lambda: _proxy(options))


async def _proxy(options: SidecarOptions) -> None:
    sidecar = Sidecar(options)
    async with trio.open_nursery() as nursery:
        await nursery.start(drain_on_signals, sidecar, options.drain_timeout)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            await sidecar.run(task_status=task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(run)
        if options.token is None and not is_loopback(parse_address(options.listen).host):
            logger.warning("no --token-file: whoever reaches %s may send requests", options.listen)
        with trio.move_on_after(WAITING_SECONDS):
            await sidecar.ready.wait()
        if not sidecar.ready.is_set():
            logger.warning("waiting for the upstream %s: %s", options.upstream, sidecar.health.reason)
        await sidecar.ready.wait()
        assert sidecar.handle is not None
        spare_the_loop()
        print(" ".join(filter(None, ["ready", options.name, sidecar.handle.url, sidecar.http_url])), flush=True)


def run_front(
    where: Where,
    listen: str,
    options: FrontOptions,
    *,
    observe: Observe,
    drain_timeout: float,
    log_format: str,
    log_level: str,
) -> int:
    """Run one front until it is drained."""
    set_up_logs(log_format, log_level)
    return _run(lambda: _front(where, listen, options, observe, drain_timeout))


class _Drains:
    """A front that takes no more, and ends once the last answer has been given, or the time for that is over."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self.begun = trio.Event()

    def drain(self) -> None:
        """Begin to drain."""
        self._listener.drain()
        self.begun.set()


async def _front(where: Where, listen: str, options: FrontOptions, observe: Observe, drain_timeout: float) -> None:
    tls = where.tls(where.urls())
    front = Front(options, Crossing(tls))
    listener = HttpListener(front.handle, options.limits)
    drains = _Drains(listener)
    sidecars = Sidecars(replicas=where.replicas, token=where.token, cluster=where.cluster, tls=tls, observe=observe)
    async with trio.open_nursery() as nursery:
        await nursery.start(drain_on_signals, drains, drain_timeout)
        bound: Address = await nursery.start(listener.run, listen)
        nursery.start_soon(front.run)
        nursery.start_soon(keep_client, front, sidecars)
        nursery.start_soon(_say_ready, front, bound)
        await drains.begun.wait()
        with trio.move_on_after(drain_timeout):
            await listener.over.wait()
        nursery.cancel_scope.cancel()


async def _say_ready(front: Front, bound: Address) -> None:
    await front.connected.wait()
    spare_the_loop()
    print(f"ready {http_url(bound)}", flush=True)


def _run(program: object) -> int:
    """Run ``program`` on Trio; what can't be helped becomes one line."""
    try:
        trio.run(program)  # type: ignore[arg-type]
    except BaseExceptionGroup as group:
        error = single_cause(group)
    except Exception as raised:
        error = raised
    else:
        return 0
    if isinstance(error, UsageError):
        raise error
    if isinstance(error, ConnectError):
        say(f"{type(error).__name__}: {one_line(str(error))}")
    elif isinstance(error, OSError) and error.errno is not None:
        reason = (error.strerror or os.strerror(error.errno)).lower()
        say(f"can't listen at {error.filename or 'that address'}: {reason}")
    else:
        raise error
    return 1
