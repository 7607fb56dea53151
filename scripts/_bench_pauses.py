"""For how long a replica's event loop looks at nothing new, at half load: see `scripts/bench_pauses --help`.

Two replicas, each a process with the collector as `tiedreq serve` sets it, and a client in this one. First it makes
tied calls as fast as it can, 64 at a time; then, at half that rate, as they come.

* ``pauses``: what each replica exports as ``loop_pause_seconds``; the worse of the two. On a machine that others use,
  this is mostly the time for which the replica had no processor.
* ``own pauses``: the processor time of the replica's loop from one look at its sockets to the next: handlers, the
  protocol, garbage collections, and nothing of what other programs do.
* ``collections``: the longest garbage collection, and all of them as a share of the time.
* ``machine``: a process that does nothing but sleep for a millisecond at a time, beside them: how much later than asked
  it wakes up, a rounded-up millisecond included.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import trio
from _bench import Row, as_program, parser, positive, row, show, whole, write

import tiedreq
from tiedreq.net.collecting import spare_the_loop

SECONDS_DEFAULT, ROUNDS_DEFAULT = 10.0, 3
CAPACITY_SECONDS = 1.0
IN_FLIGHT, PAYLOAD, SHARE = 64, bytes(128), 0.5
READY_SECONDS = 60.0
SLEEP = 0.001
UNIT = "ms"

service = tiedreq.Service("bench")


@service.method(idempotent=True)
async def echo(context: tiedreq.Context, value: Any) -> Any:
    """Returns what it is given."""
    return value


class OwnPauses(trio.abc.Instrument):
    """The processor time of every turn of the loop, and how long collections took. Seconds."""

    def __init__(self) -> None:
        self._began = self._collecting = 0.0
        self.turns: list[float] = []
        self.collections: list[float] = []

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.turns.append(time.thread_time() - self._began)

    def collected(self, phase: str, _: dict[str, int]) -> None:
        """For ``gc.callbacks``."""
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self.collections.append(time.perf_counter() - self._collecting)

    def taken(self) -> dict[str, float]:
        """What was measured since the last time, in seconds."""
        turns, collections = sorted(self.turns), self.collections
        self.turns, self.collections = [], []
        return {
            "p999": percentile(turns, 0.999),
            "max": turns[-1] if turns else 0.0,
            "collection_max": max(collections, default=0.0),
            "collecting": sum(collections),
        }


def percentile(ordered: list[float], share: float) -> float:
    """The value that a ``share`` of them does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def serve(number: int, pipe: Connection) -> None:
    """The process of a replica: says where it listens, hears of its peers, and tells what it measured when asked."""

    async def run() -> None:
        own = OwnPauses()
        async with trio.open_nursery() as nursery:
            handle = await nursery.start(partial(tiedreq.serve, service, name=f"r{number}"))
            pipe.send(handle.url)
            handle.set_peers(await trio.to_thread.run_sync(pipe.recv))
            spare_the_loop()
            gc.callbacks.append(own.collected)
            trio.lowlevel.add_instrument(own)
            handle.snapshot()  # from here on somebody looks
            while await trio.to_thread.run_sync(pipe.recv, abandon_on_cancel=True):
                pipe.send((handle.snapshot()["loop_pauses"], own.taken()))
            nursery.cancel_scope.cancel()

    trio.run(run)


def sleep(pipe: Connection) -> None:
    """The process that does nothing: tells how late it woke up, when asked."""
    late: list[float] = []
    pipe.send("ready")

    def answer() -> None:
        nonlocal late
        while pipe.recv():
            ordered, late = sorted(late), []
            pipe.send((percentile(ordered, 0.999), ordered[-1]))
        late = [-1.0]

    threading.Thread(target=answer, daemon=True).start()

    async def run() -> None:
        while late[:1] != [-1.0]:
            due = trio.current_time() + SLEEP
            await trio.sleep_until(due)
            late.append(trio.current_time() - due)

    trio.run(run)


class Processes:
    """The replicas, and the one that sleeps."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._all: list[tuple[Any, Connection]] = []
        for target in (partial(serve, 0), partial(serve, 1), sleep):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._all.append((process, ours))
        self.urls = [self._hear(0), self._hear(1)]
        assert self._hear(2) == "ready"
        for _, pipe in self._all[:2]:
            pipe.send({f"r{index}": url for index, url in enumerate(self.urls)})

    def _hear(self, index: int) -> Any:
        pipe = self._all[index][1]
        if not pipe.poll(READY_SECONDS):
            raise SystemExit(f"process {index}: no answer within {READY_SECONDS:g} s")
        return pipe.recv()

    def ask(self) -> list[Any]:
        """What each measured since it was last asked."""
        for _, pipe in self._all:
            pipe.send(True)
        return [self._hear(index) for index in range(len(self._all))]

    def end(self) -> None:
        """End them."""
        for process, pipe in self._all:
            pipe.send(False)
            process.join(10)
            if process.is_alive():
                process.kill()


async def capacity(client: tiedreq.Client) -> float:
    """Calls per second, 64 at a time."""
    until, done = trio.current_time() + CAPACITY_SECONDS, 0

    async def work() -> None:
        nonlocal done
        while trio.current_time() < until:
            await client.tied_call("echo", PAYLOAD)
            done += 1

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(work)
    return done / (trio.current_time() - began)


async def open_loop(client: tiedreq.Client, rate: float, seconds: float) -> None:
    """Calls at even distances; those that are late go at once."""
    due = trio.current_time()
    end = due + seconds
    async with trio.open_nursery() as nursery:
        while due < end:
            await trio.sleep_until(due)
            nursery.start_soon(client.tied_call, "echo", PAYLOAD)
            due += 1 / rate


def measure(processes: Processes, seconds: float, rounds: int) -> list[Row]:
    """The rows: milliseconds but for the rates and the share."""
    values: dict[str, list[float]] = {}

    async def run() -> None:
        async with tiedreq.connect(processes.urls) as client:
            for _ in range(rounds):
                rate = SHARE * await capacity(client)
                processes.ask()
                await open_loop(client, rate, seconds)
                *replicas, machine = processes.ask()
                found = {
                    "rate": rate,
                    "pauses, p99.9": max(shown["p999"] for shown, _ in replicas) * 1e3,
                    "pauses, longest": max(shown["max"] for shown, _ in replicas) * 1e3,
                    "own pauses, p99.9": max(own["p999"] for _, own in replicas) * 1e3,
                    "own pauses, longest": max(own["max"] for _, own in replicas) * 1e3,
                    "collections, longest": max(own["collection_max"] for _, own in replicas) * 1e3,
                    "collections, share": max(own["collecting"] for _, own in replicas) / seconds * 100,
                    "machine, p99.9": machine[0] * 1e3,
                    "machine, longest": machine[1] * 1e3,
                }
                for name, value in found.items():
                    values.setdefault(name, []).append(value)

    trio.run(run)
    units = {"rate": "calls/s", "collections, share": "%"}
    return [row(name, units.get(name, UNIT), found) for name, found in values.items()]


def main() -> int:
    options = parser("bench_pauses", "Measure for how long a replica's loop looks at nothing new, at half load.")
    options.add_argument(
        "--seconds", type=positive, default=SECONDS_DEFAULT, metavar="S", help="length of a round (%(default)g)"
    )
    options.add_argument("--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="(%(default)s)")
    chosen = options.parse_args()
    processes = Processes()
    try:
        rows = measure(processes, chosen.seconds, chosen.rounds)
    finally:
        processes.end()
    show("Pauses of a replica at half load; medians over rounds, the worse of two replicas", rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
