"""All parts together, played in virtual time: what the delay, the extra work and the state come to."""

from __future__ import annotations

import math
from dataclasses import asdict
from random import Random

import pytest

from tests.core_learning.laws import LAWS, exact
from tests.core_learning.play import Draw, Play, alike, intrinsic
from tiedreq.core.delay import choose_delay
from tiedreq.core.errors import BadOption
from tiedreq.core.governor import GovernorState
from tiedreq.core.learning import BackupEnd, LearningOptions, MethodLearning, NoDelay


def play(name: str, rate: float, *, budget: float = 0.05, seed: int = 1) -> Play:
    return Play(MethodLearning(LearningOptions(budget=budget), 0.0), alike(LAWS[name].sample), rate, seed)


def delay_of(game: Play) -> float:
    delay = game.learning.delay(game.now)
    assert isinstance(delay, float), game.learning.view(game.now)
    return delay


@pytest.mark.soak
def test_a_million_calls_of_a_heavy_tail_do_not_train_the_delay_away() -> None:
    """B17: losers are stopped and told as stopped; the delay stays where the true law has it."""
    game = play("heavy", 5_000.0)
    game.run(10.0)
    delays = []
    while game.calls < 1_000_000:
        delays.append(delay_of(game.run(5.0)))
    fifth = len(delays) // 5
    early, late = (sum(part) / fifth for part in (delays[:fifth], delays[-fifth:]))
    assert late == pytest.approx(early, rel=0.05)
    true = choose_delay(exact("heavy"), 0.05).delay
    assert all(delay == pytest.approx(true, rel=0.05) for delay in delays)
    assert game.wanted / game.calls == pytest.approx(0.05, abs=0.004)
    assert game.extra <= 0.05 * game.useful * 1.02


def test_leaving_losers_out_would_train_it_away() -> None:
    """The same play with an estimator that is not told of copies that were stopped: the tail disappears."""
    game = play("heavy", 1_000.0)
    game.learning.stopped = lambda elapsed, now: None  # type: ignore[method-assign]
    delay = delay_of(game.run(70.0))
    true = choose_delay(exact("heavy"), 0.05).delay
    assert isinstance(true, float) and delay < 0.85 * true


def test_one_slow_replica_does_not_move_the_delay_over_time() -> None:
    """B17: a fifth of first copies goes to a replica that is five times slower; backups go elsewhere."""

    def first(rng: Random, _: float) -> float:
        return (5.0 if rng.random() < 0.2 else 1.0) * rng.expovariate(100.0)

    draw = Draw(first, lambda rng, _, __: rng.expovariate(100.0))
    game = Play(MethodLearning(LearningOptions(), 0.0), draw, 1_000.0, 1)
    game.run(70.0)
    delays = [delay_of(game.run(5.0)) for _ in range(20)]
    assert max(delays) < 1.08 * min(delays)
    assert game.won / game.sent > 0.7
    assert game.extra <= 0.051 * game.useful


@pytest.mark.parametrize("name", ["cold-cache", "stragglers"])
def test_where_more_is_wanted_than_can_be_paid_the_budget_is_used_up_and_kept(name: str) -> None:
    game = play(name, 2_000.0).run(60.0)
    assert game.extra / game.useful == pytest.approx(0.05, rel=0.1)
    assert game.learning.budget.denied > 0


def test_few_calls_are_enough() -> None:
    """At 5/s nearly all stragglers that the windows hold were stopped: older ones still say how long they last."""
    game = play("heavy", 5.0).run(3_000.0)
    assert game.wanted / game.calls == pytest.approx(0.05, rel=0.3)
    rare = play("rare-stalls", 2.0).run(5_000.0)
    assert rare.sent / rare.calls == pytest.approx(0.02, rel=0.2)


