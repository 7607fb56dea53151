"""The client for asyncio: FastAPI, aiohttp, Jupyter. The same names as the Trio client.

``async with tiedreq.aio.connect() as client: await client.tied_call("lookup", {"key": "k1"}, timeout=0.5)``

Cancelling the task that waits (``task.cancel()``, ``asyncio.timeout``) cancels the call and its copies at the replicas
at once. One client serves any number of tasks, of any number of event loops and threads. After a fork the child
connects anew. A deadline that the replicas know of is ``timeout=``: asyncio tells nobody when a scope will time out.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from tiedreq._bridge import HEDGED, TIED, Bridge, setting, unless_given
from tiedreq._errands import Call, Errand, Task
from tiedreq._loopthread import STOP_SECONDS, Inbox, Once, Session, logger
from tiedreq._streams import Carried
from tiedreq.core.errors import BadOption, TiedreqError, UsageError
from tiedreq.core.limits import ClientLimits
from tiedreq.core.policy import Policy
from tiedreq.discovery.find import Replicas
from tiedreq.net.arguments import Accept, check_handler
from tiedreq.net.connecting import OBSERVE_DEFAULT
from tiedreq.net.stream import Stream as TrioStream
from tiedreq.observe.options import Observe
from tiedreq.reply import Reply

__all__ = ["Client", "Stream", "connect"]


class Client(Bridge):
    """Calls methods of a replicated service from asyncio tasks. Made by ``tiedreq.aio.connect()``.

    ``async with client:`` connects at once and closes at the end; ``await client`` connects and returns it (close it
    with ``await client.aclose()``); without either the first call connects. Each call raises what the Trio client
    raises, and ``ConnectError`` when it has to connect and can't.
    """

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        try:
            await self._connected()
        except BaseException:
            self._end_session()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the open calls (``Unavailable``) and close the connections; the client can't be used any more."""
        session = self._end_session()
        if session is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await _happened(session.over)
        except TimeoutError:
            logger.warning("%r did not close within %g s", self, STOP_SECONDS)

    # ---- calls ------------------------------------------------------------------------------------------------

    async def call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with the client's policy and return the value. See ``request`` for options and errors."""
        return await self._made(method, args, options)

    async def tied_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Tied()`` unless ``policy=`` says otherwise. See ``request``.

        Raises ``UnsafeToDuplicate`` before anything is sent when the method is not declared idempotent.
        """
        return await self._made(method, args, unless_given(options, TIED))

    async def hedged_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Hedged()`` unless ``policy=`` says otherwise: a backup when no answer came in time.

        Raises as ``tied_call``. See ``request``.
        """
        return await self._made(method, args, unless_given(options, HEDGED))

    async def request(
        self,
        method: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        policy: Policy | None = None,
        accept: Accept | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Reply:
        """Call ``method`` and return the value with its story: ``tiedreq.Client.request`` in every respect.

        ``timeout`` is in seconds; a surrounding ``asyncio.timeout`` cancels the call when it is over. ``accept(value)``
        runs in the client's own thread, in a copy of the caller's context: it must be quick and must not make calls.

        Raises ``UsageError`` before anything is sent, ``CallError`` otherwise, ``ConnectError`` when the client has to
        connect first and can't. The caller's own cancellation stays ``asyncio.CancelledError``.
        """
        options: dict[str, Any] = {"timeout": timeout, "key": key, "policy": policy}
        options |= {"accept": accept, "metadata": metadata}
        reply: Reply = await self._made(method, args, options, want_reply=True)
        return reply

    def stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """A stream of items: ``async with client.stream(…) as stream: async for item in stream``; as on Trio."""
        return Stream(self, method, args, options)

    def tied_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Tied()`` unless ``policy=`` says otherwise."""
        return Stream(self, method, args, unless_given(options, TIED))

    def hedged_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Hedged()`` unless ``policy=`` says otherwise."""
        return Stream(self, method, args, unless_given(options, HEDGED))

    def bind(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A callable ``await bound(args=None, **options)`` that calls the method named like ``handler``."""
        name = check_handler(handler)

        async def bound(args: Any = None, **options: Any) -> Any:
            return await self.call(name, args, **options)

        bound.__name__ = name
        bound.__doc__ = handler.__doc__
        return bound

    def stats(self) -> dict[str, Any]:
        """Counters of this client in this process, and what it knows of each replica and method; as on Trio.

        It waits for the client's own thread, about as long as a call takes to be handed over. Raises ``BadOption`` for
        a client that is closed or has not connected yet.
        """
        session = self._session
        if session is None or not session.up:
            raise BadOption(f"client: it is {'closed' if self._closed else 'not connected yet'}")
        done = allocate_lock()
        done.acquire()
        errand = Task(session, "stats", (), {}, done.release)
        session.begin(errand)
        done.acquire()
        found: dict[str, Any] = errand.result()
        return found

    async def replica_status(self, *, timeout: float = 2.0) -> dict[str, dict[str, Any]]:
        """How each connected replica is, by name: see ``ReplicaHandle.status``. Asked of the replica, not its queue.

        A replica that does not answer within ``timeout`` seconds is left out.
        """
        found: dict[str, dict[str, Any]] = await self._do("replica_status", timeout=timeout)
        return found

    # ---- waiting ----------------------------------------------------------------------------------------------

    async def _connected(self) -> Session:
        running_loop()
        session = self._begin_session()
        await _happened(session.ready)
        return session

    async def _made(self, method: str, args: Any, options: dict[str, Any], *, want_reply: bool = False) -> Any:
        session = self._session
        if session is None or not session.up:
            session = await self._connected()
        future, wake = _waiting()
        call = Call(session, (method, args), self._within(options), wake, want_reply=want_reply)
        return await self._result(session, call, future)

    async def _do(self, function: str | Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a function, or the Trio client's method of that name, returns in the client's own thread."""
        session = await self._connected()
        future, wake = _waiting()
        return await self._result(session, Task(session, function, arguments, options, wake), future)

    async def _result(self, session: Session, errand: Errand, future: asyncio.Future[None]) -> Any:
        try:
            session.begin(errand)
            await future
        except BaseException:
            session.cancel(errand)
            raise
        return errand.result()


class Stream(Carried):
    """A stream of items in asyncio: see ``tiedreq.Stream``. A step that is cancelled loses no item."""

    def __init__(self, client: Client, method: str, args: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self._client = client
        self._call = (method, args, options)

    async def __aenter__(self) -> Stream:
        if self._stream is not None:
            raise UsageError("stream: it was begun before; each has one block")
        method, args, options = self._call
        stream = await self._client._do("stream", method, args, **self._client._within(options))
        try:
            await self._client._do(stream.__aenter__)
        except BaseException:
            self._close(stream)  # it may have begun all the same
            raise
        self._stream = stream
        return self

    def _close(self, stream: TrioStream) -> asyncio.Future[None] | None:
        """Have it closed, whoever is cancelled meanwhile; what to wait for."""
        session = self._client._session
        if session is None or not session.up:
            return None
        future, wake = _waiting()
        with suppress(TiedreqError):  # the client is closed, and its streams with it
            session.begin(Task(session, stream.close, (), {}, wake))
            return future
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        closed = self._close(self._story())
        if closed is not None:
            await closed

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        there, item = self.take()
        while not there:
            if self._over:
                raise StopAsyncIteration
            await self._client._do(self.fetch)
            there, item = self.take()
        return item


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Inbox] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mailboxes.clear)


def _mailbox(loop: asyncio.AbstractEventLoop) -> Inbox:
    """What brings results to ``loop``: many with one wake-up. Used in the loop's own thread."""
    box = _mailboxes.get(loop)
    if box is None:
        box = _mailboxes[loop] = Inbox(partial(_wake_loop, weakref.ref(loop)))
    return box


def _wake_loop(known: weakref.ref[asyncio.AbstractEventLoop], drain: Callable[[], None]) -> None:
    """Raises ``RuntimeError`` when the loop is closed or gone."""
    loop = known()
    if loop is None:
        raise RuntimeError("the event loop is gone")
    loop.call_soon_threadsafe(drain)


def _waiting() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """A future of the loop that runs here, and what other threads call to have it done."""
    loop = running_loop()
    future: asyncio.Future[None] = loop.create_future()
    return future, partial(_tell, _mailbox(loop), future)


def _tell(mailbox: Inbox, future: asyncio.Future[None]) -> None:
    """A result is there. In the client's thread; nobody waits any more in a loop that is closed."""
    with suppress(RuntimeError):
        mailbox.put(partial(_wake, future))


async def _happened(once: Once) -> None:
    """Wait until it has happened. Raises its error."""
    if not once.done:
        future, wake = _waiting()
        once.tell(wake)
        await future
    once.check()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs here. Raises ``BadOption`` without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise BadOption(
            "client: no asyncio event loop runs here; use tiedreq.connect on Trio, tiedreq.blocking.connect in threads"
        ) from None


def connect(
    replicas: Replicas = None,
    *,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    policy: Policy | None = None,
    timeout: float = 10.0,
    limits: ClientLimits | None = None,
    cluster: str | None = None,
    picker: str = "adaptive",
    observe: Observe | None = OBSERVE_DEFAULT,
    zone: str = "",
) -> Client:
    """A client of a cluster's replicas, for asyncio. The options are those of ``tiedreq.connect``.

    Use it as ``async with connect() as client: …`` or ``client = await connect()``, which connect at once, or keep what
    it returns and ``aclose()`` it at the end: then the first call connects, in each process that uses it.

    Raises ``BadOption``; connecting raises ``ConnectError``, ``AuthRefused``, ``VersionMismatch``.
    """
    return Client(
        setting(
            replicas,
            token=token,
            ssl_context=ssl_context,
            policy=policy,
            timeout=timeout,
            limits=limits,
            cluster=cluster,
            picker=picker,
            observe=observe,
            zone=zone,
        )
    )
