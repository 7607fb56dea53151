"""Trio in a thread of its own, and how other threads have something done there.

A ``Loop`` is the thread, and each of its ``Session`` objects an open Trio client. An ``Errand`` (a call, for one) goes
to the loop through its ``Inbox``, and comes back through what its caller waits on. Many cost one wake-up: an inbox
wakes its loop only when it is not awake already.

An errand always ends: with what the Trio client returned or raised, or because its session ended. Whose loop it is, and
what a fork or the end of the interpreter does to it, is ``_bridge``'s business.
"""

from __future__ import annotations

import logging
import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

import trio

from tiedreq.errors import Overloaded, Unavailable
from tiedreq.net.client import Client
from tiedreq.net.edge import no_groups

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tiedreq._errands import Errand

STOP_SECONDS = 5.0
"""How long the end of a client or of the process waits for the loop; more than the Trio client takes to close."""

PAUSE_SECONDS = 1.0
"""How long a fork waits at most for the loop's thread to let go of what it may hold."""

logger = logging.getLogger("tiedreq.bridge")

Opener = Callable[[], AbstractAsyncContextManager[Client]]


class Inbox:
    """Functions that any thread hands to one loop, which calls them in order. ``wake`` asks the loop to drain it.

    Functions must not raise.
    """

    __slots__ = ("_awake", "_items", "_wake")

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._items: deque[Callable[[], None]] = deque()
        self._wake = wake
        self._awake = False

    def put(self, item: Callable[[], None]) -> None:
        """Hand over a function. Raises the ``RuntimeError`` of ``wake`` when the loop is gone."""
        self._items.append(item)
        try:
            if not self._awake:
                self._awake = True
                self._wake(self._drain)
        except BaseException as error:  # Ctrl-C, at any point
            self._awake = False  # the next one tries again
            if isinstance(error, RuntimeError):  # the loop is gone, and with it what waits
                self._items.clear()
            raise

    def _drain(self) -> None:
        # First, so that whoever puts from now on wakes the loop again.
        self._awake = False
        items = self._items
        for _ in range(len(items)):
            items.popleft()()


class Once:
    """Something that happens once, perhaps as an error. Who waits for it is woken in the thread where it happens."""

    __slots__ = ("_error", "_lock", "_wakes")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], object]] | None = []
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True once it has happened."""
        return self._wakes is None

    def happen(self, error: BaseException | None = None) -> None:
        """It happens, unless it has happened before."""
        with self._lock:
            if self._wakes is None:
                return
            self._error = error
            wakes, self._wakes = self._wakes, None
        for wake in wakes:
            wake()

    def tell(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` when it happens; at once when it has happened."""
        with self._lock:
            if self._wakes is not None:
                self._wakes.append(wake)
                return
        wake()

    def check(self) -> None:
        """Raise the error, if it happened as one."""
        if self._error is not None:
            raise self._error

    def wait(self, timeout: float = -1) -> bool:
        """Block this thread until it has happened, at most ``timeout`` seconds; True if it has. Raises its error."""
        if not self.done:
            lock = allocate_lock()
            lock.acquire()
            self.tell(lock.release)
            lock.acquire(timeout=timeout)
        self.check()
        return self.done


