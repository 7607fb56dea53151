"""The judge of a history: what clients were told, held against what replicas wrote down.

Every call has one outcome and, if it is an answer, the right one; somebody ran it; nobody ran what nobody asked for,
nor more often than copies were sent there; whatever started has ended, unless its process was killed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ENDS = frozenset({"returned", "stopped", "raised"})


class Run(NamedTuple):
    """One execution, as its replica wrote it down. ``end`` is None for one that its process did not outlive."""

    call_id: str
    number: int
    replica: str
    pid: int
    end: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call, as its client was told. Times are seconds on the client's clock.

    ``copies``: the replica of each copy that was sent.
    """

    number: int
    call_id: str | None
    value: Any
    error: str | None
    replica: str | None
    began: float
    ended: float
    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of a history that passed."""

    calls: int
    errors: dict[str, int]
    executions: int
    doubled: int
    completed_twice: int


def read_runs(folder: Path) -> list[Run]:
    """All executions that the replicas of ``folder`` wrote down."""
    runs: list[Run] = []
    for path in sorted(folder.glob("runs-*.jsonl")):
        open_: dict[tuple[str, int], list[tuple[str, int, str, int]]] = defaultdict(list)
        for line in path.read_text().splitlines():
            call_id, number, replica, pid, what = json.loads(line)
            if what == "started":
                open_[call_id, number].append((call_id, number, replica, pid))
            else:
                assert what in ENDS and open_[call_id, number], f"an end without a start: {line}"
                runs.append(Run(*open_[call_id, number].pop(), what))
        runs += [Run(*start, None) for starts in open_.values() for start in starts]
    return runs


def judge(
    sent: Iterable[int], outcomes: Iterable[Outcome], runs: Iterable[Run], *, killed: Iterable[int] = ()
) -> Verdict:
    """Hold the records against each other; an ``AssertionError`` says what does not fit.

    ``sent``: the numbers of all calls. ``killed``: processes that did not end by themselves. Runs of other numbers are
    passed over: other clients have asked for them.
    """
    told: dict[int, list[Outcome]] = {number: [] for number in sent}
    for outcome in outcomes:
        told[outcome.number].append(outcome)
    wrong = {number: len(found) for number, found in told.items() if len(found) != 1}
    assert not wrong, f"calls without exactly one outcome: {dict(list(wrong.items())[:5])}"
    by_call: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        if run.number in told:
            by_call[run.number].append(run)
    dead = set(killed)
    errors: dict[str, int] = defaultdict(int)
    for number, (outcome,) in told.items():
        ran = by_call[number]
        if outcome.error is not None:
            errors[outcome.error] += 1
        else:
            _judge_answer(outcome, ran)
        for run in ran:
            assert outcome.call_id in (None, run.call_id), f"an execution that nobody asked for: {run}"
            assert run.end is not None or run.pid in dead, f"an execution that has not ended: {run}"
        more = Counter(run.replica for run in ran) - Counter(outcome.copies)
        assert not more, f"more executions than copies: {dict(more)}, {outcome}, {ran}"
    return Verdict(
        len(told),
        dict(errors),
        sum(map(len, by_call.values())),
        sum(len(ran) > 1 for ran in by_call.values()),
        sum(sum(run.end == "returned" for run in ran) > 1 for ran in by_call.values()),
    )


def _judge_answer(outcome: Outcome, ran: list[Run]) -> None:
    assert outcome.value["square"] == outcome.number**2, f"a wrong answer: {outcome}"
    answered = [run for run in ran if run.end == "returned" and run.replica == outcome.replica]
    assert answered, f"an answer that nobody gave: {outcome}, {ran}"
