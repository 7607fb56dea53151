"""What a call costs from asyncio and from threads, beside the Trio client: see `scripts/bench_bridges --help`.

Two replicas and one client for each subject, every one in a process of its own, on this machine, over the loopback
device. All clients call the same replicas (a method that returns what it was given, one copy per call) and take turns:
many short ones, so that what else the machine does hits all alike. ``calm p50`` is taken from the tenth of each
subject's turns that had the lowest.

* ``trio``: ``tiedreq.connect``, what the others are compared with.
* ``asyncio``: ``tiedreq.aio.connect``: Trio in a thread of its own.
* ``asyncio, guest mode``: the alternative, here alone: Trio as a guest in the asyncio loop, the same hand-over.
* ``blocking``: ``tiedreq.blocking.connect``; calls in flight are threads.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import trio
from _bench import Row, as_program, cpu_seconds, parser, positive, row, whole, wholes, write
from rich import box
from rich.console import Console
from rich.table import Table

import tiedreq
from tiedreq import aio, blocking
from tiedreq._errands import Call
from tiedreq._loopthread import Inbox, Session

ROUNDS_DEFAULT, SECONDS_DEFAULT, IN_FLIGHT_DEFAULT = 100, 0.1, "1,64"
CALM_SHARE = 0.1
REPLICAS = 2
PEER = "trio"
WARMUP_SHARE = 0.2
READY_SECONDS = 30.0
TIMEOUT = 30.0
VALUE = b"\0" * 128

service = tiedreq.Service("bench")


@service.method(idempotent=True)
async def echo(context: tiedreq.Context, value: Any) -> Any:
    """Returns what it is given."""
    return value


class Turn(NamedTuple):
    """Calls, ``in_flight`` at a time, for so many seconds."""

    in_flight: int
    seconds: float


class Meter:
    """Counts the calls of one turn; any thread may tell of one."""

    def __init__(self, seconds: float) -> None:
        self._began = time.perf_counter()
        self._until = self._began + seconds
        self._latencies: list[float] = []

    def done(self, began: float) -> bool:
        """A call that began then is done; False when the turn is over."""
        now = time.perf_counter()
        self._latencies.append(now - began)
        return now < self._until

    def result(self) -> tuple[int, float, float]:
        """Calls, calls per second, and the median latency in seconds without the first calls."""
        calls = len(self._latencies)
        median = statistics.median(self._latencies[int(WARMUP_SHARE * calls) :])
        return calls, calls / (time.perf_counter() - self._began), median


# ---- processes ------------------------------------------------------------------------------------------------------


def leave_with(pipe: Connection) -> None:
    """End this process when the other end of its pipe closes."""

    def watch() -> None:
        try:
            pipe.recv()
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def serve(number: int, pipe: Connection) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            handle = await nursery.start(partial(tiedreq.serve, service, name=f"r{number}"))
            pipe.send(handle.url)
            urls = await trio.to_thread.run_sync(pipe.recv)
            handle.set_peers({f"r{other}": url for other, url in enumerate(urls)})
            leave_with(pipe)

    trio.run(run)


def next_turn(turns: Connection) -> Turn:
    """The process ends with its pipe."""
    try:
        turn: Turn = turns.recv()
    except EOFError:
        os._exit(0)
    return turn


def call_on_trio(urls: list[str], turns: Connection) -> None:
    async def work(client: tiedreq.Client, meter: Meter) -> None:
        more = True
        while more:
            began = time.perf_counter()
            await client.call("echo", VALUE, timeout=TIMEOUT)
            more = meter.done(began)

    async def run() -> None:
        async with tiedreq.connect(urls, policy=tiedreq.Plain()) as client:
            turns.send("ready")
            while True:
                turn = await trio.to_thread.run_sync(next_turn, turns)
                meter = Meter(turn.seconds)
                async with trio.open_nursery() as nursery:
                    for _ in range(turn.in_flight):
                        nursery.start_soon(work, client, meter)
                turns.send(meter.result())

    trio.run(run)


async def take_asyncio_turns(turns: Connection, call: Callable[..., Any]) -> None:
    async def work(meter: Meter) -> None:
        more = True
        while more:
            began = time.perf_counter()
            await call("echo", VALUE, timeout=TIMEOUT)
            more = meter.done(began)

    turns.send("ready")
    while True:
        turn = await asyncio.to_thread(next_turn, turns)
        meter = Meter(turn.seconds)
        await asyncio.gather(*(work(meter) for _ in range(turn.in_flight)))
        turns.send(meter.result())


def call_on_asyncio(urls: list[str], turns: Connection) -> None:
    async def run() -> None:
        async with aio.connect(urls, policy=tiedreq.Plain()) as client:
            await take_asyncio_turns(turns, client.call)

    asyncio.run(run())


class Guest:
    """What a session needs of its loop, with Trio as a guest in the asyncio loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.inbox: Inbox
        self._ended = loop.create_future()
        self._ready = loop.create_future()
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=self._ended.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )

    def busy(self, change: int) -> None:
        """Real time passes by itself."""

    def forget(self, session: Session) -> None:
        """There is one session, for good."""

    async def open(self, urls: list[str]) -> Session:
        """A session that is connected."""
        await self._ready
        session = Session(self, partial(tiedreq.connect, urls, policy=tiedreq.Plain()), 10_000)  # type: ignore[arg-type]
        self.inbox.put(lambda: self._nursery.start_soon(session.run))
        done = asyncio.get_running_loop().create_future()
        session.ready.tell(lambda: done.set_result(None))
        await done
        return session

    async def _main(self) -> None:
        self.inbox = Inbox(trio.lowlevel.current_trio_token().run_sync_soon)
        async with trio.open_nursery() as self._nursery:
            self._ready.set_result(None)
            await trio.sleep_forever()


