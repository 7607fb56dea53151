"""The routes of the dashboard: its page, its data, and the controls.

``GET /`` and ``/static/…``: the page, from memory. ``GET /api/live?since=N``: ``Feed.live``. ``POST /api/control``: a
request of ``cluster.control``, answered as on the control socket. ``GET /healthz``. Everything is behind ``guard``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cluster.control import Operator
from cluster.control_socket import answer
from cluster.dashboard.feed import Feed
from cluster.dashboard.guard import CONTROL_PATH, App, Guard, Rules

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
STATUS_BY_CODE = {1: 409, 2: 422}
"""HTTP statuses by the exit code that ``cluster.ctl`` would have."""


def make_app(feed: Feed, operator: Operator, rules: Rules, nursery: trio.Nursery, *, hint: str = "") -> App:
    """The whole application. Requests are carried out in ``nursery``, even when whoever asked has gone.

    ``hint``: the command that prints the address with the token, told to who may control.
    """

    async def live(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        number = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
        may = rules.may_control(request.client.host if request.client else "", request.headers)
        headers = {"cache-control": "no-store", "x-may-control": quote(hint) or "yes" if may else "no"}
        return Response(feed.live(number), media_type="application/json", headers=headers)

    async def control(request: Request) -> Response:
        try:
            found = json.loads(await request.body())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            return JSONResponse({"ok": False, "error": "the request is not a JSON object"}, 400)
        told = await _apart(nursery, partial(answer, operator, found))
        feed.refresh()
        return JSONResponse(told, 200 if told["ok"] else STATUS_BY_CODE.get(told["code"], 500))

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [
        Route("/api/live", live),
        Route(CONTROL_PATH, control, methods=["POST"]),
        Route("/healthz", health),
        *(_file(path) for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES),
    ]
    return Guard(Starlette(routes=routes), rules)


async def _apart(nursery: trio.Nursery, work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Do it in a task of its own, which goes on when this one is cancelled."""
    results: list[dict[str, Any]] = []
    done = trio.Event()

    async def run() -> None:
        try:
            results.append(await work())
        finally:
            done.set()

    nursery.start_soon(run)
    await done.wait()
    return results[0]


def _file(path: Path) -> Route:
    """A file of the page, kept in memory; a browser asks each time whether it has changed."""
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=TYPES[path.suffix], headers=headers)

    name = path.relative_to(STATIC).as_posix()
    return Route("/" if name == "index.html" else f"/static/{name}", send)
