"""Makes the executions of a replica take a factor longer, whatever its service is.

A handler that has ended, well or not, keeps its slot for the rest of the time: what a caller, a peer and the core see
is a slow replica. Of a stream each item takes longer. What is told to stop stops at once. The demo's ``work`` does
this itself (``cluster.demo.workload``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import aclosing, closing
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
                task = method.run == "async"
                if method.stream:
                    wrap = self._stream_task if task else self._stream_thread
                else:
                    wrap = self._task if task else self._thread
                service.methods[name] = replace(method, handler=wrap(method.handler))

    def _task(self, handler: Handler) -> Handler:
        async def slowed(context: Context, args: Any) -> Any:
            began = trio.current_time()
            try:
                result = await handler(context, args)
            except Exception:
                await self._idle(began)
                raise
            await self._idle(began)
            return result

        return slowed

    async def _idle(self, began: float) -> None:
        """Let what began then take its time. Where nothing is slow this costs no pass of the scheduler."""
        if self.factor > 1.0:
            await trio.sleep(self._rest(trio.current_time() - began))

    def _thread(self, handler: Handler) -> Handler:
        def slowed(context: Context, args: Any) -> Any:
            began = time.monotonic()
            try:
                return handler(context, args)
            finally:
                self._hold(context, began)

        return slowed

    def _stream_task(self, handler: Handler) -> Handler:
        async def slowed(context: Context, args: Any) -> AsyncIterator[Any]:
            async with aclosing(handler(context, args)) as items:
                began = trio.current_time()
                async for item in items:
                    await trio.sleep(self._rest(trio.current_time() - began))
                    yield item
                    began = trio.current_time()

        return slowed

    def _stream_thread(self, handler: Handler) -> Handler:
        def slowed(context: Context, args: Any) -> Iterator[Any]:
            with closing(handler(context, args)) as items:
                began = time.monotonic()
                for item in items:
                    self._hold(context, began)
                    yield item
                    began = time.monotonic()

        return slowed

    def _hold(self, context: Context, began: float) -> None:
        """Let what began then take its time, in a thread."""
        until = time.monotonic() + self._rest(time.monotonic() - began)
        while not context.cancelled and context.remaining() > 0 and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))

    def _rest(self, elapsed: float) -> float:
        """Seconds that an execution of ``elapsed`` seconds has still to take."""
        return max(0.0, self.factor - 1.0) * elapsed
