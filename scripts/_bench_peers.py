"""The processes that bench_rpc compares: servers and clients of tiedreq, grpc.aio, WebSockets and TCP.

Each server says where it listens and lives until its pipe closes. Each client takes its turns from a pipe.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
import trio
import trio_websocket

import tiedreq
from tiedreq.net.collecting import spare_the_loop

SERVERS = 2
WARMUP_SHARE = 0.2
"""How much of a turn passes before latencies and the rate are taken."""
CALLS_MIN = 10
RECEIVE_BYTES = 65_536
TIMEOUT = 30.0
READY_SECONDS = 30.0
METHOD = "/bench/echo"


class Turn(NamedTuple):
    """What a client is to do: calls of ``size`` bytes, ``in_flight`` at a time, for so many seconds."""

    policy: str
    size: int
    in_flight: int
    seconds: float


class TurnResult(NamedTuple):
    """``calls`` in all of the turn; rate (calls per second) and latencies (seconds) without its beginning."""

    calls: int
    rate: float
    p50: float
    p99: float


class Meter:
    """Counts the calls of one turn."""

    def __init__(self, seconds: float) -> None:
        self._clock = time.perf_counter
        self._began = self._clock()
        self.until = self._began + seconds
        self._from = self._began + WARMUP_SHARE * seconds
        self._ends: list[tuple[float, float]] = []

    def now(self) -> float:
        """Seconds on the turn's clock."""
        return self._clock()

    def done(self, began: float) -> bool:
        """A call that began then is done; False when the turn is over."""
        now = self._clock()
        self._ends.append((began, now - began))
        return now < self.until

    def result(self) -> TurnResult:
        """What was counted."""
        calls, start = self._ends, self._from
        within = [(began, took) for began, took in calls if began >= start and began + took <= self.until]
        if len(within) < CALLS_MIN:  # a turn too short for the load: count all of it, to its very end
            within, start = calls, self._began
        span = max(self.until, *(began + took for began, took in within)) - start if within is calls else 0.0
        ordered = sorted(took for _, took in within)
        rate = len(ordered) / (span or self.until - start)
        return TurnResult(len(calls), rate, ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100])


# ---- processes ------------------------------------------------------------------------------------------------------