def call_as_host(urls: list[str], turns: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        session = await Guest().open(urls)

        async def call(method: str, args: Any, **options: Any) -> Any:
            future = loop.create_future()
            made = Call(session, (method, args), options, lambda: future.set_result(None))
            session.begin(made)
            await future
            return made.result()

        await take_asyncio_turns(turns, call)

    asyncio.run(run())


def call_from_threads(urls: list[str], turns: Connection) -> None:
    def work(client: blocking.Client, meter: Meter) -> None:
        more = True
        while more:
            began = time.perf_counter()
            client.call("echo", VALUE, timeout=TIMEOUT)
            more = meter.done(began)

    with blocking.connect(urls, policy=tiedreq.Plain()) as client:
        turns.send("ready")
        while True:
            turn = next_turn(turns)
            with ThreadPoolExecutor(turn.in_flight) as pool:
                meter = Meter(turn.seconds)
                for each in [pool.submit(work, client, meter) for _ in range(turn.in_flight)]:
                    each.result()
            turns.send(meter.result())


SUBJECTS: dict[str, Callable[[list[str], Connection], None]] = {
    PEER: call_on_trio,
    "asyncio": call_on_asyncio,
    "asyncio, guest mode": call_as_host,
    "blocking": call_from_threads,
}


# ---- measuring ------------------------------------------------------------------------------------------------------


class Process:
    """A process and the pipe to it; it goes when the pipe closes."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._name = name
        self._process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its id."""
        assert self._process.pid is not None
        return self._process.pid

    def answer(self, patience: float = READY_SECONDS) -> Any:
        """What it says next."""
        try:
            if self.pipe.poll(patience):
                return self.pipe.recv()
        except EOFError:
            raise SystemExit(f"{self._name}: its process ended early") from None
        raise SystemExit(f"{self._name}: no answer within {patience:g} s")

    def end(self) -> None:
        """Let it go."""
        self.pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Measured(NamedTuple):
    """One turn of one subject; ``cpu_us`` is the client's processor time per call."""

    rate: float
    p50_us: float
    cpu_us: float


def measure(client: Process, turn: Turn) -> Measured:
    before = cpu_seconds([client.pid])
    client.pipe.send(turn)
    calls, rate, p50 = client.answer(turn.seconds + READY_SECONDS)
    return Measured(rate, p50 * 1e6, (cpu_seconds([client.pid]) - before) / calls * 1e6)


def run(options: argparse.Namespace) -> dict[int, dict[str, list[Measured]]]:
    """Turns of every subject, for each number of calls in flight."""
    processes = [Process(f"replica {number}", serve, number) for number in range(REPLICAS)]
    try:
        urls = [replica.answer() for replica in processes]
        for replica in processes:
            replica.pipe.send(urls)
        clients = {name: Process(name, target, urls) for name, target in SUBJECTS.items()}
        processes += clients.values()
        for client in clients.values():
            client.answer()
        cells: dict[int, dict[str, list[Measured]]] = {}
        for in_flight in options.in_flight:
            measured = cells[in_flight] = {name: [] for name in SUBJECTS}
            for _ in range(options.rounds):
                for name, client in clients.items():
                    measured[name].append(measure(client, Turn(in_flight, options.seconds)))
        return cells
    finally:
        for process in processes:
            process.end()


def rows_of(cells: dict[int, dict[str, list[Measured]]]) -> list[Row]:
    """All rows, each compared with the Trio client."""
    rows = []
    for in_flight, measured in cells.items():
        for name, turns in measured.items():
            for what, unit, field in COLUMNS:
                values, peers = ([getattr(turn, field) for turn in each] for each in (turns, measured[PEER]))
                if what.startswith("calm"):
                    values, peers = calm(values), calm(peers)
                rows.append(row(f"{name}, {in_flight} in flight: {what}", unit, values, peer=PEER, peers=peers))
    return rows


COLUMNS = (
    ("p50", "µs", "p50_us"),
    ("calm p50", "µs", "p50_us"),
    ("calls", "calls/s", "rate"),
    ("CPU", "µs/call", "cpu_us"),
)


def calm(values: list[float]) -> list[float]:
    """The lowest tenth."""
    return sorted(values)[: math.ceil(CALM_SHARE * len(values))]


def show(rows: list[Row]) -> None:
    """The table: a line for each subject in each cell."""
    title = "Calls off Trio; medians over rounds, in brackets the ratio to the Trio client"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("", "", *(f"{what}\n{unit}" for what, unit, _ in COLUMNS)):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for at in range(0, len(rows), len(COLUMNS)):
        line = rows[at : at + len(COLUMNS)]
        name, _, in_flight = line[0]["name"].removesuffix(" in flight: p50").rpartition(", ")
        table.add_row(in_flight, name, *(f"{each['value']:,.0f} ({each['ratio']:.2f})" for each in line))
    Console().print(table)


def main() -> int:
    made = parser("bench_bridges", "Measure calls from asyncio and from threads beside calls from Trio.")
    made.add_argument(
        "--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="turns of each subject (%(default)s)"
    )
    made.add_argument(
        "--seconds", type=positive, default=SECONDS_DEFAULT, metavar="S", help="length of a turn (%(default)s)"
    )
    made.add_argument(
        "--in-flight", type=wholes, default=wholes(IN_FLIGHT_DEFAULT), metavar="N[,N…]", help="calls at the same time"
    )
    options = made.parse_args()
    rows = rows_of(run(options))
    show(rows)
    write(options.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
