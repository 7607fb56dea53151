"""What HTTP says about a request and a response: may it be sent twice, where can it go, does the answer count.

Not for when a copy is sent (``core.call``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache

import httpx

from tiedreq.core.checks import check_flag
from tiedreq.core.errors import BadOption
from tiedreq.hedging.upstream import HOSTS_MAX

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods that the HTTP standard calls safe and that carry no body as a rule (RFC 9110, section 9.2.1)."""

FAILING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that another try, or another host, may better."""
ANSWERS = frozenset({404, 410})
"""Answers above 399 that tell what was asked, and take as long as any other."""
PAUSING = frozenset({429, 503})
"""Answers whose ``Retry-After`` asks for a pause (RFC 9110, section 10.2.3; RFC 6585)."""

SEGMENT_MAX = 32
PORTS = {"http": 80, "https": 443}

UNSENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Nothing has left for the host."""
FINAL_ERRORS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
"""Every copy would fail alike."""

Accept = Callable[[httpx.Response], bool]
Endpoint = Callable[[httpx.Request], str]


class Verdict(Enum):
    """What an answer means to its race."""

    ANSWER = "answer"
    """It wins, and its time teaches the delay."""
    RETRYABLE = "retryable"
    """It wins only when nothing else is left."""
    FINAL = "final"
    """It ends the race, and teaches nothing."""


def judge(response: httpx.Response, accept: Accept | None) -> Verdict:
    """What the answer means, by its status or by the caller's own ``accept``. Its body has not been read."""
    if accept is not None:
        return Verdict.ANSWER if accept(response) else Verdict.RETRYABLE
    status = response.status_code
    if status in FAILING:
        return Verdict.RETRYABLE
    return Verdict.ANSWER if status < 400 or status in ANSWERS else Verdict.FINAL


def pause_wanted(response: httpx.Response) -> float | None:
    """Seconds for which the host wants no more, by its ``Retry-After`` (seconds or a date); None: it says nothing."""
    text = response.headers.get("retry-after", "").strip() if response.status_code in PAUSING else ""
    if text.isascii() and text.isdigit():
        return float(text) or None
    try:
        seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds() if text else 0.0
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def origin_of(url: httpx.URL) -> str:
    """Scheme, host and port, without user and password: the name of a service."""
    port = url.port or PORTS.get(url.scheme)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}" if port == PORTS.get(url.scheme) else f"{url.scheme}://{host}:{port}"


def endpoint_of(request: httpx.Request) -> str:
    """The endpoint that a request is of, unless it says so itself: the method, and the path with ``*`` for what varies.

    A segment varies when it has a digit in it (but for ``v1`` and the like) or more than 32 characters. The query does
    not count.
    """
    return _endpoint(request.method, request.url.path)


@lru_cache(maxsize=4096)
def _endpoint(method: str, path: str) -> str:
    segments = (("*" if _varies(segment) else segment) for segment in path.split("/"))
    return f"{method} {'/'.join(segments)}"


def _varies(segment: str) -> bool:
    if len(segment) > SEGMENT_MAX:
        return True
    return re.search(r"\d", segment) is not None and re.fullmatch(r"v\d{1,3}", segment) is None


class Hosts:
    """Which hosts serve a request, and the copy of it that goes to one.

    ``hosts`` maps the base URL that callers use, ``http://search``, to the base URLs of the hosts that serve it. A
    service that is not in it has one address: the one in the request.
    """

    def __init__(self, hosts: Mapping[str, Sequence[str]] | None, *, keep_host: bool) -> None:
        self._keep_host = check_flag("keep_host", keep_host)
        self._bases: dict[str, list[httpx.URL]] = {}
        self._names: dict[str, list[str]] = {}
        for name, bases in (hosts or {}).items():
            origin = origin_of(_base(name, "hosts"))
            if isinstance(bases, str) or not 1 <= len(bases) <= HOSTS_MAX:
                raise BadOption(f"hosts: {name} needs a list of 1 to {HOSTS_MAX} base URLs")
            self._bases[origin] = [_base(base, f"hosts: {name}") for base in bases]
            self._names[origin] = [str(base) for base in self._bases[origin]]
            if len(set(self._names[origin])) < len(bases):
                raise BadOption(f"hosts: {name} names a base URL twice")

    def of(self, request: httpx.Request) -> tuple[str, Sequence[str]]:
        """The name of the service, and those of its hosts."""
        origin = origin_of(request.url)
        return origin, self._names.get(origin) or (origin,)

    def copy(self, request: httpx.Request, origin: str, target: int, *, first: bool = False) -> httpx.Request:
        """A request of its own for one copy; the caller's own for the first where nothing is to be changed."""
        bases = self._bases.get(origin)
        if first and bases is None:
            return request
        url, headers = request.url, request.headers
        if bases is not None:
            base = bases[target]
            path = base.raw_path.rstrip(b"/") + url.raw_path
            url = url.copy_with(scheme=base.scheme, host=base.host, port=base.port, raw_path=path)
            if not self._keep_host:
                headers = headers.copy()
                headers["Host"] = url.netloc.decode("ascii")
        return httpx.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=dict(request.extensions)
        )


def _base(text: object, field: str) -> httpx.URL:
    try:
        url = httpx.URL(text) if isinstance(text, str) else None
    except httpx.InvalidURL:
        url = None
    if url is None or url.scheme not in PORTS or not url.host or url.query or url.fragment:
        raise BadOption(f"{field}: {text!r} is not a base URL such as 'https://host-a:8443'")
    return url


class Rules:
    """What callers decide: which requests may be sent twice, what is one endpoint, which answers are accepted."""

    def __init__(self, methods: Sequence[str], endpoint: Endpoint | None, accept: Accept | None) -> None:
        if isinstance(methods, str) or not all(isinstance(name, str) and name for name in methods):
            raise BadOption(f"methods: {methods!r} is not a list of method names such as ('GET', 'HEAD')")
        for field, value in (("endpoint", endpoint), ("accept", accept)):
            if value is not None and not callable(value):
                raise BadOption(f"{field}: {value!r} can't be called")
        self._methods = frozenset(name.upper() for name in methods)
        self._endpoint = endpoint_of if endpoint is None else endpoint
        self.accept = accept

    def may_repeat(self, request: httpx.Request) -> bool:
        """True when the request may be sent twice: its method or its extension ``tiedreq_hedge`` says so.

        A body that is not in memory can be sent only once.
        """
        told = request.extensions.get("tiedreq_hedge")
        if told is not None:
            check_flag("extensions: tiedreq_hedge", told)
        wanted = request.method.upper() in self._methods if told is None else told
        return bool(wanted) and isinstance(request.stream, httpx.ByteStream)

    def endpoint(self, request: httpx.Request) -> str:
        """What the delay of this request is learned for."""
        told = request.extensions.get("tiedreq_endpoint")
        if told is None:
            told = self._endpoint(request)
        if not isinstance(told, str):
            raise BadOption(f"endpoint: {told!r} is not a text")
        return told
