"""A service of somebody's own, as the laboratory meets one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

import tiedreq


@asynccontextmanager
async def lifespan() -> AsyncIterator[str]:
    await trio.lowlevel.checkpoint()
    yield "hello"


service = tiedreq.Service("own", lifespan=lifespan)


@service.method()
async def charge(ctx: tiedreq.Context, args: Any) -> None:
    await trio.lowlevel.checkpoint()


@service.method(idempotent=True, timeout_max=20.0, slots=2)
async def greet(ctx: tiedreq.Context, args: Any) -> str:
    await trio.sleep(0.002)
    return f"{ctx.state} {args['name'] if args else 'there'}"


@service.method(idempotent=True)
def compute(ctx: tiedreq.Context, args: Any) -> int:
    return int(args) ** 2


@service.method(idempotent=True)
async def fail(ctx: tiedreq.Context, args: Any) -> None:
    await trio.lowlevel.checkpoint()
    raise tiedreq.Failure("missing", "no such thing")


@service.method(idempotent=True)
async def wait(ctx: tiedreq.Context, args: Any) -> None:
    await trio.sleep_forever()
