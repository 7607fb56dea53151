"""What the tests of the drivers share: a service that keeps a journal, and what must be left when all is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio
from trio.testing import MockClock

import tiedreq
from tiedreq.net.client import Client
from tiedreq.net.workers import IDLE
from tiedreq.testing import LocalCluster

GAUGES = (
    "queue",
    "copies",
    "executions",
    "ties",
    "claiming",
    "parked_claims",
    "cancel_markers",
    "deadlines",
    "tasks",
)
"""The collections of a replica that are empty when nothing is under way."""

PATIENCE_SECONDS = 10.0
"""How long a test in real time waits for what must come."""
SETTLE_SECONDS = 3.0123
"""Longer than any latency, heartbeat silence or orderly close of the tests here, and never at a heartbeat."""


class Run:
    """One execution of a handler, as the handler saw it."""

    def __init__(self, context: tiedreq.Context) -> None:
        self.context = context
        self.call = context.call_id
        self.replica = context.replica
        self.kind = context.kind
        self.rank = context.rank
        self.began = trio.current_time()
        self.ended: float | None = None
        self.end = ""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.rank} of {self.call} at {self.replica}: {self.end or 'running'}>"


class Journal:
    """Every execution of a service's handlers, in the order of their starts."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def running(self) -> list[Run]:
        """Executions whose handler has not ended."""
        return [run for run in self.runs if not run.end]

    @property
    def doubled(self) -> int:
        """Calls with more than one execution."""
        calls = [run.call for run in self.runs]
        return len({call for call in calls if calls.count(call) > 1}) if len(calls) > len(set(calls)) else 0

    def ends(self) -> list[str]:
        """How each execution ended, in order of their starts."""
        return [run.end for run in self.runs]

    @contextmanager
    def write(self, context: tiedreq.Context) -> Any:
        """Enter an execution for as long as the block runs."""
        run = Run(context)
        self.runs.append(run)
        run.end = ""
        try:
            yield run
        except trio.Cancelled:
            run.end = "cancelled"
            raise
        except BaseException:
            run.end = "raised"
            raise
        else:
            run.end = "returned"
        finally:
            run.ended = trio.current_time()


def seconds_at(args: Any, replica: str) -> float:
    """``args`` is a number of seconds, or a map from replicas to them."""
    if isinstance(args, dict):
        args = args.get(replica, args.get("else", 0.0))
    return float(args or 0.0)


def bench_service(journal: Journal | None = None) -> tiedreq.Service:
    """``work`` and ``once`` (may not run twice) take so many seconds and return the replica; ``blob`` returns bytes."""
    book = journal if journal is not None else Journal()
    service = tiedreq.Service("bench")

    async def work(ctx: tiedreq.Context, args: Any) -> str:
        with book.write(ctx):
            await trio.sleep(seconds_at(args, ctx.replica))
        return ctx.replica

    async def blob(ctx: tiedreq.Context, args: Any) -> bytes:
        with book.write(ctx):
            await trio.lowlevel.checkpoint()
        return bytes(args)

    async def size(ctx: tiedreq.Context, args: Any) -> int:
        with book.write(ctx):
            await trio.lowlevel.checkpoint()
        return len(args)

    service.method("work", idempotent=True)(work)
    service.method("once")(work)
    service.method("blob", idempotent=True)(blob)
    service.method("size", idempotent=True)(size)
    return service


def left_at(handles: dict[str, tiedreq.ReplicaHandle]) -> dict[str, int]:
    """What is left at the replicas that should be gone: gauges above zero, and messages in outboxes."""
    left = {}
    for name, handle in handles.items():
        left.update({f"{name} {gauge}": size for gauge, size in handle.sizes().items() if gauge in GAUGES and size})
        waiting = sum(link.messages_waiting for link in handle._server.links.values())
        if waiting:
            left[f"{name} outboxes"] = waiting
        if handle.status()["free"] != handle.status()["slots"]:
            left[f"{name} slots taken"] = handle.status()["running"]
    return left


def left_in(client: Client) -> dict[str, int]:
    """What is left in a client: calls, and messages in outboxes."""
    waiting = sum(link.messages_waiting for link in client._links.values())
    found = {"calls": client.stats()["in_flight"], "client outboxes": waiting}
    stats = client.stats()
    found["calls without outcome"] = stats["calls"] - stats["answered"] - stats["failed"] - stats["cancelled"]
    return {name: size for name, size in found.items() if size}


def left(cluster: LocalCluster, *clients: Client) -> dict[str, int]:
    """What is left at replicas and in clients that should be gone."""
    found = left_at(cluster.handles)
    for client in clients:
        found.update(left_in(client))
    return found


async def until(true: Callable[[], object], *, every: float = 0.01, patience: float = PATIENCE_SECONDS) -> None:
    """Wait until ``true()``; fail when it does not come about."""
    for _ in range(int(patience / every)):
        if true():
            return
        await trio.sleep(every)
    assert true(), "it did not come about"


async def assert_idle(cluster: LocalCluster, *clients: Client) -> None:
    """Let what is under way arrive; then nothing may be left. In real time wait for it, in virtual time look once."""
    if isinstance(trio.lowlevel.current_clock(), MockClock):
        await trio.sleep(SETTLE_SECONDS)
    else:
        await until(lambda: not left(cluster, *clients))
    found = left(cluster, *clients)
    assert not found, found


def task_names() -> list[str]:
    """The names of all tasks of this Trio run, sorted; without those that wait to run another handler."""
    root = trio.lowlevel.current_root_task()
    found: list[str] = []
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        found += [task.name] if task.name != IDLE else []
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """As many tasks after the block as before it."""
    before = task_names()
    yield
    after = task_names()
    assert after == before, (before, after)


async def gather(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised, in order; all at once."""
    found: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        try:
            found[index] = await calls[index]()
        except Exception as error:
            found[index] = error

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(one, index)
    return found
