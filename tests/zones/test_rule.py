"""Which replicas a client takes where replicas stand in zones, and how it chooses among many."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiedreq.core import picker
from tiedreq.core.messages import Welcome
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.types import Identity, Load, MethodInfo
from tiedreq.core.zones import BEARABLE

NOW, MEAN = 50.0, 0.010
METHOD = MethodInfo("work", True, True, 60.0)
LATENCY = {"aa": 0.0005, "bb": 0.0005, "cc": 0.0005, "ab": 0.005, "ac": 0.060, "bc": 0.060}
"""One way, between zones and from a client to replicas."""


def latency(first: str, second: str) -> float:
    return LATENCY["".join(sorted((first, second)))]


class City:
    """Replicas a0, a1 … b0 … c0 …, all measured, seen by a client in ``zone``."""

    def __init__(self, zone: str = "a", *, each: int = 4, slots: int = 8, zones: str = "abc", seed: int = 1) -> None:
        self.table = ReplicaTable(Random(seed), "adaptive", zone)
        self.views: dict[str, ReplicaView] = {}
        names = [f"{place}{index}" for place in zones for index in range(each)]
        for link, name in enumerate(names):
            view = ReplicaView(link, Identity(name, link), Welcome(slots, False, 1 << 20, (METHOD,), name[0]))
            view.round_trip = 2 * latency(zone or "a", name[0])
            view.notice_latencies = {other: latency(name[0], other[0]) for other in names if other != name}
            self.views[name] = view
            self.table.add(view)

    def busy(self, names: str, copies: int) -> None:
        """Let all replicas of these zones have so many copies, waiting or running."""
        for name, view in self.views.items():
            if name[0] in names:
                queued = max(0, copies - view.slots)
                view.take_load(Load(queued, max(0, view.slots - copies), 0, 0.0), NOW)

    def tie(self, width: int = 2, mean: float | None = MEAN, exclude: tuple[str, ...] = ()) -> str:
        """The zones of a tie's replicas, in order of rank."""
        chosen: list[ReplicaView] = []
        self.table.choose_more(chosen, width, "work", NOW, mean, exclude)
        assert len({view.name for view in chosen}) == len(chosen)
        return "".join(view.zone for view in chosen)

    def ties(self, width: int = 2, mean: float | None = MEAN) -> set[str]:
        return {self.tie(width, mean) for _ in range(100)}

    def backup(self, *held: str) -> str | None:
        view = self.table.choose_backup("work", NOW, MEAN, held, [self.views[name] for name in held])
        return None if view is None else view.name


# ---- the first copy -------------------------------------------------------------------------------------------


def test_the_first_copy_stays_in_the_clients_zone_while_a_slot_is_free_there() -> None:
    city = City("b")
    city.busy("b", 7)
    assert city.ties(1) == {"b"}
    assert City("c").ties(1) == {"c"}


def test_a_queue_is_left_for_another_zone_when_it_costs_more_than_the_way_there() -> None:
    """A round trip of 10 ms to b instead of 1 ms: with 8 slots and 10 ms of work, worth 7.2 places in the queue."""
    city = City("a")
    city.busy("a", 7 + 7)
    assert city.ties(1) == {"a"}
    city.busy("a", 7 + 8)
    assert city.ties(1) == {"b"}
    city.busy("ab", 7 + 90)
    assert city.ties(1) <= {"a", "b"}
    city.busy("ab", 7 + 110)
    assert city.ties(1) == {"c"}


def test_a_client_that_names_no_zone_or_one_without_replicas_finds_all() -> None:
    assert City("").ties(1) == {"a", "b", "c"}
    city = City("a", zones="bc")
    assert city.ties(1) == {"b"}, "the nearest"


def test_a_zone_that_only_has_replicas_which_drain_or_are_suspected_is_left() -> None:
    city = City("a", each=2)
    city.views["a0"].draining = True
    city.table.suspect("a1", NOW)
    assert city.ties(1) == {"b"}
    for view in city.views.values():
        if view.zone != "a":
            view.draining = True
    assert city.tie() == "a", "the suspected one is better than none"


# ---- partners -------------------------------------------------------------------------------------------------


def test_a_partner_is_in_the_nearest_other_zone_that_is_near_enough() -> None:
    assert City("a").ties() == {"ab"}
    assert City("b").ties() == {"ba"}
    assert City("c").ties() == {"cc"}, "60 ms are more than what 10 ms of work can bear"
    assert City("c").ties(mean=0.060 / BEARABLE) == {"ca", "cb"}, "as near as each other"
    assert City("a").ties(mean=0.004) == {"aa"}
    assert City("a").ties(mean=None) == {"ab"}


def test_more_copies_are_in_more_zones_first() -> None:
    assert City("a").ties(3, mean=0.1) == {"abc"}
    assert City("a").ties(4, mean=0.1) <= {"abca", "abcb", "abcc"}
    assert City("a", zones="ab").ties(3) <= {"aba", "abb"}


def test_a_partner_is_found_whatever_is_left() -> None:
    assert City("c", each=1).ties() == {"ca", "cb"}, "no other replica in its own zone: far is better than none"
    assert City("a", each=1, zones="a").tie() == "a"


