"""What a replica and a client show over HTTP: health, metrics, the snapshot, and one call's timeline.

``/healthz``, ``/readyz`` and ``/metrics`` are open to whoever reaches them. ``/snapshot`` and ``/calls/CALL_ID`` need
the cluster's token, if it has one, and are there on loopback only: the token does not cross a network unprotected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from tiedreq.core.errors import BadOption
from tiedreq.net.addresses import is_loopback, parse_address
from tiedreq.observe.client import ClientObserver
from tiedreq.observe.http import JSON, Guard, Request, Response, serve_http
from tiedreq.observe.replica import ReplicaObserver
from tiedreq.observe.stories import parse_call_id

ROUTES = "/healthz, /readyz, /metrics, /snapshot and /calls/CALL_ID"
RECENT_MAX = 10_000


def metrics_page(observer: ReplicaObserver | ClientObserver) -> Callable[[str], tuple[bytes, str]]:
    """See ``tiedreq.observe.metrics.exposition``. Raises ``BadOption`` where the extra is not installed."""
    try:
        from tiedreq.observe.metrics import exposition
    except ModuleNotFoundError as error:
        raise BadOption(f"observe.listen: {error.name} is not installed: pip install 'tiedreq[metrics]'") from None
    return exposition(observer)


class Surface:
    """The routes of one observer. ``ready`` says why it does not take calls, or nothing."""

    def __init__(
        self,
        observer: ReplicaObserver | ClientObserver,
        *,
        token: str | None,
        ready: Callable[[], str],
        private: bool = True,
    ) -> None:
        self._observer = observer
        self._guard = Guard(token)
        self._ready = ready
        self._private = private
        self._page = metrics_page(observer)

    def answer(self, request: Request) -> Response:
        """The answer to one request."""
        match request.path.split("/")[1:]:
            case ["healthz"]:
                return Response.text(200, "ok")
            case ["readyz"]:
                reason = self._ready()
                return Response.text(503, reason) if reason else Response.text(200, "ready")
            case ["metrics"]:
                body, content_type = self._page(request.headers.get("accept", ""))
                return Response(200, body, content_type)
            case ["snapshot"]:
                return self._guarded(request, lambda: self._snapshot(request))
            case ["calls", call_id]:
                return self._guarded(request, lambda: self._call(call_id))
            case _:
                return Response.text(404, f"there are {ROUTES}")

    def _guarded(self, request: Request, show: Callable[[], Response]) -> Response:
        if not self._private:
            return Response.text(403, "this is shown on loopback only")
        return self._guard.refusal(request) or show()

    def _snapshot(self, request: Request) -> Response:
        if isinstance(self._observer, ReplicaObserver):
            return as_json(self._observer.snapshot())
        text = request.query.get("recent", "64")
        if not (text.isascii() and text.isdigit()) or int(text) > RECENT_MAX:
            return Response.text(400, f"recent: a whole number from 0 to {RECENT_MAX} is expected")
        return as_json(self._observer.snapshot(recent=int(text)))

    def _call(self, call_id: str) -> Response:
        call = parse_call_id(call_id)
        if call is None:
            return Response.text(400, "a call id is 16 hexadecimal digits, a dash, and a number")
        if isinstance(self._observer, ReplicaObserver):
            return as_json(self._observer.story(call))
        return as_json(self._observer.find(call))


def as_json(value: Any) -> Response:
    """``value`` as JSON."""
    return Response(200, json.dumps(value, separators=(",", ":")).encode(), JSON)


async def show(
    observer: ReplicaObserver | ClientObserver,
    listen: str,
    *,
    token: str | None,
    ready: Callable[[], str],
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an observer's routes at ``listen`` until cancelled; reports the URL.

    Raises ``BadOption`` (no address, or the extra ``metrics`` is missing), ``OSError`` when it can't listen.
    """
    surface = Surface(observer, token=token, ready=ready, private=is_loopback(parse_address(listen).host))
    await serve_http(listen, surface.answer, task_status=task_status)
