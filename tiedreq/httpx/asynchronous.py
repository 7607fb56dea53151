"""The race of one request on Trio or asyncio (by AnyIO): a task and a cancel scope for each copy.

The copies live in a task group that ends before the response is handed out: no task, scope or timer outlives
``handle_async_request``, and nothing is held open while the caller reads the body. The first byte of a body is read
inside the race; the rest is the caller's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable

import anyio
import anyio.abc
import httpx

from tiedreq.hedging.race import Flight, Race
from tiedreq.httpx.rules import FINAL_ERRORS, UNSENT_ERRORS, Accept, Verdict, judge, pause_wanted

CLOSE_SECONDS = 1.0
"""How long the closing of one response may take."""
NEVER = float("inf")

logger = logging.getLogger("tiedreq.hedging")

MakeRequest = Callable[[Flight], httpx.Request]


class Replayed(httpx.AsyncByteStream):
    """A body of which the first chunk has been read."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], stream: httpx.AsyncByteStream, *, runs_out: bool
    ) -> None:
        self._first = first
        self._rest = rest
        self._stream = stream
        self._runs_out = runs_out

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._first:
            yield self._first
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        """Close the body; what has not been read is dropped.

        The iterator is made of several, one below the other, and closing the uppermost leaves the others to the
        garbage collector. Where reading on from a closed connection ends them all with an error (HTTP/1.1), that is
        done instead.
        """
        if not self._runs_out:
            await _close_iterator(self._rest)
        await self._stream.aclose()
        if self._runs_out:
            with contextlib.suppress(Exception):
                async for _ in self._rest:
                    pass


async def _close_iterator(iterator: AsyncIterator[bytes]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()


async def read_first_byte(response: httpx.Response) -> None:
    """Wait for the first byte of the body, or its end."""
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    rest = stream.__aiter__()
    first = b""
    try:
        while not first:
            first = await rest.__anext__()
    except StopAsyncIteration:
        pass
    except BaseException:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_SECONDS):
            await _close_iterator(rest)
        raise
    runs_out = response.extensions.get("http_version") in (b"HTTP/1.0", b"HTTP/1.1")
    response.stream = Replayed(first, rest, stream, runs_out=runs_out)


async def close_all(responses: Iterable[httpx.Response]) -> None:
    """Close responses that nobody will read, within a bound, even when the caller is cancelled."""
    for response in responses:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLOSE_SECONDS):
            try:
                await response.aclose()
            except Exception as error:
                logger.debug("a response that lost did not close: %r", error)


class AsyncCarrier:
    """Takes the copies of one request through an httpx transport."""

    def __init__(self, inner: httpx.AsyncBaseTransport, make_request: MakeRequest, accept: Accept | None) -> None:
        self._inner = inner
        self._make_request = make_request
        self._accept = accept
        self._group: anyio.abc.TaskGroup | None = None
        self._waiting: list[Flight] = []
        self._bell: anyio.Event | None = None
        self._error: BaseException | None = None
        self._race: Race

    # ---- the carrier ------------------------------------------------------------------------------------------

    def carry(self, flight: Flight) -> bool:
        """Begin a copy: in a task of its own, or, where there are no backups, in the caller's."""
        if self._group is None:
            self._waiting.append(flight)
        else:
            flight.handle = anyio.CancelScope()
            self._group.start_soon(self._fly, flight)
        return True

    def stop(self, flight: Flight) -> None:
        """Cancel the task of a copy."""
        if flight.handle is not None:
            flight.handle.cancel()

    # ---- the race ---------------------------------------------------------------------------------------------

    async def run(self, race: Race, *, hedged: bool) -> httpx.Response:
        """The response of the call. Raises the httpx error of the copy that decided, where there is no response."""
        self._race = race
        try:
            if hedged:
                await self._race_copies(race)
            else:
                await self._one_by_one(race)
        except BaseException:
            race.cancel(anyio.current_time())
            await close_all(race.leftovers(None))
            raise
        chosen = race.chosen()
        await close_all(race.leftovers(chosen))
        return response_of(race, chosen, self._error)

    async def _race_copies(self, race: Race) -> None:
        async with anyio.create_task_group() as group:
            self._group = group
            race.begin(anyio.current_time())
            while race.outcome is None:
                self._bell = anyio.Event()
                at = race.wake_at
                if at == NEVER:
                    await self._bell.wait()
                    continue
                with anyio.CancelScope(deadline=at):
                    await self._bell.wait()
                now = anyio.current_time()
                if now >= race.wake_at:
                    race.elapsed(now)

    async def _one_by_one(self, race: Race) -> None:
        race.begin(anyio.current_time())
        while race.outcome is None:
            await self._attempt(self._waiting.pop(0), whole=True)

    # ---- one copy ---------------------------------------------------------------------------------------------

    async def _fly(self, flight: Flight) -> None:
        with flight.handle:
            try:
                await self._attempt(flight)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                own = _not_cancelled(error)
                if own is None:
                    raise
                self._error = own
                self._race.cancel(anyio.current_time())
        if self._bell is not None:
            self._bell.set()

    async def _attempt(self, flight: Flight, *, whole: bool = False) -> None:
        """Send a copy and tell what came. ``whole``: the race is decided by the headers already."""
        race, response, kept = self._race, None, False
        try:
            try:
                response = await self._inner.handle_async_request(self._make_request(flight))
                verdict = judge(response, self._accept)
                if verdict == Verdict.ANSWER and not whole:
                    await read_first_byte(response)
            except UNSENT_ERRORS as error:
                race.unsent(flight, anyio.current_time(), error, by_host=not isinstance(error, httpx.PoolTimeout))
            except httpx.TransportError as error:
                final = isinstance(error, FINAL_ERRORS)
                race.failed(flight, repr(error), anyio.current_time(), error=error, retryable=not final)
            else:
                kept = tell_response(race, flight, response, verdict, anyio.current_time())
        finally:
            if response is not None and not kept:
                await close_all([response])


def _not_cancelled(error: BaseException) -> BaseException | None:
    """An error without the cancellations beside it: what a transport with a nursery of its own raises has both."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(anyio.get_cancelled_exc_class())[1]
    return error


def tell_response(race: Race, flight: Flight, response: httpx.Response, verdict: Verdict, now: float) -> bool:
    """Tell the race of a response. False: it came too late, and is to be closed."""
    if verdict == Verdict.ANSWER:
        return race.answered(flight, response, now)
    reason, pause = f"status {response.status_code}", pause_wanted(response)
    retryable = verdict == Verdict.RETRYABLE
    return race.failed(flight, reason, now, answer=response, retryable=retryable, pushback=pause)


def response_of(race: Race, chosen: Flight | None, error: BaseException | None) -> httpx.Response:
    """The response of a call that is over, with its story; or its error is raised. ``error`` is the caller's own."""
    if error is not None:
        raise error
    assert chosen is not None, "a call has no limit of time but its copies'"
    story = race.attempts()
    if isinstance(chosen.answer, httpx.Response):
        chosen.answer.extensions["tiedreq"] = story
        return chosen.answer
    assert chosen.error is not None
    if len(story) > 1:
        chosen.error.add_note(
            "copies: " + ", ".join(f"{copy['kind']} at {copy['host']}: {copy['end']}" for copy in story)
        )
    raise chosen.error
