"""Check the arguments that callers send to the demo's methods.

Every refusal is a ``Failure("bad_argument", …)`` whose message names the field and its limit, so that the caller can
mend the call; nothing a caller sends raises anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiedreq.service import Failure

CODE = "bad_argument"


class Arguments:
    """A call's arguments: a map with some of the fields in ``known``; None stands for an empty map."""

    def __init__(self, values: Any, *, known: Sequence[str]) -> None:
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise Failure(CODE, f"arguments: a map with {', '.join(known)} is needed, not {_kind(values)}")
        unknown = sorted(str(field)[:40] for field in values if field not in known)
        if unknown:
            raise Failure(CODE, f"arguments: unknown field {', '.join(unknown[:5])}; known are {', '.join(known)}")
        self._values: dict[str, Any] = values

    def has(self, field: str) -> bool:
        """True when the caller sent ``field``, and not as None."""
        return self._values.get(field) is not None

    def text(self, field: str, *, longest: int) -> str:
        """A text of 1 to ``longest`` characters that is valid Unicode and holds no NUL."""
        value = self._needed(field)
        if not isinstance(value, str):
            raise Failure(CODE, f"{field}: a text is needed, not {_kind(value)}")
        if not 1 <= len(value) <= longest:
            raise Failure(CODE, f"{field}: {len(value)} characters; 1 to {longest} are allowed")
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise Failure(CODE, f"{field}: holds a character that is no text (NUL or half a surrogate pair)")
        return value

    def choice(self, field: str, options: Sequence[str], *, default: str) -> str:
        """One of ``options``."""
        value = self._values[field] if self.has(field) else default
        if value not in options:
            raise Failure(CODE, f"{field}: one of {', '.join(options)} is needed")
        return str(value)

    def whole_number(self, field: str, low: int, high: int, *, default: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._values[field] if self.has(field) else default
        if type(value) is not int:
            raise Failure(CODE, f"{field}: a whole number is needed, not {_kind(value)}")
        if not low <= value <= high:
            raise Failure(CODE, f"{field}: outside {low} to {high}")
        return value

    def number(self, field: str, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self._needed(field)
        if type(value) not in (int, float):
            raise Failure(CODE, f"{field}: a number is needed, not {_kind(value)}")
        if not low <= value <= high:  # Not true of NaN.
            raise Failure(CODE, f"{field}: outside {low:g} to {high:g}")
        return float(value)

    def _needed(self, field: str) -> Any:
        if not self.has(field):
            raise Failure(CODE, f"{field}: is missing")
        return self._values[field]


_KINDS: dict[type, str] = {
    bool: "true or false",
    bytes: "bytes",
    dict: "a map",
    float: "a number with a fraction",
    int: "a whole number",
    list: "a list",
    str: "a text",
    tuple: "a list",
    type(None): "nothing",
}


def _kind(value: Any) -> str:
    """The value's type in words; never the value itself, which may be long or secret."""
    return _KINDS.get(type(value), "that")
