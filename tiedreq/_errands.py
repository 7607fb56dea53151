"""What a session does for other threads: calls of the service, and anything else as a task."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from tiedreq._loopthread import Session
from tiedreq.errors import Unavailable
from tiedreq.net.opencall import OpenCall


class Errand:
    """Something that is done in the loop's thread for somebody in another, in a copy of that one's context.

    ``wake`` is called once, in the loop's thread, when ``result`` is known. ``limited`` ones count as calls in flight.
    """

    limited = False
    __slots__ = ("_context", "_error", "_options", "_session", "_value", "_wake")

    def __init__(self, session: Session, options: dict[str, Any], wake: Callable[[], object]) -> None:
        self._session = session
        self._context = contextvars.copy_context()
        self._options = options
        self._wake = wake
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """The value, or what was raised. Once, in the caller's thread: a second time knows no error any more."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def start(self) -> None:
        """Begin. In the loop's thread."""
        if self not in self._session.errands:
            return
        self._session.loop.busy(+1)
        try:
            self._start()
        except BaseException as error:
            self._error = error
            self._done()

    def cancel(self) -> None:
        """End it, whether it runs or not; nobody waits for it any more. In the loop's thread."""
        self._session.finished(self)
        self._cancel()

    def finish(self, cause: BaseException | None = None) -> None:
        """End it from outside. From any thread, more than once."""
        if self._session.finished(self):
            self._error = _closed()
            self._error.__cause__ = cause
            self._wake()

    def _start(self) -> None:
        raise NotImplementedError

    def _cancel(self) -> None:
        raise NotImplementedError

    def _done(self) -> None:
        """It has ended by itself."""
        self._session.loop.busy(-1)
        if self._session.finished(self):
            self._wake()


class Call(Errand):
    """A call of the service; the value is a ``Reply`` if that is wanted. It costs no task."""

    limited = True
    __slots__ = ("_arguments", "_open", "_want_reply")

    def __init__(
        self,
        session: Session,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        wake: Callable[[], object],
        *,
        want_reply: bool = False,
    ) -> None:
        super().__init__(session, options, wake)
        self._arguments = arguments
        self._want_reply = want_reply
        self._open: OpenCall | None = None
        accept = options.get("accept")
        if accept is not None and callable(accept) and not inspect.iscoroutinefunction(accept):
            self._options = {**options, "accept": partial(self._context.run, accept)}

    def _start(self) -> None:
        client = self._session.client
        if client is None:
            raise _closed()
        self._open = self._context.run(client.begin, *self._arguments, **self._options)
        if self._open.outcome is None:
            self._open.told = self._told
        else:
            self._told()

    def _told(self) -> None:
        call = self._open
        assert call is not None
        try:
            call.check()
            self._value = call.reply(trio.current_time()) if self._want_reply else call.value()
        except BaseException as error:
            self._error = error
        self._done()

    def _cancel(self) -> None:
        if self._open is not None and self._open.outcome is None and self._session.client is not None:
            self._session.client.cancel(self._open)


class Task(Errand):
    """A function, plain or async, that runs as a task; as a text, the method of that name of the Trio client."""

    __slots__ = ("_arguments", "_function", "_scope")

    def __init__(
        self,
        session: Session,
        function: str | Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        wake: Callable[[], object],
    ) -> None:
        super().__init__(session, options, wake)
        self._function = function
        self._arguments = arguments
        self._scope = trio.CancelScope()

    def _start(self) -> None:
        nursery = self._session.nursery
        if nursery is None or nursery.cancel_scope.cancel_called:
            raise _closed()
        try:
            self._context.run(nursery.start_soon, self._run)
        except RuntimeError:
            raise _closed() from None

    async def _run(self) -> None:
        try:
            with self._scope:
                function = self._function
                if isinstance(function, str):
                    function = getattr(self._session.client, function)
                found = function(*self._arguments, **self._options)
                self._value = await found if inspect.iscoroutine(found) else found
        except trio.Cancelled:
            self._error = _closed()
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._done()

    def _cancel(self) -> None:
        self._scope.cancel()


def _closed() -> Unavailable:
    return Unavailable("the client was closed before an answer came")
