"""What a replica of a live run is told: JSON in the variable ``TIEDREQ_LAB``, from the laboratory to ``live_service``.

Invariants: what ``environment`` writes, ``from_environment`` reads back to equal settings. Both sides are ours and of
the same version; what can't be read is a defect, not bad input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cluster.compare.cell import BrownOut, Cell
from tiedreq.core.errors import BadOption
from tiedreq.laws import ServiceLaw, parse_law
from tiedreq.slowness import PauseSpec, parse_pause

__all__ = ["VARIABLE", "LabSettings"]

VARIABLE = "TIEDREQ_LAB"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """What one replica of a cell is like. Durations are seconds.

    ``service`` is None where each call brings its own time (slowness that belongs to the call). ``app`` is somebody's
    own service, then nothing else matters. ``seed`` and ``replica`` name the random streams.
    """

    replica: str
    seed: int
    app: str | None = None
    service: ServiceLaw | None = None
    slow_factor: float = 1.0
    pause: PauseSpec | None = None
    brown_out: BrownOut | None = None
    threads: bool = False

    @classmethod
    def of(cls, cell: Cell, index: int, seed: int) -> LabSettings:
        """What the replica with this index is in a cell. Raises ``BadOption`` for what a live run can't do."""
        pauses = [spec for spec in cell.pauses if spec.replica in (None, index)]
        if len(pauses) > 1:
            told = " and ".join(map(str, pauses))
            raise BadOption(f"pause: {told} are about the same replica, and a live replica has pauses of one kind")
        factor = 1.0
        for slow in cell.slow:
            if slow.replica == index:
                factor *= slow.factor
        return cls(
            replica=f"r{index}",
            seed=seed,
            app=cell.app,
            service=None if cell.intrinsic else cell.service,
            slow_factor=factor,
            pause=pauses[0] if pauses else None,
            brown_out=cell.brown_out,
            threads=cell.handlers == "thread",
        )

    def environment(self) -> dict[str, str]:
        """The environment variable that hands these settings to a replica."""
        values = asdict(self)
        values["service"] = None if self.service is None else str(self.service)
        values["pause"] = None if self.pause is None else str(self.pause)
        return {VARIABLE: json.dumps(values)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LabSettings:
        """The settings in ``environment``. Raises ``BadOption`` where there are none."""
        text = environment.get(VARIABLE)
        if text is None:
            raise BadOption(f"{VARIABLE} is not set: this service runs under python -m cluster.compare --world live")
        values = json.loads(text)
        for name, parse in (("service", parse_law), ("pause", parse_pause)):
            if values[name] is not None:
                values[name] = parse(values[name])
        if values["brown_out"] is not None:
            values["brown_out"] = BrownOut(**values["brown_out"])
        return cls(**values)
