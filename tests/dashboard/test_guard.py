"""Who may ask the dashboard for what, each rule by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.dashboard.guard import (
    BODY_BYTES_MAX,
    CONTROL_PATH,
    Guard,
    Message,
    Receive,
    Rules,
    Scope,
    Send,
    is_loopback,
)

TOKEN = "open-sesame"
GOOD = {
    "host": "127.0.0.1:8000",
    "origin": "http://127.0.0.1:8000",
    "sec-fetch-site": "same-origin",
    "authorization": f"Bearer {TOKEN}",
    "content-type": "application/json",
    "content-length": "2",
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the whole body and says how long it was."""
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-length", str(length).encode())]})
    await send({"type": "http.response.body", "body": b"ok"})


async def ask(
    method: str = "POST",
    path: str = CONTROL_PATH,
    headers: dict[str, str] | None = None,
    *,
    client: str = "127.0.0.1",
    rules: Rules | None = None,
    body: tuple[bytes, ...] = (b"{}",),
    **changed: str | None,
) -> tuple[int, dict[str, str]]:
    values: dict[str, str | None] = {**(GOOD if headers is None else headers)}
    values.update({name.replace("_", "-"): value for name, value in changed.items()})
    raw = [(k.encode(), v.encode("latin-1")) for k, v in values.items() if v is not None]
    scope = {
        "type": "http", "method": method, "path": path, "scheme": "http", "headers": raw, "client": (client, 5),
    }  # fmt: skip
    chunks = list(body)
    sent: list[Message] = []

    async def receive() -> Message:
        if not chunks:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    await Guard(app, rules or Rules(TOKEN, "127.0.0.1"))(scope, receive, send)
    if not sent:
        return 0, {}
    found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    if sent[0]["status"] >= 400:
        told = json.loads(sent[1]["body"])
        assert told["ok"] is False and TOKEN not in told["error"]
    return sent[0]["status"], found


async def test_what_is_right_passes() -> None:
    status, headers = await ask()
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
    assert (await ask(origin=None, sec_fetch_site=None))[0] == 200, "a program names no origin"
    assert (await ask(origin="https://127.0.0.1:8000"))[0] == 200, "a proxy in front has TLS, and keeps the host"


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"host": "evil.example"}, 421),
    ({"host": "127.0.0.1.evil.example:8000"}, 421),
    ({"host": None}, 421),
    ({"host": ""}, 421),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "https://evil.example"}, 403),
    ({"origin": "https://127.0.0.1"}, 403),
    ({"origin": "ftp://127.0.0.1:8000"}, 403),
    ({"x-forwarded-for": "192.0.2.7"}, 403),
    ({"x-forwarded-proto": "https", "origin": "https://127.0.0.1:8000"}, 403),
    ({"forwarded": "for=192.0.2.7"}, 403),
    ({"via": "1.1 proxy"}, 403),
    ({"x-real-ip": "127.0.0.1"}, 403),
    ({"origin": "http://127.0.0.1:8001"}, 403),
    ({"origin": None, "sec-fetch-site": "cross-site"}, 403),
    ({"origin": None, "sec-fetch-site": "same-site"}, 403),
    ({"client": "192.0.2.7"}, 403),
    ({"client": "2001:db8::1"}, 403),
    ({"client": ""}, 403),
    ({"authorization": None}, 401),
    ({"authorization": "Bearer"}, 401),
    ({"authorization": "Bearer wrong"}, 401),
    ({"authorization": f"Bearer {TOKEN}x"}, 401),
    ({"authorization": f"Basic {TOKEN}"}, 401),
    ({"authorization": f"Bearer \xe9{TOKEN}"}, 401),
    ({"content-type": "text/plain"}, 415),
    ({"content-type": None}, 415),
    ({"content-length": None}, 411),
    ({"content-length": "-1"}, 411),
    ({"content-length": str(BODY_BYTES_MAX + 1)}, 413),
    ({"content-length": "9" * 40}, 413),
    ({"method": "PUT"}, 405),
    ({"method": "DELETE", "path": "/"}, 405),
    ({"path": "/api/live"}, 405),
    ({"path": "/"}, 405),
]


@pytest.mark.parametrize(("changed", "status"), REFUSED)
async def test_what_is_refused(changed: dict[str, Any], status: int) -> None:
    found, headers = await ask(**{key.replace("-", "_"): value for key, value in changed.items()})
    assert found == status
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("client", ["127.0.0.1", "192.0.2.7"])
async def test_anybody_who_reaches_it_may_look(method: str, client: str) -> None:
    assert (await ask(method, "/", {"host": "192.0.2.1:80"}, client=client))[0] == 200
    assert (await ask(method, "/", {"host": "evil.example"}, client=client))[0] == 421


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "[::1]:8000", "10.0.0.7", "BIG.example:80", "big.example"]
)
async def test_names_of_the_dashboard(host: str) -> None:
    assert (await ask("GET", "/", {"host": host}, rules=Rules(TOKEN, "Big.example")))[0] == 200


async def test_remote_control_when_it_was_asked_for() -> None:
    rules = Rules(TOKEN, "0.0.0.0", remote_control=True)
    assert (await ask(client="192.0.2.7", rules=rules))[0] == 200
    assert (await ask(client="192.0.2.7", rules=rules, authorization=None))[0] == 401


async def test_through_a_proxy_that_says_so() -> None:
    """Its own address is loopback; looking is allowed, control when it was asked for."""
    through: dict[str, Any] = {"x_forwarded_for": "192.0.2.7", "host": "192.0.2.1", "origin": "https://192.0.2.1"}
    assert (await ask(**through))[0] == 403
    assert (await ask("GET", "/", {"host": "192.0.2.1", "x-forwarded-for": "192.0.2.7"}))[0] == 200
    rules = Rules(TOKEN, "127.0.0.1", remote_control=True)
    assert (await ask(rules=rules, **through))[0] == 200
    assert (await ask(rules=rules, **{**through, "authorization": None}))[0] == 401
    assert (await ask(rules=rules, **{**through, "host": "proxy.example", "origin": "https://proxy.example"}))[0] == 421


async def test_a_body_longer_than_it_said_is_cut_off() -> None:
    assert (await ask(body=(b"x" * BODY_BYTES_MAX, b"x")))[0] == 0
    assert (await ask(body=(b"x" * BODY_BYTES_MAX,)))[1]["x-length"] == str(BODY_BYTES_MAX)


async def test_headers_that_come_twice_are_wrong() -> None:
    raw = [(key.encode(), value.encode()) for key, value in GOOD.items()] + [(b"host", b"127.0.0.1:8000")]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": CONTROL_PATH, "scheme": "http", "headers": raw, "client": None}
    await Guard(app, Rules(TOKEN, "127.0.0.1"))(scope, receive, send)
    assert sent[0]["status"] == 421


async def test_websockets_are_closed() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    await Guard(app, Rules(TOKEN, ""))({"type": "websocket", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_loopback() -> None:
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(address)
    for address in ("", "localhost", "10.0.0.1", "::ffff:10.0.0.1", "0.0.0.0"):
        assert not is_loopback(address)
    assert TOKEN not in repr(Rules(TOKEN, ""))
