"""A plain HTTP client for tests."""

from __future__ import annotations

from typing import NamedTuple

import trio


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def get(url: str, *, token: str | None = None, method: str = "GET") -> Got:
    """The answer to one request."""
    address, _, path = url.removeprefix("http://").partition("/")
    host, _, port = address.partition(":")
    authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
    with trio.fail_after(10):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"{method} /{path} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n".encode())
            got = bytearray()
            async for part in stream:
                got += part
    head, _, body = got.decode().partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in rest)
    return Got(int(first.split()[1]), headers, body)
