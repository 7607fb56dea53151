"""The demo's configuration, on its way from the launcher to a replica: JSON in the variable ``TIEDREQ_DEMO``.

``{"index": PATH, "replica": NAME, "service": LAW, "slow": [SPEC…], "pause": [SPEC…], "seed": N}``; only ``index`` and
``replica`` are needed. The forms of LAW and SPEC are those of the command line (``tiedreq.laws``,
``tiedreq.slowness``).

Invariants: what ``environment`` writes, ``from_environment`` reads back to equal settings; an unknown or half-set
option is refused when the replica starts, not when the first call comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tiedreq.errors import BadOption
from tiedreq.laws import Exponential, ServiceLaw, parse_law
from tiedreq.slowness import PauseSpec, SlowSpec, parse_pause, parse_slow

VARIABLE = "TIEDREQ_DEMO"
"""The name of the environment variable."""

SERVICE_DEFAULT = Exponential(0.010)
"""The law of the artificial work where none is set."""

SpecT = TypeVar("SpecT", SlowSpec, PauseSpec)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What one replica of the demo is like.

    ``service`` is the law of the artificial work; ``slow`` and ``pause`` speak of replicas by their index, the number
    at the end of a replica's name, and at most one of each may be about this replica. Every replica of a cluster gets
    the same ``seed`` and draws from a stream of its own. Raises ``BadOption`` when made with anything else.
    """

    index: Path
    replica: str
    service: ServiceLaw = SERVICE_DEFAULT
    slow: tuple[SlowSpec, ...] = ()
    pause: tuple[PauseSpec, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.replica:
            raise BadOption("replica: the name of a replica is not empty")
        # Found out here, so that a replica that is told two things refuses to start.
        _ = self.slow_factor, self.pause_spec

    @property
    def slow_factor(self) -> float:
        """How many times as long every execution takes at this replica."""
        spec = self._mine("slow", self.slow)
        return spec.factor if spec else 1.0

    @property
    def pause_spec(self) -> PauseSpec | None:
        """The pauses of this replica, if it has any."""
        return self._mine("pause", self.pause)

    def environment(self) -> dict[str, str]:
        """The environment variable that hands these settings to a replica."""
        values = {
            "index": str(self.index),
            "replica": self.replica,
            "service": str(self.service),
            "slow": [str(spec) for spec in self.slow],
            "pause": [str(spec) for spec in self.pause],
            "seed": self.seed,
        }
        return {VARIABLE: json.dumps(values)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> DemoSettings:
        """The settings in ``environment``. Raises ``BadOption`` that names the field and what is wrong."""
        text = environment.get(VARIABLE)
        if text is None:
            example = '{"index": "demo.sqlite", "replica": "r0"}'
            raise BadOption(f"{VARIABLE} is not set: scripts/up sets it; by hand, write for example {example}")
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadOption(f"{VARIABLE}: not JSON: {error}") from None
        try:
            return cls._from_values(values)
        except BadOption as error:
            raise BadOption(f"{VARIABLE}: {error}") from None

    @classmethod
    def _from_values(cls, values: Any) -> DemoSettings:
        if not isinstance(values, dict):
            raise BadOption("not a JSON object")
        unknown = values.keys() - {"index", "replica", "service", "slow", "pause", "seed"}
        if unknown:
            raise BadOption(f"unknown option {', '.join(sorted(unknown))}")
        seed = values.get("seed", 0)
        if type(seed) is not int:
            raise BadOption(f"seed: {seed!r} is not a whole number")
        return cls(
            index=Path(_text(values, "index")),
            replica=_text(values, "replica"),
            service=parse_law(_text(values, "service"), field="service") if "service" in values else SERVICE_DEFAULT,
            slow=tuple(parse_slow(spec, field="slow") for spec in _texts(values, "slow")),
            pause=tuple(parse_pause(spec, field="pause") for spec in _texts(values, "pause")),
            seed=seed,
        )

    def _mine(self, field: str, specs: tuple[SpecT, ...]) -> SpecT | None:
        """The one of ``specs`` that is about this replica."""
        number = re.search(r"[0-9]+$", self.replica)
        if number is None and any(spec.replica is not None for spec in specs):
            raise BadOption(f"{field}: the replica's name {self.replica!r} ends in no number, so it has no index")
        index = int(number[0]) if number else None
        mine = [spec for spec in specs if spec.replica in (None, index)]
        if len(mine) > 1:
            raise BadOption(f"{field}: {' and '.join(map(str, mine))} are both about replica {self.replica!r}")
        return mine[0] if mine else None


def _text(values: dict[str, Any], field: str) -> str:
    value = values.get(field)
    if not isinstance(value, str) or not value:
        raise BadOption(f"{field}: {'is missing' if value is None else f'{value!r} is not a text'}")
    return value


def _texts(values: dict[str, Any], field: str) -> list[str]:
    value = values.get(field, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadOption(f"{field}: {value!r} is not a text or a list of texts")
    return texts
