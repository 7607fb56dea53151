"""Whether backups are any use, and what is done about it when they are not.

The law of service times says what a backup ought to achieve *if its service time is independent of the call's*: it
wins with chance w = P(S' < S - d - c | S > d). Over the last backups (each counts less by 1 - 1/``BACKUPS_KEPT`` with
each later one) the governor sums

    k = backups that answered first      e = sum of w      V = 1 + sum of w (1 - w)

and compares k, which is what happened, with e, which chance would give. (The 1 keeps a handful from deciding.)

Chance is for backups that fare independently. Those that end at about the same time don't: while a replica is stopped
for 200 ms, the backups of all its calls wait in the same longer queues and lose together, a hundred of them at a few
thousand calls per second, and then they win again. So at most one backup in ``END_SPACING`` counts: the last
``BACKUPS_KEPT`` are spread over four seconds or more, whatever the rate.

Backups don't win when the slowness

* belongs to the *call*: every copy of a slow call is slow. ``useless`` when k < e / 2 and e - k > 4 sqrt(V); for
  backups that ought to win always that takes five losses in a row.
* belongs to *everyone*: a brown-out, or replicas near capacity. ``saturated`` when it is as above and most of the
  losers had not even started (they waited in queues); or, with k < 0.7 e and e - k > 3 sqrt(V) already, when more
  than twice as many calls ask for a backup as P(S > d) and the budget foresee. High demand alone does not count: when
  a third of the replicas stops, many calls want a backup and nearly all of them win.

In both states the budget is lowered to probes: a backup may leave ``PROBE_SECONDS`` after the last one, and only
every ``PROBE_EVERY``-th that is wanted. Probes are judged on their own: four of them, k >= e / 2, and the state is
``ok`` again. It is ``ok`` on trial where probes have told too little within two windows (60 s): fewer than four, as
where calls are few or probes end by something else than their race, or fewer wins expected than ``TRIAL_WINS``, so that
losing them all says nothing. A saturated service is ``ok`` again as soon as demand is below one and a half times what
is foreseen, if demand was the reason.

``off`` says that nothing is to be sent at all: the budget is 0, or no delay is worth it.

Not for how much may be spent (``core.budget``). All times are seconds.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

BACKUPS_KEPT = 64
PROBES_KEPT = 8
PROBES_MIN = 4
PROBE_SECONDS = 3.0
PROBE_EVERY = 5
TRIAL_SECONDS = 60.0
TRIAL_WINS = 1.0
END_SPACING = 1 / 16
"""Of backups that end within so many seconds the first one counts, for all of them."""
SURE = 4.0
SUSPECT = 3.0
WINS_MIN = 0.5
WINS_FEWER = 0.7
DEMAND_HIGH = 2.0
DEMAND_NORMAL = 1.5
DEMAND_SECONDS = 10.0
DEMAND_SLACK = 5.0
DEMAND_STEP = 0.1


class GovernorState(Enum):
    """How backups fare."""

    OK = "ok"
    SATURATED = "saturated"
    USELESS = "useless"
    OFF = "off"


class GovernorView(NamedTuple):
    """What the governor shows: its state, the reason in words, and the counts behind it."""

    state: GovernorState
    reason: str
    wins: float
    wins_expected: float
    wanted: float
    wanted_expected: float
    held: int


class _Tally:
    """The sums over the last backups, fading by 1 - 1/``kept`` with each."""

    __slots__ = ("expected", "keep", "kept", "number", "unstarted", "variance", "wins")

    def __init__(self, kept: int) -> None:
        self.keep = 1 - 1 / kept
        self.number = 0
        self.kept = 0.0
        self.wins = 0.0
        self.expected = 0.0
        self.variance = 0.0
        self.unstarted = 0.0

    def add(self, won: bool, started: bool, chance: float) -> None:
        self.number += 1
        self.kept = self.kept * self.keep + 1
        self.wins = self.wins * self.keep + won
        self.expected = self.expected * self.keep + chance
        self.variance = self.variance * self.keep + chance * (1 - chance)
        self.unstarted = self.unstarted * self.keep + (not won and not started)

    @property
    def losers(self) -> float:
        """Those that did not win."""
        return self.kept - self.wins

    def behind(self, deviations: float) -> bool:
        """Fewer wins than chance would give, by more than so many standard deviations."""
        return self.expected - self.wins > deviations * math.sqrt(1 + self.variance)


class _Demand:
    """Calls that wanted a backup, and those foreseen, over the last seconds."""

    __slots__ = ("at", "foreseen", "wanted")

    def __init__(self, now: float) -> None:
        self.at = now
        self.wanted = 0.0
        self.foreseen = 0.0

    def fade(self, now: float) -> None:
        if now > self.at:
            keep = math.exp((self.at - now) / DEMAND_SECONDS)
            self.wanted *= keep
            self.foreseen *= keep
            self.at = now

    def above(self, ratio: float) -> bool:
        return self.wanted > ratio * self.foreseen + DEMAND_SLACK


class Governor:
    """Watches the backups of one method of one client. Told of each call, each wish for a backup, each backup's end."""

    def __init__(self, now: float, off: str | None = None) -> None:
        self._off = off
        self._state = GovernorState.OK
        self._reason = "nothing is known yet"
        self._tally = _Tally(BACKUPS_KEPT)
        self._demand = _Demand(now)
        self._by_demand = False
        self._since = now
        self._probed_at = now
        self._skipped = 0
        self._told = 0
        self._told_expected = 0.0
        self._next_end = now
        self.held = 0

    def set_off(self, reason: str | None) -> None:
        """Nothing is to be sent, because of ``reason``; None: no such reason any more."""
        self._off = reason

    @property
    def state(self) -> GovernorState:
        """The state now; ``off`` goes before all."""
        return GovernorState.OFF if self._off is not None else self._state

    def view(self) -> GovernorView:
        """The state, why, and the numbers behind it."""
        tally, demand = self._tally, self._demand
        reason = self._off or self._reason
        if self.state == GovernorState.OK and tally.number:
            reason = self._score()
        return GovernorView(self.state, reason, tally.wins, tally.expected, demand.wanted, demand.foreseen, self.held)

    # ---- what it is told --------------------------------------------------------------------------------------

    def call_begun(self, foreseen: float, now: float) -> None:
        """A call began; ``foreseen`` is the larger of P(S > d) and the share of calls that the budget can pay."""
        if now > self._demand.at + DEMAND_STEP:
            self._demand.fade(now)
        self._demand.foreseen += foreseen

    def backup_wanted(self, now: float, *, again: bool = False) -> bool:
        """A call has lasted longer than the delay. True when a backup may leave, as far as the governor goes.

        ``again``: the call has asked before, and is no further demand.
        """
        self._demand.fade(now)
        self._demand.wanted += not again
        self._reconsider(now)
        if self._off is not None:
            self.held += 1
            return False
        if self._state == GovernorState.OK:
            return True
        self._skipped += 1
        if self._skipped < PROBE_EVERY or now < self._probed_at + PROBE_SECONDS:
            self.held += 1
            return False
        self._skipped = 0
        self._probed_at = now
        return True

    def backup_ended(self, won: bool, started: bool, chance: float, now: float) -> None:
        """A backup won or lost its race; ``chance`` is w, ``started`` whether it was known to have begun.

        Not to be told of backups that the end of the call, a failure or a lost link took out of the race. One that ends
        less than ``END_SPACING`` after the last one that counted changes nothing.
        """
        if now < self._next_end:
            return
        self._next_end = now + END_SPACING
        self._tally.add(won, started, chance)
        self._told += 1
        self._told_expected += chance
        self._demand.fade(now)
        self._reconsider(now)

    # ---- what it makes of it ----------------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        if self._state == GovernorState.OK:
            self._judge(now)
        else:
            self._recover(now)

    def _judge(self, now: float) -> None:
        tally, demand = self._tally, self._demand
        if tally.wins < WINS_MIN * tally.expected and tally.behind(SURE):
            waited = tally.unstarted > 0.5 * tally.losers
            state = GovernorState.SATURATED if waited else GovernorState.USELESS
            why = "most losers waited in a queue to the end" if waited else "the slowness belongs to the call"
            self._enter(state, f"{self._score()}: {why}", now)
        elif tally.wins < WINS_FEWER * tally.expected and tally.behind(SUSPECT) and demand.above(DEMAND_HIGH):
            wanted = f"{demand.wanted:.0f} calls wanted a backup where {demand.foreseen:.0f} were foreseen"
            self._enter(GovernorState.SATURATED, f"{wanted}, and {self._score()}: everyone is slow", now)
            self._by_demand = True

    def _score(self) -> str:
        tally = self._tally
        won, expected = (100 * count / tally.kept if tally.kept else 0.0 for count in (tally.wins, tally.expected))
        return f"{won:.0f} % of the last backups won where chance gives {expected:.0f} %"

    def _recover(self, now: float) -> None:
        tally = self._tally
        if tally.number >= PROBES_MIN and tally.wins >= WINS_MIN * tally.expected:
            self._enter(GovernorState.OK, f"recovered: {self._score()}", now)
        elif self._by_demand and not self._demand.above(DEMAND_NORMAL):
            self._enter(GovernorState.OK, "recovered: no more calls are slow than foreseen", now)
        elif now >= self._since + TRIAL_SECONDS:
            if self._told < PROBES_MIN or self._told_expected < TRIAL_WINS:
                self._enter(GovernorState.OK, "on trial: probes told too little", now)
            else:
                self._window(now)

    def _enter(self, state: GovernorState, reason: str, now: float) -> None:
        probing = state != GovernorState.OK
        self._state = state
        self._reason = reason
        self._tally = _Tally(PROBES_KEPT if probing else BACKUPS_KEPT)
        self._by_demand = False
        self._skipped = 0
        self._probed_at = now
        self._window(now)

    def _window(self, now: float) -> None:
        """Two windows begin, for what probes tell in them."""
        self._since = now
        self._told = 0
        self._told_expected = 0.0
