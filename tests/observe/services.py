"""A service to look at."""

from __future__ import annotations

from typing import Any

import trio

import tiedreq


def make_service() -> tiedreq.Service:
    """``nap`` sleeps for so many seconds, ``fail`` fails on purpose, ``crash`` by accident."""
    service = tiedreq.Service("observed")

    @service.method(idempotent=True)
    async def nap(ctx: tiedreq.Context, seconds: float) -> str:
        await trio.sleep(seconds)
        return ctx.replica

    @service.method()
    async def fail(ctx: tiedreq.Context, args: Any) -> None:
        raise tiedreq.Failure("broken", "as it should be")

    @service.method()
    async def crash(ctx: tiedreq.Context, args: Any) -> None:
        raise ZeroDivisionError("an accident")

    return service
