"""A kernel with IPv6 off, run as a program inside a new network namespace: what may be bound, and what may not.

Serves and calls at each address that a person may name. Prints, as JSON, the address that was announced, or the error.
"""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import trio

import tiedreq

LISTEN = ("127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0", "[::1]:0", "[::]:0")


def make_service() -> tiedreq.Service:
    """One method that gives back what it is given."""
    service = tiedreq.Service("echo")

    @service.method(idempotent=True)
    async def echo(ctx: tiedreq.Context, args: Any) -> Any:
        return args

    return service


async def served(listen: str) -> str:
    """Serve at ``listen``, and call; the announced address, or what became of it."""
    told = ""
    try:
        async with trio.open_nursery() as nursery:
            handle = await nursery.start(partial(tiedreq.serve, make_service(), name="a", listen=listen))
            async with tiedreq.connect([handle.url]) as client:
                assert await client.call("echo", listen) == listen
            told = handle.url
            nursery.cancel_scope.cancel()
    except* (OSError, tiedreq.BadOption) as group:
        told = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
    return told


def main() -> None:
    """See the module."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for which in ("all", "default"):
        Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
    print(json.dumps({listen: trio.run(served, listen) for listen in LISTEN}), flush=True)


if __name__ == "__main__":
    main()
