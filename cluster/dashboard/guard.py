"""Who may ask the dashboard for what: an ASGI layer before all routes.

* ``Host`` must be an address, ``localhost`` or the name that the dashboard was given: a page of another site that has
  its own name point here (DNS rebinding) is refused.
* Only GET and HEAD, and POST to the control route. That one needs the control token, a ``Content-Type`` of JSON, an
  ``Origin`` that is the dashboard itself where the browser names one, and a body of at most ``BODY_BYTES_MAX``. The
  origin may be HTTPS: a proxy in front that keeps ``Host`` has it.
* From beyond loopback only looking is allowed, unless the dashboard was started with remote control. What a proxy says
  that it has forwarded counts as from beyond, wherever the proxy is; one that says nothing is not noticed.
* Each answer forbids other sites to frame it, and scripts, styles and data from elsewhere.

The token is compared in constant time and is never part of a URL that reaches this server. Not for the number of
connections and their time (``cluster.dashboard.serving``). Needs no extra.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTROL_PATH = "/api/control"
BODY_BYTES_MAX = 16 * 1024
FORWARDED = frozenset("forwarded via x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split())
"""Headers by which proxies say that they are one."""
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """``token`` opens the control route; ``host`` is the name of the dashboard besides addresses and localhost.

    ``remote_control``: the token opens it from beyond loopback too.
    """

    token: str = field(repr=False)
    host: str
    remote_control: bool = False

    def known_host(self, host: str) -> bool:
        """Whether a ``Host`` header names this dashboard."""
        name = _without_port(host)
        return name in ("localhost", self.host.lower()) or _address(name) is not None

    def may_control(self, client: str, headers: Mapping[str, str]) -> bool:
        """Whether who calls from this address, with these headers, may use the controls, with the token.

        ``headers``: by name in lower case.
        """
        return self.remote_control or (is_loopback(client) and FORWARDED.isdisjoint(headers))

    def right_token(self, authorization: str) -> bool:
        """Whether an ``Authorization`` header holds the token."""
        scheme, _, token = authorization.partition(" ")
        same = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token.encode())
        return same and scheme.lower() == "bearer"


class Guard:
    """``app`` behind ``rules``."""

    def __init__(self, app: App, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        await self._app(scope, _limited(receive), _secured(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = _headers(scope["headers"])
        host = headers.get("host", "")
        if not self._rules.known_host(host):
            return 421, "this dashboard has another name; use its address"
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST" or scope["path"] != CONTROL_PATH:
            return 405, "only GET, and POST to the control route"
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return 403, "the request comes from another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "the request comes from another site"
        if not self._rules.may_control(scope["client"][0] if scope.get("client") else "", headers):
            return 403, "from here the dashboard is read-only"
        if not self._rules.right_token(headers.get("authorization", "")):
            return 401, "the control token is missing or wrong"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "the request must be JSON"
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit():
            return 411, "the length of the request must be told"
        if len(length) > 9 or int(length) > BODY_BYTES_MAX:
            return 413, f"the request is longer than {BODY_BYTES_MAX} bytes"
        return None


def is_loopback(address: str) -> bool:
    """Whether this is an address of the host itself."""
    found = _address(address)
    if found is None:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return found.is_loopback or bool(mapped is not None and mapped.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name. One that comes twice counts as wrong: its values are joined."""
    found: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _limited(receive: Receive) -> Receive:
    """A body that does not end where it said is cut off."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= BODY_BYTES_MAX else {"type": "http.disconnect"}

    return limited


def _secured(send: Send) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        await send(message)

    return secured


async def _answer(send: Send, status: int, text: str) -> None:
    body = json.dumps({"ok": False, "error": text}).encode()
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length), *SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
