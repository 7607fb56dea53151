"""The service of these tests: it writes down each start and each end of an execution, before anybody hears of it."""

from __future__ import annotations

from pathlib import Path

APP = """
import json
import os
import random
import time

import trio

import tiedreq

service = tiedreq.Service("app")
BOOK = os.open(f"runs-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(ctx, number, what):
    os.write(BOOK, (json.dumps([ctx.call_id, number, ctx.replica, os.getpid(), what]) + "\\n").encode())


@service.method(idempotent=True)
async def square(ctx, args):
    if not isinstance(args, dict) or type(args.get("number")) is not int:
        raise tiedreq.Failure("bad_arguments", "a number is missing")
    number = args["number"]
    note(ctx, number, "started")
    end = "raised"
    try:
        if os.path.exists(f"fail-{ctx.replica}"):
            raise tiedreq.Failure("broken", "told to fail", retryable=True)
        await trio.sleep(args.get("sleep") or random.expovariate(1 / 0.005))
        end = "returned"
    except trio.Cancelled:
        end = "stopped"
        raise
    finally:
        note(ctx, number, end)
    return {"square": number**2, "replica": ctx.replica}


@service.method(idempotent=True)
async def blob(ctx, args):
    return bytes(args)


@service.method(idempotent=True)
def spin(ctx, args):
    until = time.monotonic() + args
    while time.monotonic() < until:
        pass
    return ctx.replica
"""
"""``square`` answers after 5 ms on average, or ``args["sleep"]`` seconds; it fails while ``fail-NAME`` exists.
``spin`` computes, without a pause, for so many seconds."""


def write(folder: Path, more: str = "") -> None:
    """Put the service into ``folder``, with ``more`` behind it."""
    (folder / "app.py").write_text(APP + more)
