"""What travels between a front and a sidecar: a request as the argument of a call, a response as items of a stream.

A request is ``[method, target, headers, body]``. The first item of a response is ``[status, headers, part, whole]``:
``part`` is what of the body was there (perhaps nothing), ``whole`` says that it is all. Further items are parts of the
body, as bytes; trailers, if any, are a last item, ``[trailers]``. Headers are one text of bytes: name, value, name,
value, and so on, a line each (as a list each would be a value to check and to pack, at both ends). Both sides read
strictly: a value of another shape is an error of the peer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tiedreq.proxy.headers import Headers

TIED = "http"
"""The method of requests that may run twice."""
ONCE = "http-once"
"""The method of requests that pass once."""
PASSAGE = "http-passage"
"""The method that waits for a slot, and lends it to a request whose body is streamed (``proxy.passage``)."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class BadMessage(Exception):
    """What came is not a message of a front or a sidecar."""


class Ask(NamedTuple):
    """A request, its body whole. The headers are as the upstream gets them, but for the length of the body."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""

    def pack(self) -> list[Any]:
        """As a value that msgpack can carry."""
        return [self.method, self.target, _lines(self.headers), self.body]

    @classmethod
    def unpack(cls, value: Any) -> Ask:
        """Raises ``BadMessage``."""
        match value:
            case [bytes(method), bytes(target), bytes(lines), bytes(body)]:
                pairs = _pairs(lines)
                if not _FRAMING.isdisjoint([name.lower() for name, _ in pairs]):
                    raise BadMessage("the headers of a request tell where its body ends, which is known already")
                return cls(method, target, pairs, body)
        raise BadMessage("the arguments are no HTTP request: is the other side a front of this version?")


class Head(NamedTuple):
    """The beginning of a response."""

    status: int
    headers: Headers
    part: bytes = b""
    whole: bool = False

    def pack(self) -> list[Any]:
        """As a value that msgpack can carry."""
        return [self.status, _lines(self.headers), self.part, self.whole]

    @classmethod
    def unpack(cls, value: Any) -> Head:
        """Raises ``BadMessage``."""
        match value:
            case [int(status), bytes(lines), bytes(part), bool(whole)] if 200 <= status <= 999:
                return cls(status, _pairs(lines), part, whole)
        raise BadMessage("the first item is no head of an HTTP response: is the replica a sidecar of this version?")


def pack_trailers(headers: Headers) -> list[Any]:
    """The item that follows the last part of a body."""
    return [_lines(headers)]


def unpack_part(value: Any) -> bytes | Headers:
    """A part of the body, or the trailers. Raises ``BadMessage``."""
    match value:
        case bytes(part):
            return part
        case [bytes(lines)]:
            return _pairs(lines)
    raise BadMessage("an item is no part of an HTTP body")


def _lines(headers: Headers) -> bytes:
    """What has no line break, as h11 sees to on the way in."""
    lines = b"\n".join([text for pair in headers for text in pair])
    if lines.count(b"\n") != max(2 * len(headers) - 1, 0):
        raise BadMessage("there is a line break within a header")
    return lines


def _pairs(lines: bytes) -> Headers:
    if not lines:
        return []
    flat = lines.split(b"\n")
    if len(flat) % 2:
        raise BadMessage("headers are not names and values")
    return list(zip(flat[::2], flat[1::2], strict=True))
