"""What traffic is to drive: how many calls, of which policy, to which methods. A frozen value that checks itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cluster.config import RATE_MAX, policy_by_name
from tiedreq.core.policy import Policy
from tiedreq.errors import BadOption
from tiedreq.units import check_duration, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Open-loop traffic: ``rate`` calls per second (0: none), each with the policy called ``policy``.

    ``backup_after`` (seconds) fixes the delay of backups. ``work``: all calls go to the demo's artificial work;
    otherwise to ``lookup`` and ``search``. Raises ``BadOption`` when made with anything else.
    """

    rate: float = 0.0
    policy: str = "tied"
    backup_after: float | None = None
    work: bool = True

    def __post_init__(self) -> None:
        check_number(self.rate, "rate", low=0.0, high=RATE_MAX)
        if self.backup_after is not None:
            check_duration(self.backup_after, "backup-after")
        if not isinstance(self.work, bool):
            raise BadOption(f"work: {self.work!r} is not true or false")
        _ = self.policy_value

    @property
    def policy_value(self) -> Policy:
        """The policy itself."""
        return policy_by_name(self.policy, backup_after=self.backup_after)


@dataclass(frozen=True, slots=True)
class TrafficSpec:
    """What to drive: ``load`` to the cluster of ``cluster_file``, for ``duration`` seconds or until stopped."""

    cluster_file: str
    load: Load
    duration: float | None
    seed: int

    def message(self) -> dict[str, Any]:
        """The first control message."""
        return {"do": "drive", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> TrafficSpec:
        """What ``message()`` wrote."""
        values = {name: value for name, value in message.items() if name != "do"}
        return cls(**{**values, "load": Load(**values["load"])})
