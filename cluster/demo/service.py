"""The demo: ``service``, with methods ``search``, ``lookup``, ``charge`` and ``work``.

``search`` and ``lookup`` answer from the index of the standard library's documentation and may run twice, so they may
be tied and hedged. ``charge`` may not, and shows the refusal. ``work`` is for experiments: it takes as long as it is
told to. A bad argument is ``Failure("bad_argument", …)`` at each of them.

Run by the launcher, or by hand as ``tiedreq serve cluster.demo.service:service`` with ``TIEDREQ_DEMO`` set
(``cluster.demo.settings``).
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

import tiedreq
from cluster.demo import live
from cluster.demo.arguments import Arguments
from cluster.demo.library import Library, QuerySyntaxError
from cluster.demo.settings import DemoSettings
from cluster.demo.workload import Workload
from tiedreq.laws import ServiceLaw, parse_law

QUERY_LENGTH_MAX = 500
NAME_LENGTH_MAX = 200
LIMIT_DEFAULT = 10
LIMIT_MAX = 100
AMOUNT_MIN = 0.01
AMOUNT_MAX = 10_000.0
LAW_LENGTH_MAX = 500
UNITS_MAX = 1_000
BEYOND_DEADLINE = 1.0
"""Work that can't end in time is planned to end this many seconds after the deadline, which cancels it first."""


@dataclass(frozen=True, slots=True)
class Demo:
    """What the handlers of one replica share."""

    library: Library
    workload: Workload


@asynccontextmanager
async def lifespan() -> AsyncIterator[Demo]:
    """Open the index and prepare the work that ``TIEDREQ_DEMO`` describes.

    Raises ``BadOption`` for bad settings and ``IndexUnavailable`` when there is no index.
    """
    settings = DemoSettings.from_environment(os.environ)
    library = Library(settings.index)
    try:
        workload = Workload(
            settings.service,
            slow_factor=settings.slow_factor,
            pause=settings.pause_spec,
            seed=settings.seed,
            stream=settings.replica,
        )
        live.attach(workload)
        yield Demo(library, workload)
    finally:
        library.close()


service = tiedreq.Service("demo", lifespan=lifespan)


@service.method(idempotent=True)
def search(ctx: tiedreq.Context, args: Any) -> list[dict[str, Any]]:
    """The entries that hold all words of ``query``, the best ``limit`` (1 to 100, default 10) first.

    ``{"query": "parse json", "limit": 5}``. With ``"syntax": "fts5"`` the query is an expression of SQLite's FTS5,
    such as ``json AND pars*``. A hit is ``{"name", "kind", "summary", "score"}``. Fails with ``bad_query`` when there
    is no word in it or the expression can't be understood.
    """
    arguments = Arguments(args, known=("query", "limit", "syntax"))
    query = arguments.text("query", longest=QUERY_LENGTH_MAX)
    limit = arguments.whole_number("limit", 1, LIMIT_MAX, default=LIMIT_DEFAULT)
    syntax = arguments.choice("syntax", ("words", "fts5"), default="words")
    library: Library = ctx.state.library
    words = [word for word in query.split() if any(character.isalnum() for character in word)]
    if not words:
        raise tiedreq.Failure("bad_query", "query: no word to look for")
    try:
        if syntax == "words":
            hits = library.search(words, limit=limit, on_cancel=ctx.on_cancel)
        else:
            hits = library.search_expression(query, limit=limit, on_cancel=ctx.on_cancel)
    except QuerySyntaxError as error:
        raise tiedreq.Failure("bad_query", f"query: {error}") from None
    return [{"name": h.name, "kind": h.kind, "summary": h.summary, "score": round(h.score, 6)} for h in hits]


@service.method(idempotent=True)
async def lookup(ctx: tiedreq.Context, args: Any) -> dict[str, str]:
    """The documentation of ``name``, such as ``json.dumps``: ``{"name", "kind", "signature", "doc"}``.

    Fails with ``not_found``; the failure's details are up to five names that may have been meant.
    """
    arguments = Arguments(args, known=("name",))
    name = arguments.text("name", longest=NAME_LENGTH_MAX).strip()
    library: Library = ctx.state.library
    # By its key an entry is found within microseconds, near misses within milliseconds: no thread is worth its switch.
    await trio.lowlevel.checkpoint()
    entry = library.lookup(name)
    if entry is None:
        near = library.near_misses(name)
        hint = f"; near misses: {', '.join(near)}" if near else ""
        raise tiedreq.Failure("not_found", f"nothing is documented as {name!r}{hint}", near)
    return {"name": entry.name, "kind": entry.kind, "signature": entry.signature, "doc": entry.doc}


@service.method(idempotent=False)
async def charge(ctx: tiedreq.Context, args: Any) -> dict[str, Any]:
    """Pretend to take ``amount`` (0.01 to 10,000, in cents at the finest): ``{"receipt", "amount", "replica"}``.

    Every execution makes a new receipt, so running it twice would charge twice: it is not declared idempotent.
    """
    amount = Arguments(args, known=("amount",)).number("amount", AMOUNT_MIN, AMOUNT_MAX)
    if round(amount, 2) != amount:
        raise tiedreq.Failure("bad_argument", "amount: has more than two decimals")
    await trio.lowlevel.checkpoint()
    return {"receipt": uuid.uuid4().hex, "amount": amount, "replica": ctx.replica}


@service.method(idempotent=True)
async def work(ctx: tiedreq.Context, args: Any) -> dict[str, Any]:
    """Take as long as the replica's law says: ``{"replica", "service_ms", "paused_ms"}``.

    ``{"service": "exp(5ms)"}`` overrides the law for this call, ``{"units": n}`` (1 to 1,000) takes n service times
    one after the other. ``service_ms`` is from the handler's start to its end, pauses included.
    """
    arguments = Arguments(args, known=("service", "units"))
    workload: Workload = ctx.state.workload
    law = workload.law
    if arguments.has("service"):
        law = _law(arguments.text("service", longest=LAW_LENGTH_MAX))
    units = arguments.whole_number("units", 1, UNITS_MAX, default=1)
    done = await workload.run(law, units, at_most=ctx.remaining() + BEYOND_DEADLINE)
    return {
        "replica": ctx.replica,
        "service_ms": round(done.service * 1000, 3),
        "paused_ms": round(done.paused * 1000, 3),
    }


@functools.lru_cache(maxsize=64)
def _law(text: str) -> ServiceLaw:
    try:
        return parse_law(text, field="service")
    except tiedreq.BadOption as error:
        raise tiedreq.Failure("bad_argument", str(error)) from None
