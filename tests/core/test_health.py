"""Pickers by name, and probation: a slow or failing replica is found, passed over, tried, and taken back."""

from __future__ import annotations

from random import Random

import pytest

from tiedreq.core import health as h
from tiedreq.core.errors import BadOption
from tiedreq.core.messages import Welcome
from tiedreq.core.picker import PICKERS, ReplicaTable, ReplicaView
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.types import UNTIED, CopyId, CopyKind, CopyState, Identity, MethodInfo

WELCOME = Welcome(4, False, 1 << 20, (MethodInfo("read", True, True, 60.0), MethodInfo("scan", True, True, 60.0)))


class Clients:
    """A table of replicas, and copies that end as a test says."""

    def __init__(self, names: str, picker: str = "adaptive") -> None:
        self.table = ReplicaTable(Random(1), picker)
        self.now = 0.0
        self.views = {name: ReplicaView(link, Identity(name, link), WELCOME) for link, name in enumerate(names)}
        for view in self.views.values():
            self.table.add(view)

    def end(
        self, name: str, seconds: float, *, state: CopyState = CopyState.DONE, method: str = "read", step: float = 0.01
    ) -> None:
        self.now += step
        view = self.views[name]
        copy = SentCopy(CopyId(1, 1, 0, UNTIED), CopyKind.FIRST, view, 1, self.now - seconds)
        copy.started_at, copy.state = self.now - seconds, state
        self.table.copy_ended(view, copy, method, seconds, self.now, final=False)

    def stop(self, name: str, seconds: float) -> None:
        self.now += 0.01
        view = self.views[name]
        copy = SentCopy(CopyId(1, 1, 0, UNTIED), CopyKind.FIRST, view, 1, self.now - seconds)
        copy.started_at = self.now - seconds
        self.table.copy_stopped(view, copy, "read", self.now)

    def all_well(self, times: int = 200) -> None:
        for _ in range(times):
            for name in self.views:
                self.end(name, 0.01)

    def one_is_slow(self, slow: str, seconds: float = 0.05, times: int = 400) -> None:
        """Copies end everywhere, at one replica late, until that is passed over or ``times`` have ended there."""
        for _ in range(times):
            for name in self.views:
                self.end(name, seconds if name == slow else 0.01)
            if self.away:
                return

    @property
    def away(self) -> set[str]:
        """Replicas that are no candidates."""
        return set(self.views) - {view.name for view in self.table.candidates("read", self.now)}


def test_slow_replica_goes_on_probation_and_ordinary_ones_stay() -> None:
    c = Clients("abcde")
    c.all_well()
    assert c.away == set()
    c.one_is_slow("a")
    assert c.away == {"a"} and c.views["a"].on_probation


def test_copies_that_were_stopped_show_a_slow_replica_too() -> None:
    """Backups win and every copy at the slow replica is stopped: it would look idle otherwise."""
    c = Clients("abcde")
    c.all_well()
    for _ in range(300):
        c.stop("a", 0.06)
    assert c.away == {"a"}


def test_a_failing_replica_is_passed_over_however_fast_it_fails() -> None:
    c = Clients("abc")
    c.all_well()
    for _ in range(300):
        c.end("a", 0.0001, state=CopyState.FAILED)
    assert c.away == {"a"}


def test_when_all_fail_none_is_singled_out() -> None:
    c = Clients("abc")
    for _ in range(100):
        for name in c.views:
            c.end(name, 0.0001, state=CopyState.FAILED)
    assert c.away == set()


def test_a_third_at_most() -> None:
    c = Clients("abcdef")
    c.all_well()
    for _ in range(300):
        for name in "abcd":
            c.end(name, 0.2)
    assert len(c.away) <= 2
    two = Clients("ab")
    two.all_well()
    for _ in range(100):
        two.end("a", 1.0)
    assert two.away == set(), "of two replicas none is spared"


def test_a_heavy_tail_is_no_slowness() -> None:
    c, rng = Clients("abcdefghij"), Random(7)
    for _ in range(20_000):
        c.end(rng.choice("abcdefghij"), 0.3 if rng.random() < 0.02 else 0.01, step=0.0005)
        assert not any(view.on_probation for view in c.views.values())


def test_methods_do_not_mix() -> None:
    """One replica happens to get all the slow method's calls."""
    c = Clients("abc")
    for _ in range(300):
        c.end("a", 1.0, method="scan")
        c.end("b", 0.01)
        c.end("c", 0.01)
    assert c.away == set()


def test_trials_are_copy_one_of_a_tie_now_and_then_and_fast_ones_end_the_probation() -> None:
    c = Clients("abcde")
    c.all_well()
    c.one_is_slow("a")
    chosen = [c.views["b"], c.views["c"]]
    c.table.try_out(chosen, "read", c.now)
    assert [view.name for view in chosen] == ["b", "a"]
    chosen = [c.views["b"], c.views["c"]]
    c.table.try_out(chosen, "read", c.now)
    assert [view.name for view in chosen] == ["b", "c"], "not again at once"
    for _ in range(12):
        c.end("a", 0.01)
    assert c.away == set()


