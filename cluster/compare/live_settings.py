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

__all__ = ["VARIABLE", "LabSettings"]

VARIABLE = "TIEDREQ_LAB"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """What one replica of a cell is like. Durations are seconds.

    ``service`` is the law of further executions of a call, None where all take the time that the call brings (slowness
    that belongs to the call). ``app`` is somebody's own service, then nothing else matters. ``seed`` and ``replica``
    name the random stream.
    """

    replica: str
    seed: int
    app: str | None = None
    service: ServiceLaw | None = None
    slow_factor: float = 1.0
    brown_out: BrownOut | None = None
    threads: bool = False

    @classmethod
    def of(cls, cell: Cell, index: int, seed: int) -> LabSettings:
        """What the replica with this index is in a cell."""
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
            brown_out=cell.brown_out,
            threads=cell.handlers == "thread",
        )

    def environment(self) -> dict[str, str]:
        """The environment variable that hands these settings to a replica."""
        values = asdict(self)
        values["service"] = None if self.service is None else str(self.service)
        return {VARIABLE: json.dumps(values)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LabSettings:
        """The settings in ``environment``. Raises ``BadOption`` where there are none."""
        text = environment.get(VARIABLE)
        if text is None:
            raise BadOption(f"{VARIABLE} is not set: this service runs under python -m cluster.compare --world live")
        values = json.loads(text)
        if values["service"] is not None:
            values["service"] = parse_law(values["service"])
        if values["brown_out"] is not None:
            values["brown_out"] = BrownOut(**values["brown_out"])
        return cls(**values)
