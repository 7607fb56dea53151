"""What a replica and a client keep in memory: see `scripts/bench_memory --help`.

* A queued copy: a tied Submit with 128 bytes of arguments, decoded from its bytes as a driver does, waiting in a
  replica's queue; all that the core keeps for it.
* A marker: a start notice whose copy has not come. A tombstone: an ended copy that is remembered.
* A pending call: a tied call both copies of which are out, with the client's record of it; not the task that waits.
* After many calls: a client and two replicas in this process, linked in memory, make tied calls without a pause, both
  copies of which leave. What the process holds at the end is compared with what it held after a fifth of the calls.

Bytes are what Python's allocator hands out (``tracemalloc``), but for the last: resident memory as the operating system
counts it.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import trio
from _bench import Row, as_program, parser, row, show, whole, write
from _bench_core import CALLER, CLIENT, HERE, INFO, PAYLOAD, PEER, THERE, replica, submit

import tiedreq
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallCore, CallRequest
from tiedreq.core.call_stats import CallStats
from tiedreq.core.lessons import LearningBook
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Tied
from tiedreq.core.types import CallId, CopyId
from tiedreq.net.opencall import OpenCall
from tiedreq.testing import LocalCluster

COUNT_DEFAULT, CALLS_DEFAULT, ROUNDS_DEFAULT = 100_000, 1_000_000, 3
QUICK = {"count": 10_000, "calls": 50_000, "rounds": 1}
AT_ONCE = Tied(stagger=0.0)
IN_FLIGHT = 64
TIMEOUT = 86_400.0
"""The process may be stopped meanwhile, to let others measure something."""
WARM_SHARE = 0.2
BYTES = "bytes"


def held(make: Callable[[int], Any], count: int) -> float:
    """Bytes per item of what ``make(count)`` returns, while it is kept."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = make(count)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        del kept
    finally:
        tracemalloc.stop()
    return (after - before) / count


def queued(count: int) -> Any:
    core = replica(slots=1, queue=count + 10)
    for number in range(count + 1):
        core.step(e.SubmitReceived(CALLER, submit(number, tied=True)), 1.0)
        if not number:
            core.step(e.InputSettled(), 1.0)
    assert core.queue_length == count
    return core


def marked(count: int) -> Any:
    core = replica(slots=1, markers=count)
    for number in range(count):
        core.step(e.PeerStarted(PEER, CopyId(CLIENT, number, 0, 1), 10.0), 1.0)
    assert core.sizes()["markers"] == count
    return core


def remembered(count: int) -> Any:
    core = replica(slots=1, tombstones=count)
    for number in range(count):
        core.step(e.PeerStarted(PEER, CopyId(CLIENT, number, 0, 1), 10.0), 1.0)
        core.step(e.SubmitReceived(CALLER, submit(number, tied=True)), 1.0)
    assert core.sizes()["tombstones"] == count and core.sizes()["copies"] == 0
    return core


def pending(count: int) -> Any:
    replicas, stats, learning = ReplicaTable(FixedOrder()), CallStats(), LearningBook()
    for link, identity in enumerate((HERE, THERE)):
        replicas.add(ReplicaView(link, identity, m.Welcome(8, False, 2**20, (INFO,))))
    calls = {}
    for number in range(count):
        payload = bytes(bytearray(PAYLOAD))
        request = CallRequest(CallId(CLIENT, number), "echo", True, payload, AT_ONCE, 10.0)
        core = CallCore(request, replicas, stats, rounds_max=5, learning=learning)
        assert len(core.step(e.CallRequested(), 0.0)) == 2
        calls[number] = OpenCall(core, None, 0.0, 10.0)
    return calls


class FixedOrder:
    """In place of random numbers: the first ones."""

    def random(self) -> float:
        return 0.5

    def sample(self, population: Any, k: int) -> list[Any]:
        return list(population[:k])


service = tiedreq.Service("bench")


@service.method(idempotent=True, timeout_max=TIMEOUT)
async def echo(context: tiedreq.Context, value: Any) -> Any:
    """Returns what it is given."""
    return value


async def growth(calls: int) -> tuple[float, float]:
    """Resident bytes after a fifth of ``calls``, and at the end."""
    process, left, early = psutil.Process(), calls, 0.0
    gc.freeze()

    async def work(client: tiedreq.Client) -> None:
        nonlocal left, early
        while left > 0:
            left -= 1
            if left == calls - int(WARM_SHARE * calls):
                gc.collect()
                early = process.memory_info().rss
            await client.tied_call("echo", PAYLOAD, policy=AT_ONCE, timeout=TIMEOUT)

    async with LocalCluster(service, replicas=2, mesh_latency=0.0) as client, trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(work, client)
    gc.collect()
    return early, float(process.memory_info().rss)


def run(options: argparse.Namespace) -> list[Row]:
    subjects = {"queued copy": queued, "marker": marked, "tombstone": remembered, "pending call": pending}
    values: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(options.rounds):
        for name, make in subjects.items():
            values[name].append(held(make, options.count))
    rows = [row(f"{name}, one of {options.count:,}", BYTES, values[name]) for name in subjects]
    early, late = trio.run(partial(growth, options.calls))
    fifth = f"resident memory after {int(WARM_SHARE * options.calls):,} calls"
    rows.append(row(fifth, BYTES, [early]))
    rows.append(row(f"resident memory after {options.calls:,} calls", BYTES, [late], peer=fifth, peers=[early]))
    return rows


def main() -> int:
    options = parser("bench_memory", "Measure what is kept for copies, markers and calls, and after many calls.")
    options.add_argument("--count", type=whole, metavar="N", help=f"how many of each are kept ({COUNT_DEFAULT})")
    options.add_argument("--calls", type=whole, metavar="N", help=f"calls before the last look ({CALLS_DEFAULT})")
    options.add_argument("--rounds", type=whole, metavar="N", help=f"turns of each ({ROUNDS_DEFAULT})")
    options.add_argument("--quick", action="store_true", help="fewer of everything: half a minute")
    chosen = options.parse_args()
    defaults = {"count": COUNT_DEFAULT, "calls": CALLS_DEFAULT, "rounds": ROUNDS_DEFAULT}
    for name, value in (defaults | (QUICK if chosen.quick else {})).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    rows = run(chosen)
    show("Bytes kept", rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
