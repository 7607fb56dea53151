from __future__ import annotations

from heapq import heappush
from random import Random

import pytest

from tiedreq.sim import clock as clock_module
from tiedreq.sim.clock import NEVER, Clock, SimulationError


class Log(list[object]):
    def note(self, first: object = None, second: object = None) -> None:
        self.append(first)


def test_order_of_time_and_of_asking() -> None:
    clock, log = Clock(), Log()
    for when, what in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")]:
        clock.at(when, log.note, what)
    clock.run()
    assert log == ["a", "b", "c", "d"]
    assert clock.now == 2.0


def test_run_until_includes_the_instant_and_moves_time() -> None:
    clock, log = Clock(), Log()
    clock.at(1.0, log.note, "a")
    clock.at(1.5, log.note, "b")
    clock.run(1.0)
    assert log == ["a"] and clock.now == 1.0 and clock.next_at == 1.5
    clock.run(1.25)
    assert log == ["a"] and clock.now == 1.25
    clock.run(9.0)
    assert log == ["a", "b"] and clock.now == 9.0 and clock.next_at == NEVER


def test_the_past_is_now() -> None:
    clock, log = Clock(), Log()
    clock.run(5.0)
    clock.at(1.0, log.note, "late")
    assert clock.next_at == 5.0
    clock.settle()
    assert log == ["late"] and clock.now == 5.0


def test_the_end_of_an_instant_comes_after_all_that_is_due_at_it() -> None:
    clock, log = Clock(), Log()

    def arrive(what: object, _: object) -> None:
        log.append(what)
        clock.ending.append(lambda: log.append(f"end of {what}"))

    clock.at(1.0, arrive, "a")
    clock.at(1.0, arrive, "b")
    clock.at(2.0, log.note, "later")
    clock.run()
    assert log == ["a", "b", "end of a", "end of b", "later"]


def test_what_one_end_causes_at_its_instant_comes_before_the_next_end() -> None:
    clock, log = Clock(), Log()

    def first_end() -> None:
        log.append("first end")
        clock.at(clock.now, log.note, "caused")

    clock.at(1.0, lambda _, __: clock.ending.extend([first_end, lambda: log.append("second end")]))
    clock.run()
    assert log == ["first end", "caused", "second end"]


def test_stop_ends_run_and_time_stays() -> None:
    clock, log = Clock(), Log()
    clock.at(1.0, lambda _, __: clock.stop())
    clock.at(2.0, log.note, "later")
    clock.run(9.0)
    assert clock.now == 1.0 and not log
    clock.run(9.0)
    assert log == ["later"] and clock.now == 9.0


def test_forget_takes_out_and_keeps_the_order() -> None:
    clock, log = Clock(), Log()
    for number in range(100):
        clock.at(float(number % 10), log.note, number)
    clock.forget(lambda entry: entry[3] % 3 != 0)
    assert len(clock) == 34
    clock.run()
    assert log == sorted(log, key=lambda number: (number % 10, number))


def test_time_that_stands_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "INSTANT_MAX", 100)
    clock = Clock()

    def again(_: object, __: object) -> None:
        clock.at(clock.now, again)

    clock.at(1.0, again)
    with pytest.raises(SimulationError, match="time stands still"):
        clock.run()


def everything(clock: Clock, log: Log, seed: int) -> None:
    """Three delays, one of them of no lane, and what is due at once: each thing that happens asks for more."""
    rng = Random(seed)

    def happen(what: object, left: int) -> None:
        log.append((clock.now, what))
        for _ in range(rng.randrange(3) if left else 0):
            delay = rng.choice((0.0, 0.25, 0.5, 0.75, 1.0))
            lane = clock.lane(delay) if delay else None
            number = clock.number()
            entry = clock.now + delay, number, happen, number, left - 1
            if lane is not None:
                lane.append(entry)
            elif delay:
                heappush(clock.entries, entry)
            else:
                clock.soon.append(entry)

    for start in range(8):
        clock.at(float(start), happen, -start, 6)


@pytest.mark.parametrize("lanes", [0, 1, 2])
def test_lanes_change_nothing(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is as on one heap: in the order of time, and at one instant in the order of asking."""
    for seed in range(20):
        logs = []
        for most in (0, lanes):
            monkeypatch.setattr(clock_module, "LANES_MAX", most)
            clock, log = Clock(), Log()
            everything(clock, log, seed)
            clock.run(3.0)
            waiting = [entry[:2] for entry in sorted(clock.due(), key=lambda entry: entry[:2])]
            assert len(clock) == len(waiting) and clock.next_at == (waiting[0][0] if waiting else NEVER)
            clock.run()
            logs.append((waiting, log))
        assert logs[0] == logs[1]
        assert [when for when, _ in log] == sorted(when for when, _ in log)


def test_forget_looks_into_lanes_too() -> None:
    clock, log = Clock(), Log()
    lane = clock.lane(1.0)
    assert lane is not None and clock.lane(1.0) is lane
    for number in range(10):
        lane.append((1.0, clock.number(), log.note, number, None))
    clock.forget(lambda entry: entry[3] % 2 == 0)
    clock.run()
    assert log == [1, 3, 5, 7, 9]
