"""Servers for the tests with real sockets."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.httpx_hedge._server import Server, wait_until


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[Server, int, socket.socket], None]) -> Server:
        server = Server(lambda number, connection: answer(server, number, connection))
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
    gc.collect()  # a socket left open is told of here
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "tiedreq-copy"])