def test_probation_ends_by_itself_and_lasts_twice_as_long_the_next_time() -> None:
    c = Clients("abcde")
    c.all_well()
    lengths = []
    for _ in range(3):
        c.one_is_slow("a")
        began = c.now
        while c.away:
            c.now += 0.5
        lengths.append(c.now - began)
    assert lengths == [pytest.approx(h.PROBATION_MIN * 2**k, abs=1.0) for k in range(3)]


def test_a_replica_that_leaves_while_on_probation_takes_its_place_along() -> None:
    c = Clients("abc")
    c.all_well()
    c.one_is_slow("a")
    c.table.remove(c.views.pop("a").link)
    c.views["d"] = ReplicaView(9, Identity("d", 9), WELCOME)
    c.table.add(c.views["d"])
    c.one_is_slow("b")
    assert c.away == {"b"}


def test_pickers_by_name() -> None:
    with pytest.raises(BadOption, match="picker: 'best' is not one of random, two-choices"):
        ReplicaTable(Random(0), "best")
    for picker in PICKERS:
        c = Clients("abcd", picker)
        c.views["a"].sent = c.views["a"].outstanding = 100
        taken = [c.table.choose(list(c.views.values()), 0.0) for _ in range(200)]
        share = sum(view is c.views["a"] for view in taken) / 200
        assert (0.15 < share < 0.35) if picker == "random" else share == 0, picker
        assert {view.name for view in taken if view is not None} >= set("bcd")


def test_only_the_adaptive_picker_judges() -> None:
    for picker in PICKERS[:3]:
        c = Clients("abcde", picker)
        c.all_well()
        for _ in range(100):
            c.end("a", 1.0)
        assert c.away == set()


def test_slowness_weighs_in_the_adaptive_choice() -> None:
    c = Clients("ab")
    for view in c.views.values():
        view.sent = 4
    for _ in range(200):
        c.views["a"].health.add(2.5, 0.0, ended=True)
    taken = [c.table.choose(list(c.views.values()), 0.0) for _ in range(50)]
    assert all(view is c.views["b"] for view in taken)


def test_executions_below_a_millisecond_are_alike() -> None:
    """What tells them apart is the noise of schedulers."""
    c = Clients("abcde")
    for _ in range(400):
        for name in c.views:
            c.end(name, 0.0009 if name == "a" else 0.0001)
    assert c.away == set()


# ---- how much a slowness weighs -----------------------------------------------------------------------------------


def test_chance_does_not_weigh() -> None:
    """Copies of one law each, however noisy that is: no replica is passed over for its luck."""
    for seed, draw in enumerate(
        (
            lambda rng: rng.expovariate(1.0),
            lambda rng: 0.3 if rng.random() < 0.02 else 0.01,
            lambda rng: rng.lognormvariate(0.0, 1.0),
        )
    ):
        c, rng = Clients("abcd"), Random(seed)
        for _ in range(6_000):
            c.end(rng.choice("abcd"), 0.01 * draw(rng), step=0.002)
            assert all(view.health.weight(c.now) == 1.0 for view in c.views.values())


def test_a_few_copies_tell_a_slow_replica_and_the_weight_is_no_more_than_the_slowness() -> None:
    health = h.Health()
    weights = []
    for k in range(40):
        health.add(3.0, 0.01 * k, ended=True)
        weights.append(health.weight(0.01 * k))
    assert weights[1] == 1.0 < weights[11]
    assert weights == sorted(weights)
    assert 2.0 < weights[-1] < health.slowness < 3.0


def test_what_is_known_fades_with_time_so_that_a_replica_is_tried_again() -> None:
    health = h.Health()
    for _ in range(200):
        health.add(2.0, 50.0, ended=True)
    weights = [health.weight(50.0 + seconds) for seconds in range(0, 61, 5)]
    assert weights[0] > 1.5
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == 1.0
    health.add(1.0, 110.0, ended=True)
    assert health.slowness < 1.5, "one copy after a minute counts as much as many before"


def test_nothing_fades_on_probation_where_copies_are_few() -> None:
    health = h.Health()
    health.begin_probation(0.0)
    for k in range(12):
        health.add(1.0, 5.0 * k, ended=True)
    assert health.ended > 11 and health.recovered()


def test_where_slow_copies_are_stopped_everywhere_no_replica_looks_slow() -> None:
    """Three copies in ten are stopped, after twice the time that the others take."""
    c, rng = Clients("abc"), Random(4)
    for _ in range(6_000):
        name = rng.choice("abc")
        if rng.random() < 0.3:
            c.stop(name, 0.02)
        else:
            c.end(name, rng.uniform(0.005, 0.015))
    assert all(0.8 < view.health.slowness < 1.25 for view in c.views.values())


def test_one_execution_moves_the_mean_of_its_method_by_a_few_percent_at_most() -> None:
    means = h.MethodMeans()
    for _ in range(300):
        means.add("read", 0.01, ended=True)
    means.add("read", 1_000.0, ended=True)
    assert 0.95 < means.relative("read", 0.01) <= 1.0
    assert means.relative("scan", 5.0) == 1.0
