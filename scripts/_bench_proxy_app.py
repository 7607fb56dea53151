"""The web service of scripts/bench_proxy: ``GET /work?ms=N`` waits that long, for one of ``SLOTS`` places at first.

``GET /count`` tells how many have begun. It knows nothing of who sends its requests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

SLOTS = int(os.environ.get("SLOTS", "2"))
places = asyncio.Semaphore(SLOTS)
begun = 0


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """See the module."""
    global begun
    if scope["type"] == "lifespan":
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})
        return
    if scope["path"] == "/count":
        body = str(begun).encode()
    else:
        milliseconds = float(parse_qs(scope["query_string"].decode()).get("ms", ["0"])[0])
        async with places:
            begun += 1
            if milliseconds:
                await asyncio.sleep(milliseconds / 1000)
        body = b"done"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
