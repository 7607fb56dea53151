"""Checks that options share: each raises ``BadOption`` with the field, the value and the limit."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from tiedreq.core.errors import BadOption

Reduced = tuple[Any, tuple[Any, dict[str, Any]]]


def check_number(field: str, value: object, low: float, high: float, unit: str = "") -> float:
    """``value`` as a float when it is a finite number from ``low`` to ``high``; ``BadOption`` otherwise."""
    tail = f" {unit}" if unit else ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadOption(f"{field}: {value!r} is not a number from {low:g} to {high:g}{tail}")
    if not low <= value <= high:
        raise BadOption(f"{field}: {value!r} is not between {low:g} and {high:g}{tail}")
    return float(value)


def check_count(field: str, value: object, low: int, high: int) -> int:
    """``value`` as an int when it is a whole number from ``low`` to ``high``; ``BadOption`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadOption(f"{field}: {value!r} is not a whole number from {low} to {high}")
    if not low <= value <= high:
        raise BadOption(f"{field}: {value!r} is not between {low} and {high}")
    return value


def check_flag(field: str, value: object) -> bool:
    """``value`` when it is True or False; ``BadOption`` otherwise."""
    if not isinstance(value, bool):
        raise BadOption(f"{field}: {value!r} is not True or False")
    return value


def made(kind: Any, values: dict[str, Any]) -> Any:
    """Options of the dataclass ``kind`` with these values: what a copy or a pickle of some is made with."""
    return kind(**values)


def reduced(options: Any) -> Reduced:
    """For ``__reduce__`` of a frozen dataclass, which would be filled in by its fields: a compiled one refuses that."""
    return made, (type(options), {field.name: getattr(options, field.name) for field in fields(options)})
