"""What the HTTP standard asks of a gateway's headers: which are kept, dropped and added, and what is no request.

Header names are lower-case bytes, as h11 gives them. Numbers in brackets are sections of RFC 9110 and RFC 9112. Pure.
Not for which requests are tied (``proxy.rules``).
"""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from typing import NamedTuple

import h11

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te transfer-encoding upgrade"
    ).split()
)
"""Fields of one connection, which are never passed on [9110, 7.6.1]."""
KEPT = frozenset({b"host", b"content-length", b"content-type"})
"""Fields that ``Connection`` can't have dropped, nor those that tell who asked."""
FORWARDED = frozenset({b"forwarded", b"x-real-ip"})
"""With all of ``X-Forwarded-*``, what a request says of those before it."""
OURS = frozenset({b"tiedreq-replica", b"tiedreq-error", b"tiedreq-ticket"})
OURS_OR_HOP_BY_HOP = OURS | HOP_BY_HOP
NO_TRAILERS = frozenset(
    (
        b"authorization cache-control content-encoding content-length content-range content-type cookie date expect "
        b"expires host location max-forwards pragma range retry-after set-cookie te trailer transfer-encoding vary "
        b"www-authenticate"
    ).split()
)
"""Fields that change what a message means, and may not come after it [9110, 6.5.1]."""
DOUBTFUL = frozenset({b"upgrade", b"transfer-encoding", b"expect", b"via"})
"""Without these a request is refused for its method or its target only."""
BODILESS = frozenset({204, 304})
"""Answers that never have a body [9112, 6.3]."""


class Refusal(NamedTuple):
    """A request that goes no further: the status of the answer and one line that says why."""

    status: int
    text: str


def as_pairs(message: h11.Request | h11.Response | h11.EndOfMessage) -> Headers:
    """The headers of a message. (To iterate over h11's own sequence costs a call for each.)"""
    return [(name.lower(), value) for name, value in message.headers.raw_items()]


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """All values of a field, in order."""
    return [value for key, value in headers if key == name]


