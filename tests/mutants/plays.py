"""Simulated calls against what a client learns of a method, for minutes of virtual time: whether the governor lowers
the budget when backups stop winning, says why, and lets it come back.
"""

from __future__ import annotations

from random import Random

from tests.core_learning.play import Play, alike, intrinsic
from tiedreq.core.governor import PROBE_SECONDS, GovernorState
from tiedreq.core.learning import LearningOptions, MethodLearning
from tiedreq.laws import Bimodal

LAW = Bimodal(0.010, 0.3, 0.02)
PLAYS = ("slow calls, then slow replicas",)
SLOW_CALLS, LAST = 240.0, 60.0
RATE = 300.0


def _sample(rng: Random) -> float:
    return LAW.sample(rng)


def play(name: str, seed: int) -> str | None:
    """Run it: what is wrong, or None. Backups are of use for a minute, then of none, then of use again."""
    assert name in PLAYS
    learning = MethodLearning(LearningOptions(), 0.0)
    played = Play(learning, alike(_sample), RATE, seed).run(60.0)
    played.draw = intrinsic(_sample)
    played.run(SLOW_CALLS / 2)
    view = learning.governor.view()
    if view.state != GovernorState.USELESS or "belongs to the call" not in view.reason:
        return f"6.4: backups never win, and the state is {view.state.value} ({view.reason})"
    sent = played.sent
    played.run(SLOW_CALLS / 2)
    if played.sent - sent > SLOW_CALLS / 2 / PROBE_SECONDS + 1:
        return f"6.4: {played.sent - sent} backups left that never win"
    played.draw = alike(_sample)
    played.run(LAST)
    if learning.governor.state != GovernorState.OK:
        return f"6.4: backups win again, and the state is {learning.governor.view()}"
    return None
