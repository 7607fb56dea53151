"""The governor: backups that win, that never win, that wait in queues; and the way back."""

from __future__ import annotations

from random import Random

import pytest

from tiedreq.core.governor import (
    BACKUPS_KEPT,
    END_SPACING,
    PROBE_EVERY,
    PROBE_SECONDS,
    TRIAL_SECONDS,
    Governor,
    GovernorState,
)

OK, USELESS, SATURATED, OFF = (
    GovernorState.OK,
    GovernorState.USELESS,
    GovernorState.SATURATED,
    GovernorState.OFF,
)
WINDOW = 30.0


class Service:
    """Calls at ``rate``, of which a share wants a backup that is foreseen to win with ``chance``."""

    def __init__(self, chance: float, wanting: float = 0.05, rate: float = 100.0, seed: int = 1) -> None:
        self.governor = Governor(0.0)
        self.chance, self.wanting, self.rate = chance, wanting, rate
        self.rng = Random(seed)
        self.now = 0.0
        self.sent = 0

    def run(self, seconds: float, wins: float, *, demand: float = 1.0, started: bool = True) -> GovernorState:
        """``wins``: how often a backup truly wins; ``demand``: wishes, as a multiple of those foreseen."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1 / self.rate
            self.governor.call_begun(self.wanting, self.now)
            if self.rng.random() < self.wanting * demand and self.governor.backup_wanted(self.now):
                self.sent += 1
                won = self.rng.random() < wins
                self.governor.backup_ended(won, started or won, self.chance, self.now)
        return self.governor.state

    def back_after(self, seconds: float, wins: float) -> float:
        """Seconds until the state is ok, at most so many."""
        begin = self.now
        while self.now < begin + seconds and self.run(0.1, wins) != OK:
            pass
        return self.now - begin


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.9, 0.98])
def test_backups_that_do_as_chance_says_are_ok(chance: float) -> None:
    for seed in range(3):
        service = Service(chance, seed=seed)
        for _ in range(60):
            assert service.run(10.0, chance) == OK, service.governor.view()
        assert service.governor.held == 0


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.98])
def test_backups_that_never_win_are_useless(chance: float) -> None:
    service = Service(chance)
    service.run(30.0, chance)
    service.sent = 0
    assert service.run(45.0, 0.0) == USELESS
    assert service.sent < 20 + 2 * BACKUPS_KEPT * (1 + 5 * END_SPACING)
    assert "belongs to the call" in service.governor.view().reason
    service.sent = 0
    assert service.run(600.0, 0.0) == USELESS
    assert service.sent <= 600 / PROBE_SECONDS  # of about 3,000 that ask
    assert service.governor.view().held > 2_500


def test_a_few_losses_judge_backups_that_always_ought_to_win() -> None:
    governor = Governor(0.0)
    for number in range(5):
        assert governor.state == OK
        governor.backup_ended(False, True, 0.98, number * 0.1)
    assert governor.state == USELESS
    assert not governor.backup_wanted(1.0)
    assert governor.backup_wanted(1.0 + TRIAL_SECONDS)
    assert "on trial" in governor.view().reason


@pytest.mark.parametrize(("rate", "seed"), [(10_000.0, 1), (100.0, 1), (100.0, 2), (20.0, 3)])
def test_it_recovers_by_itself_within_two_windows(rate: float, seed: int) -> None:
    service = Service(0.9, rate=rate, seed=seed)
    assert service.run(60.0, 0.0) == USELESS
    assert service.back_after(2 * WINDOW + 1, 0.9) <= 2 * WINDOW
    assert service.run(60.0, 0.9) == OK


def test_a_client_with_few_calls_is_given_a_trial() -> None:
    service = Service(0.95, rate=1.0)
    while service.run(1.0, 0.0) != USELESS:
        assert service.now < 600
    assert service.back_after(3 * TRIAL_SECONDS, 0.95) <= 2 * TRIAL_SECONDS
    assert service.run(600.0, 0.95) == OK


def test_losers_that_never_started_mean_saturated() -> None:
    service = Service(0.9)
    assert service.run(30.0, 0.0, started=False) == SATURATED
    assert "queue" in service.governor.view().reason


def burst(governor: Governor, begin: float, seconds: float, ends: int) -> None:
    """So many backups end within so many seconds, none of them has started and none wins."""
    for number in range(ends):
        governor.backup_ended(False, False, 0.5, begin + number * seconds / ends)


@pytest.mark.parametrize("rate", [10.0, 100.0, 2_000.0])
def test_a_pause_is_one_misfortune_however_many_backups_lose_by_it(rate: float) -> None:
    """A replica stops for 200 ms every two seconds: backups lose meanwhile, the others do as chance says."""
    governor, rng = Governor(0.0), Random(1)
    for second in range(0, 60, 2):
        burst(governor, second, 0.2, 400)
        for number in range(int(1.8 * rate)):
            now = second + 0.2 + number / rate
            governor.backup_ended(rng.random() < 0.5, True, 0.5, now)
            assert governor.state == OK, (now, governor.view())


def test_losses_that_go_on_for_seconds_lower_the_budget_whatever_the_rate() -> None:
    for ends in (16, 400, 4_000):
        governor = Governor(0.0)
        burst(governor, 0.0, 1.0, ends)
        assert governor.state == OK
        burst(governor, 1.0, 5.0, 5 * ends)
        assert governor.state == SATURATED, governor.view()


def test_everyone_slow_is_saturated_before_it_is_sure() -> None:
    """Many more wishes than foreseen, and somewhat fewer wins: not the call's fault, everyone is slow."""
    service = Service(0.5, rate=1000.0)
    service.run(30.0, 0.5)
    assert service.run(30.0, 0.22, demand=4.0) == SATURATED
    assert "everyone is slow" in service.governor.view().reason
    assert service.run(60.0, 0.5, demand=1.0) == OK


def test_it_is_over_when_demand_is_as_foreseen() -> None:
    """Whatever its probes did meanwhile: then nobody asks any more."""
    service = Service(0.5, rate=1000.0)
    service.run(30.0, 0.5)
    assert service.run(30.0, 0.22, demand=4.0) == SATURATED
    assert service.run(20.0, 0.0, demand=0.01) == OK
    assert "no more calls are slow" in service.governor.view().reason or service.governor.view().wins_expected


def test_where_few_ask_probes_are_few() -> None:
    service = Service(0.95, rate=20.0)
    while service.run(1.0, 0.0) != USELESS:
        assert service.now < 60
    service.sent = 0
    service.run(600.0, 0.0)
    assert service.sent <= 1.15 * 600 / PROBE_EVERY  # one a second asks


def test_many_wishes_alone_do_not_lower_the_budget() -> None:
    service = Service(0.9, rate=1000.0)
    service.run(30.0, 0.9)
    assert service.run(60.0, 0.9, demand=6.0) == OK
    service = Service(0.98, rate=1000.0)
    assert service.run(60.0, 0.85, demand=6.0) == OK


def test_off_goes_before_all() -> None:
    governor = Governor(0.0)
    governor.set_off("the budget is 0")
    assert governor.state == OFF and governor.view().reason == "the budget is 0"
    assert not governor.backup_wanted(1.0) and governor.held == 1
    governor.set_off(None)
    assert governor.state == OK and governor.backup_wanted(2.0)
