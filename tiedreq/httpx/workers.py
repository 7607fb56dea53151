"""Threads that carry copies for a synchronous client: bounded in number, kept for the next copy, and interruptible.

A thread that waits for a socket can't be stopped, but its socket can be shut down: then the read returns. So the
connections of an httpx transport for HTTP/1.1 note which socket the copy of a thread waits for (``interruptible``).
With HTTP/2, where many requests share a connection, and with other transports, a loser ends by itself at the latest
when its timeout passes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import httpcore
import httpx

_copies = threading.local()


class Interrupt:
    """Ends the wait of one copy. At most one thread carries a copy at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fired = False
        self._socket: socket.socket | None = None

    @property
    def fired(self) -> bool:
        """True once the copy is not wanted any more."""
        return self._fired

    def fire(self) -> None:
        """The copy is not wanted any more: end what its thread waits for."""
        with self._lock:
            self._fired = True
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def waits_for(self, waited: Any) -> None:
        """The thread of this copy is about to use a socket, or (None) has done so. Raises ``httpcore.ReadError``."""
        with self._lock:
            if self._fired and waited is not None:
                raise httpcore.ReadError("another copy of the request has won")
            self._socket = waited if isinstance(waited, socket.socket) else None

    def __enter__(self) -> Interrupt:
        _copies.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _copies.current = None


class _Stream(httpcore.NetworkStream):
    """A connection whose waits can be ended."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._socket = stream.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        copy = getattr(_copies, "current", None)
        if copy is None:
            return self._stream.read(max_bytes, timeout)
        copy.waits_for(self._socket)
        try:
            return self._stream.read(max_bytes, timeout)
        finally:
            copy.waits_for(None)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        copy = getattr(_copies, "current", None)
        if copy is None:
            self._stream.write(buffer, timeout)
            return
        copy.waits_for(self._socket)
        try:
            self._stream.write(buffer, timeout)
        finally:
            copy.waits_for(None)

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Makes connections whose waits can be ended."""

    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_tcp(*args, **options))

    def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_unix_socket(*args, **options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


def interruptible(transport: httpx.BaseTransport) -> httpx.BaseTransport:
    """Make the connections of an ``httpx.HTTPTransport`` for HTTP/1.1 such that losers can be closed at once.

    Another transport, or one whose parts are not as expected, is left as it is: its losers end by themselves.
    """
    pool = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    plain = type(transport) is httpx.HTTPTransport and type(pool) is httpcore.ConnectionPool
    if plain and isinstance(backend, httpcore.NetworkBackend) and not getattr(pool, "_http2", True):
        setattr(pool, "_network_backend", _Backend(backend))  # noqa: B010  # httpx has no option for it
    return transport


class Workers:
    """At most ``threads_max`` threads that run one thing each at a time. Idle ones are kept until ``close``."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def idle(self) -> int:
        """How many threads have nothing to do."""
        return len(self._idle)

    def run(self, work: Callable[[], None]) -> bool:
        """Run ``work`` in a thread, at once; False when none is free. ``work`` must not raise."""
        with self._lock:
            if self._closed:
                return False
            if self._idle:
                self._idle.pop().put(work)
                return True
            if self._count >= self._threads_max:
                return False
            self._count += 1
        threading.Thread(target=self._serve, args=(work,), name="tiedreq-copy", daemon=True).start()
        return True

    def _serve(self, work: Callable[[], None] | None) -> None:
        inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        try:
            while work is not None:
                work()
                with self._lock:
                    if self._closed:
                        return
                    self._idle.append(inbox)
                work = inbox.get()
        finally:
            with self._lock:
                self._count -= 1

    def close(self) -> None:
        """Let idle threads end now, and busy ones when they have done what they do."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        _wake(idle)


def _wake(inboxes: Iterable[SimpleQueue[Callable[[], None] | None]]) -> None:
    for inbox in inboxes:
        inbox.put(None)
