"""Laws of service times: how long one execution takes at an undisturbed replica of an experiment.

A law is written ``exp(10ms)`` or ``bimodal(10ms,300ms,0.02)*10@0.05``, the same on every command line, and read by
``parse_law``. All times are seconds; randomness comes in as an argument, so the same seed gives the same times in the
simulator and in a live replica.

Invariants: a sample is never negative and always finite; ``str()`` of anything here reads back to an equal value.
Not for what slows a replica down (``tiedreq.slowness``), not for latencies (``tiedreq.units``), and not for learning a
law from what was measured.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, NamedTuple

from tiedreq.core.errors import BadOption
from tiedreq.units import (
    check_duration,
    check_number,
    format_duration,
    format_number,
    parse_duration,
    parse_number,
)

__all__ = [
    "Bimodal",
    "Constant",
    "Exponential",
    "LognormalMean",
    "LognormalMedian",
    "Mixture",
    "ServiceLaw",
    "Straggling",
    "Uniform",
    "parse_law",
]

SIGMA_MAX = 4.0
"""The widest lognormal law: its 99.9th percentile is already 230,000 times its median."""

DEVIATION_MAX = 1_000
"""The largest standard deviation of a lognormal law, in means."""

FACTOR_MAX = 10_000.0
"""The largest factor by which an execution or a replica may be slower."""

PARTS_MAX = 16
"""The most laws that one mixture has."""

DEPTH_MAX = 8
"""How deep mixtures and straggler suffixes may be nested."""

SPEC_LENGTH_MAX = 2_000
"""The longest law that is read, in characters."""


class ServiceLaw(ABC):
    """The law of the time that one execution takes, in seconds. Every law is immutable and can be compared."""

    __slots__ = ()

    @abstractmethod
    def sample(self, rng: Random) -> float:
        """One service time in seconds."""

    @abstractmethod
    def mean(self) -> float:
        """The mean service time in seconds, exactly."""


class SimpleLaw(ServiceLaw):
    """A law written ``FORM(value,…)`` or, with ``NAMED``, ``FORM(name=value,…)``: its fields' metadata says how."""

    __slots__ = ()
    FORM: ClassVar[str]
    NAMED: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, parameter in self.parameters().items():
            parameter.check(getattr(self, parameter.attribute), f"{self.FORM} {name}")

    @classmethod
    def parameters(cls) -> dict[str, _Parameter]:
        """The parameters by the name that errors and specifications use, in their order."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        return {f.metadata["name"]: _Parameter(f.name, f.metadata["high"]) for f in fields}

    def __str__(self) -> str:
        shown = [
            (f"{name}=" if self.NAMED else "") + parameter.write(getattr(self, parameter.attribute))
            for name, parameter in self.parameters().items()
        ]
        return f"{self.FORM}({','.join(shown)})"


class _Parameter(NamedTuple):
    """How a law's parameter is read, checked and written: a number from 0 to ``high``, or a duration (None)."""

    attribute: str
    high: float | None

    def check(self, value: float, field: str) -> None:
        if self.high is None:
            check_duration(value, field)
        else:
            check_number(value, field, low=0, high=self.high)

    def read(self, text: str, field: str) -> float:
        if self.high is None:
            return parse_duration(text, field=field)
        return parse_number(text, field=field, low=0, high=self.high)

    def write(self, value: float) -> str:
        return format_duration(value) if self.high is None else format_number(value)


def _parameter(name: str, high: float | None = None) -> dict[str, Any]:
    return {"name": name, "high": high}


