"""Whether the upstream of a sidecar can serve.

It is down at first, and up once a check has passed: a connection is made, or, with a path, a GET of it is answered with
a status below 400. While it is up the path is asked for every ``interval``; ``failures_max`` failed checks in a row, or
one refused connection of a request, take it down. While it is down it is checked more often.

Not for what follows from it (``proxy.sidecar``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from tiedreq.core.checks import check_count, check_number
from tiedreq.core.errors import BadOption
from tiedreq.net.bell import Bell
from tiedreq.proxy.upstream import Dial, HttpClient, Unreachable, UpstreamError

logger = logging.getLogger("tiedreq.proxy")

DOWN_SECONDS = 0.25
"""Between two checks while it is down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions:
    """``path`` None: no checks while it is up. ``interval`` and ``timeout`` are in seconds."""

    path: str | None = None
    interval: float = 1.0
    timeout: float = 1.0
    failures_max: int = 3

    def __post_init__(self) -> None:
        path = self.path
        if path is not None and not (
            path.startswith("/") and path.isascii() and path.isprintable() and " " not in path
        ):
            raise BadOption(f"health: {path!r} is not a path such as /health")
        check_number("health_interval", self.interval, 0.01, 3600.0, "seconds")
        check_number("health_timeout", self.timeout, 0.01, 3600.0, "seconds")
        check_count("failures_max", self.failures_max, 1, 1000)


class Health:
    """The state of one upstream, kept by ``run``. ``name`` is what the log calls it."""

    def __init__(self, dial: Dial, name: str, host: bytes, options: HealthOptions) -> None:
        self._check: Callable[[], Awaitable[None]] = self._connects if options.path is None else self._answers
        self._dial = dial
        self._name = name
        self._host = host
        self._options = options
        self._changed = trio.lowlevel.ParkingLot()
        self._doubt = Bell()
        self._client = HttpClient(dial, idle_max=1, idle_seconds=options.interval / 2)
        self.up = False
        self.reason = "not checked yet"

    async def until(self, *, up: bool) -> None:
        """Wait until it is up, or down."""
        while self.up is not up:
            await self._changed.park()

    def refused(self, error: Unreachable) -> None:
        """A request found nobody: it is down, until a check passes."""
        self._set(False, f"no connection: {error}")

    async def run(self) -> None:
        """Check, until cancelled."""
        failures = 0
        while True:
            error = await self._failure()
            failures = 0 if error is None else failures + 1
            if error is None:
                self._set(True, "")
            elif failures >= self._options.failures_max or not self.up:
                self._set(False, error)
            if not self.up:
                await trio.sleep(DOWN_SECONDS)
            else:
                with trio.move_on_after(self._options.interval if self._options.path is not None else float("inf")):
                    await self._doubt.wait()

    def _set(self, up: bool, reason: str) -> None:
        changed, self.up, self.reason = self.up is not up, up, reason
        if not changed:
            return
        if up:
            logger.info("the upstream %s is up", self._name)
        else:
            logger.warning("the upstream %s is down: %s", self._name, reason)
            self._doubt.ring()
        self._changed.unpark_all()

    async def _failure(self) -> str | None:
        """Check once: what is wrong, or None."""
        try:
            with trio.fail_after(self._options.timeout):
                await self._check()
        except trio.TooSlowError:
            return f"no answer within {self._options.timeout:g} s"
        except (OSError, UpstreamError) as error:
            return str(error) or type(error).__name__
        return None

    async def _connects(self) -> None:
        stream = await self._dial()
        await stream.aclose()

    async def _answers(self) -> None:
        path = (self._options.path or "/").encode()
        headers = [(b"host", self._host), (b"user-agent", b"tiedreq-health"), (b"connection", b"close")]
        response = await self._client.send(b"GET", path, headers, b"", repeat=True)
        await response.aclose()
        if response.status >= 400:
            raise UpstreamError(f"{self._options.path} is answered with {response.status}")
