"""What travels between a front and a sidecar: a request as the argument of a call, a response as items of a stream.

A request is ``[method, target, headers, body]``. The first item of a response is ``[status, headers, part, whole]``:
``part`` is what of the body was there (perhaps nothing), ``whole`` says that it is all. Further items are parts of the
body, as bytes; trailers, if any, are a last item, ``[trailers]``. Headers are flat lists: name, value, name, value, and
so on. Both sides read strictly: a value of another shape is an error of the peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiedreq.proxy.headers import Headers

TIED = "http"
"""The method of requests that may run twice."""
ONCE = "http-once"
"""The method of requests that pass once."""
PASSAGE = "http-passage"
"""The method that waits for a slot, and lends it to a request whose body is streamed (``proxy.passage``)."""


_BYTES = frozenset({bytes})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


class BadMessage(Exception):
    """What came is not a message of a front or a sidecar."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, its body whole. The headers are as the upstream gets them, but for the length of the body."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""

    def pack(self) -> list[Any]:
        """As a value that msgpack can carry."""
        return [self.method, self.target, _flat(self.headers), self.body]

    @classmethod
    def unpack(cls, value: Any) -> Ask:
        """Raises ``BadMessage``."""
        match value:
            case [bytes(method), bytes(target), list(headers), bytes(body)]:
                pairs = _pairs(headers)
                if not _FRAMING.isdisjoint([name.lower() for name, _ in pairs]):
                    raise BadMessage("the headers of a request tell where its body ends, which is known already")
                return cls(method, target, pairs, body)
        raise BadMessage("the arguments are no HTTP request: is the other side a front of this version?")


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a response."""

    status: int
    headers: Headers
    part: bytes = b""
    whole: bool = False
    trailers: Headers = field(default_factory=list)

    def pack(self) -> list[Any]:
        """As a value that msgpack can carry."""
        return [self.status, _flat(self.headers), self.part, self.whole]

    @classmethod
    def unpack(cls, value: Any) -> Head:
        """Raises ``BadMessage``."""
        match value:
            case [int(status), list(headers), bytes(part), bool(whole)] if 200 <= status <= 999:
                return cls(status, _pairs(headers), part, whole)
        raise BadMessage("the first item is no head of an HTTP response: is the replica a sidecar of this version?")


def pack_trailers(headers: Headers) -> list[Any]:
    """The item that follows the last part of a body."""
    return [_flat(headers)]


def unpack_part(value: Any) -> bytes | Headers:
    """A part of the body, or the trailers. Raises ``BadMessage``."""
    match value:
        case bytes(part):
            return part
        case [list(headers)]:
            return _pairs(headers)
    raise BadMessage("an item is no part of an HTTP body")


def _flat(headers: Headers) -> list[bytes]:
    return [text for pair in headers for text in pair]


def _pairs(flat: list[Any]) -> Headers:
    if len(flat) % 2 or not _BYTES.issuperset(map(type, flat)):
        raise BadMessage("headers are not names and values")
    return list(zip(flat[::2], flat[1::2], strict=True))
