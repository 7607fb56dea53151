"""What the tests of the bridges share: replicas over sockets in a thread of their own, and a journal of executions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import trio

import tiedreq

PATIENCE_SECONDS = 10.0
LONG_SECONDS = 40.0
"""How long the handler ``hang`` takes: no test waits for it."""


class Journal:
    """How many executions of ``hang`` have started, and how many of them were cancelled."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.on_start: Callable[[], object] = lambda: None

    @property
    def running(self) -> int:
        return self.started - self.cancelled


def make_service(journal: Journal) -> tiedreq.Service:
    service = tiedreq.Service("bridged")

    @service.method(idempotent=True)
    async def echo(ctx: tiedreq.Context, args: Any) -> Any:
        """Returns its argument."""
        return args

    @service.method(idempotent=True)
    async def nap(ctx: tiedreq.Context, seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    @service.method(idempotent=True)
    async def hang(ctx: tiedreq.Context, args: Any) -> None:
        journal.started += 1
        journal.on_start()
        try:
            await trio.sleep(LONG_SECONDS)
        finally:
            journal.cancelled += 1

    @service.method(idempotent=True)
    async def about(ctx: tiedreq.Context, args: Any) -> dict[str, Any]:
        return {"key": ctx.key, "kind": ctx.kind, "metadata": dict(ctx.metadata), "remaining": ctx.remaining()}

    @service.method()
    async def charge(ctx: tiedreq.Context, args: Any) -> str:
        return "charged"

    @service.method()
    async def fail(ctx: tiedreq.Context, args: Any) -> None:
        raise tiedreq.Failure("no_stock", "none is left", details={"left": 0})

    return service


def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition()`` holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.002)


@contextmanager
def serving(service: tiedreq.Service, *, count: int = 3, **options: Any) -> Iterator[list[str]]:
    """Replicas of ``service`` in a mesh over loopback sockets, in a thread; yields their URLs."""
    ready: Future[tuple[trio.lowlevel.TrioToken, trio.CancelScope, list[str]]] = Future()

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                handles = {}
                for name in [f"r{index}" for index in range(count)]:

                    async def run(*, task_status: trio.TaskStatus[tiedreq.ReplicaHandle], name: str = name) -> None:
                        await tiedreq.serve(service, name=name, task_status=task_status, **options)

                    handles[name] = await nursery.start(run)
                urls = {name: handle.url for name, handle in handles.items()}
                for handle in handles.values():
                    handle.set_peers(urls)
                ready.set_result((trio.lowlevel.current_trio_token(), scope, list(urls.values())))

    def run_main() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run_main, daemon=True)
    thread.start()
    token, scope, urls = ready.result(PATIENCE_SECONDS)
    try:
        yield urls
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
