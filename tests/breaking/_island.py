"""A network of its own, run as a program inside a new network namespace: one host's packets vanish, and come back.

Each of three replicas listens at an address of its own. One address is taken away, so that whatever is sent to it or
from it goes nowhere and nobody is told: no connection is closed or reset. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

import tiedreq
from tests.breaking import _app
from tests.breaking._cluster import Bar
from tests.breaking._history import judge, read_runs
from tests.breaking._load import Load
from tests.cluster._launcher import Child

ADDRESSES = {f"r{index}": f"10.77.0.{index + 1}" for index in range(3)}
TOKEN = "of-the-island"
CUT_SECONDS = 3.0
SILENCE_SECONDS = 1.5
"""After which nobody counts on the one that is cut off any more."""


def ip(*words: str) -> None:
    """Change the network of this namespace."""
    subprocess.run(["ip", *words], check=True)


def serve(name: str, folder: Path) -> Child:
    """Start a replica at its address."""
    peers = [f"{other}=ws://{address}:7000" for other, address in ADDRESSES.items() if other != name]
    where = ["--listen", f"{ADDRESSES[name]}:7000", "--peers", ",".join(peers), "--token-file", "token"]
    return Child(["-m", "tiedreq", "serve", "app:service", "--name", name, *where], folder)


async def island(folder: Path) -> dict[str, object]:
    """Drive load, take r1's address away, give it back; what came of it."""
    urls = [f"ws://{address}:7000" for address in ADDRESSES.values()]
    async with tiedreq.connect(urls, token=TOKEN) as client, trio.open_nursery() as nursery:
        load = Load(client, 80, nursery=nursery)
        await trio.sleep(1)
        before = set(load.answered_since(0))
        ip("addr", "del", f"{ADDRESSES['r1']}/32", "dev", "lo")
        cut = trio.current_time()
        await trio.sleep(CUT_SECONDS)
        during = set(load.answered_since(cut + SILENCE_SECONDS))
        ip("addr", "add", f"{ADDRESSES['r1']}/32", "dev", "lo")
        bar = Bar()
        await bar.until(partial(load.answered_by, "r1", trio.current_time()))
        healed = bar.passed
        await load.end()
    verdict = judge(load.sent, load.outcomes, read_runs(folder))
    return {
        "before": sorted(before),
        "during": sorted(during),
        "calls": verdict.calls,
        "errors": verdict.errors,
        "doubled": verdict.doubled,
        "healed": healed,
    }


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    _app.write(folder)
    (folder / "token").write_text(TOKEN)
    ip("link", "set", "lo", "up")
    for address in ADDRESSES.values():
        ip("addr", "add", f"{address}/32", "dev", "lo")
    children = [serve(name, folder) for name in ADDRESSES]
    try:
        for child in children:
            child.line()
        print(json.dumps(trio.run(island, folder)), flush=True)
    finally:
        for child in children:
            child.end()


if __name__ == "__main__":
    main()
