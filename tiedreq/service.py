"""What an engineer writes: a ``Service`` with methods, the ``Context`` a handler sees, and ``Failure``.

A ``Service`` is only a table. ``tiedreq.serve`` (or ``tiedreq serve module:service``) runs it as a replica.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from tiedreq.core.errors import BadOption, TiedreqError
from tiedreq.core.types import MethodInfo

Handler = Callable[["Context", Any], Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]

METHODS_MAX = 1024
NAME_LENGTH_MAX = 128
TIMEOUT_MAX_SECONDS = 86_400.0
_RUNS = ("auto", "async", "thread")


class Failure(TiedreqError):
    """A handler fails on purpose. The caller sees ``RemoteFailure`` with the same code, message and details.

    ``retryable=True`` says that another replica may answer: the race goes on while another copy lives, and an
    idempotent call is tried elsewhere. ``details`` is any value that msgpack can carry.
    """

    def __init__(self, code: str, message: str, details: Any = None, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details
        self.retryable = bool(retryable)


class Context:
    """What a handler knows of its execution.

    ``call_id`` (text) and ``key`` (the caller's idempotency key or None) are the same in every copy of a call;
    ``replica`` is this replica's name; ``rank`` the copy's rank in its tie (None for an untied copy); ``kind`` is
    ``"first"``, ``"tie"``, ``"backup"`` or ``"failover"``; ``metadata`` the caller's map; ``state`` what the
    service's lifespan yielded.
    """

    __slots__ = (
        "_cancelled",
        "_deadline",
        "_hooks",
        "_lock",
        "_now",
        "_pushback",
        "_stoppable",
        "call_id",
        "key",
        "kind",
        "layered",
        "metadata",
        "rank",
        "replica",
        "state",
    )

    def __init__(
        self,
        *,
        call_id: str,
        key: str | None,
        replica: str,
        rank: int | None,
        kind: str,
        metadata: Mapping[str, str],
        state: Any,
        layered: bool,
        deadline: float,
        now: Callable[[], float],
        stoppable: Callable[[], None],
        pushback: Callable[[float], None],
    ) -> None:
        self.call_id = call_id
        self.key = key
        self.replica = replica
        self.rank = rank
        self.kind = kind
        self.metadata = metadata
        self.state = state
        self.layered = layered
        self._deadline = deadline
        self._now = now
        self._stoppable = stoppable
        self._pushback = pushback
        self._hooks: list[Callable[[], object]] = []
        self._cancelled = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Context {self.kind} copy of {self.call_id} at {self.replica}>"

    def remaining(self) -> float:
        """Seconds until the call's deadline; negative once it has passed."""
        return self._deadline - self._now()

    def on_cancel(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` (quick, thread-safe, such as ``connection.interrupt``) when this execution is to stop.

        It makes a handler in a thread stoppable. When the execution has already been told to stop, ``fn`` is called
        at once. May be called from any thread, more than once; all are called.
        """
        with self._lock:
            if not self._cancelled:
                self._hooks.append(fn)
                first = len(self._hooks) == 1
            else:
                first = False
            late = self._cancelled
        if late:
            fn()
        elif first:
            self._stoppable()

    @property
    def cancelled(self) -> bool:
        """True once this execution was told to stop: for handlers in threads that look now and then."""
        return self._cancelled

    def pushback(self, seconds: float) -> None:
        """Ask callers to send no backups to this replica for ``seconds``."""
        if not 0 <= seconds <= TIMEOUT_MAX_SECONDS:
            raise BadOption(f"pushback: {seconds!r} is not between 0 and {TIMEOUT_MAX_SECONDS:g} seconds")
        self._pushback(seconds)

    def _stop(self) -> Iterator[Callable[[], object]]:
        """Mark the execution as stopped and hand out the hooks; for the executor."""
        with self._lock:
            self._cancelled = True
            hooks, self._hooks = self._hooks, []
        yield from hooks


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service. ``run`` is ``"async"`` or ``"thread"``; ``timeout_max`` is in seconds.

    The handler of a ``stream`` is a generator, and can be stopped between two items whatever it runs in.
    """

    name: str
    handler: Handler
    idempotent: bool
    run: str
    timeout_max: float
    slots: int | None
    stream: bool = False

    @property
    def info(self) -> MethodInfo:
        """The row that callers see in the method table."""
        stoppable = self.run == "async" or self.stream
        return MethodInfo(self.name, self.idempotent, stoppable, self.timeout_max, self.stream)


def _check_name(field: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise BadOption(f"{field}: {name!r} is not a printable text of 1 to {NAME_LENGTH_MAX} characters")
    return name


def _run_of(handler: Any, name: str, run: str) -> str:
    """``"async"`` or ``"thread"``, as the handler of a method fits."""
    is_async = inspect.iscoroutinefunction(handler)
    if run == "auto":
        run = "async" if is_async else "thread"
    if (run == "async") != is_async:
        raise BadOption(f"run: {name!r} is {'an async' if is_async else 'a plain'} def and can't run as {run!r}")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise BadOption(f"method {name!r}: a generator can't be a method; declare it with @service.stream()")
    return run


class Service:
    """A named table of methods.

    ``lifespan`` is a function that returns an async context manager; what it yields is ``Context.state`` of every
    handler. It is entered before the replica says it is ready and left after the last handler has ended.
    """

    def __init__(self, name: str, *, lifespan: Lifespan | None = None) -> None:
        self.name = _check_name("service name", name)
        if lifespan is not None and not callable(lifespan):
            raise BadOption(f"lifespan: {lifespan!r} is not callable")
        self.lifespan = lifespan
        self.methods: dict[str, Method] = {}

    def __repr__(self) -> str:
        return f"<Service {self.name!r}: {', '.join(self.methods) or 'no methods'}>"

    def method(
        self,
        name: str | None = None,
        *,
        idempotent: bool = False,
        run: str = "auto",
        timeout_max: float = 60.0,
        slots: int | None = None,
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare a handler ``(ctx, args)`` as a method.

        ``idempotent=True`` says that running it twice is harmless, so that it may be tied and hedged. ``run``:
        ``"auto"`` (a plain ``def`` runs in a worker thread, an ``async def`` as a task), ``"async"`` or
        ``"thread"``. ``timeout_max`` (seconds) caps what a caller may ask for; ``slots`` is the most executions of
        this method at once, within the replica's slots.

        Raises ``BadOption`` for a bad option, a taken name, or a handler that does not fit ``run``.
        """
        if callable(name):
            raise BadOption("method: write @service.method(), with parentheses")

        def declare(handler: HandlerT) -> HandlerT:
            self._add(handler, name, idempotent, run, timeout_max, slots)
            return handler

        return declare

    def stream(
        self,
        name: str | None = None,
        *,
        idempotent: bool = False,
        timeout_max: float = 600.0,
        slots: int | None = None,
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare a generator ``(ctx, args)`` as a stream: each value that it yields is an item of the answer.

        An ``async def`` with ``yield`` runs as a task, a plain ``def`` with ``yield`` in a worker thread, a step at a
        time. When nobody wants the stream any more the generator is cancelled where it waits, or closed at its next
        ``yield``. It is not asked for the next item while its caller has not taken those before, within a window.
        The options are those of ``method``.

        Raises ``BadOption`` for a bad option, a taken name, or a handler that is no generator.
        """
        if callable(name):
            raise BadOption("stream: write @service.stream(), with parentheses")

        def declare(handler: HandlerT) -> HandlerT:
            is_async = inspect.isasyncgenfunction(handler)
            if not is_async and not inspect.isgeneratorfunction(handler):
                raise BadOption(f"stream {name or handler.__name__!r}: it is no generator (a def with yield)")
            self._add(handler, name, idempotent, "async" if is_async else "thread", timeout_max, slots, stream=True)
            return handler

        return declare

    def _add(
        self,
        handler: Any,
        name: str | None,
        idempotent: bool,
        run: str,
        timeout_max: float,
        slots: int | None,
        *,
        stream: bool = False,
    ) -> None:
        name = _check_name("method name", handler.__name__ if name is None else name)
        if name in self.methods:
            raise BadOption(f"method name: {name!r} is declared twice in service {self.name!r}")
        if len(self.methods) >= METHODS_MAX:
            raise BadOption(f"methods: a service has at most {METHODS_MAX}")
        if run not in _RUNS:
            raise BadOption(f"run: {run!r} is not one of {', '.join(_RUNS)}")
        if not stream:
            run = _run_of(handler, name, run)
        if not 0 < timeout_max <= TIMEOUT_MAX_SECONDS:
            raise BadOption(f"timeout_max: {timeout_max!r} is not between 0 and {TIMEOUT_MAX_SECONDS:g} seconds")
        if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
            raise BadOption(f"slots: {slots!r} is not a whole number of 1 or more")
        if not isinstance(idempotent, bool):
            raise BadOption(f"idempotent: {idempotent!r} is not True or False")
        self.methods[name] = Method(name, handler, idempotent, run, float(timeout_max), slots, stream)
