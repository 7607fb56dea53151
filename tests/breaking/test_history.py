"""The judge can fail: each kind of broken history is noticed, and a right one passes with its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.breaking._history import Outcome, Run, judge, read_runs

pytestmark = pytest.mark.system


def answer(number: int, *, square: int | None = None, replica: str = "r0", call: str | None = None) -> Outcome:
    value = {"square": number**2 if square is None else square}
    return Outcome(number, call or f"c-{number}", value, None, replica, 0.0, 1.0, ("r0", "r1"))


def run(number: int, end: str | None = "returned", replica: str = "r0", call: str | None = None) -> Run:
    return Run(call or f"c-{number}", number, replica, 100, end)


def test_a_right_history() -> None:
    failed = Outcome(3, "c-3", None, "DeadlineExceeded", None, 0.0, 1.0, ("r0",))
    runs = [run(1), run(2), run(2, "stopped", "r1"), run(3, None), run(99)]
    verdict = judge([1, 2, 3], [answer(1), answer(2), failed], runs, killed=[100])
    assert (verdict.calls, verdict.errors) == (3, {"DeadlineExceeded": 1})
    assert (verdict.executions, verdict.doubled, verdict.completed_twice) == (4, 1, 0)
    assert judge([1], [answer(1)], [run(1), run(1, replica="r1")]).completed_twice == 1


BROKEN = {
    "a call without an outcome": ([1, 2], [answer(1)], [run(1)], "exactly one outcome"),
    "two outcomes": ([1], [answer(1), answer(1)], [run(1)], "exactly one outcome"),
    "a wrong answer": ([2], [answer(2, square=5)], [run(2)], "a wrong answer"),
    "an answer out of nothing": ([1], [answer(1)], [], "nobody gave"),
    "an answer of somebody else": ([1], [answer(1)], [run(1, replica="r1")], "nobody gave"),
    "an answer of one that was stopped": ([1], [answer(1)], [run(1, "stopped")], "nobody gave"),
    "an execution that goes on": ([1], [answer(1)], [run(1), run(1, None, "r1")], "has not ended"),
    "a copy that ran twice": ([1], [answer(1)], [run(1), run(1, "stopped")], "more executions than copies"),
    "a copy that was sent elsewhere": ([1], [answer(1)], [run(1), run(1, "stopped", "r2")], "more executions than"),
    "an execution of another call": ([1], [answer(1)], [run(1), run(1, call="d-1")], "nobody asked for"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_history(kind: str) -> None:
    sent, outcomes, runs, why = BROKEN[kind]
    with pytest.raises(AssertionError, match=why):
        judge(sent, outcomes, runs)


def test_records_are_read(tmp_path: Path) -> None:
    lines = [["c-1", 1, "r0", 100, "started"], ["c-2", 2, "r0", 100, "started"], ["c-1", 1, "r0", 100, "returned"]]
    path = tmp_path / "runs-100.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_runs(tmp_path) == [run(1), run(2, None)]
    path.write_text(json.dumps(["c-1", 1, "r0", 100, "returned"]) + "\n")
    with pytest.raises(AssertionError, match="without a start"):
        read_runs(tmp_path)
