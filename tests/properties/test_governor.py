"""The governor against a dumb model: states, reasons, which backups may leave; and the way back from every state.

The model keeps lists of what it was told, with the times, and sums them anew for each question by the formulas of the
governor's docstring. Where rounding could decide, the history is given up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiedreq.core.governor import (
    BACKUPS_KEPT,
    DEMAND_HIGH,
    DEMAND_NORMAL,
    DEMAND_SECONDS,
    DEMAND_SLACK,
    DEMAND_STEP,
    END_SPACING,
    PROBE_EVERY,
    PROBE_SECONDS,
    PROBES_KEPT,
    PROBES_MIN,
    SURE,
    SUSPECT,
    TRIAL_SECONDS,
    TRIAL_WINS,
    WINS_FEWER,
    WINS_MIN,
    Governor,
    GovernorState,
)

OK, SATURATED, USELESS, OFF = (
    GovernorState.OK,
    GovernorState.SATURATED,
    GovernorState.USELESS,
    GovernorState.OFF,
)
CLOSE = 1e-9
chances = st.sampled_from([0.02, 0.1, 0.3, 0.5, 0.9, 0.98]) | st.floats(0.0, 1.0)


class End(NamedTuple):
    """How a backup ended, as the governor is told."""

    won: bool
    started: bool
    chance: float


class Model:
    """Lists of what was told since the state began, and the rules in their words."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = OK
        self.off: str | None = None
        self.ends: list[End] = []
        self.wanted: dict[float, float] = {}
        self.foreseen: dict[float, float] = {}
        self.faded_at = 0.0
        self.by_demand = False
        self.begun_at = 0.0
        self.last_probe_at = 0.0
        self.turned_down = 0
        self.told = 0
        self.expected_in_window = 0.0
        self.counted_at = -math.inf
        self.held = 0
        self.word = ""
        self._summed, self._sums = 0, (0.0, 0.0, 1.0, 0.0, 0.0)

    # ---- sums --------------------------------------------------------------------------------------------------

    def sums(self) -> tuple[float, float, float, float, float]:
        """Wins, wins by chance, their variance and 1, losers, losers that had not started.

        Each end counts less by 1/kept with each later one.
        """
        if self._summed == len(self.ends):
            return self._sums
        self._summed = len(self.ends)
        kept = BACKUPS_KEPT if self.state == OK else PROBES_KEPT
        weighted = [(end, (1 - 1 / kept) ** age) for age, end in enumerate(reversed(self.ends))]
        self._sums = (
            sum(weight for end, weight in weighted if end.won),
            sum(weight * end.chance for end, weight in weighted),
            1 + sum(weight * end.chance * (1 - end.chance) for end, weight in weighted),
            sum(weight for end, weight in weighted if not end.won),
            sum(weight for end, weight in weighted if not end.won and not end.started),
        )
        return self._sums

    def demand(self) -> tuple[float, float]:
        """Calls that wanted a backup, and calls that were to want one, over the last seconds."""

        def left(amounts: dict[float, float]) -> float:
            return sum(amount * math.exp((at - self.faded_at) / DEMAND_SECONDS) for at, amount in amounts.items())

        return left(self.wanted), left(self.foreseen)

    # ---- rules -------------------------------------------------------------------------------------------------

    def more(self, one: float, other: float) -> bool:
        """Whether one is more than the other; a history in which rounding could say is given up."""
        assume(abs(one - other) > CLOSE * (1 + abs(one) + abs(other)))
        return one > other

    def enter(self, state: GovernorState, word: str) -> None:
        self.state, self.word = state, word
        self.ends, self.told, self.turned_down, self.expected_in_window = [], 0, 0, 0.0
        self._summed = -1
        self.by_demand = False
        self.begun_at = self.last_probe_at = self.now

    def think(self) -> None:
        """What follows from what is known now."""
        if self.state == OK:
            self.judge()
        else:
            self.recover()

    def judge(self) -> None:
        wins, chance, variance, losers, unstarted = self.sums()
        behind = chance - wins
        if self.ends and behind > 0:
            if self.more(WINS_MIN * chance, wins) and self.more(behind, SURE * math.sqrt(variance)):
                waited = self.more(unstarted, losers / 2)
                self.enter(SATURATED if waited else USELESS, "queue" if waited else "belongs to the call")
                return
            if self.more(WINS_FEWER * chance, wins) and self.more(behind, SUSPECT * math.sqrt(variance)):
                wanted, foreseen = self.demand()
                if self.more(wanted, DEMAND_HIGH * foreseen + DEMAND_SLACK):
                    self.enter(SATURATED, "everyone is slow")
                    self.by_demand = True

    def recover(self) -> None:
        wins, chance, *_ = self.sums()
        if len(self.ends) >= PROBES_MIN and (wins == WINS_MIN * chance or not self.more(WINS_MIN * chance, wins)):
            self.enter(OK, "recovered")
            return
        wanted, foreseen = self.demand()
        if self.by_demand and not self.more(wanted, DEMAND_NORMAL * foreseen + DEMAND_SLACK):
            self.enter(OK, "no more calls are slow")
        elif self.now >= self.begun_at + TRIAL_SECONDS:
            if self.told < PROBES_MIN or self.more(TRIAL_WINS, self.expected_in_window):
                self.enter(OK, "on trial")
            else:
                self.begun_at, self.told, self.expected_in_window = self.now, 0, 0.0

    def call_begun(self, share: float) -> None:
        if self.now > self.faded_at + DEMAND_STEP:
            self.faded_at = self.now
        self.foreseen[self.faded_at] = self.foreseen.get(self.faded_at, 0.0) + share

    def backup_wanted(self, again: bool) -> bool:
        self.faded_at = self.now
        if not again:
            self.wanted[self.now] = self.wanted.get(self.now, 0.0) + 1
        self.think()
        if self.off is not None:
            self.held += 1
            return False
        if self.state == OK:
            return True
        self.turned_down += 1
        if self.turned_down < PROBE_EVERY or self.now < self.last_probe_at + PROBE_SECONDS:
            self.held += 1
            return False
        self.turned_down = 0
        self.last_probe_at = self.now
        return True

    def backup_ended(self, end: End) -> None:
        if self.now < self.counted_at + END_SPACING:
            return
        self.counted_at = self.now
        self.ends.append(end)
        self.told += 1
        self.expected_in_window += end.chance
        self.faded_at = self.now
        self.think()


