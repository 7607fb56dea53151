"""Durations and latencies as people write them: ``500us``, ``12ms``, ``2s``; ``1ms~0.3ms;r0-r1=20ms``.

Inside the program every duration is a float in seconds; a unit is written only at the edge, on a command line and in
a table. A bare number other than 0 is refused, because nobody remembers which unit it had.

A zone is named by a word (``parse_zones``); a latency may name two of them instead of two replicas: ``a-b=5ms``.

Invariants: what ``format_duration`` writes, ``parse_duration`` reads back to the very same float, and ``str()`` of a
latency reads back to an equal one. Not for clock times, and not for the laws of service times (``tiedreq.laws``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from tiedreq.core.errors import BadOption

__all__ = [
    "DURATION_MAX",
    "LatencyLaw",
    "LatencySpec",
    "LinkLatency",
    "check_duration",
    "check_number",
    "check_zone",
    "format_duration",
    "format_number",
    "parse_duration",
    "parse_latency",
    "parse_number",
    "parse_zones",
]

DURATION_MAX = 86_400.0
"""The longest duration that can be written, in seconds: one day."""

ZONES_MAX = 64
ZONE_CHARS_MAX = 128

SPEC_LENGTH_MAX = 10_000
"""The longest specification that is read, in characters."""

_UNITS = {
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_DURATION = re.compile(rf"({_NUMBER})\s*([a-zA-Zµ]*)")


def check_number(value: float, field: str, *, low: float, high: float) -> None:
    """Refuse a number that is not finite or is outside ``low`` to ``high`` (both included).

    Raises ``BadOption`` that names ``field`` and the limit.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(f"{field}: {value!r} is not a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise BadOption(f"{field}: {value!r} is outside {format_number(low)} to {format_number(high)}")


def check_duration(seconds: float, field: str, *, low: float = 0.0) -> None:
    """Refuse a number of seconds that is not finite, is below ``low`` or is more than ``DURATION_MAX``.

    Raises ``BadOption`` that names ``field`` and the limit.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadOption(f"{field}: {seconds!r} is not a number of seconds")
    if not math.isfinite(seconds) or not low <= seconds <= DURATION_MAX:
        limits = f"{format_duration(low)} to {format_duration(DURATION_MAX)}"
        raise BadOption(f"{field}: {seconds!r} seconds is outside {limits}")


def parse_number(text: str, *, field: str, low: float, high: float) -> float:
    """Read a plain decimal number from ``low`` to ``high``.

    Raises ``BadOption`` that names ``field`` and what is wrong.
    """
    if re.fullmatch(_NUMBER, text.strip()) is None:
        raise BadOption(f"{field}: {_shown(text)} is not a number")
    value = float(text)
    check_number(value, field, low=low, high=high)
    return value


def format_number(value: float) -> str:
    """Write a number in the shortest way that reads back to the same float: ``10``, ``0.25``."""
    return _plain(Decimal(repr(float(value))))


def parse_duration(text: str, *, field: str = "duration") -> float:
    """Read a duration such as ``500us``, ``12ms``, ``2s``, ``1m`` (a minute) or ``1h``; ``0`` needs no unit.

    Returns seconds, from 0 to ``DURATION_MAX``. Raises ``BadOption`` that names ``field`` and what is wrong.
    """
    match = _DURATION.fullmatch(text.strip()) if len(text) <= SPEC_LENGTH_MAX else None
    if match is None:
        raise BadOption(f"{field}: {_shown(text)} is not a duration; write for example 12ms")
    number, unit = Decimal(match[1]), match[2]
    if not unit:
        if number != 0:
            raise BadOption(f"{field}: {_shown(text)} has no unit; write for example {match[1]}ms")
        return 0.0
    if unit not in _UNITS:
        raise BadOption(f"{field}: {_shown(text)} has an unknown unit; one of us, ms, s, m (minutes), h")
    seconds = float(number * _UNITS[unit])
    if not 0 <= seconds <= DURATION_MAX:
        raise BadOption(f"{field}: {_shown(text)} is outside 0 to {format_duration(DURATION_MAX)}")
    return abs(seconds)


def format_duration(seconds: float) -> str:
    """Write ``seconds`` with a unit (``us``, ``ms`` or ``s``) so that it reads back to the very same float."""
    if seconds == 0:
        return "0"
    value = Decimal(repr(float(seconds)))
    if abs(value) >= 1:
        return f"{_plain(value)}s"
    if abs(value) >= _UNITS["ms"]:
        return f"{_plain(value / _UNITS['ms'])}ms"
    return f"{_plain(value / _UNITS['us'])}us"


@dataclass(frozen=True, slots=True)
class LatencyLaw:
    """The one-way latency of a link: uniform from ``mean`` - ``jitter`` to ``mean`` + ``jitter``, in seconds.

    The jitter is at most the mean, so a latency is never negative and its mean is exactly ``mean``. Raises
    ``BadOption`` when made with anything else.
    """

    mean: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_duration(self.mean, "mean")
        check_duration(self.jitter, "jitter")
        if self.jitter > self.mean:
            raise BadOption(
                f"jitter: {format_duration(self.jitter)} is more than the mean "
                f"{format_duration(self.mean)}, and no latency is negative"
            )

    def sample(self, rng: Random) -> float:
        """One latency in seconds, never negative. Without jitter no random number is drawn."""
        if self.jitter == 0:
            return self.mean
        return max(0.0, self.mean + self.jitter * (2 * rng.random() - 1))

    def __str__(self) -> str:
        mean = format_duration(self.mean)
        return f"{mean}~{format_duration(self.jitter)}" if self.jitter else mean


@dataclass(frozen=True, slots=True)
class LinkLatency:
    """An exception to the latency that all links have: ``r0-r1=20ms`` (both ways) or ``r0>r1=20ms`` (one way)."""

    source: str
    target: str
    law: LatencyLaw
    both_ways: bool = True

    def __post_init__(self) -> None:
        for name in (self.source, self.target):
            if not name or name != name.strip() or set(name) & set(";=>"):
                raise BadOption(f"pair: {name!r} is not the name of a replica")
        if self.source == self.target:
            raise BadOption(f"pair: {self.source!r} has no link to itself")
        if self.both_ways and ("-" in self.source or "-" in self.target):
            raise BadOption(
                "pair: a name with a dash needs each direction by itself: "
                f"{self.source}>{self.target}=…;{self.target}>{self.source}=…"
            )

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The (source, target) pairs that this is about."""
        one_way = (self.source, self.target)
        return (one_way, one_way[::-1]) if self.both_ways else (one_way,)

    def __str__(self) -> str:
        return f"{self.source}{'-' if self.both_ways else '>'}{self.target}={self.law}"


@dataclass(frozen=True, slots=True)
class LatencySpec:
    """The latency of every directed link: one law for all, and exceptions for some.

    The names of an exception are those of two replicas, or of the zones that they are in; replicas count more. A
    direction written by itself (``r0>r1``) counts more than the pair (``r0-r1``), whatever their order. Raises
    ``BadOption`` when a link is named twice.
    """

    default: LatencyLaw = LatencyLaw()
    links: tuple[LinkLatency, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[bool, str, str]] = set()
        for link in self.links:
            directions = {(link.both_ways, source, target) for source, target in link.directions}
            if directions & seen:
                raise BadOption(f"pair: '{link}' names a link that already has a latency")
            seen |= directions

    def law(self, source: str, target: str, source_zone: str = "", target_zone: str = "") -> LatencyLaw:
        """The law of the link from the replica ``source`` to the replica ``target``, which are in these zones."""
        for names in ((source, target), (source_zone, target_zone)):
            matches = [link for link in self.links if names in link.directions]
            if matches:
                return min(matches, key=lambda link: link.both_ways).law
        return self.default

    def __str__(self) -> str:
        shown = [str(link) for link in self.links]
        if not shown or self.default != LatencyLaw():
            shown.insert(0, str(self.default))
        return ";".join(shown)


def parse_latency(text: str, *, field: str = "latency") -> LatencySpec:
    """Read ``1ms``, ``1ms~0.3ms`` (jitter), ``r0-r1=20ms`` (a pair), ``r0>r1=20ms`` (one way), joined by ``;``.

    A pair are two replicas, or two zones. Links that are not named have the latency written without a name, or 0.
    Raises ``BadOption`` that names ``field`` and what is wrong.
    """
    if len(text) > SPEC_LENGTH_MAX:
        raise BadOption(f"{field}: more than {SPEC_LENGTH_MAX} characters")
    default: LatencyLaw | None = None
    links: list[LinkLatency] = []
    try:
        for item in text.split(";"):
            if "=" in item:
                links.append(_link(item))
            elif default is None:
                default = _latency_law(item)
            else:
                raise BadOption(f"{_shown(item.strip())} is a second latency for all links")
        return LatencySpec(default or LatencyLaw(), tuple(links))
    except BadOption as error:
        raise BadOption(f"{field}: {error}") from None


def _latency_law(text: str) -> LatencyLaw:
    mean, tilde, jitter = text.partition("~")
    return LatencyLaw(parse_duration(mean, field="mean"), parse_duration(jitter, field="jitter") if tilde else 0.0)


def _link(item: str) -> LinkLatency:
    names, _, law = item.partition("=")
    arrow = ">" if ">" in names else "-"
    source, separator, target = (part.strip() for part in names.partition(arrow))
    if not separator:
        raise BadOption(f"{_shown(item.strip())} names no pair; write for example r0-r1=20ms or r0>r1=20ms")
    return LinkLatency(source, target, _latency_law(law), both_ways=arrow == "-")


def check_zone(zone: object, *, field: str = "zone") -> str:
    """``zone`` when it can be the name of a zone: one word, so that a latency and a list can name it. Empty: none.

    Raises ``BadOption`` that names ``field``.
    """
    if not isinstance(zone, str) or len(zone) > ZONE_CHARS_MAX or not zone.isprintable() or set(zone) & set(" ,;=>"):
        shown = _shown(zone) if isinstance(zone, str) else repr(zone)
        raise BadOption(
            f"{field}: {shown} is not a word of up to {ZONE_CHARS_MAX} characters without ',', ';', '=', '>'"
        )
    return zone


def parse_zones(text: str, *, field: str = "zones") -> tuple[str, ...]:
    """Read ``a,b,c``: the zones in which replicas stand, in turn. A zone may be named more often than once.

    Raises ``BadOption`` that names ``field`` and what is wrong.
    """
    zones = tuple(check_zone(part.strip(), field=field) for part in text[:SPEC_LENGTH_MAX].split(","))
    if not all(zones):
        raise BadOption(f"{field}: {_shown(text)} has an empty name; write for example a,b,c")
    if len(zones) > ZONES_MAX:
        raise BadOption(f"{field}: {len(zones)} zones are more than {ZONES_MAX}")
    return zones


def _plain(value: Decimal) -> str:
    """``value`` exactly: as a plain decimal, or with an exponent where that would be a row of zeros."""
    value = value.normalize()
    return f"{value:f}" if -12 <= value.adjusted() <= 15 else f"{value:e}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