@dataclass(frozen=True, slots=True)
class Constant(SimpleLaw):
    """``const(10ms)``: every execution takes ``value`` seconds."""

    FORM = "const"
    value: float = field(metadata=_parameter("value"))

    def sample(self, rng: Random) -> float:
        return self.value

    def mean(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Exponential(SimpleLaw):
    """``exp(10ms)``: exponential with a mean of ``average`` seconds."""

    FORM = "exp"
    average: float = field(metadata=_parameter("mean"))

    def sample(self, rng: Random) -> float:
        return self.average * -math.log(1 - rng.random())

    def mean(self) -> float:
        return self.average


@dataclass(frozen=True, slots=True)
class LognormalMedian(SimpleLaw):
    """``lognormal(median=40ms,sigma=0.25)``: ``sigma`` is the standard deviation of the time's logarithm."""

    FORM = "lognormal"
    NAMED = True
    median: float = field(metadata=_parameter("median"))
    sigma: float = field(metadata=_parameter("sigma", SIGMA_MAX))

    def sample(self, rng: Random) -> float:
        return self.median * rng.lognormvariate(0.0, self.sigma)

    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class LognormalMean(SimpleLaw):
    """``lognormal(mean=5ms,sd=2ms)``: by the mean and the standard deviation of the time itself, in seconds.

    Then sigma² = ln(1 + sd²/mean²) and the median is mean · e^(−sigma²/2). The sd is at most 1,000 times the mean.
    """

    FORM = "lognormal"
    NAMED = True
    average: float = field(metadata=_parameter("mean"))
    deviation: float = field(metadata=_parameter("sd"))

    def __post_init__(self) -> None:
        SimpleLaw.__post_init__(self)
        if self.deviation > DEVIATION_MAX * self.average:
            deviation, average = format_duration(self.deviation), format_duration(self.average)
            raise BadOption(f"lognormal sd: {deviation} is more than {DEVIATION_MAX} times the mean {average}")

    def sample(self, rng: Random) -> float:
        if self.average == 0:
            return 0.0
        variance = math.log1p((self.deviation / self.average) ** 2)
        return self.average * rng.lognormvariate(-variance / 2, math.sqrt(variance))

    def mean(self) -> float:
        return self.average


@dataclass(frozen=True, slots=True)
class Uniform(SimpleLaw):
    """``uniform(200ms,600ms)``: uniform from ``low`` to ``high`` seconds."""

    FORM = "uniform"
    low: float = field(metadata=_parameter("low"))
    high: float = field(metadata=_parameter("high"))

    def __post_init__(self) -> None:
        SimpleLaw.__post_init__(self)
        check_duration(self.high, "uniform high", low=self.low)

    def sample(self, rng: Random) -> float:
        return self.low + (self.high - self.low) * rng.random()

    def mean(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Bimodal(SimpleLaw):
    """``bimodal(10ms,300ms,0.02)``: ``slow`` seconds with ``probability``, else ``fast`` seconds."""

    FORM = "bimodal"
    fast: float = field(metadata=_parameter("fast"))
    slow: float = field(metadata=_parameter("slow"))
    probability: float = field(metadata=_parameter("probability", 1.0))

    def sample(self, rng: Random) -> float:
        return self.slow if rng.random() < self.probability else self.fast

    def mean(self) -> float:
        return self.fast + (self.slow - self.fast) * self.probability


_SIMPLE: tuple[type[SimpleLaw], ...] = (
    Bimodal,
    Constant,
    Exponential,
    LognormalMean,
    LognormalMedian,
    Uniform,
)


@dataclass(frozen=True, slots=True)
class Straggling(ServiceLaw):
    """``LAW*10@0.05``: an execution takes ``factor`` times as long with ``probability``."""

    law: ServiceLaw
    factor: float
    probability: float

    def __post_init__(self) -> None:
        check_number(self.factor, "straggler factor", low=0, high=FACTOR_MAX)
        check_number(self.probability, "straggler probability", low=0, high=1)
        _check_nesting(self)

    def sample(self, rng: Random) -> float:
        straggles = rng.random() < self.probability
        return self.law.sample(rng) * (self.factor if straggles else 1.0)

    def mean(self) -> float:
        return self.law.mean() * (1 + (self.factor - 1) * self.probability)

    def __str__(self) -> str:
        return f"{self.law}*{format_number(self.factor)}@{format_number(self.probability)}"


@dataclass(frozen=True, slots=True)
class Mixture(ServiceLaw):
    """``mix(0.96:LAW,0.04:LAW)``: each execution follows one of the laws, chosen by its weight; weights sum to 1."""

    parts: tuple[tuple[float, ServiceLaw], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise BadOption(f"mix: {len(self.parts)} laws is outside 1 to {PARTS_MAX}")
        for weight, _ in self.parts:
            check_number(weight, "mix weight", low=0, high=1)
        total = math.fsum(weight for weight, _ in self.parts)
        if abs(total - 1) > 1e-9:
            raise BadOption(f"mix weights: they sum to {format_number(total)}, not to 1")
        _check_nesting(self)

    def sample(self, rng: Random) -> float:
        left = rng.random()
        for weight, law in self.parts[:-1]:
            if left < weight:
                return law.sample(rng)
            left -= weight
        return self.parts[-1][1].sample(rng)

    def mean(self) -> float:
        return math.fsum(weight * law.mean() for weight, law in self.parts)

    def __str__(self) -> str:
        return f"mix({','.join(f'{format_number(weight)}:{law}' for weight, law in self.parts)})"


def parse_law(text: str, *, field: str = "service law") -> ServiceLaw:
    """Read a law of service times; its forms are the first lines of the classes of this module.

    Raises ``BadOption`` that names ``field``, the part and the limit.
    """
    try:
        if len(text) > SPEC_LENGTH_MAX:
            raise BadOption(f"more than {SPEC_LENGTH_MAX} characters")
        return _law(text, DEPTH_MAX)
    except BadOption as error:
        raise BadOption(f"{field}: {error}") from None


def _law(text: str, depth: int) -> ServiceLaw:
    if depth == 0:
        raise BadOption(f"nested more than {DEPTH_MAX} deep")
    text = text.strip()
    head, star, suffix = text.rpartition("*")
    if star and ")" not in suffix:
        factor, at, probability = suffix.partition("@")
        if not at:
            raise BadOption(f"{text[:60]!r} ends in no FACTOR@PROBABILITY, such as *10@0.05")
        return Straggling(
            _law(head, depth - 1),
            parse_number(factor, field="straggler factor", low=0, high=FACTOR_MAX),
            parse_number(probability, field="straggler probability", low=0, high=1),
        )
    name, parenthesis, rest = text.partition("(")
    if not parenthesis or not rest.endswith(")"):
        raise BadOption(f"{text[:60]!r} is not a law; write for example exp(10ms)")
    name, arguments = name.strip(), _split(rest[:-1])
    if name == "mix":
        return Mixture(tuple(_part(argument, depth) for argument in arguments))
    return _simple(name, arguments)


def _simple(form: str, arguments: list[str]) -> ServiceLaw:
    laws = [law for law in _SIMPLE if form == law.FORM]
    if not laws:
        forms = sorted({law.FORM for law in _SIMPLE} | {"mix"})
        raise BadOption(f"unknown law {form[:60]!r}; one of {', '.join(forms)}")
    for law in laws:
        parameters = law.parameters()
        values = dict(zip(parameters, arguments, strict=False))
        if law.NAMED:
            values = {name.strip(): value for name, _, value in (argument.partition("=") for argument in arguments)}
        if len(arguments) == len(parameters) and values.keys() == parameters.keys():
            read = {p.attribute: p.read(values[name], f"{form} {name}") for name, p in parameters.items()}
            return law(**read)
    known = " or ".join(",".join(name + "=" * law.NAMED for name in law.parameters()) for law in laws)
    raise BadOption(f"{form}: takes {known}")


def _part(text: str, depth: int) -> tuple[float, ServiceLaw]:
    weight, colon, law = text.partition(":")
    if not colon:
        raise BadOption(f"mix: {text[:60]!r} is not WEIGHT:LAW")
    return parse_number(weight, field="mix weight", low=0, high=1), _law(law, depth - 1)


def _split(text: str) -> list[str]:
    """The arguments between commas that stand in no inner parentheses."""
    arguments, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            arguments.append(text[begin:position])
            begin = position + 1
    return [*arguments, text[begin:]]


def _check_nesting(law: ServiceLaw) -> None:
    """Refuse a law that could not be read back: too deep, or too long when written."""
    if _depth(law) > DEPTH_MAX:
        raise BadOption(f"law: nested more than {DEPTH_MAX} deep")
    if len(str(law)) > SPEC_LENGTH_MAX:
        raise BadOption(f"law: more than {SPEC_LENGTH_MAX} characters when written")


def _depth(law: ServiceLaw) -> int:
    if isinstance(law, Straggling):
        return 1 + _depth(law.law)
    if isinstance(law, Mixture):
        return 1 + max(_depth(part) for _, part in law.parts)
    return 1
