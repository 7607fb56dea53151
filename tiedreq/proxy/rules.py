"""Which requests are tied: by default those with a method that the HTTP standard calls safe.

A rule is ``METHOD:PATH``, where PATH may hold ``*`` (anything) and METHOD may be ``*``; ``POST`` alone is ``POST:*``,
``/search`` alone is ``*:/search``. What ``once`` names passes once whatever ``tie`` says. Paths are compared as they
are sent, without the query. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tiedreq.core.errors import BadOption

SAFE = (b"GET", b"HEAD", b"OPTIONS")
"""Methods without effects that a second execution would repeat [RFC 9110, 9.2.1]; nobody needs TRACE tied."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests of one kind."""

    method: bytes
    path: re.Pattern[bytes]

    @classmethod
    def read(cls, text: str, field: str) -> Rule:
        """Raises ``BadOption`` for what is no rule."""
        method, colon, path = text.partition(":") if not text.startswith(("/", "*/")) else ("*", ":", text)
        path = path if colon else "*"
        good = method == "*" or (method.isascii() and method.replace("-", "").isalpha())
        if not good or not path.startswith(("/", "*")) or not path.isascii() or "?" in path:
            raise BadOption(f"{field}: {text!r} is not METHOD, /PATH or METHOD:/PATH, such as POST:/search*")
        pattern = re.escape(path.encode()).replace(rb"\*", rb".*")
        return cls(method.upper().encode(), re.compile(pattern, re.DOTALL))

    def covers(self, method: bytes, path: bytes) -> bool:
        """True for a request of this kind."""
        return self.method in (b"*", method) and self.path.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a front: ``tie`` adds to the safe methods, ``once`` takes away from both."""

    tie: tuple[Rule, ...] = field(default=())
    once: tuple[Rule, ...] = field(default=())

    @classmethod
    def read(cls, tie: Iterable[str] = (), once: Iterable[str] = ()) -> Rules:
        """Raises ``BadOption``."""
        return cls(tuple(Rule.read(text, "tie") for text in tie), tuple(Rule.read(text, "once") for text in once))

    def tied(self, method: bytes, target: bytes) -> bool:
        """True when a request may run at two replicas."""
        path = target.partition(b"?")[0]
        if self.once and any(rule.covers(method, path) for rule in self.once):
            return False
        return method in SAFE or any(rule.covers(method, path) for rule in self.tie)