class Subject:
    """A client and its servers, each a process. ``site`` is a directory that has their packages, before all others."""

    def __init__(self, kind: str, site: Path | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

        def begin(target: Callable[..., None], *arguments: Any) -> Connection:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            return ours

        serve, call = KINDS[kind]
        with _first_on_the_path(site):  # processes that are spawned get this one's path
            servers = [begin(serve, number) for number in range(SERVERS)]
            addresses = [_answer(pipe, kind) for pipe in servers]
            for pipe in servers:
                pipe.send(addresses)
            self._client = begin(call, addresses)
        _answer(self._client, kind)
        self._kind = kind

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    def turn(self, policy: str, size: int, in_flight: int, seconds: float) -> TurnResult:
        """Let the client take a turn of so many seconds: calls of ``size`` bytes, ``in_flight`` at a time."""
        self._client.send(Turn(policy, size, in_flight, seconds))
        return TurnResult(*_answer(self._client, self._kind, seconds + READY_SECONDS))

    def end(self) -> None:
        """End the processes: they go when their pipes close."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _first_on_the_path(site: Path | None) -> Iterator[None]:
    if site is None:
        yield
        return
    sys.path.insert(0, str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))


def _answer(pipe: Connection, kind: str, patience: float = READY_SECONDS) -> Any:
    try:
        if pipe.poll(patience):
            return pipe.recv()
    except EOFError:
        raise SystemExit(f"{kind}: a process of it ended early") from None
    raise SystemExit(f"{kind}: no answer within {patience:g} s")


def _leave_with(pipe: Connection) -> None:
    """End this process when the other end of its pipe closes, whatever it does at the time."""

    def watch() -> None:
        try:
            pipe.recv()
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class Calls(Protocol):
    """Takes a turn."""

    async def __call__(self, turn: Turn, meter: Meter) -> None: ...


async def _take_turns(turns: Connection, receive: Callable[[], Awaitable[Any]], calls: Calls) -> None:
    """A client's life, in whichever loop it runs."""
    turns.send("ready")
    while True:
        try:
            turn = await receive()
        except EOFError:
            os._exit(0)
        meter = Meter(turn.seconds)
        await calls(turn, meter)
        turns.send(tuple(meter.result()))


async def _take_trio_turns(turns: Connection, calls: Calls) -> None:
    await _take_turns(turns, partial(trio.to_thread.run_sync, turns.recv, abandon_on_cancel=True), calls)


async def _workers(turn: Turn, meter: Meter, calls: Sequence[Callable[[bytes], Awaitable[Any]]]) -> None:
    """``in_flight`` tasks that call one after another, by turns over ``calls``."""
    payload = bytes(turn.size)

    async def work(number: int) -> None:
        by_turns = cycle([*calls[number % len(calls) :], *calls[: number % len(calls)]])
        for call in by_turns:
            began = meter.now()
            await call(payload)
            if not meter.done(began):
                return

    async with trio.open_nursery() as nursery:
        for number in range(turn.in_flight):
            nursery.start_soon(work, number)


# ---- tiedreq --------------------------------------------------------------------------------------------------------

service = tiedreq.Service("bench")


@service.method(idempotent=True)
async def echo(context: tiedreq.Context, value: Any) -> Any:
    """Returns what it is given."""
    return value


def serve_tiedreq(number: int, pipe: Connection) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            handle = await nursery.start(partial(tiedreq.serve, service, name=f"r{number}"))
            pipe.send(handle.url)
            urls = await trio.to_thread.run_sync(pipe.recv)
            handle.set_peers({f"r{other}": url for other, url in enumerate(urls)})
            spare_the_loop()
            _leave_with(pipe)

    trio.run(run)


def serve_with_numpy(number: int, pipe: Connection) -> None:
    """As ``serve_tiedreq``, in a program that has imported NumPy."""
    import_module("numpy")
    serve_tiedreq(number, pipe)


def call_with_numpy(urls: list[str], turns: Connection) -> None:
    """As ``call_tiedreq``, in a program that has imported NumPy."""
    import_module("numpy")
    call_tiedreq(urls, turns)


def call_tiedreq(urls: list[str], turns: Connection) -> None:
    policies: dict[str, tiedreq.Policy] = {
        "plain": tiedreq.Plain(),
        "tied": tiedreq.Tied(),
        "tied at once": tiedreq.Tied(stagger=0.0),
    }

    async def run() -> None:
        async with tiedreq.connect(urls, policy=tiedreq.Plain()) as client:

            async def calls(turn: Turn, meter: Meter) -> None:
                call = partial(client.call, "echo", policy=policies[turn.policy], timeout=TIMEOUT)
                await _workers(turn, meter, [call])

            await _take_trio_turns(turns, calls)

    trio.run(run)


# ---- grpc.aio -------------------------------------------------------------------------------------------------------


def serve_grpc(number: int, pipe: Connection) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return request

    async def run() -> None:
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"echo": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(f"127.0.0.1:{port}")
        pipe.recv()
        _leave_with(pipe)
        await server.wait_for_termination()

    asyncio.run(run())


def call_grpc(addresses: list[str], turns: Connection) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(grpc.aio.insecure_channel(each)) for each in addresses]
            methods: list[Any] = [channel.unary_unary(METHOD) for channel in channels]

            async def calls(turn: Turn, meter: Meter) -> None:
                payload = bytes(turn.size)

                async def work(number: int) -> None:
                    for index in cycle(range(SERVERS)):
                        began = meter.now()
                        await methods[(number + index) % SERVERS](payload)
                        if not meter.done(began):
                            return

                await asyncio.gather(*(work(number) for number in range(turn.in_flight)))

            await _take_turns(turns, partial(asyncio.to_thread, turns.recv), calls)

    asyncio.run(run())


