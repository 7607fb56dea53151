"""Kinds of command-line options that all programs share, for click."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

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


DURATION = Parsed("duration", parse_duration)
TIMEOUT = Parsed("duration", _parse_timeout)
"""A duration above 0."""
JSON = Parsed("json", json.loads)
