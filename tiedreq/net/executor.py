"""Runs handlers: ``async def`` in Trio's thread (``net.workers``), plain ``def`` in worker threads.

Decides nothing about the protocol.

A handler in a thread can't be cancelled by Trio: its cancelled scope waits until the function returns, which
``on_cancel`` functions may hasten.

Obligations, kept whatever happens: each ``StartWork`` is answered by exactly one ``WorkFinished``, and not before the
handler has really ended. Nothing that a handler raises leaves this module but Ctrl-C: the caller sees a failure, this
replica's log the traceback. That includes ``SystemExit``: no call can end a replica.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any

import trio

from tiedreq.core.errors import RemoteViolation
from tiedreq.core.events import Answer, Fault, ItemProduced
from tiedreq.net.bell import Bell
from tiedreq.net.executions import Execution, Executions, Feed, Way
from tiedreq.net.workers import Workers
from tiedreq.service import Service
from tiedreq.wire.content import is_content
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import decode_payload, encode_payload

CHUNKED_BYTES_MIN = 32 * 1024
"""Smaller items never travel in chunks, with all that stands beside their payload."""
_END = object()


class Executor:
    """Runs the executions of one replica in ``nursery``.

    ``feed`` and ``way`` as in ``net.executions``. ``bell`` and ``settled`` as in ``net.workers``: input has come, and
    input has settled.
    """

    def __init__(
        self,
        service: Service,
        *,
        replica: str,
        slots: int,
        state: Any,
        nursery: trio.Nursery,
        feed: Feed,
        way: Way,
        limits: WireLimits,
        bell: Bell,
        settled: Callable[[], None],
        debug: bool = False,
    ) -> None:
        self._limits = limits
        self._threads = trio.CapacityLimiter(slots)
        self._workers: Workers[Execution] = Workers(nursery, bell, settled)
        self.executions = Executions(
            service, replica, state, feed, way, limits, self._handle, self._workers.start, debug
        )

    async def run(self) -> None:
        """Run what is started, until cancelled."""
        await self._workers.run()

    async def _handle(self, execution: Execution) -> Answer | Fault:
        """Decode the arguments, call the handler, encode what it returns."""
        submit = execution.submit
        method, context = execution.method, execution.context
        try:
            args = decode_payload(submit.payload, self._limits)
        except RemoteViolation as error:
            return Fault("bad_payload", str(error), b"", False)
        try:
            if method.stream:
                return await self._produce(execution, args)
            if method.run == "async":
                value = await method.handler(context, args)
            else:
                value = await trio.to_thread.run_sync(method.handler, context, args, limiter=self._threads)
        except BaseException as error:
            leaving = _leaving(error)
            if leaving is not None:
                raise leaving from None
            return self.executions.failed(execution, error)
        return self.executions.answer(value, method)

    async def _produce(self, execution: Execution, args: Any) -> Answer | Fault:
        """Hand a generator's values to the core one by one, no faster than its caller and the link take them."""
        copy, method = execution.submit.copy, execution.method
        number = 0
        values = method.handler(execution.context, args)
        if method.run == "thread":
            values = in_thread(values, self._threads)
        async with aclosing(values):
            async for value in values:
                item = self.executions.answer(value, method)
                if isinstance(item, Fault):
                    return item
                if execution.stopped:
                    self.executions.feed(ItemProduced(copy, item.payload, False))  # counted, and thrown away
                    return item
                room = self.executions.until_room(copy, len(item.payload))
                if room is not None:
                    await room
                elif number:  # the first item waits for nobody; from the second on no handler keeps the loop to itself
                    await trio.lowlevel.checkpoint()
                self.executions.feed(ItemProduced(copy, item.payload, is_content(item.payload)))
                number += 1
                link = self.executions.way(copy)
                if link is not None and len(item.payload) >= CHUNKED_BYTES_MIN:
                    await link.left(copy)  # later ones are small, perhaps, and would pass it
                if execution.resumed is not None:
                    await execution.resumed.wait()
        return Answer(encode_payload(number))


async def in_thread(generator: Generator[Any, Any, Any], limiter: trio.CapacityLimiter) -> AsyncGenerator[Any, None]:
    """The values of a plain generator, each step of which runs in a worker thread."""
    try:
        while (value := await trio.to_thread.run_sync(next, generator, _END, limiter=limiter)) is not _END:
            yield value
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(generator.close, limiter=limiter)


def _leaving(error: BaseException) -> BaseException | None:
    """The part of what a handler raised that is not its own: Ctrl-C, and the cancel of a scope around the handler."""
    cancelled = trio.current_effective_deadline() == -math.inf
    kinds = (KeyboardInterrupt, trio.Cancelled) if cancelled else (KeyboardInterrupt,)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds)
    return error if isinstance(error, kinds) else None