# ---- bare echoes ----------------------------------------------------------------------------------------------------


class Echo(Protocol):
    """A connection to an echo."""

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> bytes: ...


async def _exchange(connections: Sequence[Echo], turn: Turn, meter: Meter) -> None:
    """One message at a time, by turns over the connections; or a window of messages on each."""
    payload = bytes(turn.size)
    if turn.in_flight == 1:
        for connection in cycle(connections):
            began = meter.now()
            await connection.send(payload)
            await connection.receive()
            if not meter.done(began):
                return
    async with trio.open_nursery() as nursery:
        share = turn.in_flight // len(connections)
        for connection in connections:
            nursery.start_soon(_window, connection, payload, share, meter)


async def _window(connection: Echo, payload: bytes, size: int, meter: Meter) -> None:
    began: deque[float] = deque()
    room = trio.Semaphore(size)
    sending = True

    async def receive() -> None:
        while began or sending:
            await connection.receive()
            meter.done(began.popleft())
            room.release()

    async with trio.open_nursery() as nursery:
        await room.acquire()
        began.append(meter.now())
        nursery.start_soon(receive)
        await connection.send(payload)
        while True:
            await room.acquire()
            if meter.now() >= meter.until:
                sending = False
                break
            began.append(meter.now())
            await connection.send(payload)
        if not began:
            nursery.cancel_scope.cancel()


def serve_websocket(number: int, pipe: Connection) -> None:
    async def answer(request: trio_websocket.WebSocketRequest) -> None:
        connection = await request.accept()
        with suppress(trio_websocket.ConnectionClosed):
            while True:
                await connection.send_message(await connection.get_message())

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            serve = partial(
                trio_websocket.serve_websocket, answer, "127.0.0.1", 0, None, receive_buffer_size=RECEIVE_BYTES
            )
            server = await nursery.start(serve)
            pipe.send(f"ws://127.0.0.1:{server.port}")
            await trio.to_thread.run_sync(pipe.recv)
            _leave_with(pipe)

    trio.run(run)


class _WebsocketEcho:
    def __init__(self, connection: trio_websocket.WebSocketConnection) -> None:
        self.send = connection.send_message
        self.receive = connection.get_message


def call_websocket(urls: list[str], turns: Connection) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            connections: list[Any] = []
            for url in urls:
                opened = trio_websocket.open_websocket_url(url, receive_buffer_size=RECEIVE_BYTES)
                connections.append(_WebsocketEcho(await stack.enter_async_context(opened)))
            await _take_trio_turns(turns, partial(_exchange, connections))

    trio.run(run)


class _TcpEcho:
    """Messages with their length before them."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, message: bytes) -> None:
        await self._stream.send_all(len(message).to_bytes(4, "big") + message)

    async def receive(self) -> bytes:
        buffer = self._buffer
        while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
            more = await self._stream.receive_some(RECEIVE_BYTES)
            if not more:
                raise EOFError
            buffer += more
        end = 4 + int.from_bytes(buffer[:4], "big")
        message = bytes(buffer[4:end])
        del buffer[:end]
        return message


def serve_tcp(number: int, pipe: Connection) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        connection = _TcpEcho(stream)
        with suppress(EOFError, trio.BrokenResourceError):
            while True:
                await connection.send(await connection.receive())

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            pipe.send(listeners[0].socket.getsockname()[1])
            await trio.to_thread.run_sync(pipe.recv)
            _leave_with(pipe)

    trio.run(run)


def call_tcp(ports: list[int], turns: Connection) -> None:
    async def run() -> None:
        connections = [_TcpEcho(await trio.open_tcp_stream("127.0.0.1", port)) for port in ports]
        await _take_trio_turns(turns, partial(_exchange, connections))

    trio.run(run)


KINDS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "tiedreq": (serve_tiedreq, call_tiedreq),
    "numpy": (serve_with_numpy, call_with_numpy),
    "grpc": (serve_grpc, call_grpc),
    "websocket": (serve_websocket, call_websocket),
    "tcp": (serve_tcp, call_tcp),
}
