"""Design 6.1: what a client knows of a replica, and which it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tiedreq.core.messages import Welcome
from tiedreq.core.picker import REPORT_LIFE, SUSPICION_SECONDS, ReplicaTable, ReplicaView
from tiedreq.core.types import Identity, ItemT, Load, MethodInfo

NOW = 50.0


def view(link: int, name: str, *, slots: int = 4, draining: bool = False, **methods: MethodInfo) -> ReplicaView:
    rows = tuple(methods.values()) or (MethodInfo("read", True, True, 60.0),)
    return ReplicaView(link, Identity(name, link), Welcome(slots, draining, 1 << 20, rows))


class Drawn:
    """A random source that draws the items at given places."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def random(self) -> float:
        return 0.0

    def sample(self, population: Sequence[ItemT], k: int) -> list[ItemT]:
        assert k == len(self.places) == 2
        return [population[place] for place in self.places]


def table(*views: ReplicaView, drawn: Drawn | None = None) -> ReplicaTable:
    made = ReplicaTable(drawn if drawn is not None else Random(0))
    for each in views:
        made.add(each)
    return made


# ---- load -----------------------------------------------------------------------------------------------------


def test_load_is_queue_and_running_aged_plus_own_outstanding() -> None:
    a = view(1, "a", slots=4)
    a.sent = 5
    a.take_load(Load(queued=6, free=1, received=3, pushback=0.0), NOW)
    assert a.load(NOW) == 6 + 3 + 2
    assert a.load(NOW + REPORT_LIFE / 2) == (6 + 3) / 2 + 2
    assert a.load(NOW + REPORT_LIFE) == a.load(NOW + 100.0) == 2


def test_nothing_known_and_idle_count_alike() -> None:
    unknown, idle = view(1, "a"), view(2, "b")
    idle.take_load(Load(0, 4, 0, 0.0), NOW)
    assert unknown.load(NOW) == idle.load(NOW) == 0.0


def test_reports_that_come_in_another_order_do_not_count_a_copy_twice() -> None:
    a = view(1, "a")
    a.sent = 3
    a.take_load(Load(0, 4, 3, 0.0), NOW)
    a.take_load(Load(0, 4, 1, 0.0), NOW)
    assert a.unreported() == 0
    a.sent = 1
    assert a.unreported() == 0, "a copy that was taken back is no debt"


def test_busy_means_a_fresh_report_of_a_queue_and_no_free_slot() -> None:
    a = view(1, "a")
    assert not a.busy(NOW)
    for queued, free, expected in ((1, 0, True), (0, 0, False), (1, 1, False)):
        a.take_load(Load(queued, free, 0, 0.0), NOW)
        assert a.busy(NOW) is expected
    a.take_load(Load(1, 0, 0, 0.0), NOW)
    assert not a.busy(NOW + REPORT_LIFE)


def test_push_back_is_the_longest_that_was_asked_for() -> None:
    a = view(1, "a")
    a.take_load(Load(0, 4, 0, 2.0), NOW)
    a.take_load(Load(0, 4, 0, 0.5), NOW + 0.1)
    a.take_load(Load(0, 4, 0, 0.0), NOW + 0.2)
    assert a.pushback_until == NOW + 2.0


# ---- choice ---------------------------------------------------------------------------------------------------


def test_the_less_loaded_of_two_and_a_draw_to_the_first() -> None:
    views = [view(1, "a"), view(2, "b"), view(3, "c")]
    views[0].sent = 2
    views[1].sent = 1
    for places, chosen in (((0, 1), 1), ((1, 0), 1), ((0, 2), 2), ((2, 0), 2)):
        assert table(*views, drawn=Drawn(*places)).choose(views, NOW) is views[chosen]
    views[2].sent = 1
    assert table(*views, drawn=Drawn(2, 1)).choose(views, NOW) is views[2]
    assert table(*views, drawn=Drawn(1, 2)).choose(views, NOW) is views[1]


def test_of_none_none_and_of_one_that_one_without_a_draw() -> None:
    a = view(1, "a")
    assert table(a, drawn=Drawn()).choose([], NOW) is None
    assert table(a, drawn=Drawn()).choose([a], NOW) is a


def test_candidates_serve_the_method_take_work_and_are_not_excluded() -> None:
    other = view(2, "b", write=MethodInfo("write", True, True, 60.0))
    views = [view(1, "a"), other, view(3, "c", draining=True), view(4, "d"), view(5, "e")]
    made = table(*views)
    assert [each.name for each in made.candidates("read", NOW)] == ["a", "d", "e"]
    assert [each.name for each in made.candidates("read", NOW, exclude=["d", "x"])] == ["a", "e"]
    assert [each.name for each in made.candidates("write", NOW)] == ["b"]


def test_a_suspected_replica_is_passed_over_unless_there_is_no_other() -> None:
    made = table(view(1, "a"), view(2, "b"))
    made.suspect("a", NOW)
    made.suspect("nobody", NOW)
    assert [each.name for each in made.candidates("read", NOW)] == ["b"]
    assert [each.name for each in made.candidates("read", NOW, exclude=["b"])] == ["a"]
    assert len(made.candidates("read", NOW + SUSPICION_SECONDS)) == 2


def test_a_suspicion_ends_when_the_replica_is_heard_of() -> None:
    a = view(1, "a")
    made = table(a, view(2, "b"))
    made.suspect("a", NOW)
    a.take_load(Load(0, 4, 0, 0.0), NOW)
    assert len(made.candidates("read", NOW)) == 2


# ---- the table ------------------------------------------------------------------------------------------------


def test_b19_two_links_to_one_replica_never_count_as_two_and_the_newest_is_offered() -> None:
    made = table(view(1, "a"), view(2, "a"), view(3, "b"))
    assert [each.link for each in made.views()] == [2, 3]
    assert len(made) == 2


@pytest.mark.parametrize(("lost", "left"), [(2, [1, 3]), (1, [2, 3]), (3, [2]), (9, [2, 3])])
def test_when_a_link_goes_another_to_the_same_replica_takes_its_place(lost: int, left: list[int]) -> None:
    made = table(view(1, "a"), view(2, "a"), view(3, "b"))
    made.remove(lost)
    assert sorted(each.link for each in made.views()) == left
    assert made.get(lost) is None


def test_with_three_links_the_newest_that_is_left() -> None:
    made = table(view(1, "a"), view(2, "a"), view(3, "a"))
    made.remove(3)
    assert [each.link for each in made.views()] == [2]


def test_what_is_known_belongs_to_the_connection() -> None:
    made = table(view(1, "a", draining=True))
    made.add(view(2, "a"))
    assert [each.link for each in made.candidates("read", NOW)] == [2]


def test_a_method_is_what_all_that_serve_it_agree_on() -> None:
    made = table(
        view(1, "a", read=MethodInfo("read", True, True, 60.0)),
        view(2, "b", read=MethodInfo("read", False, True, 30.0)),
        view(3, "c", read=MethodInfo("read", True, False, 90.0), write=MethodInfo("write", True, True, 1.0)),
    )
    assert made.method("read") == MethodInfo("read", False, False, 30.0)
    assert made.method("write") == MethodInfo("write", True, True, 1.0)
    assert made.method("nothing") is None