def members(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """The members of a field that is a list, in lower case."""
    joined = b",".join(values(headers, name))
    return [member for part in joined.split(b",") if (member := part.strip().lower())]


def refusal(method: bytes, target: bytes, headers: Headers, version: bytes, pseudonym: bytes) -> Refusal | None:
    """Why a request that h11 has accepted is not passed on, or None.

    Two ways to tell where a body ends, and a coding that HTTP/1.0 doesn't know, are how requests are smuggled past a
    gateway: refused, not repaired [9112, 6.1, 11.2]. h11 has refused several lengths that differ, and other codings.
    """
    if method == b"CONNECT":
        return Refusal(501, "CONNECT does not pass here: this is no forward proxy")
    if DOUBTFUL.isdisjoint([name for name, _ in headers]):
        return _refused_target(method, target)
    if b"websocket" in members(headers, b"upgrade"):
        return Refusal(501, "WebSocket upgrades do not pass here; connect to a replica of the service itself")
    coded = values(headers, b"transfer-encoding")
    if coded and values(headers, b"content-length"):
        return Refusal(400, "both Content-Length and Transfer-Encoding: where the body ends is not clear")
    if coded and version < b"1.1":
        return Refusal(400, "Transfer-Encoding in a request of HTTP/1.0")
    if any(expected != b"100-continue" for expected in members(headers, b"expect")):
        return Refusal(417, "Expect: only 100-continue is known")
    wrong = _refused_target(method, target)
    if wrong is not None:
        return wrong
    if any(b" " + pseudonym in b" " + entry for entry in members(headers, b"via")):
        return Refusal(508, "this request has come through here before: the upstream leads back to the front")
    return None


def _refused_target(method: bytes, target: bytes) -> Refusal | None:
    if b"#" not in target:
        if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
            return None
        if target != b"*" and _absolute(target) is not None:
            return None
    return Refusal(400, "the target of the request is neither a path nor an http URL")


def _absolute(target: bytes) -> tuple[bytes, bytes] | None:
    """Authority and path of a target in absolute form [9112, 3.2.2]."""
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return None
    cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if not authority or b"@" in authority:
        return None
    return authority, path if path.startswith(b"/") else b"/" + path


def origin_form(target: bytes, headers: Headers, method: bytes = b"GET") -> tuple[bytes, Headers]:
    """The target as an origin server is asked, and the headers; the host of an absolute target replaces ``Host``."""
    found = None if target.startswith(b"/") or target == b"*" else _absolute(target)
    if found is None:
        return target, headers
    authority, path = found
    if (
        method == b"OPTIONS" and target.partition(b"://")[2] == authority
    ):  # neither path nor query: the server as a whole
        path = b"*"
    return path, [(b"host", authority), *((name, value) for name, value in headers if name != b"host")]


def may_go_on(method: bytes, headers: Headers) -> bool:
    """False for a TRACE or OPTIONS whose ``Max-Forwards`` says that it ends here [9110, 7.6.2]."""
    if method not in (b"TRACE", b"OPTIONS"):
        return True
    return not any(value.strip() == b"0" for value in values(headers, b"max-forwards"))


def _end_to_end(headers: Headers) -> Headers:
    if OURS_OR_HOP_BY_HOP.isdisjoint([name for name, _ in headers]):
        return headers
    named = {name for name in members(headers, b"connection") if name not in KEPT and not _forwarded(name)}
    return [(name, value) for name, value in headers if name not in OURS_OR_HOP_BY_HOP and name not in named]


def _forwarded(name: bytes) -> bool:
    return name in FORWARDED or name.startswith(b"x-forwarded-")


def _disguised(name: bytes) -> bool:
    """True for a field that a CGI or WSGI application would take for one that is set here: it reads ``_`` as ``-``."""
    if b"_" not in name:
        return False
    read = name.replace(b"_", b"-")
    return _forwarded(read) or read == b"via" or read in HOP_BY_HOP or read in KEPT or read in OURS


def for_upstream(
    method: bytes, headers: Headers, *, version: bytes, peer: str, scheme: str, pseudonym: bytes, trusted: bool
) -> Headers:
    """The headers of a request as the upstream gets them, but for those that tell the length of its body.

    ``peer`` is the address of who sent it. What it says about those before it is believed only if ``trusted``.
    """
    kept: Headers = []
    for_whom = [peer.encode("ascii", "replace")]
    proto, host = scheme.encode(), b""
    has_host = has_forwarded_host = False
    for name, value in _end_to_end(headers):
        if name in (b"content-length", b"expect") or (b"_" in name and _disguised(name)):
            continue
        if name == b"host":
            host, has_host = value, True
        elif name.startswith(b"x-forwarded-") or name in FORWARDED:
            if not trusted:
                continue
            if name == b"x-forwarded-for":
                for_whom.insert(len(for_whom) - 1, value)
                continue
            if name == b"x-forwarded-proto":
                proto = value
                continue
            has_forwarded_host = has_forwarded_host or name == b"x-forwarded-host"
        elif name == b"max-forwards" and method in (b"TRACE", b"OPTIONS") and value.strip().isdigit():
            value = b"%d" % max(int(value) - 1, 0)
        kept.append((name, value))
    if not has_host:  # HTTP/1.0 needs none, what is sent on does [9112, 3.2]
        kept.append((b"host", b""))
    kept.append((b"x-forwarded-for", b", ".join(for_whom)))
    kept.append((b"x-forwarded-proto", proto))
    if host and not has_forwarded_host:
        kept.append((b"x-forwarded-host", host))
    kept.append((b"via", b"%s %s" % (version, pseudonym)))
    return kept


def for_client(status: int, headers: Headers, *, pseudonym: bytes) -> Headers:
    """The headers of an answer as the client gets them; a missing ``Date`` is added [9110, 6.6.1]."""
    kept = list(_end_to_end(headers))
    if status == 204:
        kept = [(name, value) for name, value in kept if name != b"content-length"]
    if not values(kept, b"date"):
        kept.append((b"date", formatdate(usegmt=True).encode()))
    kept.append((b"via", b"1.1 %s" % pseudonym))
    return kept


def trailers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Those trailers that may be passed on."""
    return [
        (name, value)
        for name, value in headers
        if name not in NO_TRAILERS and name not in HOP_BY_HOP and name not in OURS
    ]


def retry_after(status: int, headers: Headers) -> float | None:
    """Seconds that a 503 asks to stay away, if it does; a date counts as one second."""
    if status != 503:
        return None
    for value in values(headers, b"retry-after"):
        text = value.strip()
        return float(text) if text.isdigit() and len(text) < 10 else 1.0
    return None
