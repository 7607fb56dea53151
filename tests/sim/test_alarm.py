"""A replica's ``alarm`` spares its driver the question when to wake it: it must never be later than the answer."""

from __future__ import annotations

import math

import pytest

from tiedreq.core.commands import ReplicaCommand
from tiedreq.core.events import ReplicaEvent
from tiedreq.core.replica import ReplicaCore
from tiedreq.sim.run import run_seed


class Checked(ReplicaCore):
    """Looks after every step. ``earlier`` counts the alarms that were told before there was need."""

    looked = 0
    earlier = 0

    def step(self, event: ReplicaEvent, now: float) -> list[ReplicaCommand]:
        commands = super().step(event, now)
        wake_at = self._wake_at()
        assert self.alarm <= (math.inf if wake_at is None else wake_at), f"{event}: {self.alarm} is after {wake_at}"
        Checked.looked += 1
        Checked.earlier += wake_at is None or self.alarm < wake_at
        return commands


@pytest.mark.parametrize("seed", [1, 4, 7, 13, 22, 35])
def test_the_alarm_is_never_late(seed: int) -> None:
    looked = Checked.looked
    result = run_seed(seed, replica_core=Checked)
    assert result.ok, result.violations
    assert Checked.looked > looked + 100
    assert Checked.earlier < Checked.looked, "sometimes it is exact"
