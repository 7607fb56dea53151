"""How the demo's artificial work is now: as the command line had it, or as an operator has changed it since.

A replica that is started again gets it through its environment (``cluster.demo.settings``). Not for who tells the
replicas that run (``cluster.control``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import UpConfig
from cluster.demo.settings import SERVICE_DEFAULT, DemoSettings
from cluster.faults import Faults
from tiedreq.laws import ServiceLaw
from tiedreq.slowness import PauseSpec, SlowSpec


class DemoState:
    """``service`` is the law of the work, ``pause`` the pauses of some replicas or all, ``index`` the demo's file."""

    def __init__(self, config: UpConfig, index: Path) -> None:
        self.service: ServiceLaw = config.demo.service or SERVICE_DEFAULT
        self.pause: tuple[PauseSpec, ...] = config.demo.pause
        self._config = config
        self._index = index

    def change(self, service: ServiceLaw, pause: tuple[PauseSpec, ...]) -> None:
        """From now on the work is like this. Raises ``BadOption`` for pauses of no replica of the cluster."""
        replace(self._config, demo=replace(self._config.demo, service=service, pause=pause))
        self.service, self.pause = service, pause

    def pause_of(self, name: str) -> str | None:
        """The pauses of a replica as a text, if it has any."""
        spec = self._settings(name, self.service, (), self.pause).pause_spec
        return None if spec is None else str(spec)

    def slow_factors(self) -> dict[str, float]:
        """The slowness that replicas were started with, by name."""
        return {self._config.names[spec.replica]: spec.factor for spec in self._config.demo.slow}

    def environment(self, name: str, faults: Faults) -> Mapping[str, str]:
        """What to add to the environment of a replica that is started now."""
        slow = self._config.demo.slow
        if name in faults.slow:
            slow = (SlowSpec(int(name.removeprefix("r")), faults.slow[name]),)
        return self._settings(name, self.service, slow, self.pause).environment()

    def view(self) -> dict[str, Any]:
        """As plain values: ``service`` and ``pause`` as on the command line."""
        return {"service": str(self.service), "pause": [str(spec) for spec in self.pause]}

    def _settings(
        self, name: str, service: ServiceLaw, slow: tuple[SlowSpec, ...], pause: tuple[PauseSpec, ...]
    ) -> DemoSettings:
        return DemoSettings(self._index, name, service, slow, pause, self._config.seed)
