"""Pauses of a live run: the same as in virtual time, and what they do to work."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.compare import simulated
from cluster.compare.cell import Cell
from cluster.compare.live_pauses import PAUSES_MAX, Pause, Stops, draw_pauses
from tiedreq.core.errors import BadOption
from tiedreq.sim.world import World
from tiedreq.slowness import PauseSchedule, PauseSpec, parse_pause

SPECS = [("200ms@1s",), ("1:100ms@500ms",), ("200ms@1s", "0:300ms@700ms", "2:10ms@50ms")]


def cell(*pauses: str, seconds: float = 20.0) -> Cell:
    specs = tuple(parse_pause(text) for text in pauses)
    return Cell(replicas=3, rate=20.0, duration=seconds, warmup=0.0, pauses=specs, policy="plain")


@pytest.mark.parametrize("pauses", SPECS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_live_replica_stops_when_it_does_in_virtual_time(
    monkeypatch: pytest.MonkeyPatch, pauses: tuple[str, ...], seed: int
) -> None:
    frozen: dict[str, list[Pause]] = {name: [] for name in ("r0", "r1", "r2")}
    freeze, begun_at = World.freeze, []
    begins = simulated.Bench.begins

    def remember(world: World, name: str, seconds: float) -> None:
        frozen[name].append(Pause(world.clock.now, world.clock.now + seconds))
        freeze(world, name, seconds)

    def remember_begin(bench: simulated.Bench, now: float, begin: float, end: float) -> None:
        begun_at.append(now)
        begins(bench, now, begin, end)

    monkeypatch.setattr(World, "freeze", remember)
    monkeypatch.setattr(simulated.Bench, "begins", remember_begin)
    simulated.run_cell(cell(*pauses), seed)
    drawn = draw_pauses(cell(*pauses), seed, 20.0)
    for index, (name, there) in enumerate(frozen.items()):
        stopped = [pause for pause in drawn[index] if pause.end < 19.0]
        covered = [Pause(pause.begin - begun_at[0], pause.end - begun_at[0]) for pause in there]
        for pause in stopped:
            assert any(abs(pause.begin - other.begin) < 1e-9 for other in covered), name
        for other in covered:
            if other.end < 19.0:
                assert any(p.begin <= other.begin + 1e-9 and other.end <= p.end + 1e-9 for p in drawn[index]), name
    assert sum(map(len, drawn)) > 10


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.5)), max_size=30),
    st.integers(0, 1000),
)
def test_work_ends_as_with_a_schedule_of_one_replica(tasks: list[tuple[float, float]], seed: int) -> None:
    spec = PauseSpec(0.2, 0.5)
    one = Cell(replicas=1, rate=1.0, duration=100.0, pauses=(spec,))
    pauses = draw_pauses(one, seed, 120.0)[0]

    class Fixed(Random):
        """The intervals between the drawn pauses, once more."""

        def __init__(self) -> None:
            super().__init__(0)
            ends = [0.0, *[pause.end for pause in pauses]]
            self.left = iter([pause.begin - end for pause, end in zip(pauses, ends, strict=False)])

        def expovariate(self, lambd: float = 1.0) -> float:
            return next(self.left)

    schedule, stops = PauseSchedule(spec, Fixed(), begin=0.0), Stops(pauses)
    begin = 0.0
    for gap, work in tasks:
        begin += gap
        assert stops.end_of(work, begin=begin) == pytest.approx(schedule.end_of(work, begin=begin), abs=1e-9)


def test_work_begun_in_a_pause_waits_and_work_that_ends_as_one_begins_has_ended() -> None:
    stops = Stops([Pause(1.0, 2.0), Pause(3.0, 4.0)])
    assert stops.end_of(0.5, begin=0.0) == 0.5
    assert stops.end_of(0.5, begin=0.5) == 1.0
    assert stops.end_of(0.6, begin=0.5) == pytest.approx(2.1)
    assert stops.end_of(0.0, begin=1.5) == 2.0
    assert stops.end_of(1.5, begin=1.5) == pytest.approx(4.5)
    assert stops.end_of(1.0, begin=9.0) == 10.0


def test_too_many_pauses_are_refused_by_name() -> None:
    with pytest.raises(BadOption, match=rf"^pause: more than {PAUSES_MAX:,} pauses in 10000 s$"):
        draw_pauses(cell("1ms@10ms"), 1, 10_000.0)
