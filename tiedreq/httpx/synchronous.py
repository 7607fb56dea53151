"""The race of one request in threads: the caller's thread decides and waits, each copy has a thread of its own.

Everything that touches a race holds the transport's lock. A loser's socket is shut down (``workers``), and its thread
closes what came too late; the caller does not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import httpx

from tiedreq.core.types import CopyKind
from tiedreq.hedging.race import Flight, Race
from tiedreq.httpx.asynchronous import MakeRequest, response_of, tell_response
from tiedreq.httpx.rules import FINAL_ERRORS, UNSENT_ERRORS, Accept, Verdict, judge
from tiedreq.httpx.workers import Interrupt, Workers

NEVER = float("inf")
WAIT_MAX = threading.TIMEOUT_MAX

logger = logging.getLogger("tiedreq.hedging")


class Replayed(httpx.SyncByteStream):
    """A body of which the first chunk has been read."""

    def __init__(self, first: bytes, rest: Iterator[bytes], stream: httpx.SyncByteStream) -> None:
        self._first = first
        self._rest = rest
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        if self._first:
            yield self._first
        yield from self._rest

    def close(self) -> None:
        """Close the body; what has not been read is dropped."""
        try:
            _close_iterator(self._rest)
        finally:
            self._stream.close()


def _close_iterator(iterator: Iterator[bytes]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def read_first_byte(response: httpx.Response) -> None:
    """Wait for the first byte of the body, or its end."""
    stream = response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    rest = iter(stream)
    first = b""
    try:
        while not first:
            first = next(rest)
    except StopIteration:
        pass
    response.stream = Replayed(first, rest, stream)


def close_all(responses: Iterable[httpx.Response]) -> None:
    """Close responses that nobody will read."""
    for response in responses:
        try:
            response.close()
        except Exception as error:
            logger.debug("a response that lost did not close: %r", error)


class SyncCarrier:
    """Takes the copies of one request through an httpx transport."""

    def __init__(
        self,
        inner: httpx.BaseTransport,
        make_request: MakeRequest,
        accept: Accept | None,
        workers: Workers,
        lock: threading.RLock,
    ) -> None:
        self._inner = inner
        self._make_request = make_request
        self._accept = accept
        self._workers = workers
        self._news = threading.Condition(lock)
        self._waiting: list[Flight] = []
        self._hedged = False
        self._error: BaseException | None = None
        self._race: Race

    # ---- the carrier ------------------------------------------------------------------------------------------

    def carry(self, flight: Flight) -> bool:
        """Begin a copy in a thread of its own. With none free a first copy runs in the caller's, and a backup fails."""
        flight.handle = Interrupt()
        if self._hedged and self._workers.run(partial(self._fly, flight)):
            return True
        if flight.kind == CopyKind.BACKUP:
            return False
        self._waiting.append(flight)
        return True

    def stop(self, flight: Flight) -> None:
        """End what the thread of a copy waits for."""
        flight.handle.fire()

    # ---- the race ---------------------------------------------------------------------------------------------

    def run(self, race: Race, *, hedged: bool) -> httpx.Response:
        """The response of the call. Raises the httpx error of the copy that decided, where there is no response."""
        self._race, self._hedged = race, hedged
        try:
            self._decide(race)
        except BaseException:
            with self._news:
                race.cancel(time.monotonic())
            close_all(race.leftovers(None))
            raise
        chosen = race.chosen()
        close_all(race.leftovers(chosen))
        return response_of(race, chosen, self._error)

    def _decide(self, race: Race) -> None:
        with self._news:
            race.begin(time.monotonic())
            while race.outcome is None:
                if self._waiting:
                    self._fly_here(self._waiting.pop(0))
                    continue
                at = race.wake_at
                self._news.wait(None if at == NEVER else min(max(at - time.monotonic(), 0.0), WAIT_MAX))
                now = time.monotonic()
                if race.outcome is None and now >= race.wake_at:
                    race.elapsed(now)

    def _fly_here(self, flight: Flight) -> None:
        """Carry a copy in this thread, which holds the lock once."""
        self._news.release()
        try:
            self._attempt(flight, whole=not self._hedged)
        finally:
            self._news.acquire()

    # ---- one copy ---------------------------------------------------------------------------------------------

    def _fly(self, flight: Flight) -> None:
        with flight.handle:
            try:
                self._attempt(flight)
            except BaseException as error:
                with self._news:
                    if self._race.outcome is None:
                        self._error = error
                        self._race.cancel(time.monotonic())
                        self._news.notify_all()

    def _attempt(self, flight: Flight, *, whole: bool = False) -> None:
        """Send a copy and tell what came. ``whole``: the race is decided by the headers already."""
        race, response, kept = self._race, None, False
        try:
            try:
                response = self._inner.handle_request(self._make_request(flight))
                verdict = judge(response, self._accept)
                if verdict == Verdict.ANSWER and not whole:
                    read_first_byte(response)
            except UNSENT_ERRORS as error:
                by_host = not isinstance(error, httpx.PoolTimeout)
                self._tell(partial(race.unsent, flight, by_host=by_host), error)
            except httpx.TransportError as error:
                self._tell(partial(self._failed, flight), error)
            else:
                with self._news:
                    kept = tell_response(race, flight, response, verdict, time.monotonic())
                    self._news.notify_all()
        finally:
            if response is not None and not kept:
                close_all([response])

    def _failed(self, flight: Flight, now: float, error: httpx.TransportError) -> None:
        self._race.failed(flight, repr(error), now, error=error, retryable=not isinstance(error, FINAL_ERRORS))

    def _tell(self, news: Callable[[float, httpx.TransportError], object], error: httpx.TransportError) -> None:
        with self._news:
            news(time.monotonic(), error)
            self._news.notify_all()
