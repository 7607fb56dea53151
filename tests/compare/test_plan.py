"""Options and scenarios become cells, or are refused in one line that names the option and its limit."""

from pathlib import Path

import click
import pytest

from cluster.compare.grid import plain_cell, rows_of, tasks_of
from cluster.compare.options import read_options
from cluster.compare.plan import Plan
from cluster.compare.policies import POLICIES, policy_of
from cluster.compare.scenarios import SCENARIOS
from tiedreq.core.policy import Hedged, Plain, Tied


def plan_of(*arguments: str) -> Plan:
    return read_options(arguments).plan


def refusal(*arguments: str) -> str:
    with pytest.raises(click.ClickException) as raised:
        read_options(arguments)
    assert raised.value.exit_code == 2
    assert "\n" not in raised.value.message
    return raised.value.message


def test_without_options_it_is_the_comparison_the_project_exists_for() -> None:
    plan = plan_of()
    assert plan.policies == ("hedged", "tied-classic", "tied")
    assert [cell.mesh_latency.default.mean for cell in plan.cells[::3]] == [0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02]
    first = plan.cells[0]
    assert (first.scenario, first.load, first.rate, first.world) == ("pauses", 0.6, 4_800.0, "sim")
    assert plan.seeds == (1,) and plan.options["overrides"] == {}
    assert len(tasks_of(plan.cells, plan.seeds)) == 7 * 2 + 2  # hedged and plain notice nothing of the latency


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_makes_cells_with_every_policy(name: str) -> None:
    plan = plan_of("--scenario", name, "--policies", "all")
    assert set(plan.policies) == set(POLICIES)
    for cell in plan.cells:
        policy_of(cell)
        assert cell.load is None or 0.04 < cell.load < 1.1


def test_scenarios_have_the_published_loads() -> None:
    loads = [round(cell.load or 0, 3) for cell in plan_of("--scenario", "rare-stalls", "--policies", "plain").cells]
    assert loads == [0.494, 0.889]
    tail = plan_of("--scenario", "long-tail", "--policies", "plain", "--rate", "380,400").cells
    assert [round(cell.load or 0, 3) for cell in tail] == [0.996, 1.048]


def test_options_override_a_scenario_and_are_listed() -> None:
    plan = plan_of(
        "--scenario", "pauses", "--load", ".5", "--slots", "4", "--seed", "5", "--seeds", "3", "--calls", "100"
    )
    assert {(cell.slots, cell.rate, cell.calls, cell.duration) for cell in plan.cells} == {(4, 2_000.0, 100, None)}
    assert plan.seeds == (5, 6, 7)
    assert plan.options["overrides"] == {"load": [0.5], "slots": 4, "calls": 100}


def test_a_service_of_ones_own() -> None:
    plan = plan_of("--replicas", "3", "--slots", "2", "--service", "const(10ms)", "--rate", "30,60", "--fan-out", "1,5")
    assert [(cell.rate, cell.load, cell.fan_out) for cell in plan.cells[::3]] == [
        (30.0, pytest.approx(0.05), 1), (30.0, pytest.approx(0.05), 5),
        (60.0, pytest.approx(0.1), 1), (60.0, pytest.approx(0.1), 5),
    ]  # fmt: skip
    assert plan.cells[0].scenario is None


def test_a_delay_is_that_of_learned_and_of_fixed_policies() -> None:
    fixed, tied = (
        policy_of(cell) for cell in plan_of("--policies", "hedged-fixed,tied", "--backup-after", "7ms").cells[:2]
    )
    assert isinstance(fixed, Hedged) and (fixed.backup.delay, fixed.backup.budget) == (0.007, None)
    assert (
        isinstance(tied, Tied) and tied.backup is not None and (tied.backup.delay, tied.backup.budget) == (0.007, 0.05)
    )


def test_the_plain_cell_is_the_same_for_every_policy_and_latency() -> None:
    assert len({plain_cell(cell) for cell in plan_of("--policies", "all").cells}) == 1
    assert isinstance(policy_of(plain_cell(plan_of().cells[0])), Plain)


def test_rows_are_finished_when_all_of_their_runs_are() -> None:
    plan = plan_of("--seeds", "2")
    assert rows_of(plan.cells, plan.seeds, {}) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--replicas 0", "replicas: 0 is not a whole number from 1 to 1000"),
        ("--slots 2000", "slots: 2000 is not a whole number from 1 to 1000"),
        ("--load 0", "load: 0 is not above 0"),
        ("--load 11", "load: 11.0 is outside 0 to 10"),
        ("--load .5,.5", "the same value twice"),
        ("--rate many", "rate: 'many' is not a number"),
        ("--rate 5 --load .5", "rate: not together with --load"),
        ("--duration 3s --calls 5", "duration: not together with --calls"),
        ("--mesh-latency 5", "'5' has no unit"),
        ("--service gamma(3ms)", "unknown law 'gamma'"),
        ("--service const(0)", "takes no time"),
        ("--slow 12:3", "slow: there is no replica 12, only 0 to 9"),
        ("--policies tied,best", "policies: 'best' is not one of plain,"),
        ("--policies tied,tied", "policies: 'tied' is there twice"),
        ("--scenario panic", "scenario: 'panic' is not one of pauses,"),
        ("--picker best", "'best' is not one of"),
        ("--copies 1", "copies: 1 is not a whole number from 2 to 8"),
        ("--backup-budget 2", "backup-budget: 2.0 is outside 0 to 1"),
        ("--backup-budget nan", "backup-budget: nan is outside 0 to 1"),
        ("--backups 0", "backups: 0 is not a whole number from 1 to 8"),
        ("--seeds 0", "seeds: 0 is outside 1 to 10000"),
        ("--jobs 0", "jobs: 0 is outside 1 to 1024"),
        ("--engine k8s", "'k8s' is not one of"),
        ("--address auto", "address: it is that of a Ray cluster, and --engine is local"),
        ("--engine ray --address host", "neither auto nor HOST:PORT"),
        ("--fan-out 1.5", "fan-out: '1.5' is not a whole number"),
        ("--scenario stragglers --fan-out 2", "fan-out: workers in a closed loop"),
        ("--app shop:service", "app: somebody's own service can be compared live only"),
        ("--trace nowhere.csv", "trace: nowhere.csv: No such file or directory"),
        ("--trace nowhere.csv --rate 5", "trace: not together with --rate"),
        ("--expect hedged.p50_ms<plain.p50_ms", "expect: 'plain' is not compared here"),
        ("--seed", "requires an argument"),
        ("--calls 0", "calls: 0 is not a whole number from 1"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: str, told: str) -> None:
    assert told in refusal(*arguments.split(" "))


def test_help_lists_scenarios_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        read_options(["--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert all(name in shown for name in (*SCENARIOS, *POLICIES))


def test_where_results_go(tmp_path: Path) -> None:
    options = read_options(["--out", str(tmp_path / "report"), "--json", "-", "--jobs", "3"])
    assert (options.out, options.json, options.jobs) == (tmp_path / "report", "-", 3)
