"""What ``aio`` and ``blocking`` share: a client whose Trio half lives in a thread of its own (``_loopthread``).

One loop serves a process. A fork leaves its thread behind: the child starts from nothing, and each client connects anew
when it is next used. At the end of the interpreter the loops are stopped, within a bound.
"""

from __future__ import annotations

import atexit
import os
import ssl
import threading
import warnings
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiedreq._loopthread import Loop, Opener, Session
from tiedreq.core.checks import check_number
from tiedreq.core.errors import BadOption
from tiedreq.core.limits import ClientLimits
from tiedreq.core.policy import Auto, Hedged, Policy, Tied, check_policy
from tiedreq.discovery.find import Replicas
from tiedreq.discovery.members import Discovery
from tiedreq.errors import Unavailable
from tiedreq.net.connecting import connect
from tiedreq.net.current import current_execution
from tiedreq.net.preparing import TIMEOUT_MAX
from tiedreq.observe.options import Observe
from tiedreq.units import check_zone

TIED, HEDGED = Tied(), Hedged()


def unless_given(options: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """``options`` with this policy, unless they have one."""
    return {**options, "policy": policy} if options.get("policy") is None else options


@dataclass(frozen=True, slots=True)
class Setting:
    """What a bridged client is made of: how to open the Trio client, and what its attributes say."""

    opener: Opener
    policy: Policy
    timeout: float
    limits: ClientLimits


def setting(
    replicas: Replicas,
    *,
    token: str | None,
    ssl_context: ssl.SSLContext | None,
    policy: Policy | None,
    timeout: float,
    limits: ClientLimits | None,
    cluster: str | None,
    picker: str,
    observe: Observe | None,
    zone: str,
) -> Setting:
    """Check the options of ``connect()`` as far as that needs neither files nor a network. Raises ``BadOption``."""
    if replicas is not None and not isinstance(replicas, str | os.PathLike | Discovery):
        replicas = list(replicas)  # connected to more than once
    limits = limits if limits is not None else ClientLimits()
    if not isinstance(limits, ClientLimits):
        raise BadOption(f"limits: {limits!r} is not ClientLimits(…)")
    chosen = check_policy(policy if policy is not None else Auto())
    seconds = check_number("timeout", timeout, 0.0, TIMEOUT_MAX, "seconds")
    opener = partial(
        connect,
        replicas,
        token=token,
        ssl_context=ssl_context,
        policy=chosen,
        timeout=seconds,
        limits=limits,
        cluster=cluster,
        picker=picker,
        observe=observe,
        zone=check_zone(zone),
    )
    return Setting(opener, chosen, seconds, limits)


class Bridge:
    """What the bridged clients have in common: how they come by a session, and the calls' ways in.

    A client connects when it is first used, in each process anew. ``loop`` is given for a client whose replicas live in
    that very loop.
    """

    _session: Session | None = None

    def __init__(self, setting: Setting, *, loop: Loop | None = None) -> None:
        self.policy = setting.policy
        self.timeout = setting.timeout
        self.limits = setting.limits
        self._opener = setting.opener
        self._loop = loop
        self._closed = False
        self._lost = False
        self._lock = threading.Lock()
        _bridges.add(self)

    def __repr__(self) -> str:
        session = self._session
        state = "closed" if self._closed else "not connected" if session is None or not session.up else "connected"
        return f"<{type(self).__module__}.{type(self).__name__}, {state}>"

    def __getstate__(self) -> object:
        raise TypeError("a client can't be sent to another process: connect there")

    def __del__(self) -> None:
        session = self._session
        if session is not None and session.up:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)
            session.close()

    def _begin_session(self) -> Session:
        """The session, which may not be ready yet. Raises ``BadOption`` when the client is closed."""
        with self._lock:
            if self._closed:
                raise BadOption("client: it is closed")
            if self._lost:
                raise BadOption("client: its replicas live in the process that forked this one")
            session = self._session
            if session is None or session.ended:
                loop = self._loop if self._loop is not None else process_loop()
                session = self._session = loop.open(self._opener, self.limits.calls_in_flight_max)
            if session.loop.here:
                raise BadOption("client: its own loop can't wait for a call; accept= must not make calls")
            return session

    def _end_session(self) -> Session | None:
        """Begin to close, for good; the session to wait for, if any."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            session.close()
        return session

    def _within(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call; one made inside a handler has no more time than the handler."""
        execution = current_execution.get()
        if execution is None:
            return options
        timeout, left = options.get("timeout"), max(0.0, execution.remaining())
        if timeout is None:
            timeout = self.timeout
        return {**options, "timeout": left} if isinstance(timeout, int | float) and left < timeout else options

    def _forget(self) -> None:
        """In the child of a fork: the session and its thread stayed behind."""
        self._lock = threading.Lock()
        self._session = None
        self._lost = self._loop is not None


_lock = threading.Lock()
_loop: Loop | None = None
_exiting = False
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()
_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


def new_loop(*, virtual_time: bool = False) -> Loop:
    """A loop of one's own; it is stopped at the end of the interpreter. Raises ``Unavailable`` if that has come."""
    if _exiting:
        raise Unavailable("client: the interpreter is about to exit")
    loop = Loop(virtual_time=virtual_time)
    _loops.add(loop)
    return loop


def process_loop() -> Loop:
    """The loop of this process, started when it is first needed. Raises as ``new_loop``."""
    global _loop
    with _lock:
        if _loop is None or _loop.ended:
            _loop = new_loop()
        return _loop


def _forget() -> None:
    """In the child of a fork no thread but the forking one is left, and any lock may be held for ever."""
    global _lock, _loop, _loops
    _lock, _loop, _loops = threading.Lock(), None, weakref.WeakSet()
    for bridge in list(_bridges):
        bridge._forget()


def _pause() -> None:
    """Before a fork: what another thread holds at that moment, the child can never have."""
    for loop in list(_loops):
        loop.pause()


def _resume() -> None:
    for loop in list(_loops):
        loop.resume()


def _exit() -> None:
    global _exiting
    _exiting = True
    for loop in list(_loops):
        loop.stop()


atexit.register(_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pause, after_in_parent=_resume, after_in_child=_forget)
