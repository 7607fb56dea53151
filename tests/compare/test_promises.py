"""The judges of what is promised: limits, harm among many comparisons, and the share of the gain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.compare.promises import ablation, harm, lasting, reach
from cluster.compare.promises.__main__ import main
from cluster.compare.promises.cells import cell_of, tasks_for
from cluster.compare.promises.together import together
from cluster.compare.statistics import student_t
from cluster.compare.tally import Tally

SEEDS = (1, 2, 3)


def tally(latencies: dict[float, int], *, busy: float = 0.010) -> Tally:
    """A run with so many calls of each latency (seconds), each busy for as long."""
    made = Tally()
    for seconds, count in latencies.items():
        for _ in range(count):
            made.latency.add(seconds)
    made.calls = sum(latencies.values())
    made.executions = made.calls
    made.busy_seconds = busy * made.calls
    return made


def judge(ours: list[Tally], plain: list[Tally], rival: list[Tally] | None = None) -> harm.Report:
    (cell,) = harm.cells_of(["pauses"], [0.6], [0.005], 1.0)
    results = {}
    for policy, tallies in (("tied", ours), ("plain", plain), ("hedged", rival or ours)):  # auto is the tie here
        (tasks,) = [tasks_for([cell.but(policy=policy)], SEEDS)]
        own = [task for task in tasks if task.cell.policy == policy]
        results.update(zip(own, tallies, strict=True))
    return harm.report([cell], SEEDS, results, ["hedged"])


def varied(factor: float, *, tail: float = 0.200, busy: float = 0.010) -> list[Tally]:
    """Runs of three seeds that vary by a percent."""
    return [tally({0.007 * factor * k: 990, tail * factor * k: 10}, busy=busy * k) for k in (0.99, 1.0, 1.01)]


def growing(*which: int) -> list[Tally]:
    """Runs of which these have queues that grow to the end."""
    runs = varied(1.0)
    for index in which:
        runs[index].queue = [(second, 100.0 * second) for second in range(40)]
    return runs


@pytest.mark.parametrize(
    ("ours", "plain", "unstable", "collapsed"),
    [
        ((0,), (), 0, 0),  # one queue of three may grow by chance
        ((0, 1), (), 0, 1),
        ((0, 1, 2), (), 0, 1),
        ((0, 1), (1,), 0, 0),  # near capacity, with seed 1 plain's too
        ((0, 1), (2,), 0, 1),
        ((), (1,), 0, 0),
        ((), (0, 1), 1, 0),
        ((0, 1, 2), (0, 1), 1, 0),
    ],
)
def test_queues_that_grow_where_plains_do_not_are_harm(
    ours: tuple[int, ...], plain: tuple[int, ...], unstable: int, collapsed: int
) -> None:
    found = judge(growing(*ours), growing(*plain))
    assert (len(found.unstable), len(found.gains), len(found.collapsed)) == (unstable, 1 - unstable, collapsed)
    assert found.proven == [] and found.holds == (not collapsed)


def test_students_tail_is_that_of_the_table() -> None:
    for freedom in range(1, 31):
        assert harm.student_tail(student_t(freedom), freedom) == pytest.approx(0.025, rel=1e-3)
        assert harm.student_tail(-student_t(freedom), freedom) == pytest.approx(0.975, rel=1e-3)
    with pytest.raises(ValueError, match="freedom"):
        harm.student_tail(1.0, 0)


def test_what_is_clearly_worse_is_proven_and_what_is_alike_is_not() -> None:
    worse = judge(varied(1.2), varied(1.0))
    assert {one.quantity for one in worse.proven} == {"p50", "p99", "p99.9"} and not worse.holds
    alike = judge(varied(1.04), varied(1.0))
    assert not alike.proven and not any(one.beyond for one in alike.harms) and alike.holds


def test_work_is_held_against_the_budget() -> None:
    found = judge(varied(1.0, busy=0.0107), varied(1.0))
    assert [one.quantity for one in found.proven] == ["busy time"]
    assert judge(varied(1.0, busy=0.0104), varied(1.0)).proven == []


def test_a_mean_beyond_the_limit_that_chance_explains_is_shown_and_not_proven() -> None:
    noisy = [tally({0.007: 990, tail: 10}) for tail in (0.150, 0.200, 0.400)]
    found = judge(noisy, varied(1.0))
    assert [one.quantity for one in found.harms if one.beyond] == ["p99.9"]
    assert found.proven == []


def test_one_bad_cell_among_many_comparisons_must_be_beyond_doubt() -> None:
    cell = cell_of("pauses", "auto", latency=0.0, load=0.5)
    good = [harm.Harm(cell, "p50", 1.0, 1.05, 0.5) for _ in range(99)]
    assert harm.discoveries([*good, harm.Harm(cell, "p50", 1.2, 1.05, 0.004)]) == []
    assert len(harm.discoveries([*good, harm.Harm(cell, "p50", 1.2, 1.05, 0.0004)])) == 1
    assert len(harm.discoveries([harm.Harm(cell, "p50", 1.2, 1.05, 0.004)])) == 1


def document(scenario: str, chances: list[float], *, ratio: float = 1.2, reached: bool = True) -> dict[str, object]:
    """What ``harm --json`` writes of one cell, with so many comparisons."""
    names = {"scenario": scenario, "load": 0.5, "mesh_latency_ms": 1.0}
    comparisons = [
        {**names, "quantity": "p50", "ratio": ratio, "limit": 1.05, "chance": chance, "proven": True}
        for chance in chances
    ]
    return {"comparisons": comparisons, "gains": [{**names, "reached": reached}], "unstable": [names]}


def test_several_runs_are_judged_as_one_grid() -> None:
    """What alone would be proven is not, among a hundred comparisons that are as chance makes them."""
    (alone,) = together([document("pauses", [0.004])])
    assert len(alone.proven) == 1
    calm = document("intrinsic", [0.5] * 99, ratio=0.9, reached=False)
    first, second = together([document("pauses", [0.004]), calm])
    assert (first.proven, second.proven) == ([], [])
    assert (first.beyond, first.worst, first.reached, first.cells) == (1, {"p50": 1.2}, 1, 1)
    assert (second.beyond, second.reached, second.unstable, second.comparisons) == (0, 0, 1, 99)
    assert len(together([document("pauses", [0.0004]), calm])[0].proven) == 1


def test_documents_are_judged_together_from_the_command_line(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, chance in zip(paths, (0.0001, 0.4), strict=True):
        path.write_text(json.dumps(document(path.stem, [chance])))
    result = CliRunner().invoke(main, ["together", *map(str, paths)])
    assert result.exit_code == 1 and "2 cells, 2 comparisons, 1 proven harm" in result.output
    paths[0].write_text(json.dumps({**document("a", [0.4]), "collapsed": [{"scenario": "a", "load": 0.9}]}))
    result = CliRunner().invoke(main, ["together", *map(str, paths)])
    assert result.exit_code == 1 and "0 proven harm, 1 collapsed" in result.output and '"load": 0.9' in result.output
    paths[0].write_text("{}")
    result = CliRunner().invoke(main, ["together", *map(str, paths)])
    assert result.exit_code == 2 and "not a document of harm" in result.output


def test_a_brown_out_that_plain_can_not_bear_is_not_run() -> None:
    cells = harm.cells_of(["brown-out"], [0.5, 0.7], [0.0, 0.001], 1.0)
    tasks = harm.plain_tasks_of(cells, SEEDS)
    assert {task.cell.load for task in tasks} == {0.5} and len(tasks) == len(SEEDS)
    calm = [tally({0.010: 100}) for _ in tasks]
    stable, unstable = harm.split(cells, SEEDS, dict(zip(tasks, calm, strict=True)))
    assert {cell.load for cell in stable} == {0.5} and {cell.load for cell in unstable} == {0.7}


def test_the_share_of_the_gain() -> None:
    assert harm.has_the_gain(0.30, 0.36) and not harm.has_the_gain(0.30, 0.38)
    assert harm.has_the_gain(0.95, 1.0), "there is nothing to be had"
    found = judge(varied(1.0, tail=0.150), varied(1.0), varied(1.0, tail=0.050))
    assert found.reached == 0 and not found.holds


def test_goals_are_limits_of_real_cells() -> None:
    tasks = reach.tasks_of(0.1, SEEDS)
    assert len(tasks) == len(set(tasks)) and {task.seed for task in tasks} == set(SEEDS)
    assert {task.cell.policy for task in tasks} == {"plain", "tied"}, "auto is the tie in all of them"
    for goal in reach.GOALS:
        assert set(goal.limits) <= set(reach.QUANTITIES)
    one = reach.tasks_of(0.1, [1], "pauses, 60 %, 5 ms")
    assert [(task.cell.policy, task.cell.load) for task in one] == [("plain", 0.6), ("tied", 0.6)]


def test_busy_time_is_too_much_when_the_whole_interval_is() -> None:
    cell = cell_of("pauses", "auto", latency=0.0, load=0.5)
    above = reach.Reached(cell, reach.BUSY, 1.0, 1.002, 0.999, 1.005)
    assert above.holds and above.by_chance and not above.surely
    assert not reach.Reached(cell, reach.BUSY, 1.0, 1.004, 1.001, 1.007).holds
    assert not reach.Reached(cell, reach.BUSY, 1.0, 1.002, None, None).holds
    assert not reach.Reached(cell, "p99.9 ms", 75.0, 76.0, 70.0, 82.0).holds


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("harm --scenarios nothing", "'nothing' is not one of"),
        ("harm --loads 2", "loads"),
        ("harm --latencies 5", "no unit"),
        ("harm --rivals best", "'best' is not one of"),
        ("reach --only nothing", "nothing has 'nothing'"),
        ("reach --scale 0", "scale"),
    ],
)
def test_bad_usage(arguments: str, why: str) -> None:
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 2 and why in result.output


def test_ctrl_c_in_a_run_that_is_looked_at_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scale: float, seeds: object) -> list[reach.Reached]:
        raise KeyboardInterrupt

    monkeypatch.setitem(lasting.SUBJECTS, "steady", interrupted)
    result = CliRunner().invoke(main, ["reach", "--only", "steady"])
    assert result.exit_code == 130 and "interrupted in the run 'steady'" in result.output


def test_the_ladder_has_each_scenario_at_three_loads_and_seven_rungs() -> None:
    cells = ablation.cells_of(0.1)
    assert len(cells) == len(set(cells)) == (4 * 3 + 4) * 4 * 7
    assert {cell.rate for cell in cells if cell.scenario == "long-tail"} == {100.0, 250.0, 380.0, 400.0}
    assert [cell.policy for cell in cells[:7]] == list(ablation.LADDER)


@pytest.mark.agreement
def test_a_rung_of_the_ladder_runs_and_is_written(tmp_path: Path) -> None:
    arguments = "ablation --only long-tail --latencies 1ms --seeds 1 --scale 0.01 --jobs 1 --json"
    result = CliRunner().invoke(main, [*arguments.split(), str(tmp_path / "rows.json")])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 28 and {row["policy"] for row in rows} == set(ablation.LADDER)


@pytest.mark.agreement
def test_a_small_grid_runs_and_is_written(tmp_path: Path) -> None:
    path = tmp_path / "harm.json"
    arguments = "harm --scenarios long-tail --loads 0.3 --latencies 1ms --rivals tied --seeds 2 --scale 0.01 --jobs 1"
    result = CliRunner().invoke(main, [*arguments.split(), "--json", str(path)])
    assert result.exit_code in (0, 1), result.output
    document = json.loads(path.read_text())
    assert len(document["comparisons"]) == 4 and len(document["gains"]) == 1
    assert "1 cells in which plain is stable" in result.output
