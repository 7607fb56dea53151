"""Serves the dashboard on Hypercorn's Trio worker, with bounds on what a client can take.

Hypercorn speaks HTTP on a connection; how many there are, and for how long one may take nothing, is decided here. A
client that stops reading loses its connection after ``SEND_SECONDS``: until then at most one answer waits for it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app

from cluster.dashboard.guard import App
from tiedreq.net.addresses import Address
from tiedreq.net.listeners import Acceptor

log = logging.getLogger("dashboard")

CONNECTIONS_MAX = 64
CONNECTIONS_PER_ADDRESS_MAX = 32
SEND_SECONDS = 10.0
IDLE_SECONDS = 30.0
LINGER_SECONDS = 1.0
HEAD_BYTES_MAX = 16 * 1024


class PatientStream:
    """A TCP stream whose sends end in time: one that takes longer breaks the connection. For Hypercorn.

    ``scope`` is for what runs the connection: it ends soon after the other side has said that it sends no more, which
    Hypercorn's own idle time may outlast.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self.scope = trio.CancelScope()
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        """Send, or raise ``trio.BrokenResourceError`` when the other side does not take it in time."""
        with trio.move_on_after(SEND_SECONDS):
            await self._stream.send_all(data)
            return
        self.break_off()
        raise trio.BrokenResourceError("the other side does not read")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See ``trio.SocketStream``."""
        data = bytes(await self._stream.receive_some(max_bytes))
        if not data:
            self.scope.deadline = trio.current_time() + LINGER_SECONDS
        return data

    async def send_eof(self) -> None:
        """See ``trio.SocketStream``."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """See ``trio.SocketStream``."""
        await self._stream.aclose()

    def break_off(self) -> None:
        """End the connection at once; whoever waits on it is told."""
        self.socket.close()


async def serve_dashboard(
    app: App, listeners: list[trio.SocketListener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve ``app`` until cancelled, which ends the connections at once; the listeners are closed."""
    config = Config()
    config.keep_alive_timeout = IDLE_SECONDS
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.h2_max_concurrent_streams = 8
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    context = WorkerContext(None)
    wrapped: Any = wrap_app(cast(Any, app), config.wsgi_max_body_size, "asgi")
    streams: set[PatientStream] = set()

    async def connection(stream: trio.SocketStream, _: Address) -> None:
        patient = PatientStream(stream)
        streams.add(patient)
        server: Any = partial(TCPServer, wrapped, config, context, ConnectionState({}))
        try:
            with patient.scope:
                await server(patient)
        except Exception:
            log.exception("a connection to the dashboard failed")
        finally:
            streams.discard(patient)

    acceptor = Acceptor(
        connection, log, connections_max=CONNECTIONS_MAX, connections_per_address_max=CONNECTIONS_PER_ADDRESS_MAX
    )
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(acceptor.run, listener, nursery)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for stream in streams:  # Hypercorn's sends are shielded: only this ends one that nobody reads
                    stream.break_off()
    finally:
        for listener in listeners:
            listener.socket.close()
