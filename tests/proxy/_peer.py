"""Both ends of an HTTP connection in memory: a client that sends bytes, and an upstream that is scripted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair


class Over(Exception):
    """The other side has closed the connection between two messages."""


class Plug:
    """One end of a connection, with what was read beyond what was asked for."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.received = b""

    async def until(self, mark: bytes) -> bytes:
        """What comes up to and with ``mark``."""
        while mark not in self.received:
            data = await self.stream.receive_some(65536)
            if not data and not self.received:
                raise Over
            assert data, f"closed after {self.received!r}"
            self.received += data
        before, mark, self.received = self.received.partition(mark)
        return before + mark

    async def exactly(self, count: int) -> bytes:
        while len(self.received) < count:
            data = await self.stream.receive_some(65536)
            assert data, f"closed after {self.received!r}"
            self.received += data
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    async def rest(self) -> bytes:
        """Everything up to the end, also where that is a break."""
        try:
            while data := await self.stream.receive_some(65536):
                self.received += data
        except trio.BrokenResourceError:
            pass
        taken, self.received = self.received, b""
        return taken

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def close(self) -> None:
        await self.stream.aclose()


Script = Callable[[int, Plug], Awaitable[None]]


class ScriptedUpstream:
    """Each connection is served by ``script(number, plug)``; it is closed when that returns."""

    def __init__(self, script: Script, nursery: trio.Nursery) -> None:
        self._script = script
        self._nursery = nursery
        self.dialed = 0
        self.gone = 0
        self.refuses = False
        self.lockstep = False
        """What is sent waits until it is read."""

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = lockstep_stream_pair() if self.lockstep else memory_stream_pair()
        self.dialed += 1
        self._nursery.start_soon(self._serve, self.dialed, Plug(theirs))
        return ours

    async def _serve(self, number: int, plug: Plug) -> None:
        try:
            await self._script(number, plug)
        except (trio.BrokenResourceError, Over):
            pass
        finally:
            self.gone += 1
            with trio.CancelScope(shield=True):
                await plug.close()


async def read_request(plug: Plug) -> tuple[str, dict[str, str], bytes]:
    """The first line, the headers and the body of a request."""
    first, *lines = (await plug.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if line)
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await plug.until(b"\r\n"), 16):
            body += await plug.exactly(size)
            await plug.until(b"\r\n")
        await plug.until(b"\r\n")
        return first, headers, body
    return first, headers, await plug.exactly(int(headers.get("content-length", "0")))


def answer(body: bytes = b"ok", status: str = "200 OK", *headers: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n" + body
