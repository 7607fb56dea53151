"""Makes the executions of a replica take a factor longer, whatever its service is.

A handler that has ended, well or not, keeps its slot for the rest of the time: what a caller, a peer and the core see
is a slow replica. One that is told to stop stops at once. The demo's ``work`` does this itself
(``cluster.demo.workload``).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import trio

from tiedreq.service import Context, Handler, Service

POLL_SECONDS = 0.01


class Slowness:
    """The slowness of this replica; ``factor`` 1 is none, and may be changed at any time."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def apply(self, service: Service, *, but: Collection[str] = ()) -> None:
        """From now on the handlers of ``service`` are as slow as this says, all ``but`` some methods."""
        for name, method in service.methods.items():
            if name not in but:
                wrap = self._task if method.run == "async" else self._thread
                service.methods[name] = replace(method, handler=wrap(method.handler))

    def _task(self, handler: Handler) -> Handler:
        async def slowed(context: Context, args: Any) -> Any:
            began = trio.current_time()
            try:
                result = await handler(context, args)
            except Exception:
                await trio.sleep(self._rest(trio.current_time() - began))
                raise
            await trio.sleep(self._rest(trio.current_time() - began))
            return result

        return slowed

    def _thread(self, handler: Handler) -> Handler:
        def slowed(context: Context, args: Any) -> Any:
            began = time.monotonic()
            try:
                return handler(context, args)
            finally:
                until = time.monotonic() + self._rest(time.monotonic() - began)
                while not context.cancelled and context.remaining() > 0 and (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, POLL_SECONDS))

        return slowed

    def _rest(self, elapsed: float) -> float:
        """Seconds that an execution of ``elapsed`` seconds has still to take."""
        return max(0.0, self.factor - 1.0) * elapsed
