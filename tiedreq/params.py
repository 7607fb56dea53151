"""Kinds of command-line options that all programs share, for click."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from tiedreq.core.limits import ReplicaLimits
from tiedreq.errors import BadOption
from tiedreq.units import parse_duration

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # older versions of click take no type argument
    ParamType = click.ParamType


class Parsed(ParamType):
    """An option whose text is read by one of the library's parsers, so that it is refused in the same words."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (BadOption, ValueError) as error:
            self.fail(str(error), param, ctx)


def _parse_timeout(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == 0:
        raise BadOption("a call without time can't be answered; write for example 500ms")
    return seconds


def parse_limit(text: str) -> tuple[str, int | float]:
    """``NAME=VALUE`` for a field of ``ReplicaLimits``: a whole number, or a duration with its unit, in seconds then.

    Raises ``BadOption``.
    """
    name, equals, value = text.partition("=")
    known = {field.name: field.default for field in fields(ReplicaLimits)}
    if not equals:
        raise BadOption(f"limit: {text[:60]!r} is not NAME=VALUE, such as tombstones_max=10000")
    if name not in known:
        raise BadOption(f"limit: {name[:60]!r} is none of {', '.join(known)}")
    if isinstance(known[name], float):
        limit: int | float = parse_duration(value, field=name)
    elif value.isascii() and value.isdecimal():
        limit = int(value[:20])
    else:
        raise BadOption(f"{name}: {value[:60]!r} is not a whole number")
    ReplicaLimits(**{name: limit})  # type: ignore[arg-type]
    return name, limit


DURATION = Parsed("duration", parse_duration)
TIMEOUT = Parsed("duration", _parse_timeout)
"""A duration above 0."""
LIMIT = Parsed("limit", parse_limit)
JSON = Parsed("json", json.loads)
