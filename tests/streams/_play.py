"""A service whose stream plays what its caller asks for, and keeps a journal of what it yielded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import trio

import tiedreq
from tests.net.bench import Journal, Run
from tiedreq import Backup, Failure, Hedged, Tied

AT_ONCE = Tied(backup=None, stagger=0.0)
KEEPS_BOTH = Tied(backup=None, stagger=0.0, yield_=False)
HEDGED = Hedged(Backup(after=0.02, since="send", budget=None))


class Played(Run):
    """One execution of a stream."""

    def __init__(self, context: tiedreq.Context) -> None:
        super().__init__(context)
        self.yielded: list[float] = []
        """When each value was given away."""


class Plays(Journal):
    """Every execution, with what it yielded."""

    def play(self, context: tiedreq.Context) -> Played:
        run = Played(context)
        self.runs.append(run)
        return run

    def of(self, replica: str) -> Played:
        (run,) = [run for run in self.runs if run.replica == replica]
        assert isinstance(run, Played)
        return run

    def by_rank(self, rank: int) -> Played:
        (run,) = [run for run in self.runs if run.rank == rank]
        assert isinstance(run, Played)
        return run


def _script(args: Any, ctx: tiedreq.Context) -> Any:
    if isinstance(args, dict):
        for name in (ctx.replica, ctx.kind, f"rank {ctx.rank}", "else"):
            if name in args:
                return args[name]
    return args


def stream_service(plays: Plays | None = None) -> tiedreq.Service:
    """``play``: steps, by replica, kind or ``rank N`` of the copy if they are a map. A number is a pause in seconds.

    ``["item", value]`` and ``["items", number, pause]`` yield, ``["bytes", size]`` yields so many bytes, ``["fail",
    retryable]`` fails, ``["raise"]`` raises. ``once`` is the same and may not run twice; ``steps`` runs in a thread and
    yields the numbers up to its argument. ``echo`` is a method.
    """
    book = plays if plays is not None else Plays()
    service = tiedreq.Service("streams")

    async def play(ctx: tiedreq.Context, args: Any) -> AsyncIterator[Any]:
        run = book.play(ctx)
        run.end = "cancelled"
        try:
            for step in _script(args, ctx):
                if isinstance(step, int | float):
                    await trio.sleep(step)
                    continue
                what, *rest = step
                if what == "item":
                    run.yielded.append(trio.current_time())
                    yield rest[0]
                elif what == "items":
                    for number in range(rest[0]):
                        await trio.sleep(rest[1])
                        run.yielded.append(trio.current_time())
                        yield [ctx.replica, number]
                elif what == "bytes":
                    run.yielded.append(trio.current_time())
                    yield bytes(rest[0])
                elif what == "fail":
                    raise Failure("script", "as asked", {"at": len(run.yielded)}, retryable=rest[0])
                else:
                    raise ValueError("a secret")
            run.end = "returned"
        except (Failure, ValueError):
            run.end = "raised"
            raise
        finally:
            run.ended = trio.current_time()

    def steps(ctx: tiedreq.Context, args: Any) -> Any:
        run = tiedreq_run(book, ctx)
        try:
            for number in range(args):
                run.yielded.append(float(number))
                yield number
            run.end = "returned"
        except GeneratorExit:
            run.end = "closed"
            raise

    async def echo(ctx: tiedreq.Context, args: Any) -> Any:
        return args

    service.stream("play", idempotent=True)(play)
    service.stream("once")(play)
    service.stream("steps", idempotent=True)(steps)
    service.method("echo", idempotent=True)(echo)
    return service


def tiedreq_run(book: Plays, ctx: tiedreq.Context) -> Played:
    """An execution in a thread, where Trio's clock can't be read."""
    run = Played.__new__(Played)
    run.context, run.call, run.replica, run.kind, run.rank = ctx, ctx.call_id, ctx.replica, ctx.kind, ctx.rank
    run.began, run.ended, run.end, run.yielded = 0.0, None, "running", []
    book.runs.append(run)
    return run


async def taken(stream: tiedreq.Stream) -> list[Any]:
    """Everything that is left of a stream."""
    return [item async for item in stream]
