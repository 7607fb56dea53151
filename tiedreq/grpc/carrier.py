"""The race of one RPC on asyncio: a task for each copy, all ended before the call is handed out.

Not for what a status means (``interceptors``), nor for when a copy is sent (``core.call``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import grpc.aio

from tiedreq.hedging.race import Flight, Race

NEVER = float("inf")
PREVIOUS_ATTEMPTS = "tiedreq-previous-attempts"
"""Tells a server how many copies left before this one. The header of proposal A6 for that is gRPC's own: what an
application writes to ``grpc-previous-rpc-attempts`` does not leave."""

Continue = Callable[[Any, Any], Awaitable[Any]]
Judge = Callable[[Race, Flight, Any, grpc.aio.AioRpcError], bool]


async def read_reply(call: Any) -> Any:
    """Wait for the reply of a unary call, which keeps it."""
    await call
    return call


async def read_first_message(call: Any) -> Any:
    """Wait for the first message of a stream, or its end; the call that replays it."""
    messages = call.__aiter__()
    try:
        first: list[Any] = [await messages.__anext__()]
    except StopAsyncIteration:
        first = []
    return Replayed(call, first, messages)


class Replayed(grpc.aio.UnaryStreamCall[Any, Any]):
    """A stream of which the first message has been read. All else is the call's own."""

    def __init__(self, call: Any, first: list[Any], rest: AsyncIterator[Any]) -> None:
        self._call = call
        self._first = first
        self._rest = rest
        self._messages: AsyncIterator[Any] | None = None

    async def _replay(self) -> AsyncIterator[Any]:
        while self._first:
            yield self._first.pop()
        async for message in self._rest:
            yield message

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._messages is None:
            self._messages = self._replay()
        return self._messages

    async def read(self) -> Any:
        """The next message, or ``grpc.aio.EOF``."""
        try:
            return await self.__aiter__().__anext__()
        except StopAsyncIteration:
            return grpc.aio.EOF

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def done(self) -> bool:
        return not self._first and bool(self._call.done())

    def time_remaining(self) -> float | None:
        remaining: float | None = self._call.time_remaining()
        return remaining

    def cancel(self) -> bool:
        self._first.clear()
        return bool(self._call.cancel())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(callback)

    async def initial_metadata(self) -> Any:
        return await self._call.initial_metadata()

    async def trailing_metadata(self) -> Any:
        return await self._call.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await self._call.code()
        return code

    async def details(self) -> Any:
        return await self._call.details()

    async def wait_for_connection(self) -> None:
        await self._call.wait_for_connection()


class Style(NamedTuple):
    """How calls of one kind are waited for, and what is handed out when one failed."""

    read: Callable[[Any], Coroutine[Any, Any, Any]]
    failed: Callable[[Any, BaseException], Any]


def _failed_stream(call: Any, error: BaseException) -> Any:
    """A stream that has raised its error already, and raises it once more to whoever reads it."""

    async def again() -> AsyncIterator[Any]:
        raise error
        yield  # makes it a generator

    return Replayed(call, [], again())


UNARY = Style(read_reply, lambda call, error: call)
STREAM = Style(read_first_message, _failed_stream)


class Carrier:
    """Takes the copies of one RPC through the channel."""

    def __init__(self, proceed: Continue, details: Any, request: Any, style: Style, judge: Judge) -> None:
        self._proceed = proceed
        self._details = details
        self._request = request
        self._style = style
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self._ends = NEVER if details.timeout is None else self._loop.time() + details.timeout
        self._tasks: list[asyncio.Task[None]] = []
        self._bell: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._race: Race

    # ---- the carrier ------------------------------------------------------------------------------------------

    def carry(self, flight: Flight) -> bool:
        """Begin a copy in a task of its own; not one that would have to wait until the time is up."""
        if flight.not_before >= self._ends:
            return False
        flight.handle = self._loop.create_task(self._fly(flight, len(self._tasks)))
        self._tasks.append(flight.handle)
        return True

    def stop(self, flight: Flight) -> None:
        """Cancel the task of a copy, and so its RPC."""
        flight.handle.cancel()

    # ---- the race ---------------------------------------------------------------------------------------------

    async def run(self, race: Race) -> Any:
        """The call that decided. Cancelled, every RPC is cancelled before this returns."""
        self._race = race
        try:
            race.begin(self._loop.time())
            while race.outcome is None:
                await self._wait(race.wake_at)
                now = self._loop.time()
                if now >= race.wake_at:
                    race.elapsed(now)
        finally:
            race.cancel(self._loop.time())
            await self._end(race)
        if self._error is not None:
            raise self._error
        chosen = race.chosen()
        if chosen is None:
            code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before any copy was answered"
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
        if chosen.answer is None:
            assert chosen.error is not None
            raise chosen.error
        return chosen.answer

    async def _wait(self, until: float) -> None:
        """Wait for news, or until ``until`` on the loop's clock."""
        self._bell = bell = self._loop.create_future()
        timer = self._loop.call_at(until, self._ring) if until < NEVER else None
        try:
            await bell
        finally:
            if timer is not None:
                timer.cancel()

    def _ring(self) -> None:
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _end(self, race: Race) -> None:
        """Wait until every copy but the chosen one is gone."""
        chosen = race.chosen()
        for answer in race.leftovers(chosen):
            answer.cancel()
        running = [task for task in self._tasks if not task.done()]
        if running:
            await asyncio.wait(running)

    # ---- one copy ---------------------------------------------------------------------------------------------

    async def _fly(self, flight: Flight, before: int) -> None:
        call = None
        kept = False
        try:
            pause = flight.not_before - self._loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            call = await self._proceed(self._details_of(before), self._request)
            answer = await self._style.read(call)
            kept = self._race.answered(flight, answer, self._loop.time())
        except grpc.aio.AioRpcError as error:
            failed = None if call is None else self._style.failed(call, error)
            kept = self._judge(self._race, flight, failed, error)
        except asyncio.CancelledError:
            if not flight.stopped:
                # Not we cancelled it: another interceptor, or the channel was closed.
                self._fail(asyncio.CancelledError("the RPC was cancelled below"))
            raise
        except BaseException as error:
            self._fail(error)
        finally:
            if call is not None and not kept:
                call.cancel()
            self._ring()

    def _fail(self, error: BaseException) -> None:
        if self._race.outcome is None:
            self._error = error
            self._race.cancel(self._loop.time())

    def _details_of(self, before: int) -> Any:
        """The details of a copy: the time that is left, and how many copies left before it."""
        details = self._details
        if not before:
            return details
        metadata = grpc.aio.Metadata(*(details.metadata or ()))
        with suppress(KeyError):
            metadata.delete_all(PREVIOUS_ATTEMPTS)
        metadata.add(PREVIOUS_ATTEMPTS, str(before))
        timeout = None if self._ends == NEVER else max(self._ends - self._loop.time(), 0.0)
        return details._replace(metadata=metadata, timeout=timeout)