class GovernorMachine(RuleBasedStateMachine):
    """Everything that a governor is told, told to the model as well."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.governor, self.model = Governor(0.0), Model()
        self.probes: list[float] = []
        self.wishes_held = 0

    @initialize(off=st.booleans())
    def begin(self, off: bool) -> None:
        if off:
            self.governor, self.model.off = Governor(0.0, "the budget is 0"), "the budget is 0"

    @rule(seconds=st.sampled_from([1e-3, 0.05, 0.2, 1.0, 3.0, 31.0, 60.0, 61.0, 300.0]) | st.floats(0.001, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.model.now = self.now

    @rule(share=st.sampled_from([0.0, 0.05, 0.3]), times=st.sampled_from([1, 1, 20, 100]))
    def begin_calls(self, share: float, times: int) -> None:
        for _ in range(times):
            self.governor.call_begun(share, self.now)
            self.model.call_begun(share)

    @rule(times=st.sampled_from([1, 1, 5, 12]), apart=st.sampled_from([0.0, 0.01, 1.0]), again=st.booleans())
    def want(self, times: int, apart: float, again: bool) -> None:
        for _ in range(times):
            self.now += apart
            self.model.now = self.now
            before = self.governor.state
            may = self.governor.backup_wanted(self.now, again=again)
            assert may == self.model.backup_wanted(again)
            if self.governor.state != before:
                self.probes, self.wishes_held = [], 0
            if self.governor.state in (SATURATED, USELESS):
                self._a_probe_or_none(may)

    def _a_probe_or_none(self, may: bool) -> None:
        """While the budget is lowered at most one wish in so many is granted, and one in so many seconds."""
        self.wishes_held += 1
        if may:
            assert self.wishes_held >= PROBE_EVERY
            assert not self.probes or self.now >= self.probes[-1] + PROBE_SECONDS
            self.probes.append(self.now)
            self.wishes_held = 0

    @rule(
        times=st.sampled_from([1, 2, 5, 8, 20]),
        apart=st.sampled_from([0.0, 0.01, 0.07, 3.0]),
        won=st.sampled_from([0, 0, 1, 2, 3, 10]),
        started=st.booleans(),
        chance=chances,
    )
    def end(self, times: int, apart: float, won: int, started: bool, chance: float) -> None:
        """Backups end; of ten the first ``won`` win."""
        for number in range(times):
            self.now += apart
            self.model.now, before = self.now, self.governor.state
            end = End(number % 10 < won, started or number % 10 < won, chance)
            self.governor.backup_ended(*end, self.now)
            self.model.backup_ended(end)
            if self.governor.state != before:
                self.probes, self.wishes_held = [], 0

    @precondition(lambda self: self.governor.state != OK or self.now > 10)
    @rule(reason=st.sampled_from([None, "no delay is worth it"]))
    def switch(self, reason: str | None) -> None:
        self.governor.set_off(reason)
        self.model.off = reason

    @invariant()
    def it_is_in_the_state_of_the_model(self) -> None:
        view, model = self.governor.view(), self.model
        assert self.governor.state == view.state == (model.state if model.off is None else OFF)
        if model.off is not None:
            assert view.reason == model.off
        elif model.state != OK or not model.ends:
            assert model.word in view.reason
        wins, chance, *_ = model.sums()
        assert math.isclose(view.wins, wins, rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(view.wins_expected, chance, rel_tol=1e-9, abs_tol=1e-12)
        wanted, foreseen = model.demand()
        assert math.isclose(view.wanted, wanted, rel_tol=1e-6, abs_tol=1e-12)
        assert math.isclose(view.wanted_expected, foreseen, rel_tol=1e-6, abs_tol=1e-12)
        assert view.held == model.held


TestGovernor = GovernorMachine.TestCase

# ---- the way back ----------------------------------------------------------------------------------------------------

WINDOW = 30.0
past = st.lists(
    st.tuples(st.sampled_from([1, 4, 20]), st.booleans(), st.booleans(), chances, st.sampled_from([0.0, 0.1, 3.0])),
    min_size=1,
    max_size=8,
)


@given(past, st.integers(0, 60), chances, st.sampled_from([0.05, 0.3, 1.0, 4.0, 30.0]), st.integers(0, 7))
def test_from_every_state_the_budget_comes_back_when_backups_win(
    history: list[tuple[int, bool, bool, float, float]], crowd: int, chance: float, every: float, void: int
) -> None:
    """Within two windows where a call a second wants a backup, else (and where backups end void) within two trials.

    Before it, ``history``, and ``crowd`` calls at once that want a backup where none was foreseen. From then on a call
    wants one ``every`` so many seconds; of seven that leave ``void`` end by something else than their race, the others
    win. It does not go again, as long as they do.
    """
    governor, now = Governor(0.0), 0.0
    for times, won, started, then, apart in history:
        for _ in range(times):
            now += apart
            if governor.backup_wanted(now):
                governor.backup_ended(won, started or won, then, now)
    for _ in range(crowd):
        governor.backup_wanted(now)
    sent, limit = 0, now + (2 * WINDOW if every <= 1 and not void else 2 * TRIAL_SECONDS + every)
    end = limit + 10 * every
    while now < end:
        now += every
        if governor.backup_wanted(now):
            sent += 1
            if sent % 7 >= void:
                governor.backup_ended(True, True, chance, now)
        if now >= limit:
            assert governor.state == OK, governor.view()
