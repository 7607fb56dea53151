"""A real HTTP server on loopback whose answers are scripted: it sees when a client closes a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PATIENCE = 10.0
SOON = 0.02


def wait_until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.002)


class Server:
    """A bare HTTP server: ``answer(number, connection)`` is called for each request, in a thread."""

    def __init__(self, answer: Callable[[int, socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests = 0
        self.closed_by_client = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self._connections: list[socket.socket] = []

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with closing(connection), suppress(OSError):
            while True:
                received = b""
                while not received.endswith(b"\r\n\r\n"):
                    more = connection.recv(4096)
                    if not more:
                        return
                    received += more
                with self._lock:
                    self.requests += 1
                    number = self.requests
                self._answer(number, connection)

    def hang(self, connection: socket.socket) -> None:
        """Say nothing until the client goes."""
        if connection.recv(1) == b"":
            with self._lock:
                self.closed_by_client += 1

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(PATIENCE)
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def first_hangs(server: Server, number: int, connection: socket.socket) -> None:
    if number == 1:
        server.hang(connection)
    else:
        connection.sendall(OK)
