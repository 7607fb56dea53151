"""The picker and the stagger: against a model that reads like the formulas, and by what must always hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from tiedreq.core.health import Health
from tiedreq.core.messages import Welcome
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.stagger import MARGIN_MIN, STAGGER_MAX, notice_latency, stagger_times
from tiedreq.core.types import Identity, Load, MethodInfo

NOW = 100.0
ROUNDING = 1e-9
counts = st.integers(0, 8)
latencies = st.floats(0.0, 0.05)


@dataclass
class Known:
    """What a client knows of a replica, as plain values."""

    name: str
    link: int
    sent: int
    slots: int
    draining: bool
    serves: bool
    suspected: bool
    report: Load | None
    age: float
    round_trip: float | None = None
    deviation: float | None = None
    notices: dict[str, float] = field(default_factory=dict)

    def view(self) -> ReplicaView:
        method = MethodInfo("read" if self.serves else "other", True, True, 60.0)
        made = ReplicaView(self.link, Identity(self.name, self.link), Welcome(self.slots, self.draining, 1, (method,)))
        made.sent = self.sent
        if self.report is not None:
            made.take_load(self.report, NOW - self.age)
        made.suspected_until = NOW + 1.0 if self.suspected else 0.0
        made.round_trip, made.round_trip_deviation = self.round_trip, self.deviation
        made.notice_latencies = self.notices
        return made

    def load(self) -> float:
        """(queued + running) x (1 - age, not below 0) + what was sent and is not in the report."""
        if self.report is None:
            return self.sent
        aged = (self.report.queued + self.slots - self.report.free) * max(0.0, 1.0 - self.age)
        return aged + max(0, self.sent - self.report.received)


@st.composite
def reports(draw: st.DrawFn) -> Load:
    return Load(draw(counts), draw(counts), draw(counts), draw(st.sampled_from([0.0, 1.0])))


@st.composite
def replicas(draw: st.DrawFn, *, names: str = "abcd") -> list[Known]:
    found = draw(st.lists(st.sampled_from(names), min_size=1, max_size=6))
    return [
        Known(
            name=name,
            link=link,
            sent=draw(counts),
            slots=8,
            draining=draw(st.integers(0, 4)) == 0,
            serves=draw(st.integers(0, 4)) > 0,
            suspected=draw(st.integers(0, 3)) == 0,
            report=draw(st.none() | reports()),
            age=draw(st.floats(0.0, 3.0)),
        )
        for link, name in enumerate(found)
    ]


def newest(known: list[Known]) -> list[Known]:
    """The last link of each name, in the order in which the names first came."""
    last = {each.name: each for each in known}
    return list(last.values())


# ---- the picker -----------------------------------------------------------------------------------------------


@given(replicas(), st.sets(st.sampled_from("abcd"), max_size=3))
def test_candidates(known: list[Known], excluded: set[str]) -> None:
    table = ReplicaTable(Random(0))
    for each in known:
        table.add(each.view())
    able = [each for each in newest(known) if each.serves and not each.draining and each.name not in excluded]
    trusted = [each for each in able if not each.suspected]
    assert [view.link for view in table.candidates("read", NOW, excluded)] == [each.link for each in trusted or able]


@given(replicas())
def test_load(known: list[Known]) -> None:
    for each in known:
        view = each.view()
        assert abs(view.load(NOW) - each.load()) < ROUNDING
        assert view.load(NOW) >= view.unreported()


@given(replicas(names="abcdefgh"), st.integers(0, 1000))
def test_choice_is_the_less_loaded_of_the_two_that_were_drawn(known: list[Known], seed: int) -> None:
    views = [each.view() for each in newest(known)]
    assume(len(views) > 1)
    chosen = ReplicaTable(Random(seed)).choose(views, NOW)
    first, second = Random(seed).sample(views, 2)
    assert chosen is (second if second.load(NOW) < first.load(NOW) else first)


@given(replicas(names="abcdefgh"), st.lists(st.floats(0.5, 9.0), min_size=6, max_size=6), st.integers(0, 1000))
def test_the_adaptive_choice_multiplies_load_by_slowness(known: list[Known], slowness: list[float], seed: int) -> None:
    views = [each.view() for each in newest(known)]
    assume(len(views) > 1)
    for view, relative in zip(views, slowness, strict=False):
        for _ in range(50):
            view.health.add(relative, NOW - 2.0, ended=True)
    cost = {view.link: (view.load(NOW) + 1) * view.health.weight(NOW) for view in views}
    chosen = ReplicaTable(Random(seed), "adaptive").choose(views, NOW)
    first, second = Random(seed).sample(views, 2)
    assert chosen is (second if cost[second.link] < cost[first.link] else first)


copies = st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans(), st.floats(0.0, 2.0)), min_size=1, max_size=60)


@given(copies, st.floats(0.0, 100.0))
def test_a_slowness_never_weighs_more_than_it_is_and_less_as_time_passes(
    taken: list[tuple[float, bool, float]], later: float
) -> None:
    health, now = Health(), 0.0
    for relative, ended, step in taken:
        now += step
        health.add(relative, now, ended=ended)
    weights = [health.weight(now + part * later) for part in (0.0, 0.5, 1.0)]
    assert weights == sorted(weights, reverse=True)
    assert 1.0 <= weights[0] <= max(1.0, health.slowness)
    assert health.weight(now + 1_000.0) == 1.0


@given(replicas(), st.randoms(use_true_random=False))
def test_links_that_go_leave_the_newest_of_the_rest(known: list[Known], rng: Random) -> None:
    table = ReplicaTable(Random(0))
    for each in known:
        table.add(each.view())
    left = list(known)
    while left:
        gone = rng.choice(left)
        left.remove(gone)
        table.remove(gone.link)
        assert sorted(view.link for view in table.views()) == sorted(each.link for each in newest(left))
        assert len(table) == len(newest(left))


# ---- the stagger ----------------------------------------------------------------------------------------------


@st.composite
def rows(draw: st.DrawFn) -> list[ReplicaView]:
    """Two to five replicas in order of rank, some measured, some busy."""
    names = "abcde"[: draw(st.integers(2, 5))]
    return [
        Known(
            name=name,
            link=link,
            sent=0,
            slots=4,
            draining=False,
            serves=True,
            suspected=False,
            report=draw(st.none() | st.just(Load(3, 0, 0, 0.0)) | st.just(Load(0, 2, 0, 0.0))),
            age=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
            round_trip=draw(st.none() | latencies),
            deviation=draw(st.none() | st.floats(0.0, 0.01)),
            notices={other: draw(latencies) for other in names if other != name and draw(st.booleans())},
        ).view()
        for link, name in enumerate(names)
    ]


@given(rows())
def test_stagger_begins_at_0_grows_with_the_rank_and_is_bounded(views: list[ReplicaView]) -> None:
    times = stagger_times(views, NOW)
    assert len(times) == len(views)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] <= STAGGER_MAX


@given(rows())
def test_no_copy_arrives_before_the_notice_of_an_idle_replica(views: list[ReplicaView]) -> None:
    times = stagger_times(views, NOW)
    for k, target in enumerate(views):
        for j, source in enumerate(views[:k]):
            if source.busy(NOW) or times[k] == STAGGER_MAX:
                continue
            half = [(0.001 if view.round_trip is None else view.round_trip) / 2 for view in (source, target)]
            told = times[j] + half[0] + notice_latency(source, target)
            assert times[k] + half[1] >= told + MARGIN_MIN - ROUNDING


@given(rows())
def test_nobody_waits_for_replicas_that_are_all_busy(views: list[ReplicaView]) -> None:
    for view in views:
        view.take_load(Load(1, 0, 0, 0.0), NOW)
    assert stagger_times(views, NOW) == [0.0] * len(views)


@given(rows(), st.floats(0.0, 0.05))
def test_a_slower_notice_never_shortens_it(views: list[ReplicaView], more: float) -> None:
    before = stagger_times(views, NOW)
    for view in views:
        view.notice_latencies = {name: latency + more for name, latency in view.notice_latencies.items()}
    after = stagger_times(views, NOW)
    assert all(late >= early for early, late in zip(before, after, strict=True))


@given(rows())
def test_a_row_that_is_cut_short_has_the_same_times(views: list[ReplicaView]) -> None:
    assert stagger_times(views[:-1], NOW) == stagger_times(views, NOW)[:-1]
