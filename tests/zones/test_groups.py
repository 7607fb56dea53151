"""Groups of a large mesh: made of names alone, about as large as said, halved when there are twice as many."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests._effort import lines_run
from tiedreq.core.groups import SIZE_MIN, bits, group_of, place
from tiedreq.core.messages import Welcome
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.types import Identity, MethodInfo

METHOD = MethodInfo("work", True, True, 60.0)


def test_the_numbers_of_names_stay_what_they_are() -> None:
    """Other processes, perhaps of another version, must find the same groups."""
    assert [place(name) for name in ("", "a", "r0", "r1", "réplica")] == [
        2872998923,
        444641715,
        2207339785,
        1842209694,
        2161106664,
    ]


def test_small_meshes_are_one_group() -> None:
    assert {bits(count) for count in range(2 * SIZE_MIN)} == {0}
    assert [bits(SIZE_MIN << power) for power in range(7)] == list(range(7))


def test_groups_of_a_thousand_have_about_the_size_that_they_should() -> None:
    for names in ([f"r{index}" for index in range(1000)], [f"web-{index:04}.rack{index % 7}" for index in range(1000)]):
        sizes = Counter(group_of(name, 1000) for name in names)
        assert len(sizes) == 32
        assert 12 <= min(sizes.values()) <= max(sizes.values()) <= 64


@given(st.text(max_size=20), st.integers(1, 1 << 20))
def test_twice_as_many_replicas_halve_a_group(name: str, replicas: int) -> None:
    assert 0 <= group_of(name, replicas) < 1 << bits(replicas)
    if replicas >= SIZE_MIN:
        assert group_of(name, 2 * replicas) >> 1 == group_of(name, replicas)


def test_the_copies_of_a_tie_stay_in_a_group_as_long_as_that_has_replicas_for_them() -> None:
    table = ReplicaTable(Random(3), "adaptive")
    for link in range(200):
        table.add(ReplicaView(link, Identity(f"r{link}", link), Welcome(8, False, 1 << 20, (METHOD,))))
    pairs = [chosen(table, 2) for _ in range(500)]
    assert all(group_of(first, 200) == group_of(second, 200) for first, second in pairs)
    assert len({name for pair in pairs for name in pair}) > 150
    everybody = chosen(table, 200)
    group = [name for name in everybody if group_of(name, 200) == group_of(everybody[0], 200)]
    assert everybody[: len(group)] == group, "the others come when the group is spent"
    assert len(everybody) == 200


def chosen(table: ReplicaTable, width: int) -> list[str]:
    views: list[ReplicaView] = []
    table.choose_more(views, width, "work", 0.0)
    return [view.name for view in views]


def a_third_on_probation(count: int) -> ReplicaTable:
    table = ReplicaTable(Random(3), "adaptive")
    for link in range(count):
        table.add(ReplicaView(link, Identity(f"r{link}", link), Welcome(8, False, 1 << 20, (METHOD,))))
    for view in table.views()[: count // 3]:
        table.put_on_probation(view, 0.0)
    return table


def test_a_trial_stays_in_the_group_too() -> None:
    """Or every replica on probation would have the links of all groups."""
    table = a_third_on_probation(200)
    tried: set[str] = set()
    for step in range(2000):
        views: list[ReplicaView] = []
        table.choose_more(views, 2, "work", step / 1000)
        table.try_out(views, "work", step / 1000)
        assert group_of(views[0].name, 200) == group_of(views[1].name, 200)
        tried.update(view.name for view in views if view.on_probation)
    assert len(tried) == 66


def test_replicas_on_probation_cost_a_choice_nothing() -> None:
    def spent(count: int) -> int:
        table = a_third_on_probation(count)
        for view in table.views():
            view.health.trial_at = 0.5

        def often() -> None:
            for _ in range(100):
                views: list[ReplicaView] = []
                table.choose_more(views, 2, "work", 0.1)
                table.try_out(views, "work", 0.1)

        chosen(table, 2)  # who serves the method is found out once
        table.try_out(table.views()[-2:], "work", 0.1)
        return lines_run(often)

    assert spent(1000) < 1.2 * spent(100)
