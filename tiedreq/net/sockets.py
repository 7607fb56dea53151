"""Reads and writes directly at a socket, past Trio's own stream.

That tries to read before it waits, in vain for an answer that is not there yet, and lets all other tasks run after each
write. Here a read waits first, and a write that finds room at once is no checkpoint: who writes much in a row has to
make some.
"""

from __future__ import annotations

import os

import trio


def descriptor(socket: trio.socket.SocketType) -> int:
    """The socket's file descriptor. Raises ``trio.ClosedResourceError``."""
    found = socket.fileno()
    if found < 0:
        raise trio.ClosedResourceError("this stream is closed")
    return found


async def receive(socket: trio.socket.SocketType, bytes_max: int) -> bytes:
    """What comes next, empty at the end.

    Raises ``trio.BrokenResourceError``, ``ClosedResourceError`` and ``BusyResourceError`` as a stream does.
    """
    while True:
        await trio.lowlevel.wait_readable(descriptor(socket))
        try:
            return os.read(descriptor(socket), bytes_max)
        except BlockingIOError:
            continue
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error


def write(socket: trio.socket.SocketType, data: bytes | memoryview) -> int:
    """Write what finds room now; how many bytes that were. Raises as ``receive``."""
    try:
        return os.write(descriptor(socket), data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise trio.BrokenResourceError(str(error)) from error


async def send_all(socket: trio.socket.SocketType, data: bytes) -> bool:
    """Write all of ``data``; True where it found room at once. Raises as ``receive``; cancelled, it wrote a part."""
    sent, at_once = 0, True
    while True:
        sent += write(socket, memoryview(data)[sent:] if sent else data)
        if sent >= len(data):
            return at_once
        at_once = False
        await trio.lowlevel.wait_writable(descriptor(socket))
