"""Awkward services, one request each, and what each hedging transport makes of them (`scripts/bench_httpx`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import hedge
import httpx
import httpx_hedged  # type: ignore[import-untyped]
from _bench_clock import virtual_time
from hedge.transport import HedgedHttpxTransport
from rich.console import Console
from rich.table import Table

from tiedreq.core.policy import Backup, Hedged
from tiedreq.httpx import HedgedTransport

URL = "http://service/lookup"
SLOW, BACKUP_AT = 0.5, 0.1
"""Seconds that the first copy takes, and after which the second one leaves."""
Probe = Callable[[httpx.AsyncBaseTransport, "Awkward"], Awaitable[str]]


class Awkward(httpx.AsyncBaseTransport):
    """A service whose first copy is slow, and whose second one does ``second``."""

    def __init__(self, second: Callable[[], Awaitable[httpx.Response]], stalls: bool = False) -> None:
        self._second = second
        self._stalls = stalls
        self.copies = 0
        self.running = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One copy."""
        self.copies += 1
        self.running += 1
        try:
            if self.copies > 1:
                return await self._second()
            if self._stalls:
                return httpx.Response(200, stream=Stalling())
            await asyncio.sleep(SLOW)
            return httpx.Response(200, content=b"ok")
        finally:
            self.running -= 1


class Stalling(httpx.AsyncByteStream):
    """A body that does not begin for a minute."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b"ok"


async def _broken() -> httpx.Response:
    raise httpx.ReadError("the connection was reset")


async def _busy() -> httpx.Response:
    return httpx.Response(503)


async def _slow_too() -> httpx.Response:
    await asyncio.sleep(SLOW)
    return httpx.Response(200, content=b"ok")


async def _fine() -> httpx.Response:
    return httpx.Response(200, content=b"ok")


async def fetch(transport: httpx.AsyncBaseTransport, back_end: Awkward) -> str:
    """What a request comes to."""
    began = asyncio.get_running_loop().time()
    try:
        response = await transport.handle_async_request(httpx.Request("GET", URL))
        await response.aread()
    except httpx.TransportError as error:
        return type(error).__name__
    return f"{response.status_code} after {asyncio.get_running_loop().time() - began:.1f} s"


async def leave(transport: httpx.AsyncBaseTransport, back_end: Awkward) -> str:
    """What still runs when the caller has left during the race."""
    try:
        async with asyncio.timeout(2 * BACKUP_AT):
            await transport.handle_async_request(httpx.Request("GET", URL))
    except TimeoutError:
        pass
    return f"{back_end.running} copies still run"


async def post(transport: httpx.AsyncBaseTransport, back_end: Awkward) -> str:
    """How often a request that may not be repeated is sent."""
    await transport.handle_async_request(httpx.Request("POST", URL))
    return f"sent {back_end.copies} x"


PROBES: dict[str, tuple[Callable[[], Awkward], Probe]] = {
    "the second copy's connection breaks": (partial(Awkward, _broken), fetch),
    "the second copy is refused with 503": (partial(Awkward, _busy), fetch),
    "the first copy's body does not begin": (partial(Awkward, _fine, stalls=True), fetch),
    "the caller leaves during the race": (partial(Awkward, _slow_too), leave),
    "a POST": (partial(Awkward, _fine), post),
}


def careful() -> dict[str, Callable[[Awkward], httpx.AsyncBaseTransport]]:
    """Everybody who hedges, with the second copy ``BACKUP_AT`` seconds after the first."""
    backup = Backup(since="send", after=BACKUP_AT)
    theirs = httpx_hedged.HedgeConfig(warmup_delay=BACKUP_AT)
    return {
        "hedge-python": lambda back_end: HedgedHttpxTransport(back_end, hedge.HedgeConfig(warmup_delay=BACKUP_AT)),
        "httpx-hedged": lambda back_end: cast(Any, httpx_hedged.HedgedTransport(back_end, theirs)),
        "tiedreq": lambda back_end: HedgedTransport(back_end, policy=Hedged(backup)),
    }


def probe() -> dict[str, dict[str, str]]:
    """What each comes to with each service."""
    found: dict[str, dict[str, str]] = {}
    for what, (service, ask) in PROBES.items():
        for name, make in careful().items():

            async def asked(make: Any = make, service: Any = service, ask: Probe = ask) -> str:
                back_end = service()
                transport = make(back_end)
                told = await ask(transport, back_end)
                await transport.aclose()
                return told

            with virtual_time() as runner:
                found.setdefault(what, {})[name] = runner.run(asked())
    return found


def show_probes(found: dict[str, dict[str, str]]) -> None:
    """The third table."""
    names = list(careful())
    table = Table(title=f"One request; the first copy takes {SLOW:g} s, the second leaves after {BACKUP_AT:g} s")
    for column in ("", *names):
        table.add_column(column)
    for what, told in found.items():
        table.add_row(what, *(told[name] for name in names))
    Console().print(table)