def test_zones_as_near_as_each_other_but_for_noise_share_the_partners() -> None:
    city = City("a", each=4)
    for name, view in city.views.items():
        view.notice_latencies = {other: 0.002 + 0.0001 * (other[0] == "c") for other in city.views if other != name}
    taken = Counter(city.tie() for _ in range(400))
    assert set(taken) == {"ab", "ac"}
    assert min(taken.values()) > 100


def test_without_zones_the_choice_is_the_pickers_alone() -> None:
    """The very same random draws as by hand, so that nothing changes for a cluster in one place."""
    city = City("", zones="a", each=9, seed=5)
    by_hand = ReplicaTable(Random(5), "adaptive")
    views = list(city.views.values())
    for _ in range(50):
        chosen: list[ReplicaView] = []
        city.table.choose_more(chosen, 2, "work", NOW, MEAN)
        first = by_hand.choose(views, NOW)
        assert chosen == [first, by_hand.choose([view for view in views if view is not first], NOW)]


# ---- backups --------------------------------------------------------------------------------------------------


def test_a_backup_goes_where_a_partner_of_the_copy_that_is_out_would() -> None:
    assert {City("a", seed=seed).backup("a0") for seed in range(20)} == {"b0", "b1", "b2", "b3"}
    assert {City("c", seed=seed).backup("c0") for seed in range(20)} == {"c1", "c2", "c3"}


def test_two_copies_of_one_zone_that_do_not_answer_make_the_backup_leave_it_however_far() -> None:
    city = City("c")
    assert {str(city.backup("c0", "c1"))[0] for _ in range(20)} <= {"a", "b"}
    for name, view in city.views.items():
        view.pushback_until = NOW + 1.0 if name[0] != "c" else 0.0
    assert city.backup("c0", "c1") in {"c2", "c3"}, "where nobody else wants one"
    for view in city.views.values():
        view.pushback_until = NOW + 1.0
    assert city.backup("c0") is None


# ---- many replicas --------------------------------------------------------------------------------------------


class Counting(ReplicaTable):
    """Counts how often all replicas are looked through."""

    looks = 0

    def candidates(self, *arguments: object, **options: object) -> list[ReplicaView]:
        self.looks += 1
        return super().candidates(*arguments, **options)  # type: ignore[arg-type]


def crowd(count: int, zones: str = "") -> Counting:
    table = Counting(Random(2), "adaptive", zones[:1])
    for link in range(count):
        zone = zones[link % len(zones)] if zones else ""
        table.add(ReplicaView(link, Identity(f"r{link}", link), Welcome(8, False, 1 << 20, (METHOD,), zone)))
    return table


@pytest.mark.parametrize("zones", ["", "abc"])
def test_of_many_replicas_two_are_drawn_and_not_all_looked_through(zones: str) -> None:
    table = crowd(640, zones)
    for view in table.views()[::3]:
        view.draining = True
    taken: Counter[str] = Counter()
    for _ in range(3_000):
        chosen: list[ReplicaView] = []
        table.choose_more(chosen, 2, "work", NOW, MEAN, exclude=("r1",))
        taken.update(view.name for view in chosen)
        assert len({view.name for view in chosen}) == 2
        assert not any(view.draining for view in chosen)
    assert table.looks == 0
    assert "r1" not in taken
    if not zones:
        assert len(taken) == len([view for view in table.views() if not view.draining]) - 1


def test_of_many_the_less_loaded_of_two_is_taken() -> None:
    table = crowd(128)
    for view in table.views()[::2]:
        view.sent = 5
    chosen = Counter(next(iter(one_choice(table))).sent for _ in range(2_000))
    assert 0.20 < chosen[5] / 2_000 < 0.30, "a quarter of all pairs are both loaded"


def one_choice(table: ReplicaTable) -> list[ReplicaView]:
    chosen: list[ReplicaView] = []
    table.choose_more(chosen, 1, "work", NOW)
    return chosen


def test_the_last_of_many_is_found_when_all_others_may_not_have_the_copy() -> None:
    table = crowd(192)
    for view in table.views()[:-1]:
        view.draining = True
    assert [view.name for view in one_choice(table)] == ["r191"]
    table.views()[-1].draining = True
    assert one_choice(table) == []


@given(st.integers(0, 40), st.integers(0, 2**16), st.sets(st.integers(0, 39)), st.sampled_from(["", "a", "b", "z"]))
def test_how_many_are_many_changes_nothing_in_who_may_be_chosen(
    count: int, seed: int, away: set[int], own: str
) -> None:
    """Draining, suspected and excluded replicas are passed over by both ways of choosing, and the rest is found."""
    found = []
    for many in (0, 1_000):
        table = ReplicaTable(Random(seed), "two-choices", own)
        for link in range(count):
            view = ReplicaView(link, Identity(f"r{link}", link), Welcome(2, False, 1, (METHOD,), "ab"[link % 2]))
            view.draining = link in away and link % 3 == 0
            table.add(view)
            if link in away and link % 3 == 1:
                table.suspect(view.name, NOW)
        before, picker.MANY = picker.MANY, many
        try:
            chosen: list[ReplicaView] = []
            table.choose_more(chosen, count + 1, "work", NOW, MEAN, {f"r{link}" for link in away if link % 3 == 2})
        finally:
            picker.MANY = before
        found.append(sorted(view.link for view in chosen))
        clean = [view for view in chosen if view.link not in away]
        assert chosen[: len(clean)] == clean, "those under suspicion come last"
    assert found[0] == found[1] == [link for link in range(count) if link not in away or link % 3 == 1]
