"""Options in one line: every field that is not at its default, nested as they are.

The line is complete: a new option is in it without a change here. Not for reading at leisure (``describe``), and not
for parsing: what replays a run is its seed.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from tiedreq.core.copybook import HeldMethod
from tiedreq.laws import ServiceLaw
from tiedreq.units import LatencySpec


def terse(value: object) -> str:
    """A value as one line without line breaks: dataclasses by their fields that differ from the defaults."""
    match value:
        case HeldMethod(info, slots):
            return info.name if slots is None else f"{info.name}:{slots}"
        case float():
            return f"{value:.6g}"
        case ServiceLaw() | LatencySpec():
            return str(value)
        case tuple():
            return f"[{', '.join(_element(item) for item in value)}]"
    if is_dataclass(value):
        return terse_fields(value)
    return str(value)


def terse_fields(value: Any, leave_out: tuple[str, ...] = ()) -> str:
    """The fields of a dataclass that are not at their default: ``name=value`` and, where nested, ``name(...)``."""
    told = []
    for option in fields(value):
        item = getattr(value, option.name)
        if option.name in leave_out or item == _default(option):
            continue
        nested = is_dataclass(item) and not isinstance(item, ServiceLaw | LatencySpec)
        told.append(f"{option.name}({terse(item)})" if nested else f"{option.name}={terse(item)}")
    return " ".join(told)


def _element(item: object) -> str:
    if is_dataclass(item) and not isinstance(item, ServiceLaw | LatencySpec):
        inside = terse(item)
        return f"{type(item).__name__}({inside})" if inside else type(item).__name__
    return terse(item)


def _default(option: Field[Any]) -> object:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return option.default