def test_slowness_of_the_call_is_noticed() -> None:
    learning = MethodLearning(LearningOptions(), 0.0)
    game = Play(learning, intrinsic(LAWS["rare-stalls"].sample), 2_000.0, 1).run(60.0)
    view = learning.view(game.now)
    assert view.state is GovernorState.USELESS and "belongs to the call" in view.state_reason
    assert game.extra < 0.01 * game.useful
    assert view.held > 20 * game.sent
    game.draw = alike(LAWS["rare-stalls"].sample)  # and when it no longer does
    game.run(60.0)
    assert learning.governor.state is GovernorState.OK
    sent, calls = game.sent, game.calls
    game.run(20.0)
    assert (game.sent - sent) / (game.calls - calls) == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize(("name", "out", "sent"), [("rare-stalls", 6, 12), ("long-tail", 16, 30)])
def test_before_any_has_won_few_backups_are_out_at_once(name: str, out: int, sent: int) -> None:
    """Each takes as long as the rest of its call where slowness belongs to the call: dozens would be a burst of work.

    When the law's expectation alone was set aside, 22 and 32 were out before the first one ended.
    """
    learning, most = MethodLearning(LearningOptions(), 0.0), 0
    game = Play(learning, intrinsic(LAWS[name].sample), 4_500.0, 1)
    while learning.governor.state is not GovernorState.USELESS:
        game.run(0.001)
        most = max(most, learning.out)
        assert game.now < 10
    assert 0 < most <= out and game.sent <= sent


@pytest.mark.parametrize(("rate", "least"), [(4_500.0, 0.95), (20.0, 0.8), (2.0, 0.9)])
def test_where_backups_win_nothing_is_held_back_for_long(rate: float, least: float) -> None:
    game = play("rare-stalls", rate)
    while not isinstance(game.learning.delay(game.now), float):
        game.run(1.0)
    game.run(100.0 / (0.02 * rate))
    assert game.wanted > 50 and game.sent >= least * game.wanted


@pytest.mark.parametrize("rate", [300.0, 1.0])
def test_a_brown_out_stays_within_the_budget_and_passes(rate: float) -> None:
    """B14: everyone takes 200 ms longer for a minute; also where a share of the traffic rounds to nothing."""

    def time(rng: Random, now: float) -> float:
        return rng.expovariate(100.0) + (0.2 if 300 <= now < 360 else 0.0)

    draw = Draw(time, lambda rng, now, _: time(rng, now))
    learning = MethodLearning(LearningOptions(), 0.0)
    game = Play(learning, draw, rate, 1).run(300.0)
    before, extra, useful = learning.delay(game.now), game.extra, game.useful
    game.run(62.0)
    floor = learning.budget.floored / 1e9 + learning.budget.initial / 1e9
    assert game.extra - extra <= 0.05 * (game.useful - useful) * 1.05 + 0.25 + floor
    if rate < 10:
        return
    assert learning.governor.view().state in (GovernorState.OK, GovernorState.SATURATED)
    game.run(60.0)
    assert learning.delay(game.now) == pytest.approx(before, rel=0.1)
    assert learning.governor.state is GovernorState.OK
    sent, calls = game.sent, game.calls
    game.run(40.0)
    assert (game.sent - sent) / (game.calls - calls) == pytest.approx(0.05, rel=0.2)


# ---- before much is known (B15), odd clocks (B53), no budget (B11) ---------------------------------------------------


def test_unknown_until_enough_samples() -> None:
    learning = MethodLearning(LearningOptions(samples_min=20), 0.0)
    for number in range(19):
        assert learning.delay(number * 1.0) is NoDelay.UNKNOWN
        learning.finished(0.3 if number % 3 == 0 else 0.01, number * 1.0, used=True)
    assert learning.delay(100.0) is NoDelay.UNKNOWN
    learning.finished(0.01, 100.0, used=True)
    delay = learning.delay(100.0)
    assert delay == pytest.approx(0.0101, rel=0.02)
    assert learning.delay(3_700.0) == delay  # an hour without a call


def test_too_little_seen_is_no_reason_to_give_a_delay_up() -> None:
    learning = MethodLearning(LearningOptions(), 0.0)

    def feed(begin: float, number: int, slow: int) -> None:
        for k in range(number):
            learning.finished(0.3 if k >= number - slow else 0.01, begin + k * 0.1, used=True)

    feed(0.0, 1_000, 20)
    delay = learning.delay(100.0)
    assert delay == pytest.approx(0.0101, rel=0.01)
    feed(200.0, 1_000, 2)  # two of a thousand: in the noise, and still nothing better is known
    assert learning.delay(300.0) == delay
    assert "as before" in learning.view(300.0).reason
    feed(400.0, 1_000, 0)
    feed(600.0, 400, 0)  # none at all: it is over
    assert learning.delay(640.0) is NoDelay.NOT_WORTH


