"""A replica that is patient with slow links, run as a program: NAME FOLDER.

Its peers are in ``FOLDER/peers.json``, as soon as that is there. Where hundreds of links run between a few processes on
a busy machine, silence of a second means nothing, and what is told each of them twice a second adds up.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import trio

import tiedreq
from tests.breaking._without_ipv6 import make_service

LIMITS = tiedreq.ReplicaLimits(heartbeat_interval=10.0, report_interval=30.0, handshake_timeout=60.0)


async def replica(name: str, folder: Path) -> None:
    """Serve until it is ended."""
    async with trio.open_nursery() as nursery:
        handle = await nursery.start(partial(tiedreq.serve, make_service(), name=name, limits=LIMITS))
        print(f"ready {name} {handle.url}", flush=True)
        path = folder / "peers.json"
        while not path.exists():  # noqa: ASYNC110 - there is no event for what another process does
            await trio.sleep(0.1)
        handle.set_peers(json.loads(path.read_text()))


if __name__ == "__main__":
    trio.run(replica, sys.argv[1], Path(sys.argv[2]))
