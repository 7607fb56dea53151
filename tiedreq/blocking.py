"""The client for threads: Flask, Django, scripts, notebooks. The same names as the Trio client, without ``await``.

``with tiedreq.blocking.connect() as client: client.tied_call("lookup", {"key": "k1"}, timeout=0.5)``

One client serves any number of threads. Whatever interrupts a waiting call (Ctrl-C, an exception from a signal's
handler) cancels the call and its copies at the replicas at once. After a fork the child connects anew.
Not for coroutines: use ``tiedreq.aio`` on asyncio and ``tiedreq.connect`` on Trio, which don't block the loop.
"""

from __future__ import annotations

import ssl
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from tiedreq._bridge import HEDGED, TIED, Bridge, setting, unless_given
from tiedreq._errands import Call, Errand, Task
from tiedreq._loopthread import STOP_SECONDS, Session, logger
from tiedreq._streams import Carried
from tiedreq.core.errors import TiedreqError, UsageError
from tiedreq.core.limits import ClientLimits
from tiedreq.core.policy import Policy
from tiedreq.discovery.find import Replicas
from tiedreq.net.arguments import Accept, check_handler
from tiedreq.net.connecting import OBSERVE_DEFAULT
from tiedreq.observe.options import Observe
from tiedreq.reply import Reply

__all__ = ["Client", "Stream", "connect"]


class Client(Bridge):
    """Calls methods of a replicated service from any thread. Made by ``tiedreq.blocking.connect()``.

    ``with client:`` connects at once and closes at the end; without it the first call connects. Each call raises
    what the Trio client raises, and ``ConnectError`` when it has to connect and can't.
    """

    def __enter__(self) -> Client:
        try:
            self._connected()
        except BaseException:
            self._end_session()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the open calls (``Unavailable``) and close the connections; the client can't be used any more."""
        session = self._end_session()
        if session is None or session.loop.here:
            return
        if not session.over.wait(STOP_SECONDS):
            logger.warning("%r did not close within %g s", self, STOP_SECONDS)

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with the client's policy and return the value. See ``request`` for options and errors."""
        return self._made(method, args, options)

    def tied_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Tied()`` unless ``policy=`` says otherwise. See ``request``.

        Raises ``UnsafeToDuplicate`` before anything is sent when the method is not declared idempotent.
        """
        return self._made(method, args, unless_given(options, TIED))

    def hedged_call(self, method: str, args: Any = None, **options: Any) -> Any:
        """Call ``method`` with ``Hedged()`` unless ``policy=`` says otherwise: a backup when no answer came in time.

        Raises as ``tied_call``. See ``request``.
        """
        return self._made(method, args, unless_given(options, HEDGED))

    def request(
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

        ``timeout`` is in seconds. ``accept(value)`` runs in the client's own thread, in a copy of the caller's
        context: it must be quick and must not make calls. Inside a handler of tiedreq (a plain ``def``) the handler's
        deadline counts too.

        Raises ``UsageError`` before anything is sent, ``CallError`` otherwise, ``ConnectError`` when the client has to
        connect first and can't.
        """
        options: dict[str, Any] = {"timeout": timeout, "key": key, "policy": policy}
        options |= {"accept": accept, "metadata": metadata}
        reply: Reply = self._made(method, args, options, want_reply=True)
        return reply

    def stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """A stream of items: ``with client.stream(…) as stream: for item in stream``; as on Trio."""
        return Stream(self, method, args, options)

    def tied_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Tied()`` unless ``policy=`` says otherwise."""
        return Stream(self, method, args, unless_given(options, TIED))

    def hedged_stream(self, method: str, args: Any = None, **options: Any) -> Stream:
        """As ``stream``, with ``Hedged()`` unless ``policy=`` says otherwise."""
        return Stream(self, method, args, unless_given(options, HEDGED))

    def bind(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A callable ``bound(args=None, **options)`` that calls the method named like ``handler``."""
        name = check_handler(handler)

        def bound(args: Any = None, **options: Any) -> Any:
            return self.call(name, args, **options)

        bound.__name__ = name
        bound.__doc__ = handler.__doc__
        return bound

    def stats(self) -> dict[str, Any]:
        """Counters of this client in this process, and what it knows of each replica and method; as on Trio."""
        found: dict[str, Any] = self._do("stats")
        return found

    def replica_status(self, *, timeout: float = 2.0) -> dict[str, dict[str, Any]]:
        """How each connected replica is, by name: see ``ReplicaHandle.status``. Asked of the replica, not its queue.

        A replica that does not answer within ``timeout`` seconds is left out.
        """
        found: dict[str, dict[str, Any]] = self._do("replica_status", timeout=timeout)
        return found

    # ---- waiting ----------------------------------------------------------------------------------------------

    def _connected(self) -> Session:
        session = self._begin_session()
        session.ready.wait()
        return session

    def _made(self, method: str, args: Any, options: dict[str, Any], *, want_reply: bool = False) -> Any:
        session = self._session
        if session is None or not session.up or session.loop.here:
            session = self._connected()
        done = allocate_lock()
        done.acquire()
        call = Call(session, (method, args), self._within(options), done.release, want_reply=want_reply)
        return self._result(session, call, done)

    def _do(self, function: str | Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a function, or the Trio client's method of that name, returns in the client's own thread."""
        session = self._connected()
        done = allocate_lock()
        done.acquire()
        return self._result(session, Task(session, function, arguments, options, done.release), done)

    def _result(self, session: Session, errand: Errand, done: LockType) -> Any:
        try:
            session.begin(errand)
            done.acquire()
        except BaseException:
            session.cancel(errand)
            raise
        return errand.result()


class Stream(Carried):
    """A stream of items for threads: see ``tiedreq.Stream``. One thread at a time may iterate."""

    def __init__(self, client: Client, method: str, args: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self._client = client
        self._call = (method, args, options)

    def __enter__(self) -> Stream:
        if self._stream is not None:
            raise UsageError("stream: it was begun before; each has one block")
        method, args, options = self._call
        stream = self._client._do("stream", method, args, **self._client._within(options))
        try:
            self._client._do(stream.__aenter__)
        except BaseException:
            with suppress(TiedreqError):  # it may have begun all the same
                self._client._do(stream.close)
            raise
        self._stream = stream
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        session = self._client._session
        if session is not None and session.up:
            self._client._do(self._story().close)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        there, item = self.take()
        while not there:
            if self._over:
                raise StopIteration
            self._client._do(self.fetch)
            there, item = self.take()
        return item


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
    """A client of a cluster's replicas, for threads. The options are those of ``tiedreq.connect``.

    Use it as ``with connect() as client: …``, which connects at once, or keep it (a module's global will do) and
    ``close()`` it at the end: then the first call connects, in each process that uses it.

    Raises ``BadOption``; ``with`` and the first call raise ``ConnectError``, ``AuthRefused``, ``VersionMismatch``.
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