def test_answers_earn_failovers_after_lost_links() -> None:
    learning = MethodLearning(LearningOptions(), 0.0)
    while learning.try_failover(0.0, link_lost=True):
        pass
    for _ in range(20):
        learning.finished(0.01, 0.0, used=True)
        learning.finished(0.01, 0.0, used=False)
    assert learning.try_failover(0.0, link_lost=True) and learning.try_failover(0.0, link_lost=True)
    assert not learning.try_failover(0.0, link_lost=True)


def test_it_is_computed_now_and_then_not_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    game = play("long-tail", 2_000.0)
    computed = []
    law = game.learning.latency.law
    monkeypatch.setattr(game.learning.latency, "law", lambda: computed.append(game.now) or law())
    game.run(20.0)
    assert 15 <= len(computed) <= 21


def test_a_constant_service_is_left_alone() -> None:
    game = play("constant", 1_000.0).run(20.0)
    view = game.learning.view(game.now)
    assert view.delay is NoDelay.NOT_WORTH and view.state is GovernorState.OFF
    assert game.sent == 0 and "faster" in view.state_reason


def test_backups_of_stuck_calls_leave_no_debt_where_everything_stands_still() -> None:
    """They last to the deadlines of their calls; charged with that, the bucket would be empty for minutes."""
    learning, now = MethodLearning(LearningOptions(), 0.0), 0.0
    for _ in range(2_000):
        now += 0.01
        learning.finished(0.01, now, used=True)
    assert learning.delay(now) is NoDelay.NOT_WORTH and learning.try_backup(now) is None
    tickets = []
    while (ticket := learning.try_backup(now, stuck=True)) is not None:
        tickets.append(ticket)
    assert 1 < len(tickets) <= 20
    for ticket in tickets:
        learning.backup_ended(ticket, BackupEnd.VOID, 30.0, now)
    assert 0 <= learning.budget.balance < 0.01e9
    for _ in range(200):  # two seconds of traffic
        now += 0.01
        learning.finished(0.01, now, used=True)
    assert learning.try_failover(now, link_lost=False)


def test_no_budget_means_no_backup_and_no_failover_after_a_refusal() -> None:
    learning = MethodLearning(LearningOptions(budget=0.0, after=0.01), 0.0)
    assert learning.try_backup(1.0) is None
    assert not learning.try_failover(1.0, link_lost=False)
    assert learning.try_failover(1.0, link_lost=True)
    assert learning.view(1.0).state is GovernorState.OFF


def test_a_fixed_delay_and_a_quantile_are_taken_as_they_are() -> None:
    fixed = MethodLearning(LearningOptions(after=0.03), 0.0)
    assert fixed.delay(0.0) == 0.03
    quantile = MethodLearning(LearningOptions(quantile=0.95), 0.0)
    assert quantile.delay(0.0) is NoDelay.UNKNOWN
    rng = Random(1)
    for number in range(5_000):
        for learning in (fixed, quantile):
            learning.finished(rng.expovariate(100), number * 0.001, used=True)
    assert fixed.delay(6.0) == 0.03 and quantile.delay(6.0) == pytest.approx(0.02996, rel=0.07)
    view = fixed.view(6.0)
    assert view.wanting == pytest.approx(math.exp(-3), rel=0.15)
    ticket = fixed.try_backup(6.0)
    assert ticket is not None and ticket.chance == pytest.approx(0.5, abs=0.1)


def test_a_delay_below_the_clock_is_told() -> None:
    """B53: a clock of 15.6 ms, a service of 1 ms. Nothing to learn; a fixed delay of 2 ms is warned of."""
    tick, rng = 0.015625, Random(1)
    learned = MethodLearning(LearningOptions(resolution=tick), 0.0)
    for number in range(5_000):
        begin = rng.random() * 10
        measured = math.floor((begin + 0.001) / tick) * tick - math.floor(begin / tick) * tick
        learned.finished(measured, number * 0.01, used=True)
    assert learned.delay(60.0) is NoDelay.NOT_WORTH
    fixed = MethodLearning(LearningOptions(resolution=tick, after=0.002), 0.0)
    warning = fixed.view(0.0).warning
    assert warning is not None and "resolution" in warning
    assert learned.view(60.0).warning is None