class Loop:
    """A Trio run in a daemon thread, with any number of sessions. Its methods may be called from other threads.

    With ``virtual_time`` its clock stands still while nothing is under way (``busy``), and jumps otherwise.
    """

    def __init__(self, *, virtual_time: bool = False) -> None:
        self.ended = False
        self._clock = _virtual_clock() if virtual_time else None
        self._under_way = 0
        self._sessions: dict[Session, None] = {}
        self.inbox: Inbox
        self._nursery: trio.Nursery
        self._stop = trio.Event()
        self._started = Once()
        self._paused: dict[int, LockType] = {}
        self._thread = threading.Thread(target=self._main, name="tiedreq", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def here(self) -> bool:
        """True in the loop's own thread, which can't wait for itself."""
        return threading.get_ident() == self._thread.ident

    def open(self, opener: Opener, calls_max: int) -> Session:
        """Begin a session; returns at once."""
        session = Session(self, opener, calls_max)
        self._sessions[session] = None

        def start() -> None:
            try:
                self._nursery.start_soon(session.run)
            except RuntimeError:
                session.end(None)

        with suppress(trio.RunFinishedError):
            self.inbox.put(start)
        if self.ended:
            session.end(None)
        return session

    def stop(self) -> None:
        """Close every session and end the thread, or give up after ``STOP_SECONDS``."""
        with suppress(trio.RunFinishedError):
            self.inbox.put(self._stop.set)
        if not self.here:
            self._thread.join(STOP_SECONDS)

    def pause(self) -> None:
        """Hold the loop's thread where it holds no lock (of an import, for one), until this thread says ``resume``."""
        if self.here or self.ended:
            return
        paused, resumed = allocate_lock(), allocate_lock()
        paused.acquire()
        resumed.acquire()

        def hold() -> None:
            paused.release()
            resumed.acquire()

        with suppress(trio.RunFinishedError):
            self.inbox.put(hold)
            self._paused[threading.get_ident()] = resumed
            paused.acquire(timeout=PAUSE_SECONDS)

    def resume(self) -> None:
        """Let the loop's thread go on."""
        resumed = self._paused.pop(threading.get_ident(), None)
        if resumed is not None:
            resumed.release()

    def busy(self, change: int) -> None:
        """So many more (or fewer) things are under way. In the loop's thread."""
        if self._clock is not None:
            self._under_way += change
            self._clock.autojump_threshold = 0.0 if self._under_way else float("inf")

    def forget(self, session: Session) -> None:
        """A session is over."""
        self._sessions.pop(session, None)

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._serve, clock=self._clock)
        except BaseException as caught:
            error = caught
            logger.critical("the loop of the clients failed", exc_info=caught)
        self.ended = True
        self._started.happen(error)
        for session in list(self._sessions):
            session.end(error)

    async def _serve(self) -> None:
        self.inbox = Inbox(trio.lowlevel.current_trio_token().run_sync_soon)
        async with trio.open_nursery() as self._nursery:
            self._started.happen()
            await self._stop.wait()
            for session in list(self._sessions):
                session.close_here()


class Session:
    """One open Trio client in a loop's thread.

    ``ready`` happens once it is connected, as an error if it can't; ``over`` when it has ended. ``up`` says that
    calls may begin.
    """

    def __init__(self, loop: Loop, opener: Opener, calls_max: int) -> None:
        self.loop = loop
        self.up = False
        self.client: Client | None = None
        self.nursery: trio.Nursery | None = None
        self.errands: dict[Errand, None] = {}
        self.ready = Once()
        self.over = Once()
        self._opener = opener
        self._calls_max = calls_max
        self.ended = False
        self._closing = False
        self._closed = trio.Event()
        self._opening = trio.CancelScope()

    # ---- from any thread --------------------------------------------------------------------------------------

    def begin(self, errand: Errand) -> None:
        """Hand an errand over. Raises ``Overloaded`` for a call that is one too many."""
        if errand.limited and len(self.errands) >= self._calls_max:
            raise Overloaded(
                f"{len(self.errands)} calls are in flight, the client's calls_in_flight_max. Nothing was sent.",
                retry_after=0.0,
            )
        self.errands[errand] = None
        with suppress(trio.RunFinishedError):
            self.loop.inbox.put(errand.start)
        if self.ended:
            errand.finish()

    def cancel(self, errand: Errand) -> None:
        """Nobody waits for it any more: cancel a call and its copies."""
        with suppress(trio.RunFinishedError):
            self.loop.inbox.put(errand.cancel)

    def close(self) -> None:
        """Begin to close."""
        self.up = False
        with suppress(trio.RunFinishedError):
            self.loop.inbox.put(self.close_here)

    def finished(self, errand: Errand) -> bool:
        """Take an errand off the list; False when somebody did before."""
        return self.errands.pop(errand, self) is None

    # ---- in the loop's thread ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, serve calls until told to close, and close. Raises nothing."""
        error: BaseException | None = None
        self.loop.busy(+1)
        try:
            # Calls get their outcome from a client that closes, so their nursery is the outer one.
            with no_groups(), self._opening:
                async with trio.open_nursery() as self.nursery, self._opener() as self.client:
                    self._connected()
                    try:
                        await self._closed.wait()
                    finally:
                        self.loop.busy(+1)
        except trio.Cancelled:
            raise
        except BaseException as caught:
            error = caught
            if self.ready.done:
                logger.error("a client failed", exc_info=caught)
        finally:
            self.loop.busy(-1)
            self.end(error)

    def _connected(self) -> None:
        self.up = not self._closing
        self.loop.busy(-1)
        self.ready.happen()

    def close_here(self) -> None:
        """Close, or give up connecting."""
        self.up = False
        self._closing = True
        self._closed.set()
        if not self.ready.done:
            self._opening.cancel()

    def end(self, error: BaseException | None) -> None:
        """It is over: whoever still waits is told."""
        self.up = False
        self.ended = True
        self.loop.forget(self)
        self.ready.happen(error or Unavailable("client: it was closed while it connected"))
        for errand in list(self.errands):
            errand.finish(error)
        self.over.happen()


def _virtual_clock() -> MockClock:
    from trio.testing import MockClock  # for tests alone

    return MockClock()
