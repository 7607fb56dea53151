"""Listening sockets: open them, accept from them, turn away what is too much.

Knows nothing of what the connections speak.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from tiedreq.net.addresses import Address
from tiedreq.net.quiet import QuietLog

_SHARED_PORT_TRIES = 16
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_ACCEPT_PAUSE_SECONDS = 0.1


def bound_address(listener: trio.SocketListener) -> Address:
    """Where a listener listens."""
    host, port = listener.socket.getsockname()[:2]
    return Address(host, port)


def peer_address(stream: trio.SocketStream) -> Address:
    """Where the other side is; it may be gone already."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return Address("gone", 0)
    return Address(host, port)


async def open_listeners(address: Address) -> list[trio.SocketListener]:
    """Listen at every address that the host stands for, all at one port, even where that is 0 (any free one).

    Raises ``OSError``: the port is taken, or the host can't be bound here.
    """
    for _ in range(_SHARED_PORT_TRIES):
        listeners = await trio.open_tcp_listeners(address.port, host=address.host or None)
        ports = {bound_address(listener).port for listener in listeners}
        if len(ports) == 1:
            return listeners
        try:
            return [listeners[0], *await _follow(listeners)]
        except OSError as error:
            for listener in listeners:
                await trio.aclose_forcefully(listener)
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port is free at every address of {address.host!r}")


async def _follow(listeners: list[trio.SocketListener]) -> list[trio.SocketListener]:
    """Bind the addresses of all listeners but the first again, at the first one's port."""
    port = bound_address(listeners[0]).port
    moved: list[trio.SocketListener] = []
    try:
        for listener in listeners[1:]:
            host = bound_address(listener).host
            await trio.aclose_forcefully(listener)
            moved += await trio.open_tcp_listeners(port, host=host)
    except BaseException:
        for listener in moved:
            await trio.aclose_forcefully(listener)
        raise
    return moved


class Acceptor:
    """Accepts from listeners and starts ``connection`` for each stream, within limits.

    Out of file descriptors it waits and says so once a minute; accepting goes on by itself when some are free again.
    A connection beyond ``connections_max``, or ``connections_per_address_max`` from one host, is closed unread.
    ``connection`` must not raise.
    """

    def __init__(
        self,
        connection: Callable[[trio.SocketStream, Address], Awaitable[None]],
        logger: logging.Logger,
        *,
        connections_max: int,
        connections_per_address_max: int | None,
    ) -> None:
        self._connection = connection
        self._connections_max = connections_max
        self._per_address_max = connections_per_address_max or connections_max
        self._by_host: Counter[str] = Counter()
        self._quiet = QuietLog(logger)
        self._exhausted = QuietLog(logger, lines_max=1, window=60.0)

    async def run(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept until cancelled; connections run in ``nursery``."""
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                text = "cannot accept connections for now: %s; raise the limit (ulimit -n) or connect less often"
                self._exhausted.log("accept", logging.WARNING, text, error.strerror)
                await trio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            address = peer_address(stream)
            if self._by_host.total() >= self._connections_max:
                self._turn_away(stream, address, f"{self._connections_max} connections are open")
            elif self._by_host[address.host] >= self._per_address_max:
                self._turn_away(stream, address, f"{self._per_address_max} connections from there are open")
            else:
                self._by_host[address.host] += 1
                nursery.start_soon(self._run_connection, stream, address)

    async def _run_connection(self, stream: trio.SocketStream, address: Address) -> None:
        try:
            await self._connection(stream, address)
        finally:
            stream.socket.close()
            self._by_host[address.host] -= 1
            if not self._by_host[address.host]:
                del self._by_host[address.host]

    def _turn_away(self, stream: trio.SocketStream, address: Address, why: str) -> None:
        stream.socket.close()
        self._quiet.log("turned away", logging.WARNING, "connection from %s turned away: %s", address, why)