def test_the_shortest_delay() -> None:
    """Services of microseconds: a backup after 20 us would be worth it, but none is sent before ``min_after``."""
    rng = Random(1)
    learning = MethodLearning(LearningOptions(min_after=0.001), 0.0)
    other = MethodLearning(LearningOptions(min_after=0.001), 0.0)
    for number in range(5_000):
        learning.finished(0.005 if rng.random() < 0.02 else 20e-6, number * 0.001, used=True)
        other.finished(0.0004 if rng.random() < 0.02 else 20e-6, number * 0.001, used=True)
    assert learning.delay(6.0) == 0.001
    assert other.delay(6.0) is NoDelay.NOT_WORTH


def test_the_bucket_holds_ten_backups_as_they_are_now_known() -> None:
    game = play("rare-stalls", 10.0).run(300.0)
    assert game.learning.view(game.now).capacity == pytest.approx(10 * 0.0156, rel=0.3)  # guessed: 0.1


# ---- tickets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", list(BackupEnd))
def test_a_ticket_counts_once(end: BackupEnd) -> None:
    learning = play("rare-stalls", 1_000.0).run(20.0).learning
    taken, wins = learning.budget.taken, learning.governor.view().wins_expected
    ticket = learning.try_backup(21.0)
    assert ticket is not None
    for _ in range(3):
        learning.backup_ended(ticket, end, 0.004, 21.0)
    assert learning.budget.taken - taken == 4_000_000
    assert (learning.governor.view().wins_expected == wins) == (end is BackupEnd.VOID)


def test_a_loser_that_can_not_be_stopped_costs_a_whole_execution() -> None:
    game = play("long-tail", 1_000.0)
    game.learning.stoppable = False
    learning = game.run(20.0).learning
    taken = learning.budget.taken
    ticket = learning.try_backup(21.0)
    assert ticket is not None and learning.budget.taken - taken == pytest.approx(52e6, rel=0.1)
    learning.backup_ended(ticket, BackupEnd.LOST, 0.001, 21.0)
    assert learning.budget.taken - taken == pytest.approx(52e6, rel=0.1)
    ticket = learning.try_backup(21.0)
    assert ticket is not None
    learning.backup_ended(ticket, BackupEnd.LOST_UNSTARTED, 0.0, 21.0)
    assert learning.budget.taken - taken == pytest.approx(52e6, rel=0.1)


def test_second_backups_are_not_judged() -> None:
    learning = play("rare-stalls", 1_000.0).run(20.0).learning
    expected = learning.governor.view().wins_expected
    ticket = learning.try_backup(21.0, first=False)
    assert ticket is not None
    learning.backup_ended(ticket, BackupEnd.LOST, 0.3, 21.0)
    assert learning.governor.view().wins_expected == expected


def test_double_starts_leave_less_for_backups() -> None:
    game = play("long-tail", 1_000.0, budget=0.1).run(40.0)
    before = delay_of(game)
    until = game.now + 40
    while game.now < until:
        game.run(0.1)
        game.learning.double_start(0.15, game.now)
    assert game.learning.ties_allowed(game.now)
    assert delay_of(game) > 1.03 * before


def test_options_are_checked_and_printed() -> None:
    for bad in (
        {"budget": -0.1},
        {"budget": math.nan},
        {"after": -1.0},
        {"quantile": 95.0},
        {"quantile": 0.0},
        {"after": 0.1, "quantile": 0.9},
        {"samples_min": 0},
        {"resolution": 0.0},
        {"min_after": math.inf},
    ):
        with pytest.raises(BadOption):
            LearningOptions(**bad)  # type: ignore[arg-type]
    options = LearningOptions(quantile=0.9)
    assert LearningOptions(**asdict(options)) == options and "quantile=0.9" in repr(options)
