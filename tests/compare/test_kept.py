"""Finished runs are kept: what comes back is what was kept, and a comparison that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.compare import kept as kept_module
from cluster.compare.cell import Cell
from cluster.compare.grid import Task
from cluster.compare.kept import Kept, tally_as_json, tally_from_json
from cluster.compare.promises import __main__ as program
from cluster.compare.runner import run_task, run_tasks
from cluster.compare.tally import Tally
from tiedreq.core.errors import BadOption
from tiedreq.laws import Exponential

CELL = Cell(policy="tied", replicas=2, slots=2, service=Exponential(0.01), rate=200.0, duration=1.0, warmup=0.1)
TASK = Task(CELL, 1)
SMALL = "harm --scenarios long-tail --loads 0.3 --latencies 1ms --rivals hedged --seeds 2 --scale 0.01 --jobs 1".split()


def short(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
    """Run these tasks for a second of virtual time each, whatever they say."""
    for task in tasks:
        ((_, tally),) = run_tasks([Task(task.cell.but(duration=1.0, warmup=0.1), task.seed)], jobs)
        yield task, tally


def test_a_tally_comes_back_as_it_was() -> None:
    tally = run_task(TASK)
    tally.notes.append("a note")
    again = tally_from_json(json.loads(json.dumps(tally_as_json(tally))))
    assert tally_as_json(again) == tally_as_json(tally) and again.queue == tally.queue
    for percent in (0.0, 50.0, 99.9, 100.0):
        assert again.latency.percentile(percent) == tally.latency.percentile(percent)
    again.merge(tally)
    assert again.calls == 2 * tally.calls and again.latency.count == 2 * tally.latency.count


def test_a_run_is_known_by_its_cell_its_seed_and_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs"
    with Kept(path) as kept:
        assert kept.of([TASK]) == {}
        kept.add(TASK, Tally(calls=7))
        assert kept.of([TASK])[TASK].calls == 7
    with Kept(path) as kept:
        assert kept.of([TASK])[TASK].calls == 7
        assert kept.of([Task(CELL, 2), Task(CELL.but(rate=201.0), 1), Task(CELL.but(policy="plain"), 1)]) == {}
        monkeypatch.setattr(kept_module, "_program", lambda: "another one")
        assert kept.of([TASK]) == {}


def test_a_line_that_was_not_finished_is_passed_over_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with Kept(path) as kept:
        kept.add(TASK, Tally(calls=7))
        kept.add(Task(CELL, 2), Tally(calls=8))
    path.write_bytes(path.read_bytes()[:-20])
    with Kept(path) as kept:
        assert set(kept.of([TASK, Task(CELL, 2)])) == {TASK}
        kept.add(Task(CELL, 2), Tally(calls=9))
    with Kept(path) as kept:
        assert {task.seed: tally.calls for task, tally in kept.of([TASK, Task(CELL, 2)]).items()} == {1: 7, 2: 9}


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"a table\nof something else\n", b'{"rows": []}\n{}\n', b'{"rows": []}', b"[1]"]
)
def test_another_kind_of_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs"
    path.write_bytes(content)
    with pytest.raises(BadOption, match="not a file of finished runs"):
        Kept(path)
    assert path.read_bytes() == content


def test_promises_go_on_where_they_were_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after three runs: the next time only the others are run, and the outcome is that of one go."""
    path, begun = tmp_path / "runs", list[Task]()

    def interrupted(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
        for number, finished in enumerate(short(tasks, jobs), 1):
            yield finished
            if number == 3:
                raise KeyboardInterrupt

    def counted(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
        begun.extend(tasks)
        yield from short(tasks, jobs)

    monkeypatch.setattr(program, "run_tasks", counted)
    whole = CliRunner().invoke(program.main, [*SMALL, "--json", str(tmp_path / "whole.json")])
    all_of_them = len(begun)
    monkeypatch.setattr(program, "run_tasks", interrupted)
    first = CliRunner().invoke(program.main, [*SMALL, "--keep", str(path)])
    assert first.exit_code == 130 and "the same command goes on" in first.output
    begun.clear()
    monkeypatch.setattr(program, "run_tasks", counted)
    second = CliRunner().invoke(program.main, [*SMALL, "--keep", str(path), "--json", str(tmp_path / "parts.json")])
    assert second.exit_code == whole.exit_code != 2
    assert 0 < len(begun) < all_of_them
    documents = [json.loads((tmp_path / name).read_text()) for name in ("whole.json", "parts.json")]
    assert documents[0]["comparisons"] == documents[1]["comparisons"] != []
    assert documents[0]["gains"] == documents[1]["gains"]


def test_what_cannot_be_written_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Tally]]:
        raise AssertionError("nothing is to run")

    monkeypatch.setattr(program, "run_tasks", never)
    for option in ("--json", "--keep"):
        result = CliRunner().invoke(program.main, [*SMALL, option, str(tmp_path / "no" / "file")])
        assert result.exit_code == 2 and "no" in result.output
