"""A client behind a firewall, run as a program inside a new network namespace: from some moment on nothing passes.

The hosts are those of ``_firewall``, and one more, ``c0``, where a client makes calls. A rule of nftables then drops
all that it sends and all that is sent to it; no connection is closed or reset, and nobody is told. Another client, on
the router, goes on all the while. Prints what came of it as JSON. With ``client`` as its argument it is the program
of the host ``c0``: it says ``ready``, is told of the cut and of its end by files, and prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

import tiedreq
from tests.breaking._cluster import Bar, until
from tests.breaking._firewall import NAMES, TOKEN, address, allow, dropped, forbid, host, prepare, serve
from tests.breaking._history import judge, read_runs
from tests.breaking._load import Load
from tests.cluster._launcher import Child

CLIENT = "c0"
LONG = range(-1, -61, -1)
"""The numbers of its calls that wait or run when it is cut off."""
LONG_SECONDS, SHORT_SECONDS, PATIENT_SECONDS = 4.0, 1.0, 30.0
"""What its calls may take: of those; of one made while it is cut off; of one that may not run twice."""
CUT, HEALED = "cut", "healed"
ROOT = str(Path(__file__).resolve().parent.parent.parent)
PROGRAM = (
    f"import runpy, sys; sys.path.insert(0, {ROOT!r}); sys.argv = ['', 'client']; "
    f"runpy.run_module('tests.breaking._cut_off', run_name='__main__')"
)
MORE = """

@service.method()
async def once(ctx, args):
    await trio.sleep(args)
"""


Told = list[tuple[str, float, str]]
"""What became of calls: the name of the error, how many seconds after the call was made, and in words."""


async def outcome(call: Callable[[], Awaitable[object]], told: Told) -> None:
    """Make a call, and tell what became of it."""
    began = trio.current_time()
    try:
        await call()
    except tiedreq.CallError as error:
        told.append((type(error).__name__, trio.current_time() - began, str(error)))
    else:
        told.append(("answered", trio.current_time() - began, ""))


async def cut_off_client() -> dict[str, Any]:
    """The client that is cut off; what it saw."""
    here = trio.Path()
    waiting: Told = []
    once: Told = []
    meanwhile: Told = []
    urls = [f"ws://{address(name)}:7000" for name in NAMES]
    async with tiedreq.connect(urls, token=TOKEN) as client, trio.open_nursery() as nursery:
        await client.tied_call("square", {"number": 0})
        for number in LONG:
            args = {"number": number, "sleep": PATIENT_SECONDS}
            nursery.start_soon(outcome, partial(client.tied_call, "square", args, timeout=LONG_SECONDS), waiting)
        nursery.start_soon(outcome, partial(client.call, "once", PATIENT_SECONDS, timeout=PATIENT_SECONDS), once)
        await trio.sleep(0.5)
        print("ready", flush=True)
        await until((here / CUT).exists)
        for _ in range(3):
            call = partial(client.tied_call, "square", {"number": 0}, timeout=SHORT_SECONDS)
            await outcome(call, meanwhile)
        await until((here / HEALED).exists)
        bar = Bar()

        async def answered() -> bool:
            found: Told = []
            await outcome(partial(client.tied_call, "square", {"number": 0}, timeout=SHORT_SECONDS), found)
            return found[0][0] == "answered"

        await bar.until(answered)
        healed = bar.passed
        await bar.until(partial(reaches, client, len(NAMES)))
    return {"waiting": waiting, "once": once, "meanwhile": meanwhile, "answered": healed, "all": bar.passed}


async def reaches(client: tiedreq.Client, replicas: int) -> bool:
    """Whether a client is linked to so many replicas."""
    return len(client.stats()["replicas"]) == replicas


async def router(folder: Path, cut_off: Child) -> dict[str, Any]:
    """Cut the client off and let it go on; what the replicas and another client saw of it."""

    async def callers(count: int) -> bool:
        told = await client.inquire("snapshot")
        return len(told) == len(NAMES) and all(seen["callers"] == count for seen in told.values())

    async def nothing_left() -> bool:
        runs = [run for run in read_runs(folder) if run.number in LONG]
        return await callers(1) and bool(runs) and all(run.end is not None for run in runs)

    async with (
        tiedreq.connect([f"ws://{address(name)}:7000" for name in NAMES], token=TOKEN) as client,
        trio.open_nursery() as nursery,
    ):
        load = Load(client, 40, nursery=nursery)
        await trio.to_thread.run_sync(cut_off.line)
        assert await callers(2)
        before = await client.inquire("snapshot")
        forbid((address(CLIENT), "0.0.0.0/0"), ("0.0.0.0/0", address(CLIENT)))
        bar = Bar()
        (folder / CUT).touch()
        await bar.until(nothing_left)
        gone, packets = bar.passed, dropped()
        await trio.sleep(3 * SHORT_SECONDS)
        allow()
        bar = Bar()
        (folder / HEALED).touch()
        told = json.loads(await trio.to_thread.run_sync(cut_off.line))
        await bar.until(partial(callers, 1))
        await load.end()
        after = await client.inquire("snapshot")
    ends = [run.end for run in read_runs(folder) if run.number in LONG]
    verdict = judge(load.sent, load.outcomes, read_runs(folder))
    return {
        **told,
        "queued": sum(seen["queue"] for seen in before.values()),
        "left": sum(seen["queue"] + seen["running"] + seen["sizes"]["ties"] for seen in after.values()),
        "endings": [seen["endings"] for seen in after.values()],
        "gone": gone,
        "packets": packets,
        "ends": sorted(set(ends), key=str),
        "calls": verdict.calls,
        "errors": verdict.errors,
    }


def main() -> None:
    """See the module."""
    if sys.argv[1] == "client":
        print(json.dumps(trio.run(cut_off_client)), flush=True)
        return
    folder = Path(sys.argv[1])
    prepare(folder, MORE)
    children = [serve(name, folder) for name in NAMES]
    try:
        for child in children:
            child.line()
        children.append(host(CLIENT, ["-c", PROGRAM], folder))
        print(json.dumps(trio.run(router, folder, children[-1])), flush=True)
    finally:
        for child in children:
            child.end()


if __name__ == "__main__":
    main()
